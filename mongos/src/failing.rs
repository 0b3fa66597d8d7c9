//! Commands that fail because a test wants them to (see [`banyan_wire::fail_points`]).

use banyan_wire::fail_points::fail_command::{labelled, labelled_reply};
use banyan_wire::fail_points::{Failing, Failure};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArrayBuf, RawBson, RawDocumentBuf, cstr};

use crate::context::{CommandResult, CommandSpec, Context};
use crate::errors::expired;

/// The commands that take a write concern.
const WRITES: &[&str] = &[
    "bulkWrite",
    "collMod",
    "create",
    "createIndexes",
    "delete",
    "drop",
    "dropDatabase",
    "dropIndexes",
    "findAndModify",
    "insert",
    "renameCollection",
    "update",
];

/// Runs a command, unless a test has it fail.
pub async fn run(
    context: &Context<'_>,
    spec: &CommandSpec,
    run: impl Future<Output = CommandResult>,
) -> CommandResult {
    let failing = Failing {
        points: &context.router.fail_points,
        connection: context.connection,
        request: context.request,
        name: spec.name,
        aliases: spec.aliases,
    };
    let mut labels: Option<RawArrayBuf> = None;
    if let Some(mut failure) = failing.before() {
        labels = failure.labels.take();
        if let Err(error) = fail(context, failure).await {
            return Err(match &labels {
                Some(labels) => labelled(error, labels),
                None => retryable(context, spec, error),
            });
        }
    }
    let result = run.await;
    let reply = match result {
        Ok(reply) if WRITES.contains(&spec.name) => reply,
        other => return other,
    };
    let Some((RawBson::Document(error), labels_then)) = failing.after_write() else {
        return Ok(reply);
    };
    let code = error.get_i32("code").map(ErrorCode::from_code);
    let marked = with_concern_error(&reply, error);
    Ok(match labels_then.or(labels) {
        Some(labels) => labelled_reply(marked, &labels),
        None if code.is_ok_and(|code| code.is_retryable()) && is_numbered(context, spec) => {
            labelled_reply(marked, &RawArrayBuf::from_iter([RETRYABLE]))
        }
        None => marked,
    })
}

const RETRYABLE: &str = "RetryableWriteError";

async fn fail(context: &Context<'_>, failure: Failure) -> Result<(), CommandError> {
    if failure.closes {
        context.connection.hang_up();
        return Err(CommandError::new(
            ErrorCode::Location(50985),
            "Failing command via 'failCommand' failpoint. Action: close connection.",
        ));
    }
    if let Some(time) = failure.block {
        let block = tokio::time::sleep(time);
        match context.deadline {
            Some(deadline) => {
                let waited = tokio::time::timeout_at(deadline, block).await;
                waited.map_err(|_| expired())?;
            }
            None => block.await,
        }
    }
    failure.error.map_or(Ok(()), Err)
}

fn is_numbered(context: &Context<'_>, spec: &CommandSpec) -> bool {
    spec.retryable && context.request.get("txnNumber").is_some()
}

fn retryable(context: &Context<'_>, spec: &CommandSpec, error: CommandError) -> CommandError {
    match error.code.is_retryable() && is_numbered(context, spec) {
        true => error.with_label(RETRYABLE),
        false => error,
    }
}

/// The reply with this write concern error, in place of its own.
fn with_concern_error(reply: &RawDocumentBuf, error: RawDocumentBuf) -> RawDocumentBuf {
    let mut out = RawDocumentBuf::new();
    let mut error = Some(error);
    for (name, value) in reply.iter().flatten() {
        match name.as_str() {
            "writeConcernError" => continue,
            "ok" => {
                if let Some(error) = error.take() {
                    out.append(cstr!("writeConcernError"), error);
                }
            }
            _ => {}
        }
        out.append(name, value);
    }
    out
}
