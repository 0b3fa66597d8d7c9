//! `getLog`: the last lines of the log, or its warnings.

use banyan_access::check::Access;
use banyan_security::Action;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArrayBuf, rawdoc};

use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::fields;

pub const SPEC: CommandSpec = CommandSpec::new("getLog", "the last lines of the log", run!(run))
    .access(Access::Cluster(Action::GetLog))
    .admin_only();

async fn run(context: &Context<'_>) -> CommandResult {
    let log = banyan_process::logging::log();
    let (lines, total) = match fields::first_string(context.request)? {
        "*" => return Ok(rawdoc! {"names": ["global", "startupWarnings"], "ok": 1.0}),
        "global" => log.map(|log| log.recent()).unwrap_or_default(),
        "startupWarnings" => {
            let warnings = log.map(|log| log.warnings()).unwrap_or_default();
            let total = warnings.len() as u64;
            (warnings, total)
        }
        other => {
            let text = format!("No log named '{other}'");
            return Err(CommandError::new(ErrorCode::OperationFailed, text));
        }
    };
    Ok(rawdoc! {
        "totalLinesWritten": i32::try_from(total).unwrap_or(i32::MAX),
        "log": RawArrayBuf::from_iter(lines.iter().map(String::as_str)),
        "ok": 1.0,
    })
}
