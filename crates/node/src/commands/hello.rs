//! `hello`, `isMaster`: what this member is, and what it can do.
//!
//! The client's description of itself and its compressors are the connection's business (see
//! `banyan_wire`). With `maxAwaitTimeMS` the answer waits until something has changed.

use std::time::Duration;

use banyan_access::check::Access;
use banyan_access::users::Users;
use banyan_access::{audit, login};
use banyan_replication::set::hello::Asked;
use banyan_wire::{CommandError, ErrorCode, Origin};
use bson::oid::ObjectId;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use super::authenticate;
use super::sasl;
use super::table::{BoxFuture, CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::params::{self, Field};

pub static SPEC: CommandSpec = CommandSpec::new("hello", Run::Either(at_once, when_changed))
    .access(Access::Anyone)
    .aliases(&["isMaster", "ismaster"])
    .needs(Needs::Any)
    .help("says what this member is and what it can do")
    .fields(&["topologyVersion", "maxAwaitTimeMS", "helloOk"])
    .lenient()
    .vital();

/// No driver waits longer than this for one answer.
const AWAIT_MAX: Duration = Duration::from_secs(3600);

fn asked(ctx: &CommandContext<'_>) -> Result<Asked, CommandError> {
    let hello_ok = match ctx.field("helloOk") {
        Some(field) => field.bool()?,
        None => false,
    };
    let parameters = &ctx.node.parameters;
    let session_minutes = parameters.value("localLogicalSessionTimeoutMinutes");
    Ok(Asked {
        old_name: ctx.request.name != "hello",
        hello_ok,
        connection: ctx.conn.id,
        session_minutes: i32::try_from(session_minutes).unwrap_or(i32::MAX),
    })
}

fn at_once(ctx: &CommandContext<'_>) -> Option<CommandResult> {
    if audit::is_on()
        && let Some(metadata) = ctx.field("client")
    {
        audit::greeting(ctx.conn, metadata.value);
    }
    let waits = ctx.field("maxAwaitTimeMS").is_some() || ctx.field("topologyVersion").is_some();
    let asks = |field| ctx.field(field).is_some();
    if waits || asks("saslSupportedMechs") || asks("speculativeAuthenticate") {
        return None;
    }
    if ctx.request.exhaust_allowed && ctx.request.origin == Origin::Msg {
        return Some(Err(CommandError::new(
            ErrorCode::Location(51756),
            "An isMaster or hello request with exhaust must specify 'maxAwaitTimeMS'",
        )));
    }
    Some(asked(ctx).and_then(|asked| ctx.node.replication.hello(asked)))
}

fn when_changed<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let replication = &ctx.node.replication;
        let version = match ctx.field("topologyVersion") {
            Some(field) => Some(parse_version(field.document()?)?),
            None => None,
        };
        let await_ms = match ctx.field("maxAwaitTimeMS") {
            Some(field) => Some(field.unsigned()?),
            None => None,
        };
        match (version, await_ms) {
            (Some((process, counter)), Some(await_ms)) => {
                let most = Duration::from_millis(await_ms).min(AWAIT_MAX);
                tokio::select! {
                    waited = replication.await_change(process, counter, most) => waited?,
                    () = ctx.conn.closed().cancelled() => {}
                    () = ctx.conn.left().cancelled() => {}
                }
            }
            (None, None) => {}
            (Some(_), None) => {
                return Err(CommandError::new(
                    ErrorCode::Location(31368),
                    "A request with a 'topologyVersion' must include 'maxAwaitTimeMS'",
                ));
            }
            (None, Some(_)) => {
                return Err(CommandError::new(
                    ErrorCode::Location(31368),
                    "A request with 'maxAwaitTimeMS' must include a 'topologyVersion'",
                ));
            }
        }
        let reply = replication.hello(asked(ctx)?)?;
        with_login(ctx, reply)
    })
}

/// What a client that is about to log in asks beside.
fn with_login(ctx: &CommandContext<'_>, reply: RawDocumentBuf) -> CommandResult {
    let mechanisms = match ctx.field("saslSupportedMechs") {
        Some(field) => {
            let name = login::asked_about(field.value)?;
            let user = ctx.node.users().definition(&name)?;
            Some(login::mechanisms(user.as_ref()))
        }
        None => None,
    };
    let speculative = match ctx.field("speculativeAuthenticate") {
        Some(field) => {
            let body = field.document()?;
            authenticate::speculative(ctx, body).or_else(|| sasl::speculative(ctx, body))
        }
        None => None,
    };
    Ok(login::with_login(reply, mechanisms, speculative))
}

fn parse_version(version: &RawDocument) -> Result<(ObjectId, i64), CommandError> {
    const PARSER: &str = "hello.topologyVersion";
    let field = |name: &'static str| match version.get(name) {
        Ok(Some(value)) => Ok(Field {
            command: PARSER,
            name,
            value,
        }),
        _ => Err(params::missing_field(PARSER, name)),
    };
    let process = field("processId")?;
    let RawBsonRef::ObjectId(process) = process.value else {
        return Err(process.wrong_type("type 'objectId'"));
    };
    let counter = field("counter")?;
    match counter.value {
        RawBsonRef::Int64(counter) if counter >= 0 => Ok((process, counter)),
        RawBsonRef::Int64(_) => Err(CommandError::new(
            ErrorCode::Location(31372),
            "topologyVersion must have a non-negative counter",
        )),
        _ => Err(counter.wrong_type("type 'long'")),
    }
}
