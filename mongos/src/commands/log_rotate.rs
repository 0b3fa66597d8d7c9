//! `logRotate`: the log goes on in a new file, as with SIGUSR1.

use banyan_access::check::Access;
use banyan_security::Action;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, rawdoc};

use crate::context::{CommandResult, CommandSpec, Context, run};

pub const SPEC: CommandSpec = CommandSpec::new("logRotate", "goes on in a new log file", run!(run))
    .access(Access::Cluster(Action::LogRotate))
    .admin_only();

async fn run(context: &Context<'_>) -> CommandResult {
    match context.request.first_value() {
        Some(RawBsonRef::String("server") | RawBsonRef::Boolean(_)) => {}
        Some(RawBsonRef::Int32(_) | RawBsonRef::Int64(_) | RawBsonRef::Double(_)) => {}
        Some(RawBsonRef::String(_)) => return Err(failed(ErrorCode::NoSuchKey)),
        _ => {
            return Err(CommandError::new(
                ErrorCode::TypeMismatch,
                "BSON field 'logRotate.logRotate' has to be a boolean or a string",
            ));
        }
    }
    if let Some(log) = banyan_process::logging::log() {
        // Why it failed is in the log that could not be rotated: it may name paths.
        let rotated = tokio::task::block_in_place(|| log.rotate_and_tell());
        rotated.map_err(|_| failed(ErrorCode::FileRenameFailed))?;
    }
    Ok(rawdoc! {"ok": 1.0})
}

fn failed(code: ErrorCode) -> CommandError {
    CommandError::new(code, "Log rotation failed due to one or more errors")
}
