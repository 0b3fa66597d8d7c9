//! Which commands are refused while the writes of users are blocked, and what they are answered.

use banyan_access::identity;
use banyan_access::impersonation;
use banyan_access::reads_and_writes;
use banyan_wire::{CommandError, ErrorCode, OWN_CONNECTION_ID};
use bson::cstr;

use crate::commands::table::CommandResult;
use crate::commands::write_report::{WriteReport, ordered};
use crate::context::CommandContext;
use crate::node::Node;

/// What a command is answered whose writes are blocked. `None`: it may run.
pub fn refusal(ctx: &CommandContext<'_>) -> Option<CommandResult> {
    if !are_blocked(ctx.node) || !is_blocked(ctx) {
        return None;
    }
    let error = blocked();
    Some(match ctx.spec.name {
        "insert" => refuse_statements(ctx, "documents", &error),
        "update" => refuse_statements(ctx, "updates", &error),
        "delete" => refuse_statements(ctx, "deletes", &error),
        _ => Err(error),
    })
}

/// Whether the writes of users are blocked on this set.
pub fn are_blocked(node: &Node) -> bool {
    node.user_writes.are_blocked(&node.replica)
}

/// What a change of users' data is answered then.
pub fn blocked() -> CommandError {
    CommandError::new(ErrorCode::UserWritesBlocked, "User writes blocked")
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
        "_shardMapReduceFinish" if reads_and_writes::has_output(ctx.spec.name, ctx.body()) => {
            ctx.database()
        }
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
    !may_bypass(ctx)
}

/// Whether blocked writes are open to whoever the request is sent for. Where nobody logs in, that is
/// so only of what a config server sends.
pub fn may_bypass(ctx: &CommandContext<'_>) -> bool {
    match ctx.generic.may_bypass_write_blocking {
        Some(may_bypass) => may_bypass,
        // A router would have said so.
        None if ctx.generic.audit.is_some() => false,
        None => {
            ctx.node.access.is_enforced()
                && impersonation::may_bypass_write_blocking(&identity::known(ctx.conn))
        }
    }
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
