//! `hello` and `isMaster`: what a driver asks first.

use std::time::Duration;

use banyan_access::check::Access;
use banyan_access::{audit, login};
use banyan_wire::version::{WIRE_VERSION_MAX, WIRE_VERSION_MIN};
use bson::raw::cstr;
use bson::{RawBsonRef, RawDocumentBuf, rawdoc};

use super::sasl;
use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::fields;

pub const SPEC: CommandSpec = CommandSpec::new("hello", "what this process is", run!(run))
    .access(Access::Anyone)
    .aliases(&["isMaster", "ismaster"]);

/// The longest that a driver may have an unchanged answer held back.
const AWAIT_MAX: Duration = Duration::from_secs(60);
const BATCH_STATEMENTS_MAX: i32 = 100_000;
const SESSION_MINUTES: i32 = 30;

async fn run(context: &Context<'_>) -> CommandResult {
    let body = &context.request.body;
    if audit::is_on()
        && let Some(metadata) = fields::get(body, "client")
    {
        audit::greeting(context.connection, metadata);
    }
    // A router's answer never changes: a driver that waits for a change waits as long as it said.
    if fields::get(body, "topologyVersion").is_some()
        && let Some(millis) = fields::get_number(body, "maxAwaitTimeMS")
    {
        let wait = Duration::from_millis(u64::try_from(millis).unwrap_or(0)).min(AWAIT_MAX);
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = context.connection.closed().cancelled() => {}
        }
    }
    let mut out = RawDocumentBuf::new();
    if context.request.name == "hello" {
        out.append(cstr!("isWritablePrimary"), true);
    } else {
        out.append(cstr!("ismaster"), true);
        if fields::get_flag(body, "helloOk") {
            out.append(cstr!("helloOk"), true);
        }
    }
    out.append(cstr!("msg"), "isdbgrid");
    out.append(
        cstr!("topologyVersion"),
        rawdoc! {"processId": context.router.identity.process_id, "counter": 0i64},
    );
    out.append(
        cstr!("maxBsonObjectSize"),
        banyan_document::MAX_DOCUMENT_BYTES as i32,
    );
    out.append(
        cstr!("maxMessageSizeBytes"),
        banyan_document::MAX_MESSAGE_BYTES as i32,
    );
    out.append(cstr!("maxWriteBatchSize"), BATCH_STATEMENTS_MAX);
    out.append(cstr!("localTime"), bson::DateTime::now());
    out.append(cstr!("logicalSessionTimeoutMinutes"), SESSION_MINUTES);
    out.append(cstr!("connectionId"), context.connection.id as i64);
    out.append(cstr!("maxWireVersion"), WIRE_VERSION_MAX);
    out.append(cstr!("minWireVersion"), WIRE_VERSION_MIN);
    out.append(cstr!("readOnly"), false);
    out.append(cstr!("ok"), 1.0);
    with_login(context, out).await
}

/// What a client that is about to log in asks beside.
async fn with_login(context: &Context<'_>, hello: RawDocumentBuf) -> CommandResult {
    let body = &context.request.body;
    let mechanisms = match fields::get(body, "saslSupportedMechs") {
        Some(value) => {
            let name = login::asked_about(value)?;
            let user = context.router.users.fetch(&name).await?;
            Some(login::mechanisms(
                user.as_ref().map(|user| &user.definition),
            ))
        }
        None => None,
    };
    let speculative = match fields::get(body, "speculativeAuthenticate") {
        Some(RawBsonRef::Document(start)) => sasl::speculative(context, start).await,
        _ => None,
    };
    Ok(login::with_login(hello, mechanisms, speculative))
}
