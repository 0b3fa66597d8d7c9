//! `authenticate`, the login of 2012 and of certificates; `logout`; `getnonce`.

use banyan_access::certificates::{self, Claim};
use banyan_access::check::Access;
use banyan_access::login;
use bson::{RawDocument, RawDocumentBuf, rawdoc};

use super::sasl::slowed;
use super::table::{CommandResult, CommandSpec, Needs, Run, boxed};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("authenticate", Run::Future(|ctx| boxed(run(ctx))))
    .access(Access::Anyone)
    .needs(Needs::Any)
    .help("logs in with the certificate of the connection")
    .lenient()
    .vital();

pub static LOGOUT: CommandSpec = CommandSpec::new("logout", Run::Inline(logout))
    .access(Access::LoggedIn)
    .needs(Needs::Any)
    .help("forgets that the client has logged in to this database");

pub static NONCE: CommandSpec = CommandSpec::new("getnonce", Run::Inline(nonce))
    .aliases(&["getNonce"])
    .access(Access::Anyone)
    .needs(Needs::Any)
    .help("refused: MONGODB-CR is not spoken any more");

async fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let claim = login::claim(ctx.body(), ctx.database())?;
    slowed(ctx, by_certificate(ctx, &claim)).await
}

/// The login of whoever has shown a certificate in the handshake.
fn by_certificate(ctx: &CommandContext<'_>, claim: &Claim<'_>) -> CommandResult {
    certificates::log_in(&ctx.node.access, ctx.conn, claim, &ctx.node.users())
}

/// The same, sent along with `hello`. One that leads nowhere is not answered.
pub fn speculative(ctx: &CommandContext<'_>, body: &RawDocument) -> Option<RawDocumentBuf> {
    by_certificate(ctx, &login::speculative_claim(body)?).ok()
}

fn nonce(_: &CommandContext<'_>) -> CommandResult {
    Err(login::too_old())
}

fn logout(ctx: &CommandContext<'_>) -> CommandResult {
    login::leave(ctx.conn, ctx.database());
    Ok(rawdoc! { "ok": 1.0 })
}
