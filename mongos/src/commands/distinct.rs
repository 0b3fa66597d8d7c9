//! `distinct`: the values of all shards, each once.

use banyan_access::check::Access;
use banyan_query::view::Resolved;
use banyan_query::view::command::DISTINCT;
use banyan_security::Action;
use std::collections::BTreeMap;

use banyan_document::DocumentWriter;
use banyan_document::key::encode_collated;
use bson::{RawArrayBuf, RawBsonRef, RawDocumentBuf, rawdoc};

use super::{forward, viewed};
use crate::collation;
use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::fields;

pub const SPEC: CommandSpec =
    CommandSpec::new("distinct", "the distinct values of a field", run!(run))
        .access(Access::Collection(Action::Find));

async fn run(context: &Context<'_>) -> CommandResult {
    match viewed::one_of_view(context, distinct(context).await, Resolved::of_distinct).await {
        Err(outcome) => outcome,
        Ok(result) => {
            let values = result
                .as_ref()
                .and_then(|result| fields::get(result, DISTINCT));
            let mut out = DocumentWriter::new();
            match values {
                Some(values) => out.append("values", values),
                None => out.append_array("values", &RawArrayBuf::new()),
            }
            out.append_i32("ok", 1);
            Ok(out.finish())
        }
    }
}

async fn distinct(context: &Context<'_>) -> CommandResult {
    let ns = context.namespace()?;
    let empty = RawDocumentBuf::new();
    let filter = fields::document(&context.request.body, "query")?.unwrap_or(&empty);
    context
        .router
        .with_route(&ns, false, |route| async move {
            let Some(route) = route else {
                return Ok(rawdoc! {"values": RawArrayBuf::new(), "ok": 1.0});
            };
            let shards = crate::targeting::of_filter(&route, filter, &context.request.body);
            if let [shard] = shards.as_slice() {
                return Ok(forward::forward(context, &route, shard, false).await?.reply);
            }
            let requests = shards
                .iter()
                .map(|shard| {
                    (
                        shard.clone(),
                        forward::outgoing(context.request, &route, shard),
                    )
                })
                .collect();
            let collator = collation::of(route.table.as_ref(), &context.request.body)?;
            let answers = forward::gather(context, requests, false).await?;
            let mut values: BTreeMap<Vec<u8>, RawBsonRef<'_>> = BTreeMap::new();
            for answer in &answers {
                let Some(RawBsonRef::Array(found)) = fields::get(&answer.reply, "values") else {
                    continue;
                };
                for value in found.into_iter().flatten() {
                    let mut key = Vec::new();
                    encode_collated(value, collator.as_ref(), &mut key);
                    values.entry(key).or_insert(value);
                }
            }
            let mut out = DocumentWriter::new();
            out.begin_array("values");
            for value in values.values() {
                out.push(*value);
            }
            out.end();
            out.append_f64("ok", 1.0);
            Ok(out.finish())
        })
        .await
}
