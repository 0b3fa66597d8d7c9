//! `listCollections`: the collections of a database, with their options.

use banyan_storage::Collection;
use bson::{RawDocumentBuf, cstr, rawdoc};

use super::table::{CommandResult, CommandSpec, Run};
use crate::context::{CommandContext, check_database_name};
use crate::cursors::first;
use crate::params;
use crate::virtual_collections::local;

pub static SPEC: CommandSpec = CommandSpec::new("listCollections", Run::Inline(run))
    .aliases(&["listcollections"])
    .fields(&["filter", "nameOnly", "cursor"])
    .ignored(&["authorizedCollections", "includePendingDrops"])
    .computes();

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    check_database_name(ctx.database())?;
    let filter = first::list_filter(ctx)?;
    let name_only = ctx
        .field("nameOnly")
        .map(|field| field.bool())
        .transpose()?
        .unwrap_or(false);
    let catalog = ctx.node.replica.store.catalog();
    let collections = catalog
        .database(ctx.database())
        .into_iter()
        .flat_map(|d| d.collections());
    let mut listed = Vec::new();
    for collection in collections {
        let described = describe(collection);
        if !first::is_listed(filter.as_ref(), &described)? {
            continue;
        }
        listed.push(if name_only {
            brief(collection)
        } else {
            described
        });
    }
    for (name, options) in local::collections(ctx.node, ctx.database()) {
        let mut described = rawdoc! { "name": name, "type": "collection" };
        if !name_only {
            described.append(cstr!("options"), options);
            described.append(cstr!("info"), rawdoc! { "readOnly": true });
        }
        if first::is_listed(filter.as_ref(), &described)? {
            listed.push(described);
        }
    }
    first::reply_with_list(
        ctx,
        format!("{}.$cmd.listCollections", ctx.database()),
        listed,
    )
}

fn brief(collection: &Collection) -> RawDocumentBuf {
    rawdoc! { "name": collection.namespace.collection(), "type": "collection" }
}

fn describe(collection: &Collection) -> RawDocumentBuf {
    let mut document = brief(collection);
    document.append(cstr!("options"), collection.options.clone());
    let uuid = params::uuid(&collection.uuid);
    document.append(cstr!("info"), rawdoc! { "readOnly": false, "uuid": uuid });
    let id_index = collection.id_index();
    if let Some(index) = id_index.filter(|index| !index.is_clustered()) {
        document.append(cstr!("idIndex"), index.spec.clone());
    }
    document
}
