//! `saslStart`, `saslContinue`: a client proves who it is.

use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use super::table::{BoxFuture, CommandResult, CommandSpec, Needs, Run};
use crate::access::check::{Access, is_true};
use crate::access::sasl::{Iterations, Sasl, Start};
use crate::context::CommandContext;
use crate::params;

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

fn sasl<'a>(ctx: &'a CommandContext<'_>) -> Sasl<'a> {
    Sasl {
        access: &ctx.node.access,
        replica: &ctx.node.replica,
        connection: ctx.conn,
        iterations: iterations(ctx),
    }
}

fn payload<'a>(
    command: &'static str,
    body: &'a RawDocument,
) -> Result<Option<&'a [u8]>, CommandError> {
    match banyan_document::field(body, "payload") {
        Some(RawBsonRef::Binary(binary)) => Ok(Some(binary.bytes)),
        Some(RawBsonRef::String(_)) | None => Ok(None),
        Some(value) => Err(params::Field {
            command,
            name: "payload",
            value,
        }
        .wrong_type("type 'binData'")),
    }
}

/// Runs the first message of a conversation: a command's, or one that came within `hello`.
fn begin(
    ctx: &CommandContext<'_>,
    body: &RawDocument,
    database: &str,
) -> Result<RawDocumentBuf, CommandError> {
    let field = |name| banyan_document::field(body, name);
    let Some(mechanism) = field("mechanism").and_then(|value| value.as_str()) else {
        return Err(params::missing_field("saslStart", "mechanism"));
    };
    let Some(payload) = payload("saslStart", body)? else {
        return Err(params::missing_field("saslStart", "payload"));
    };
    let options = field("options").and_then(|options| options.as_document());
    let skips_last = options
        .and_then(|options| banyan_document::field(options, "skipEmptyExchange"))
        .is_some_and(is_true);
    sasl(ctx).start(&Start {
        database,
        mechanism,
        payload,
        skips_last,
    })
}

/// The reply to a login that failed waits, so that guessing takes long.
async fn slowed(ctx: &CommandContext<'_>, result: CommandResult) -> CommandResult {
    if let Err(error) = &result
        && error.code == ErrorCode::AuthenticationFailed
    {
        let delay = ctx.node.access.failed(ctx.conn);
        ctx.note_wait(delay);
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = ctx.conn.closed().cancelled() => {}
        }
    }
    result
}

fn start<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let result = begin(ctx, ctx.body(), ctx.database());
        slowed(ctx, result).await
    })
}

fn proceed<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let conversation = ctx.required("conversationId")?.i32()?;
        let Some(payload) = payload("saslContinue", ctx.body())? else {
            return Err(params::missing_field("saslContinue", "payload"));
        };
        let result = sasl(ctx).proceed(conversation, payload);
        slowed(ctx, result).await
    })
}

/// The first message of a login that a client sends along with `hello`. One that leads nowhere is
/// not answered: the client then begins anew, and is told why.
pub fn speculative(ctx: &CommandContext<'_>, body: &RawDocument) -> Option<RawDocumentBuf> {
    let database = banyan_document::field(body, "db")?.as_str()?;
    let command = banyan_document::elements(body).next()?;
    if command.name() != "saslStart" {
        return None;
    }
    begin(ctx, body, database).ok()
}
