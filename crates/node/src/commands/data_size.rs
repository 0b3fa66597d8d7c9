//! `dataSize`: the size of a collection's documents, or of a range of them.

use std::time::Instant;

use banyan_access::check::Access;
use banyan_access::reads_and_writes;
use banyan_document::is_true;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::coll_stats::number;
use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use crate::context::CommandContext;
use crate::errors;
use crate::names::check_collection_name;
use crate::params;

pub static SPEC: CommandSpec = CommandSpec::new("dataSize", Run::Future(run))
    .access(Access::Checked(reads_and_writes::data_size))
    .aliases(&["datasize"])
    .lenient();

#[derive(Default)]
struct Size {
    bytes: i64,
    documents: i64,
}

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(data_size(ctx))
}

async fn data_size(ctx: &CommandContext<'_>) -> CommandResult {
    let began = Instant::now();
    let name = match ctx.argument() {
        Some(RawBsonRef::String(name)) => name,
        other => {
            let kind = other.map_or("missing", |value| banyan_document::kind::name(&value));
            return Err(CommandError::new(
                ErrorCode::BadValue,
                format!("collection name has invalid type {kind}"),
            ));
        }
    };
    let Some((database, collection)) = name.split_once('.') else {
        return Err(CommandError::new(
            ErrorCode::InvalidNamespace,
            format!("Invalid namespace specified '{name}'"),
        ));
    };
    check_collection_name(database, collection)?;
    let bound = |name| match ctx.field(name).map(|field| field.value) {
        None => Ok(None),
        Some(RawBsonRef::Document(bound)) => Ok(Some(bound)),
        Some(_) => Err(both(&format!("{name} key must be an object"))),
    };
    let (min, max) = (bound("min")?, bound("max")?);
    // Anything else is as if it were not there.
    let pattern = ctx
        .field("keyPattern")
        .and_then(|field| field.value.as_document());
    let size = match (min, max) {
        (None, None) => whole(ctx, database, collection)?,
        (Some(_), None) => return Err(both("max must be set if min is set")),
        (None, Some(_)) => return Err(both("min must be set if max is set")),
        (Some(min), Some(max)) => {
            let range = range(collection, pattern, min, max);
            Some(of_range(ctx, database, collection, range).await?)
        }
    };
    let estimate = ctx
        .field("estimate")
        .is_some_and(|field| is_true(field.value));
    let mut reply = RawDocumentBuf::new();
    if size.is_some() {
        reply.append(cstr!("estimate"), estimate);
    }
    let size = size.unwrap_or_default();
    reply.append(cstr!("size"), size.bytes);
    reply.append(cstr!("numObjects"), number(size.documents));
    let millis = i64::try_from(began.elapsed().as_millis()).unwrap_or(i64::MAX);
    reply.append(cstr!("millis"), millis);
    reply.append(cstr!("ok"), 1.0);
    Ok(reply)
}

fn both(text: &str) -> CommandError {
    CommandError::new(ErrorCode::BadValue, text)
}

/// What is known of the whole collection, if there is one.
fn whole(
    ctx: &CommandContext<'_>,
    database: &str,
    collection: &str,
) -> Result<Option<Size>, CommandError> {
    let (catalog, snapshot) = ctx.view();
    let Some(found) = catalog.get(database, collection) else {
        return Ok(None);
    };
    let (documents, bytes) = snapshot.counts(found.id).map_err(errors::storage)?;
    Ok(Some(Size { bytes, documents }))
}

/// The sizes of the documents between two keys of an index, which is that of the bounds if none is
/// named.
fn range(
    collection: &str,
    pattern: Option<&RawDocument>,
    min: &RawDocument,
    max: &RawDocument,
) -> RawDocumentBuf {
    let hint = match pattern {
        Some(pattern) => pattern.to_owned(),
        None => {
            let mut pattern = RawDocumentBuf::new();
            for (name, _) in min.iter().flatten() {
                pattern.append(name, 1);
            }
            pattern
        }
    };
    rawdoc! {
        "find": collection,
        "min": min.to_owned(),
        "max": max.to_owned(),
        "hint": hint,
        "projection": { "_id": 0, "size": { "$bsonSize": "$$ROOT" } },
    }
}

async fn of_range(
    ctx: &CommandContext<'_>,
    database: &str,
    collection: &str,
    find: RawDocumentBuf,
) -> Result<Size, CommandError> {
    let mut size = Size::default();
    let mut reply = ctx.nested(database, find).await?;
    loop {
        let Some(RawBsonRef::Document(cursor)) = banyan_document::field(&reply, "cursor") else {
            return Ok(size);
        };
        for name in ["firstBatch", "nextBatch"] {
            let Some(RawBsonRef::Array(batch)) = banyan_document::field(cursor, name) else {
                continue;
            };
            for line in banyan_document::items(batch) {
                let line = line.value().as_document();
                let bytes = line.and_then(|line| banyan_document::field(line, "size"));
                size.bytes += bytes.and_then(params::number).unwrap_or(0);
                size.documents += 1;
            }
        }
        let id = match banyan_document::field(cursor, "id") {
            Some(RawBsonRef::Int64(id)) if id != 0 => id,
            _ => return Ok(size),
        };
        let more = rawdoc! { "getMore": id, "collection": collection };
        reply = ctx.nested(database, more).await?;
    }
}
