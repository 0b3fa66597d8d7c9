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
    let RawBsonRef::String(operation) = fields::required(context.request, "op")? else {
        return Err(wrong());
    };
    let (shard, number) = operation.rsplit_once(':').ok_or_else(wrong)?;
    let number: i64 = number.parse().map_err(|_| wrong())?;
    let request_options = context.request_options(false);
    if let Some(identity) = context.identity()
        && !identity.allows(Action::Killop, Resource::Cluster)
        && !is_own(context, shard, number).await?
    {
        return Err(check::denied(context.request));
    }
    let outgoing = Outgoing::command("admin", &rawdoc! {"killOp": 1, "op": number});
    let answer = context.router.send(shard, request_options, &outgoing).await;
    Ok(answer.and_then(Answer::checked)?.reply)
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
