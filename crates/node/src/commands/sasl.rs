//! `saslStart`, `saslContinue`: a client proves who it is.

use banyan_access::check::Access;
use banyan_access::login;
use banyan_access::sasl::{Iterations, Sasl};
use banyan_wire::ErrorCode;
use bson::{RawDocument, RawDocumentBuf};

use super::table::{BoxFuture, CommandResult, CommandSpec, Needs, Run};
use crate::access::users::NodeUsers;
use crate::context::CommandContext;

pub static START: CommandSpec = CommandSpec::new("saslStart", Run::Future(start))
    .access(Access::Anyone)
    .needs(Needs::Any)
    .help("begins to authenticate")
    .fields(&["mechanism", "payload", "options", "autoAuthorize"])
    .vital();

pub static CONTINUE: CommandSpec = CommandSpec::new("saslContinue", Run::Future(proceed))
    .access(Access::Anyone)
    .needs(Needs::Any)
    .help("goes on authenticating")
    .fields(&["conversationId", "payload"])
    .vital();

/// Iterations for new passwords, by the server's parameters.
pub fn iterations(ctx: &CommandContext<'_>) -> Iterations {
    let value = |name| u32::try_from(ctx.node.parameters.value(name)).unwrap_or(u32::MAX);
    Iterations {
        sha1: value("scramIterationCount"),
        sha256: value("scramSHA256IterationCount"),
    }
}

fn sasl<'a>(ctx: &'a CommandContext<'_>, users: &'a NodeUsers<'_>) -> Sasl<'a> {
    Sasl {
        access: &ctx.node.access,
        users,
        connection: ctx.conn,
        iterations: iterations(ctx),
    }
}

/// The reply to a login that failed waits, so that guessing takes long.
pub async fn slowed(ctx: &CommandContext<'_>, result: CommandResult) -> CommandResult {
    if let Err(error) = &result
        && error.code == ErrorCode::AuthenticationFailed
    {
        ctx.note_wait(ctx.node.access.slow_down(ctx.conn).await);
    }
    result
}

fn start<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let start = login::start(ctx.body(), ctx.database());
        let result = start.and_then(|start| sasl(ctx, &ctx.node.users()).start(&start));
        slowed(ctx, result).await
    })
}

fn proceed<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let (conversation, payload) = login::proceed(ctx.body())?;
        let result = sasl(ctx, &ctx.node.users()).proceed(conversation, payload);
        slowed(ctx, result).await
    })
}

/// The answer to the first message of a login that came within `hello`.
pub fn speculative(ctx: &CommandContext<'_>, body: &RawDocument) -> Option<RawDocumentBuf> {
    let start = login::speculative(body)?;
    sasl(ctx, &ctx.node.users()).start(&start).ok()
}
