//! `appendOplogNote`: an entry in the log that changes nothing. With a write concern it's a way to
//! wait until the members have everything before it.

use banyan_access::check::Access;
use banyan_replication::clock;
use banyan_security::Action;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, rawdoc};

use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use crate::context::CommandContext;
use crate::params::Field;

pub static SPEC: CommandSpec = CommandSpec::new("appendOplogNote", Run::Future(run))
    .access(Access::Cluster(Action::AppendOplogNote))
    .writes()
    .admin_only()
    .help("writes a no-op entry into the log")
    .fields(&["data", "maxClusterTime"]);

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let message: &RawDocument = ctx.required("data")?.document()?;
        if !ctx.node.replication.is_replica_set() {
            return Err(CommandError::new(
                ErrorCode::NoReplicationEnabled,
                "Must have replication set up to run \"appendOplogNote\"",
            ));
        }
        if let Some(limit) = ctx.field("maxClusterTime") {
            check_behind(ctx, limit)?;
        }
        let written = ctx.node.replica.write_noop(message).await?;
        ctx.note_write(written.position.index);
        Ok(rawdoc! { "ok": 1.0 })
    })
}

/// The entry is only wanted while the log has not come to that time.
fn check_behind(ctx: &CommandContext<'_>, limit: Field<'_>) -> Result<(), CommandError> {
    let RawBsonRef::Timestamp(limit) = limit.value else {
        return Err(limit.wrong_type("type 'timestamp'"));
    };
    let last = ctx.node.replica.machine.operation_time();
    if clock::to_bits(last) < clock::to_bits(limit) {
        return Ok(());
    }
    Err(CommandError::new(
        ErrorCode::StaleClusterTime,
        format!(
            "Requested maxClusterTime {{ ts: Timestamp({}, {}) }} is less or equal to the last \
             primary OpTime: {{ ts: Timestamp({}, {}) }}",
            limit.time, limit.increment, last.time, last.increment
        ),
    ))
}
