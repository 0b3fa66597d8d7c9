//! `killOp`: an operation is known by its shard's name and its number there, as `currentOp` shows
//! it.

use banyan_wire::{CommandError, ErrorCode, Outgoing};
use bson::{RawBsonRef, rawdoc};

use crate::answer::Answer;
use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::fields;

pub const SPEC: CommandSpec = CommandSpec::new("killOp", "ends an operation", run!(run))
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
    let outgoing = Outgoing::command("admin", &rawdoc! {"killOp": 1, "op": number});
    let request_options = context.request_options(false);
    let answer = context.router.send(shard, request_options, &outgoing).await;
    Ok(answer.and_then(Answer::checked)?.reply)
}
