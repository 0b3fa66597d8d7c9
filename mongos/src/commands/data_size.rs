//! `dataSize`: the sizes of a collection's documents on all shards, added up.

use std::time::Instant;

use banyan_access::check::Access;
use banyan_access::reads_and_writes;
use banyan_document::DocumentWriter;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocumentBuf};

use super::forward;
use crate::answer::Answer;
use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::fields;

pub const SPEC: CommandSpec = CommandSpec::new(
    "dataSize",
    "the size of a collection's documents",
    run!(run),
)
.access(Access::Checked(reads_and_writes::data_size))
.aliases(&["datasize"]);

async fn run(context: &Context<'_>) -> CommandResult {
    let began = Instant::now();
    let request = context.request;
    let ns = match request.first_value() {
        Some(RawBsonRef::String(ns)) => ns,
        _ => {
            let text = "collection name has invalid type";
            return Err(CommandError::new(ErrorCode::BadValue, text));
        }
    };
    if !ns.contains('.') {
        let text = format!("Invalid namespace specified '{ns}'");
        return Err(CommandError::new(ErrorCode::InvalidNamespace, text));
    }
    let route = context.router.catalog.route(ns).await?;
    let shards = route.as_ref().map(|route| route.shards());
    let none = RawDocumentBuf::new();
    let requests = shards.into_iter().flatten().map(|shard| {
        // Orphaned documents lie there too, as in MongoDB: no version is asked for.
        let outgoing = forward::passed_on(&request.body, &[], &none);
        (shard, outgoing)
    });
    let answers = context
        .router
        .send_all(requests.collect(), context.request_options(false))
        .await;
    let (mut size, mut documents) = (0, 0);
    for answer in answers {
        let reply = answer.and_then(Answer::checked)?.reply;
        size += fields::get_number(&reply, "size").unwrap_or(0);
        documents += fields::get_number(&reply, "numObjects").unwrap_or(0);
    }
    let mut out = DocumentWriter::new();
    if route.is_some() {
        out.append_bool("estimate", fields::get_flag(&request.body, "estimate"));
    }
    out.append_i64("size", size);
    out.append_i64("numObjects", documents);
    let millis = i64::try_from(began.elapsed().as_millis()).unwrap_or(i64::MAX);
    out.append_i64("millis", millis);
    out.append_f64("ok", 1.0);
    Ok(out.finish())
}
