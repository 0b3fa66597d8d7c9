//! `logRotate`: the log goes on in a new file, as with SIGUSR1.

use banyan_execution::tickets::blocking;
use banyan_security::Action;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, rawdoc};

use super::table::{BoxFuture, CommandResult, CommandSpec, Needs, Run};
use crate::access::check::Access;
use crate::context::CommandContext;
use crate::params::Field;

pub static SPEC: CommandSpec = CommandSpec::new("logRotate", Run::Future(run))
    .access(Access::Cluster(Action::LogRotate))
    .needs(Needs::Any)
    .admin_only()
    .help("goes on in a new log file");

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        if let Some(value) = ctx.argument() {
            check_kind(value)?;
        }
        let Some(log) = banyan_process::logging::log() else {
            return Ok(rawdoc! { "ok": 1.0 });
        };
        // Why it failed is in the log that could not be rotated: it may name paths.
        blocking(|| log.rotate_and_tell()).map_err(|_| failed(ErrorCode::FileRenameFailed))?;
        Ok(rawdoc! { "ok": 1.0 })
    })
}

/// There is one log, and it is called `server`; any number or boolean stands for all there are.
fn check_kind(value: RawBsonRef<'_>) -> Result<(), CommandError> {
    let field = Field {
        command: "logRotate",
        name: "logRotate",
        value,
    };
    match value {
        RawBsonRef::String("server") => Ok(()),
        RawBsonRef::String(_) => Err(failed(ErrorCode::NoSuchKey)),
        _ if field.bool().is_ok() => Ok(()),
        _ => Err(field.wrong_type("types '[bool, string']")),
    }
}

fn failed(code: ErrorCode) -> CommandError {
    CommandError::new(code, "Log rotation failed due to one or more errors")
}
