//! `hello`, `isMaster`: what this member is, and what it can do.
//!
//! The client's description of itself and its compressors are the connection's business (see
//! `banyan_wire`). With `maxAwaitTimeMS` the answer waits until something has changed.

use std::time::Duration;

use banyan_wire::{CommandError, ErrorCode};
use bson::RawDocument;

use super::table::{BoxFuture, CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::params;
use crate::replication::hello::Asked;

pub static SPEC: CommandSpec = CommandSpec::new("hello", Run::Either(at_once, when_changed))
    .aliases(&["isMaster", "ismaster"])
    .needs(Needs::Any)
    .help("says what this member is and what it can do")
    .fields(&["topologyVersion", "maxAwaitTimeMS", "helloOk"])
    .lenient();

fn asked(ctx: &CommandContext<'_>) -> Asked {
    Asked {
        old_name: ctx.request.name != "hello",
        hello_ok: ctx.body().get_bool("helloOk").unwrap_or(false),
        connection: ctx.conn.id,
    }
}

fn at_once(ctx: &CommandContext<'_>) -> Option<CommandResult> {
    let waits = ctx.field("maxAwaitTimeMS").is_some() || ctx.field("topologyVersion").is_some();
    (!waits).then(|| Ok(ctx.node.replication.hello(asked(ctx))))
}

fn when_changed<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let replication = &ctx.node.replication;
        let version = match ctx.field("topologyVersion") {
            Some(field) => Some(field.document()?),
            None => None,
        };
        let await_ms = match ctx.field("maxAwaitTimeMS") {
            Some(field) => Some(field.unsigned()?),
            None => None,
        };
        match (version, await_ms) {
            (Some(version), Some(await_ms)) => {
                let (process, counter) = parse_version(version)?;
                let most = Duration::from_millis(await_ms).min(Duration::from_secs(3600));
                tokio::select! {
                    () = replication.await_change(process, counter, most) => {}
                    () = ctx.conn.closed().cancelled() => {}
                    () = ctx.node.info.stop.cancelled() => {}
                }
            }
            (None, None) | (Some(_), None) => {}
            (None, Some(_)) => {
                return Err(CommandError::new(
                    ErrorCode::Location(31368),
                    "A request with 'maxAwaitTimeMS' must include a 'topologyVersion'",
                ));
            }
        }
        Ok(replication.hello(asked(ctx)))
    })
}

fn parse_version(version: &RawDocument) -> Result<(bson::oid::ObjectId, i64), CommandError> {
    let process = version.get_object_id("processId").ok();
    let counter = version
        .get("counter")
        .ok()
        .flatten()
        .and_then(params::number);
    process.zip(counter).ok_or_else(|| {
        CommandError::new(
            ErrorCode::TypeMismatch,
            "'topologyVersion' has no process or counter",
        )
    })
}
