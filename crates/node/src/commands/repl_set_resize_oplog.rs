//! `replSetResizeOplog`: how much of the log this member keeps, by size and by time.

use banyan_access::check::Access;
use banyan_security::Action;
use banyan_wire::{CommandError, ErrorCode};
use bson::rawdoc;

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::params::Field;

pub static SPEC: CommandSpec = CommandSpec::new("replSetResizeOplog", Run::Inline(run))
    .access(Access::Cluster(Action::ReplSetResizeOplog))
    .needs(Needs::Any)
    .admin_only()
    .lenient()
    .help("how many megabytes or hours of the log are kept")
    .fields(&["size", "minRetentionHours"]);

/// MongoDB's bounds.
const MEGABYTES_MIN: f64 = 990.0;
const MEGABYTES_MAX: f64 = (1_u64 << 50) as f64;
const HOURS_MAX: f64 = 24.0 * 366.0 * 100.0;

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    ctx.node
        .replication
        .require_config()
        .map_err(|_| CommandError::new(ErrorCode::NamespaceNotFound, "oplog does not exist"))?;
    let megabytes = match ctx.field("size") {
        Some(field) => Some(between(field, MEGABYTES_MIN, MEGABYTES_MAX)? as u64),
        None => None,
    };
    let hours = match ctx.field("minRetentionHours") {
        Some(field) => Some(between(field, 0.0, HOURS_MAX)?),
        None => None,
    };
    let set = ctx
        .node
        .replication
        .resize_oplog(&ctx.node.replica, megabytes, hours);
    set.map_err(|error| {
        CommandError::new(
            ErrorCode::OperationFailed,
            format!("the size of the oplog cannot be written: {error}"),
        )
    })?;
    Ok(rawdoc! { "ok": 1.0 })
}

fn between(field: Field<'_>, least: f64, most: f64) -> Result<f64, CommandError> {
    let number = match field.value {
        bson::RawBsonRef::Double(number) => number,
        _ => field.i64()? as f64,
    };
    let bound = if number.is_nan() || number < least {
        format!(">= {least}")
    } else if number > most {
        format!("<= {most}")
    } else {
        return Ok(number);
    };
    Err(CommandError::new(
        ErrorCode::Location(51024),
        format!(
            "BSON field '{}' value must be {bound}, actual value '{number}'",
            field.name
        ),
    ))
}
