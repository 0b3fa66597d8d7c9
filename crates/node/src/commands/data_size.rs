//! `dataSize`: the size of a collection's documents, or of a range of them.

use std::time::Instant;

use banyan_access::check::Access;
use banyan_access::reads_and_writes;
use banyan_document::is_true;
use banyan_replication::views::refuse as refuse_view;
use banyan_storage::{Collection, Index, Namespace, Snapshot};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::coll_stats::number;
use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use crate::context::CommandContext;
use crate::errors;
use crate::names::{check_database_name, check_outline};
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
    check_outline(database, collection)?;
    check_database_name(database)?;
    let bound = |name| match ctx.field(name).map(|field| field.value) {
        None => Ok(None),
        Some(RawBsonRef::Document(bound)) => Ok(Some(bound)),
        Some(_) => Err(refused(&format!("{name} key must be an object"))),
    };
    let (min, max) = (bound("min")?, bound("max")?);
    // Anything else is as if it were not there.
    let pattern = ctx
        .field("keyPattern")
        .and_then(|field| field.value.as_document());
    match (min, max) {
        (Some(_), None) => return Err(refused("max must be set if min is set")),
        (None, Some(_)) => return Err(refused("min must be set if max is set")),
        _ => {}
    }
    refuse_view(&ctx.node.replica, &Namespace::new(database, collection))?;
    let (catalog, snapshot) = ctx.view();
    let size = match (catalog.get(database, collection), min, max) {
        (None, ..) => None,
        (Some(found), Some(min), Some(max)) => {
            let range = range(found, pattern, min, max)?;
            Some(of_range(ctx, database, collection, range).await?)
        }
        (Some(found), ..) => Some(whole(found, &snapshot)?),
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

fn refused(text: &str) -> CommandError {
    CommandError::new(ErrorCode::BadValue, text)
}

/// What is known of a whole collection.
fn whole(collection: &Collection, snapshot: &Snapshot) -> Result<Size, CommandError> {
    let (documents, bytes) = snapshot.counts(collection.id).map_err(errors::storage)?;
    Ok(Size { bytes, documents })
}

/// The search for the documents between two keys, or beginnings of keys, of an index that begins with
/// the fields of the bounds, or with those that are named.
fn range(
    collection: &Collection,
    pattern: Option<&RawDocument>,
    min: &RawDocument,
    max: &RawDocument,
) -> Result<RawDocumentBuf, CommandError> {
    let pattern = match pattern {
        Some(pattern) => pattern.to_owned(),
        None => {
            let mut pattern = RawDocumentBuf::new();
            for (name, _) in min.iter().flatten() {
                pattern.append(name, 1);
            }
            pattern
        }
    };
    for bound in [min, max] {
        if !names(bound).eq(names(&pattern)) {
            return Err(CommandError::new(
                ErrorCode::Location(16634),
                format!(
                    "field names of bound {} do not match those of keyPattern {}",
                    errors::shown(RawBsonRef::Document(bound)),
                    errors::shown(RawBsonRef::Document(&pattern))
                ),
            ));
        }
    }
    let mut indexes = collection.indexes.iter();
    let Some(index) = indexes.find(|index| begins_with(index, &pattern)) else {
        return Err(refused("couldn't find valid index containing key pattern"));
    };
    let key = index.spec.get_document("key");
    let key = key.map_err(|error| errors::internal(error.to_string()))?;
    Ok(rawdoc! {
        "find": collection.namespace.collection(),
        "min": extended(min, key),
        "max": extended(max, key),
        "hint": key.to_owned(),
        "projection": { "_id": 0, "size": { "$bsonSize": "$$ROOT" } },
    })
}

fn names(document: &RawDocument) -> impl Iterator<Item = &str> {
    document.iter().flatten().map(|(name, _)| name.as_str())
}

/// Whether the index has one key for every document, which begins with these fields.
fn begins_with(index: &Index, pattern: &RawDocument) -> bool {
    let Ok(key) = index.spec.get_document("key") else {
        return false;
    };
    let mut fields = key.iter().flatten();
    let alike = |(name, order)| {
        let number = params::number(order);
        number.is_some()
            && fields
                .next()
                .is_some_and(|(n, o)| n == name && params::number(o) == number)
    };
    pattern.iter().flatten().all(alike)
        && !index.is_multikey()
        && index.partial_filter.is_none()
        && index.pattern.collator.is_none()
}

/// A bound as a key of the whole index: the lowest that begins with it.
fn extended(bound: &RawDocument, key: &RawDocument) -> RawDocumentBuf {
    let mut extended = bound.to_owned();
    for (name, order) in key.iter().flatten().skip(bound.iter().count()) {
        let descends = params::number(order).is_some_and(|order| order < 0);
        extended.append(
            name,
            match descends {
                true => RawBsonRef::MaxKey,
                false => RawBsonRef::MinKey,
            },
        );
    }
    extended
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
