//! `collStats`: how much there is in a collection. Sizes are those of the documents and keys
//! before compression: the engine keeps all collections in the same files.

use banyan_access::check::Access;
use banyan_process::figures::{LatencySum, OperationClass, SparseLatency};
use banyan_replication::time_series;
use banyan_security::Action;
use banyan_storage::Collection;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArrayBuf, RawBsonRef, RawDocumentBuf, cstr, rawdoc};

use super::list_databases::index_bytes;
use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::errors;
use crate::names::collection_name;
use crate::params::{self, Field};
use crate::top::Usage;
use crate::views;
use crate::virtual_collections::local;

pub static SPEC: CommandSpec = CommandSpec::new("collStats", Run::Inline(run))
    .access(Access::Collection(Action::CollStats))
    .aliases(&["collstats"])
    .needs(Needs::Data)
    .form(check_form)
    .lenient();

/// What a field has to be, whatever the others are.
fn check_form(field: Field<'_>) -> Result<(), CommandError> {
    match field.name {
        "verbose" | "waitForLock" => field.strict_bool().map(drop),
        _ => Ok(()),
    }
}

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let name = match ctx.argument() {
        Some(value) => collection_name(value)?,
        None => ctx.existing_collection()?,
    };
    let namespace = format!("{}.{}", ctx.database(), ctx.existing_collection()?);
    let scale = scale(ctx)?;
    if let Some(mut stats) = local::stats(ctx.node, ctx.database(), name) {
        stats.append(cstr!("ns"), namespace);
        stats.append(cstr!("ok"), 1.0);
        return Ok(stats);
    }
    let catalog = ctx.node.replica.store.catalog();
    let collection = catalog.get(ctx.database(), name);
    let buckets = time_series::find(&catalog, ctx.database(), name).map(|(buckets, _)| buckets);
    let collection = collection.or(buckets.as_ref());
    if collection.is_none() {
        views::refuse_named(ctx)?;
    }
    let mut reply = rawdoc! { "ns": namespace };
    append_storage_stats(&mut reply, collection.map(|c| &**c), scale);
    reply.append(cstr!("ok"), 1.0);
    Ok(reply)
}

/// What sizes are divided by.
pub fn scale(ctx: &CommandContext<'_>) -> Result<i64, CommandError> {
    let scale = match ctx.field("scale") {
        Some(field) if !field.is_null() => field.i64()?,
        _ => 1,
    };
    if scale < 1 {
        return Err(CommandError::new(
            ErrorCode::Location(51024),
            format!("BSON field 'scale' value must be >= 1, actual value '{scale}'"),
        ));
    }
    Ok(scale)
}

/// The fields that `collStats` and the `$collStats` stage share.
pub fn append_storage_stats(
    reply: &mut RawDocumentBuf,
    collection: Option<&Collection>,
    scale: i64,
) {
    let Some(collection) = collection else {
        return append_no_storage_stats(reply, scale);
    };
    let scaled = |bytes: u64| number(i64::try_from(bytes).unwrap_or(i64::MAX) / scale);
    let (documents, bytes) = (collection.documents(), collection.bytes());
    let indexes = &collection.indexes;
    let index_total = index_bytes(collection);
    reply.append(cstr!("size"), scaled(bytes));
    let count = number(i64::try_from(documents).unwrap_or(i64::MAX));
    // Of one document, so never scaled.
    let average = bytes.checked_div(documents);
    let average = average.map(|average| number(i64::try_from(average).unwrap_or(i64::MAX)));
    if time_series::of(collection).is_some() {
        // Of buckets there are other numbers than of measurements.
        let mut own = rawdoc! {
            "bucketsNs": collection.namespace.as_str(),
            "bucketCount": count,
        };
        if let Some(average) = average {
            own.append(cstr!("avgBucketSize"), average);
        }
        reply.append(cstr!("timeseries"), own);
    } else {
        reply.append(cstr!("count"), count);
        if let Some(average) = average {
            reply.append(cstr!("avgObjSize"), average);
        }
    }
    reply.append(cstr!("numOrphanDocs"), 0);
    reply.append(cstr!("storageSize"), scaled(bytes));
    reply.append(cstr!("freeStorageSize"), 0);
    reply.append(cstr!("capped"), collection.is_capped);
    if let Some(limits) = collection.capped_limits() {
        reply.append(cstr!("max"), number(limits.documents.unwrap_or(0)));
        reply.append(cstr!("maxSize"), number(limits.bytes / scale));
    }
    reply.append(
        cstr!("nindexes"),
        i32::try_from(indexes.len()).unwrap_or(i32::MAX),
    );
    let building = collection.building_indexes();
    let building: RawArrayBuf = building.map(|index| index.name.as_str()).collect();
    reply.append(cstr!("indexBuilds"), building);
    reply.append(cstr!("totalIndexSize"), scaled(index_total));
    reply.append(cstr!("totalSize"), scaled(bytes + index_total));
    let mut sizes = RawDocumentBuf::new();
    for index in indexes {
        if let Ok(name) = bson::raw::CString::try_from(index.name.as_str()) {
            sizes.append(name, scaled(index.key_bytes()));
        }
    }
    reply.append(cstr!("indexSizes"), sizes);
    reply.append(cstr!("scaleFactor"), number(scale));
}

/// Of a collection that does not exist.
fn append_no_storage_stats(reply: &mut RawDocumentBuf, scale: i64) {
    for name in [
        cstr!("size"),
        cstr!("count"),
        cstr!("numOrphanDocs"),
        cstr!("storageSize"),
        cstr!("totalSize"),
        cstr!("nindexes"),
        cstr!("totalIndexSize"),
    ] {
        reply.append(name, 0);
    }
    reply.append(cstr!("indexDetails"), RawDocumentBuf::new());
    reply.append(cstr!("indexSizes"), RawDocumentBuf::new());
    reply.append(cstr!("scaleFactor"), number(scale));
}

/// `latencyStats` of the `$collStats` stage, as its options ask for them.
pub fn latencies(usage: &Usage, options: RawBsonRef<'_>) -> Result<RawDocumentBuf, CommandError> {
    let field = Field {
        command: "$collStats",
        name: "latencyStats",
        value: options,
    };
    let mut histograms = false;
    for (name, value) in field.document()?.iter().flatten() {
        let option = Field {
            command: "$collStats.latencyStats",
            name: name.as_str(),
            value,
        };
        match name.as_str() {
            "histograms" => histograms = option.strict_bool()?,
            other => return Err(params::unknown_field("$collStats.latencyStats", other)),
        }
    }
    let of = |class| described_latency(&usage.latency(class).sum(), histograms);
    Ok(rawdoc! {
        "reads": of(OperationClass::Read),
        "writes": of(OperationClass::Write),
        "commands": of(OperationClass::Command),
        // There are none.
        "transactions": described_latency(&SparseLatency::default().sum(), histograms),
    })
}

pub fn described_latency(sum: &LatencySum, histograms: bool) -> RawDocumentBuf {
    let mut out = RawDocumentBuf::new();
    if histograms {
        let buckets = sum.histogram.iter();
        let buckets: RawArrayBuf = buckets
            .map(|(micros, count)| rawdoc! { "micros": *micros, "count": *count })
            .collect();
        out.append(cstr!("histogram"), buckets);
    }
    out.append(cstr!("latency"), sum.micros);
    out.append(cstr!("ops"), sum.operations);
    out
}

/// `queryExecStats` of the `$collStats` stage.
pub fn scans(usage: &Usage, options: RawBsonRef<'_>) -> Result<RawDocumentBuf, CommandError> {
    if options
        .as_document()
        .is_none_or(|options| !options.is_empty())
    {
        return Err(CommandError::new(
            ErrorCode::Location(31170),
            format!(
                "expected an empty object, but got {}",
                errors::shown(options)
            ),
        ));
    }
    let scans = &usage.scans;
    let long = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    Ok(rawdoc! {
        "collectionScans": {
            "total": long(scans.total),
            "nonTailable": long(scans.total.saturating_sub(scans.tailable)),
        },
    })
}

/// An int where it fits, as MongoDB answers sizes.
pub fn number(value: i64) -> bson::RawBson {
    match i32::try_from(value) {
        Ok(small) => bson::RawBson::Int32(small),
        Err(_) => bson::RawBson::Int64(value),
    }
}
