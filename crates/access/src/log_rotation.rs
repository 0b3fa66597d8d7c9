//! `logRotate`: the log, the audit log, or both go on in new files.

use banyan_process::{audit, logging};
use banyan_wire::params::Field;
use banyan_wire::{CommandError, Connection, ErrorCode};
use bson::{RawBsonRef, RawDocumentBuf, rawdoc};

use crate::audit::{note, rotation};

/// Carries the command out and answers it. Call it where files may be waited for.
///
/// # Errors
/// `TypeMismatch`, `NoSuchKey` for a log that this process does not have, `FileRenameFailed`.
pub fn rotate(
    connection: &Connection,
    kind: Option<RawBsonRef<'_>>,
) -> Result<RawDocumentBuf, CommandError> {
    let kind = kind.map_or(Ok(Which::All), which)?;
    if matches!(kind, Which::All | Which::Audit)
        && let Some(sink) = audit::sink()
    {
        let moved = sink.rotate().map_err(|error| {
            tracing::error!(%error, "the audit log cannot be rotated; going on in the old one");
            failed(ErrorCode::FileRenameFailed)
        })?;
        note(connection, "rotateLog", rotation(moved.as_deref()), 0);
    }
    if matches!(kind, Which::All | Which::Server)
        && let Some(log) = logging::log()
    {
        // Why it failed is in the log that could not be rotated: it may name paths.
        log.rotate_and_tell()
            .map_err(|_| failed(ErrorCode::FileRenameFailed))?;
    }
    Ok(rawdoc! { "ok": 1.0 })
}

enum Which {
    Server,
    Audit,
    All,
}

/// The logs are called `server` and `audit`; any number or boolean stands for all there are.
fn which(value: RawBsonRef<'_>) -> Result<Which, CommandError> {
    let field = Field {
        command: "logRotate",
        name: "logRotate",
        value,
    };
    match value {
        RawBsonRef::String("server") => Ok(Which::Server),
        RawBsonRef::String("audit") if audit::sink().is_some() => Ok(Which::Audit),
        RawBsonRef::String(_) => Err(failed(ErrorCode::NoSuchKey)),
        _ if field.bool().is_ok() => Ok(Which::All),
        _ => Err(field.wrong_type("types '[bool, string']")),
    }
}

fn failed(code: ErrorCode) -> CommandError {
    CommandError::new(code, "Log rotation failed due to one or more errors")
}
