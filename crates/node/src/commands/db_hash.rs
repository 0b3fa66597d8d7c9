//! `dbHash`: a digest of every collection of a database, to hold two members against each other.

use std::time::Instant;

use banyan_access::check::Access;
use banyan_execution::Interrupt;
use banyan_security::Action;
use banyan_storage::{Collection, KeyRange, Snapshot};
use banyan_wire::{CommandError, ErrorCode};
use bson::spec::BinarySubtype;
use bson::{RawArrayBuf, RawBinaryRef, RawBsonRef, RawDocumentBuf, cstr, rawdoc};
use md5::{Digest, Md5};

use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use crate::context::CommandContext;
use crate::errors;
use crate::names::check_database_name;

pub static SPEC: CommandSpec = CommandSpec::new("dbHash", Run::Future(run))
    .access(Access::Database(Action::DbHash))
    .aliases(&["dbhash"])
    .fields(&["collections"])
    .ignored(&["skipTempCollections"])
    .computes();

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        check_database_name(ctx.database())?;
        let wanted = wanted(ctx)?;
        let started = Instant::now();
        let (catalog, snapshot) = ctx.node.replica.view();
        let mut collections = RawDocumentBuf::new();
        let mut uuids = RawDocumentBuf::new();
        let mut capped = RawArrayBuf::new();
        let mut whole = Md5::new();
        let known = catalog.database(ctx.database());
        for collection in known.into_iter().flat_map(|known| known.collections()) {
            let name = collection.namespace.collection();
            let is_left_out =
                name.starts_with("tmp.mr.") || (!wanted.is_empty() && !wanted.contains(&name));
            if is_left_out {
                continue;
            }
            let hash = ctx
                .compute(|| digest(collection, &snapshot, ctx.interrupt()))
                .await?;
            whole.update(&hash);
            let Ok(key) = bson::raw::CString::try_from(name) else {
                continue;
            };
            collections.append(&key, hash);
            let uuid = RawBinaryRef {
                subtype: BinarySubtype::Uuid,
                bytes: &collection.uuid,
            };
            uuids.append(&key, uuid);
            if collection.is_capped {
                capped.push(name);
            }
        }
        let mut out = rawdoc! { "host": ctx.node.info.address.as_str() };
        out.append(cstr!("collections"), collections);
        out.append(cstr!("capped"), capped);
        out.append(cstr!("uuids"), uuids);
        out.append(cstr!("md5"), hex(whole));
        let millis = started.elapsed().as_millis().min(i32::MAX as u128) as i32;
        out.append(cstr!("timeMillis"), millis);
        out.append(cstr!("ok"), 1.0);
        Ok(out)
    })
}

/// Which collections are asked for: all, if none is named.
fn wanted<'a>(ctx: &'a CommandContext<'a>) -> Result<Vec<&'a str>, CommandError> {
    let Some(RawBsonRef::Array(list)) = ctx.field("collections").map(|field| field.value) else {
        return Ok(Vec::new());
    };
    let mut names = Vec::new();
    for name in list {
        match name {
            Ok(RawBsonRef::String(name)) => names.push(name),
            _ => {
                return Err(CommandError::new(
                    ErrorCode::BadValue,
                    "collections entries have to be strings",
                ));
            }
        }
    }
    Ok(names)
}

/// Of the documents' bytes, in `_id` order (in insertion order in a capped collection).
fn digest(
    collection: &Collection,
    snapshot: &Snapshot,
    interrupt: &Interrupt,
) -> Result<String, CommandError> {
    let mut digest = Md5::new();
    let mut count = 0_u64;
    let mut take = |bytes: &[u8]| {
        digest.update(bytes);
        count += 1;
        match count.is_multiple_of(64) {
            true => interrupt.check().map_err(errors::query),
            false => Ok(()),
        }
    };
    let in_order = collection.is_capped || collection.clustered_index.is_some();
    match collection.id_index().filter(|_| !in_order) {
        Some(index) => {
            for entry in snapshot.scan_index(index, KeyRange::all(), false) {
                let (_, record) = entry.map_err(errors::storage)?;
                let found = snapshot.record(collection.id, &record);
                let document = found.map_err(errors::storage)?.ok_or_else(|| {
                    let what = format!("record {record} is missing in {}", collection.namespace);
                    CommandError::new(ErrorCode::InternalError, what)
                })?;
                take(document.as_bytes())?;
            }
        }
        None => {
            for entry in snapshot.records(collection.id, .., false) {
                take(entry.map_err(errors::storage)?.1.as_bytes())?;
            }
        }
    }
    Ok(hex(digest))
}

fn hex(digest: Md5) -> String {
    let bytes = digest.finalize();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
