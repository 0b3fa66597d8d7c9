//! `rotateCertificates`: connections that come from now on are shown the certificates that are in
//! the files by now.

use banyan_access::check::Access;
use banyan_security::Action;
use banyan_wire::{CommandError, ErrorCode, tls};
use bson::{RawBsonRef, rawdoc};
use tracing::info;

use crate::context::{CommandResult, CommandSpec, Context, run};

pub const SPEC: CommandSpec = CommandSpec::new(
    "rotateCertificates",
    "reads the certificates again",
    run!(run),
)
.access(Access::Cluster(Action::RotateCertificates))
.admin_only();

async fn run(context: &Context<'_>) -> CommandResult {
    let message = match context.request.get("message") {
        None => None,
        Some(RawBsonRef::String(message)) => Some(message),
        Some(_) => {
            return Err(CommandError::new(
                ErrorCode::TypeMismatch,
                "BSON field 'rotateCertificates.message' is the wrong type, expected type 'string'",
            ));
        }
    };
    tokio::task::block_in_place(tls::operating::rotate)?;
    info!(reason = message, "the certificates were rotated");
    Ok(rawdoc! {"ok": 1.0})
}
