//! `dbStats`: how much there is in a database.

use banyan_access::check::Access;
use banyan_query::view;
use banyan_replication::time_series;
use banyan_security::Action;
use bson::{RawDocumentBuf, cstr, rawdoc};

use super::coll_stats::{number, scale};
use super::list_databases::index_bytes;
use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::names::check_database_name;
use crate::params;

pub static SPEC: CommandSpec = CommandSpec::new("dbStats", Run::Inline(run))
    .access(Access::Database(Action::DbStats))
    .aliases(&["dbstats"])
    .needs(Needs::Data)
    .lenient();

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    check_database_name(ctx.database())?;
    let scale_factor = scale(ctx)?;
    let catalog = ctx.node.replica.store.catalog();
    let (mut collections, mut objects, mut bytes, mut indexes, mut index_size) = (0, 0, 0, 0, 0);
    let mut series = 0;
    for collection in catalog
        .database(ctx.database())
        .into_iter()
        .flat_map(|d| d.collections())
    {
        collections += 1;
        series += u64::from(time_series::of(collection).is_some());
        objects += collection.documents();
        bytes += collection.bytes();
        indexes += collection.indexes.len() as u64;
        index_size += index_bytes(collection);
    }
    // Each definition is a document; a time-series collection is a view that nobody defined.
    let views = catalog.get(ctx.database(), view::COLLECTION);
    let views = views.map_or(0, |definitions| definitions.documents()) + series;
    let views = i32::try_from(views).unwrap_or(i32::MAX);
    let long = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let scaled = |value: u64| long(value) as f64 / scale_factor as f64;
    let average = if objects == 0 {
        0.0
    } else {
        bytes as f64 / objects as f64
    };
    let (used, total) = file_system(&ctx.node.info.dbpath);
    let free = ctx
        .field("freeStorage")
        .and_then(|f| params::number(f.value));
    // Nothing is kept for later: all collections lie in the same files.
    let free = free.is_some_and(|free| free != 0).then_some(0.0);
    let mut reply = rawdoc! {
        "db": ctx.database(),
        "collections": collections,
        "views": views,
        "objects": number(long(objects)),
        "avgObjSize": average,
        "dataSize": scaled(bytes),
        "storageSize": scaled(bytes),
    };
    let append_free = |reply: &mut RawDocumentBuf, name| {
        if let Some(free) = free {
            reply.append(name, free);
        }
    };
    append_free(&mut reply, cstr!("freeStorageSize"));
    reply.append(cstr!("indexes"), number(long(indexes)));
    reply.append(cstr!("indexSize"), scaled(index_size));
    append_free(&mut reply, cstr!("indexFreeStorageSize"));
    reply.append(cstr!("totalSize"), scaled(bytes + index_size));
    append_free(&mut reply, cstr!("totalFreeStorageSize"));
    reply.append(cstr!("scaleFactor"), scale_factor as f64);
    reply.append(cstr!("fsUsedSize"), scaled(used));
    reply.append(cstr!("fsTotalSize"), scaled(total));
    reply.append(cstr!("ok"), 1.0);
    Ok(reply)
}

/// Bytes used and bytes in all on the file system under the data.
fn file_system(path: &std::path::Path) -> (u64, u64) {
    match nix::sys::statvfs::statvfs(path) {
        Ok(stat) => {
            let block = stat.fragment_size();
            let total = stat.blocks() * block;
            (total.saturating_sub(stat.blocks_free() * block), total)
        }
        Err(_) => (0, 0),
    }
}
