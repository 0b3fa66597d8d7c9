//! Commands that fail because a test wants them to (see [`banyan_wire::fail_points`]).

use banyan_replication::set::write_concern;
use banyan_wire::{CommandError, ErrorCode};
use bson::RawBson;

use crate::context::{CommandContext, CommandResult};
use crate::errors;

/// Before a command runs: waits, ends the connection or fails, as it is told.
pub async fn before(ctx: &CommandContext<'_>) -> Result<(), CommandError> {
    let Some(failure) = ctx.failing().before() else {
        return Ok(());
    };
    if let Some(labels) = failure.labels {
        // Set once, here or after the command.
        let _ = ctx.labels.set(labels);
    }
    if failure.closes {
        ctx.conn.hang_up();
        return Err(CommandError::new(
            ErrorCode::Location(50985),
            "Failing command via 'failCommand' failpoint. Action: close connection.",
        ));
    }
    if let Some(time) = failure.block {
        let waited = ctx.interrupt().within(tokio::time::sleep(time)).await;
        waited.map_err(errors::query)?;
    }
    match failure.error {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// After a write: its reply is given another write concern error.
pub fn after(ctx: &CommandContext<'_>, result: CommandResult) -> CommandResult {
    let reply = match result {
        Ok(reply) if ctx.spec.writes => reply,
        other => return other,
    };
    let Some((RawBson::Document(error), labels)) = ctx.failing().after_write() else {
        return Ok(reply);
    };
    if let Some(labels) = labels {
        let _ = ctx.labels.set(labels);
    }
    Ok(write_concern::with_failure(&reply, error))
}
