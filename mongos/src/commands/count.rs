//! `count`: the sum of what the shards count.

use banyan_access::check::Access;
use banyan_query::view::Resolved;
use banyan_query::view::command::COUNT;
use banyan_security::Action;
use banyan_wire::{CommandError, params};
use bson::raw::cstr;
use bson::{RawDocument, RawDocumentBuf, rawdoc};

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

/// Which of the documents that match count.
#[derive(Default)]
struct Bounds {
    skip: u64,
    limit: Option<u64>,
}

impl Bounds {
    fn read(body: &RawDocument) -> Result<Bounds, CommandError> {
        let mut bounds = Bounds::default();
        for field in params::fields("count", body) {
            match field.name {
                "skip" if !field.is_null() => bounds.skip = field.unsigned()?,
                "limit" => bounds.limit = params::count_limit(field)?,
                _ => {}
            }
        }
        Ok(bounds)
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
            let Bounds { skip, limit } = Bounds::read(body)?;
            let mut added = RawDocumentBuf::new();
            if let Some(limit) = limit {
                let most = limit.saturating_add(skip);
                added.append(cstr!("limit"), i64::try_from(most).unwrap_or(i64::MAX));
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
            let found = counts.map(i64::unsigned_abs).sum::<u64>();
            let n = found.saturating_sub(skip).min(limit.unwrap_or(u64::MAX));
            let mut out = RawDocumentBuf::new();
            append_count(&mut out, i64::try_from(n).unwrap_or(i64::MAX));
            out.append(cstr!("ok"), 1.0);
            Ok(out)
        })
        .await
}
