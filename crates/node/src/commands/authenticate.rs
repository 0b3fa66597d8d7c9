//! `authenticate`, the login of 2012 and of certificates; `logout`; `getnonce`.

use banyan_wire::{CommandError, ErrorCode};
use bson::rawdoc;

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::access::check::Access;
use crate::access::login;
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("authenticate", Run::Inline(run))
    .access(Access::Anyone)
    .needs(Needs::Any)
    .help("refused: clients authenticate with SCRAM")
    .lenient();

pub static LOGOUT: CommandSpec = CommandSpec::new("logout", Run::Inline(logout))
    .access(Access::LoggedIn)
    .needs(Needs::Any)
    .help("forgets that the client has logged in to this database");

pub static NONCE: CommandSpec = CommandSpec::new("getnonce", Run::Inline(nonce))
    .aliases(&["getNonce"])
    .access(Access::Anyone)
    .needs(Needs::Any)
    .help("refused: MONGODB-CR is not spoken any more");

const TOO_OLD: &str = "MONGODB-CR is not supported: it proves a password by an MD5 digest, which \
                       whoever learns it can log in with. Use a driver that knows SCRAM-SHA-1 or \
                       SCRAM-SHA-256";

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let mechanism = ctx
        .field("mechanism")
        .map(|field| field.str())
        .transpose()?;
    Err(match mechanism {
        Some("MONGODB-X509") => CommandError::new(
            ErrorCode::AuthenticationFailed,
            "No verified subject name available from client",
        ),
        None | Some("MONGODB-CR") => CommandError::new(ErrorCode::MechanismUnavailable, TOO_OLD),
        Some(other) => CommandError::new(
            ErrorCode::MechanismUnavailable,
            format!(
                "Received authentication for mechanism {} which is not enabled",
                crate::shape::shortened(other)
            ),
        ),
    })
}

fn nonce(_: &CommandContext<'_>) -> CommandResult {
    Err(CommandError::new(ErrorCode::MechanismUnavailable, TOO_OLD))
}

fn logout(ctx: &CommandContext<'_>) -> CommandResult {
    login::leave(ctx.conn, ctx.database());
    Ok(rawdoc! { "ok": 1.0 })
}
