//! `currentOp`: what the shards are doing.

use banyan_access::check::Access;
use banyan_access::reads_and_writes;
use std::sync::Arc;

use banyan_document::DocumentWriter;
use bson::{RawBsonRef, RawDocument};

use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::fields;

pub const SPEC: CommandSpec = CommandSpec::new("currentOp", "what is running", run!(run))
    .access(Access::Checked(reads_and_writes::current_op))
    .aliases(&["currentop"])
    .admin_only();

async fn run(context: &Context<'_>) -> CommandResult {
    let mut body = DocumentWriter::new();
    for element in banyan_document::elements(&context.request.body) {
        if !matches!(
            element.name(),
            "$db" | "lsid" | "$clusterTime" | "$readPreference"
        ) {
            body.append_element(&element);
        }
    }
    let shards: Vec<Arc<str>> = context.router.shards.all().keys().cloned().collect();
    let request_options = context.request_options(false);
    let answers = context
        .router
        .broadcast(&shards, request_options, "admin", &body.finish())
        .await;
    let mut out = DocumentWriter::new();
    out.begin_array("inprog");
    for (shard, answer) in answers {
        let answer = answer?;
        let Some(RawBsonRef::Array(operations)) = fields::get(&answer, "inprog") else {
            continue;
        };
        for operation in operations.into_iter().flatten() {
            if let RawBsonRef::Document(operation) = operation {
                push(&mut out, &shard, operation);
            }
        }
    }
    out.end();
    out.append_f64("ok", 1.0);
    Ok(out.finish())
}

/// An operation's number is only unique with its shard's name before it.
fn push(out: &mut DocumentWriter, shard: &str, operation: &RawDocument) {
    out.push_document();
    out.append_str("shard", shard);
    for element in banyan_document::elements(operation) {
        match (element.name(), fields::number(element.value())) {
            ("opid", Some(number)) => out.append_str("opid", &format!("{shard}:{number}")),
            _ => out.append_element(&element),
        }
    }
    out.end();
}
