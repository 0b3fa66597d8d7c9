//! Which commands are refused while the writes of users are blocked, and what they are answered.

use banyan_access::identity;
use banyan_access::reads_and_writes;
use banyan_security::{Action, Resource};
use banyan_wire::{CommandError, ErrorCode, OWN_CONNECTION_ID};
use bson::cstr;

use crate::commands::table::CommandResult;
use crate::commands::write_report::{WriteReport, ordered};
use crate::context::CommandContext;

/// What a command is answered whose writes are blocked. `None`: it may run.
pub fn refusal(ctx: &CommandContext<'_>) -> Option<CommandResult> {
    let node = ctx.node;
    if !node.user_writes.are_blocked(&node.replica) || !is_blocked(ctx) {
        return None;
    }
    let error = CommandError::new(ErrorCode::UserWritesBlocked, "User writes blocked");
    Some(match ctx.spec.name {
        "insert" => refuse_statements(ctx, "documents", &error),
        "update" => refuse_statements(ctx, "updates", &error),
        "delete" => refuse_statements(ctx, "deletes", &error),
        _ => Err(error),
    })
}

fn is_blocked(ctx: &CommandContext<'_>) -> bool {
    if ctx.conn.id == OWN_CONNECTION_ID {
        return false;
    }
    let database = match ctx.spec.name {
        "insert"
        | "update"
        | "delete"
        | "findAndModify"
        | "create"
        | "createIndexes"
        | "drop"
        | "dropDatabase"
        | "dropIndexes"
        | "collMod"
        | "convertToCapped"
        | "cloneCollectionAsCapped"
        | "mapReduce" => ctx.database(),
        "renameCollection" => {
            let from = ctx.argument().and_then(|from| from.as_str());
            from.and_then(|from| from.split_once('.'))
                .map_or("", |(database, _)| database)
        }
        "aggregate" if reads_and_writes::writes_output(ctx.body()) => ctx.database(),
        _ => return false,
    };
    if matches!(database, "admin" | "config" | "local") {
        return false;
    }
    let is_enforced = ctx.node.access.is_enforced();
    let goes_by =
        || identity::known(ctx.conn).allows(Action::BypassWriteBlockingMode, Resource::Cluster);
    !(is_enforced && goes_by())
}

fn refuse_statements(
    ctx: &CommandContext<'_>,
    batch: &'static str,
    error: &CommandError,
) -> CommandResult {
    let statements = ctx.request.batch(batch)?.len();
    let mut report = WriteReport::new(ordered(ctx)?);
    report.refuse_all(statements, error);
    report.count(ctx);
    let is_update = ctx.spec.name == "update";
    Ok(report.reply(|reply| {
        if is_update {
            reply.append(cstr!("nModified"), 0);
        }
    }))
}
