//! `listDatabases`: what there is, and how large.

use bson::{RawArrayBuf, RawDocumentBuf, rawdoc};

use super::table::{CommandResult, CommandSpec, Run};
use crate::context::CommandContext;
use crate::execute::first::{is_listed, list_filter};

pub static SPEC: CommandSpec = CommandSpec::new("listDatabases", Run::Inline(run))
    .aliases(&["listdatabases"])
    .admin_only()
    .fields(&["filter", "nameOnly"])
    .ignored(&["authorizedDatabases"])
    .computes();

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let filter = list_filter(ctx)?;
    let name_only = ctx
        .field("nameOnly")
        .map(|field| field.bool())
        .transpose()?
        .unwrap_or(false);
    let catalog = ctx.node.store.catalog();
    let mut databases = RawArrayBuf::new();
    let mut total = 0;
    for database in catalog.databases() {
        let size: u64 = database
            .collections()
            .map(|c| c.bytes() + index_bytes(c))
            .sum();
        let size = i64::try_from(size).unwrap_or(i64::MAX);
        let mut described: RawDocumentBuf = rawdoc! { "name": &*database.name };
        if !name_only {
            described.append(bson::cstr!("sizeOnDisk"), size);
            described.append(
                bson::cstr!("empty"),
                database.collections().all(|c| c.documents() == 0),
            );
        }
        if is_listed(filter.as_ref(), &described)? {
            total += size;
            databases.push(described);
        }
    }
    if name_only {
        return Ok(rawdoc! { "databases": databases, "ok": 1.0 });
    }
    Ok(rawdoc! {
        "databases": databases,
        "totalSize": total,
        "totalSizeMb": total / (1024 * 1024),
        "ok": 1.0,
    })
}

pub fn index_bytes(collection: &banyan_storage::Collection) -> u64 {
    collection
        .indexes
        .iter()
        .map(|index| index.key_bytes())
        .sum()
}
