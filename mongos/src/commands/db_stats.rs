//! `dbStats`: the sizes of all shards added up, and each shard's own under its address.

use banyan_access::check::Access;
use banyan_security::Action;
use std::collections::BTreeMap;
use std::sync::Arc;

use banyan_document::DocumentWriter;
use bson::RawDocumentBuf;

use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::fields;
use crate::shards::CONFIG;

pub const SPEC: CommandSpec = CommandSpec::new("dbStats", "the sizes of a database", run!(run))
    .access(Access::Database(Action::DbStats))
    .aliases(&["dbstats"]);

const SUMS: &[&str] = &[
    "collections",
    "views",
    "objects",
    "dataSize",
    "storageSize",
    "indexes",
    "indexSize",
    "totalSize",
    "fileSize",
];

async fn run(context: &Context<'_>) -> CommandResult {
    let router = context.router;
    let name = &context.request.database;
    let shards: Vec<Arc<str>> = match &**name {
        "admin" | "config" => vec![CONFIG.into()],
        _ => router.shards.all().keys().cloned().collect(),
    };
    let mut command = DocumentWriter::new();
    command.append_i32("dbStats", 1);
    if let Some(scale) = fields::get(&context.request.body, "scale") {
        command.append("scale", scale);
    }
    let request_options = context.request_options(false);
    let answers = router
        .broadcast(&shards, request_options, name, &command.finish())
        .await;
    let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
    let mut raw: Vec<(String, RawDocumentBuf)> = Vec::new();
    for (shard, answer) in answers {
        let answer = answer?;
        for field in SUMS {
            let own = fields::get(&answer, field).and_then(fields::float);
            *sums.entry(field).or_default() += own.unwrap_or(0.0);
        }
        raw.push((router.shards.get(&shard).await?.address.clone(), answer));
    }
    let of = |field: &str| sums.get(field).copied().unwrap_or(0.0);
    let mut out = DocumentWriter::new();
    out.begin_document("raw");
    raw.iter()
        .for_each(|(address, answer)| fields::append_reply(&mut out, address, answer));
    out.end();
    out.append_str("db", name);
    for field in SUMS {
        out.append_f64(field, of(field));
    }
    let average = if of("objects") > 0.0 {
        of("dataSize") / of("objects")
    } else {
        0.0
    };
    out.append_f64("avgObjSize", average);
    out.append_f64("ok", 1.0);
    Ok(out.finish())
}
