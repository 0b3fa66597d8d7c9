//! `count`: the sum of what the shards count.

use banyan_access::check::Access;
use banyan_query::view::Resolved;
use banyan_query::view::command::COUNT;
use banyan_security::Action;
use bson::raw::cstr;
use bson::{RawDocumentBuf, rawdoc};

use super::{forward, viewed};
use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::fields;

pub const SPEC: CommandSpec =
    CommandSpec::new("count", "counts the documents that match", run!(run))
        .access(Access::Collection(Action::Find));

async fn run(context: &Context<'_>) -> CommandResult {
    match viewed::one_of_view(context, count(context).await, Resolved::of_count).await {
        Err(outcome) => outcome,
        Ok(result) => {
            let n = result.and_then(|result| fields::get_number(&result, COUNT));
            let n = n.unwrap_or(0);
            let mut out = RawDocumentBuf::new();
            append_count(&mut out, n);
            out.append(cstr!("ok"), 1);
            Ok(out)
        }
    }
}

fn append_count(out: &mut RawDocumentBuf, n: i64) {
    match i32::try_from(n) {
        Ok(n) => out.append(cstr!("n"), n),
        Err(_) => out.append(cstr!("n"), n),
    }
}

async fn count(context: &Context<'_>) -> CommandResult {
    let ns = context.namespace()?;
    let body = &context.request.body;
    let empty = RawDocumentBuf::new();
    let filter = fields::document(body, "query")?.unwrap_or(&empty);
    context
        .router
        .with_route(&ns, false, |route| async move {
            let Some(route) = route else {
                return Ok(rawdoc! {"n": 0, "ok": 1.0});
            };
            let shards = crate::targeting::of_filter(&route, filter, body);
            if let [shard] = shards.as_slice() {
                return Ok(forward::forward(context, &route, shard, false).await?.reply);
            }
            let skip = fields::get_number(body, "skip").unwrap_or(0).max(0);
            // A negative limit means the same as a positive one.
            let limit = fields::get_number(body, "limit")
                .unwrap_or(0)
                .saturating_abs();
            let mut added = RawDocumentBuf::new();
            if limit > 0 {
                added.append(cstr!("limit"), limit.saturating_add(skip));
            }
            let requests = shards
                .iter()
                .map(|shard| {
                    let dropped = ["skip", "limit"];
                    let outgoing =
                        forward::changed(context.request, &dropped, &added, &route, shard);
                    (shard.clone(), outgoing)
                })
                .collect();
            let answers = forward::gather(context, requests, false).await?;
            let counts = answers
                .iter()
                .filter_map(|answer| fields::get_number(&answer.reply, "n"));
            let mut n = (counts.sum::<i64>() - skip).max(0);
            if limit > 0 {
                n = n.min(limit);
            }
            let mut out = RawDocumentBuf::new();
            append_count(&mut out, n);
            out.append(cstr!("ok"), 1.0);
            Ok(out)
        })
        .await
}
