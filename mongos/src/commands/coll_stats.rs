//! `collStats`: the sizes of all shards added up, and each shard's own.

use banyan_access::check::Access;
use banyan_security::Action;
use std::collections::BTreeMap;

use banyan_document::DocumentWriter;
use bson::RawBsonRef;

use super::forward;
use crate::answer::Answer;
use crate::catalog::Route;
use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::fields;

pub const SPEC: CommandSpec = CommandSpec::new("collStats", "the sizes of a collection", run!(run))
    .access(Access::Collection(Action::CollStats))
    .aliases(&["collstats"]);

/// What adds up.
const SUMS: &[&str] = &[
    "count",
    "size",
    "storageSize",
    "totalIndexSize",
    "totalSize",
    "freeStorageSize",
];

async fn run(context: &Context<'_>) -> CommandResult {
    let ns = context.namespace()?;
    let ns = ns.as_str();
    context
        .router
        .with_route(ns, false, |route| async move {
            let Some(route) = route else {
                let mut out = DocumentWriter::new();
                out.append_str("ns", ns);
                ["count", "size", "storageSize", "totalIndexSize", "nindexes"]
                    .iter()
                    .for_each(|name| out.append_i32(name, 0));
                out.append_f64("ok", 1.0);
                return Ok(out.finish());
            };
            let answers = forward::gather_from_owners(context, &route, false).await?;
            Ok(add_up(&route, &answers))
        })
        .await
}

fn add_up(route: &Route, answers: &[Answer]) -> bson::RawDocumentBuf {
    let mut sums: BTreeMap<&str, i64> = BTreeMap::new();
    let mut indexes: BTreeMap<&str, i64> = BTreeMap::new();
    let mut count_of_indexes = 0;
    for answer in answers {
        for name in SUMS {
            *sums.entry(name).or_default() += fields::get_number(&answer.reply, name).unwrap_or(0);
        }
        let own = fields::get_number(&answer.reply, "nindexes").unwrap_or(0);
        count_of_indexes = own.max(count_of_indexes);
        if let Some(RawBsonRef::Document(sizes)) = fields::get(&answer.reply, "indexSizes") {
            for element in banyan_document::elements(sizes) {
                let bytes = fields::number(element.value()).unwrap_or(0);
                *indexes.entry(element.name()).or_default() += bytes;
            }
        }
    }
    let of = |name: &str| sums.get(name).copied().unwrap_or(0);
    let mut out = DocumentWriter::new();
    out.append_bool("sharded", route.is_sharded());
    if !route.is_sharded() {
        out.append_str("primary", &route.database.primary);
    }
    append_capped(&mut out, answers);
    out.append_str("ns", &route.ns);
    for name in SUMS {
        append(&mut out, name, of(name));
    }
    out.begin_document("indexSizes");
    indexes
        .iter()
        .for_each(|(name, bytes)| append(&mut out, name, *bytes));
    out.end();
    let average = of("size").checked_div(of("count")).unwrap_or(0);
    append(&mut out, "avgObjSize", average);
    append(&mut out, "nindexes", count_of_indexes);
    let chunks = route.table.as_ref().map_or(1, |table| table.chunks().len());
    append(&mut out, "nchunks", chunks as i64);
    out.begin_document("shards");
    for answer in answers {
        fields::append_reply(&mut out, &answer.shard, &answer.reply);
    }
    out.end();
    out.append_f64("ok", 1.0);
    out.finish()
}

/// Capped collections lie on one shard.
fn append_capped(out: &mut DocumentWriter, answers: &[Answer]) {
    let is_capped = |answer: &&Answer| fields::get_flag(&answer.reply, "capped");
    let capped = answers.iter().find(is_capped);
    out.append_bool("capped", capped.is_some());
    for name in ["max", "maxSize"] {
        if let Some(limit) = capped.and_then(|answer| fields::get_number(&answer.reply, name)) {
            append(out, name, limit);
        }
    }
}

/// The smaller of the two integer types that holds the number.
fn append(out: &mut DocumentWriter, name: &str, n: i64) {
    out.append(
        name,
        i32::try_from(n).map_or(RawBsonRef::Int64(n), RawBsonRef::Int32),
    );
}
