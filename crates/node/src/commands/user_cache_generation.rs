//! `_getUserCacheGeneration`: as of which state this member has users and roles. Routers ask it to
//! notice that what they remember of them does not hold any more.
//!
//! With `known` and `maxAwaitTimeMS` the answer waits until it is another one.

use std::time::Duration;

use banyan_access::check::Access;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, rawdoc};

use super::table::{CommandResult, CommandSpec, Needs, Run, boxed};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new(
    "_getUserCacheGeneration",
    Run::Future(|ctx| boxed(run(ctx))),
)
.access(Access::Member)
.needs(Needs::Any)
.admin_only()
.help("internal: as of which state users and roles are known")
.fields(&["known", "maxAwaitTimeMS"]);

/// Nobody waits longer for one answer.
const AWAIT_MAX: Duration = Duration::from_secs(86_400);

async fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let generations = ctx.node.access.generations();
    let known = match ctx.field("known") {
        None => None,
        Some(field) => match field.value {
            RawBsonRef::ObjectId(known) => Some(known),
            _ => return Err(field.wrong_type("type 'objectId'")),
        },
    };
    let wait = match ctx.field("maxAwaitTimeMS") {
        Some(field) => Duration::from_millis(field.unsigned()?).min(AWAIT_MAX),
        None => Duration::ZERO,
    };
    let generation = match known {
        None => generations.shown(),
        Some(known) => tokio::select! {
            passed = generations.passed(known) => passed,
            () = tokio::time::sleep(wait) => known,
            () = ctx.interrupt().raised() => {
                ctx.check_interrupt()?;
                return Err(CommandError::new(
                    ErrorCode::Interrupted,
                    "operation was interrupted",
                ));
            }
        },
    };
    Ok(rawdoc! { "cacheGeneration": generation, "ok": 1.0 })
}
