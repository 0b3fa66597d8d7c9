//! `killOp`: an operation is known by its shard's name and its number there, as `currentOp` shows
//! it.

use banyan_access::check::{self, Access};
use banyan_security::{Action, Resource};
use banyan_wire::{CommandError, ErrorCode, Outgoing};
use bson::{RawBsonRef, rawdoc};

use crate::answer::Answer;
use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::fields;

pub const SPEC: CommandSpec = CommandSpec::new("killOp", "ends an operation", run!(run))
    .access(Access::LoggedIn)
    .aliases(&["killop"])
    .admin_only();

async fn run(context: &Context<'_>) -> CommandResult {
    let wrong = || {
        let text = "The op argument to killOp must be of the format shardid:opid";
        CommandError::new(ErrorCode::BadValue, text)
    };
    let operation = match fields::required(context.request, "op")? {
        RawBsonRef::String(operation) => parse(operation),
        _ => None,
    };
    let may_kill_any = context
        .identity()
        .is_none_or(|identity| identity.allows(Action::Killop, Resource::Cluster));
    let (shard, number) = match operation {
        Some((shard, number)) if may_kill_any || is_own(context, shard, number).await? => {
            (shard, number)
        }
        None if may_kill_any => return Err(wrong()),
        _ => return Err(check::denied(context.request)),
    };
    let request_options = context.request_options(false);
    let outgoing = Outgoing::command("admin", &rawdoc! {"killOp": 1, "op": number});
    let answer = context.router.send(shard, request_options, &outgoing).await;
    Ok(answer.and_then(Answer::checked)?.reply)
}

fn parse(operation: &str) -> Option<(&str, i64)> {
    let (shard, number) = operation.rsplit_once(':')?;
    Some((shard, number.parse().ok()?))
}

/// Whether the shard runs an operation of that number for this client. Numbers are not given out
/// again, so it still is that one, or none, when it is ended.
async fn is_own(context: &Context<'_>, shard: &str, number: i64) -> Result<bool, CommandError> {
    let asked = rawdoc! {"currentOp": 1, "$ownOps": true, "opid": number};
    let outgoing = Outgoing::command("admin", &asked);
    let request_options = context.request_options(false);
    let answer = context.router.send(shard, request_options, &outgoing).await;
    let reply = answer.and_then(Answer::checked)?.reply;
    Ok(match fields::get(&reply, "inprog") {
        Some(RawBsonRef::Array(operations)) => !operations.is_empty(),
        _ => false,
    })
}
