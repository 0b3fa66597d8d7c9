//! `getLog`: the last lines of the log, or what was worth a warning at the start.

use banyan_access::check::Access;
use banyan_security::Action;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArrayBuf, rawdoc};

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::params::Field;

pub static SPEC: CommandSpec = CommandSpec::new("getLog", Run::Inline(run))
    .access(Access::Cluster(Action::GetLog))
    .needs(Needs::Any)
    .admin_only()
    .lenient();

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let Some(value) = ctx.argument() else {
        return Err(CommandError::new(ErrorCode::FailedToParse, "empty command"));
    };
    let which = Field {
        command: "getLog",
        name: "getLog",
        value,
    }
    .str()?;
    let lines = match which {
        "*" => return Ok(rawdoc! { "names": ["global", "startupWarnings"], "ok": 1.0 }),
        "global" => (ctx.node.info.recent_log)(),
        "startupWarnings" => ctx.node.info.startup_warnings.clone(),
        other => {
            return Err(CommandError::new(
                ErrorCode::OperationFailed,
                format!("No log named '{other}'"),
            ));
        }
    };
    let total = i32::try_from(lines.len()).unwrap_or(i32::MAX);
    let log: RawArrayBuf = lines.iter().map(String::as_str).collect();
    Ok(rawdoc! { "totalLinesWritten": total, "log": log, "ok": 1.0 })
}
