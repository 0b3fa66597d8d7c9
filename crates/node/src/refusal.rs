//! The shape of an error in a reply: which words, which labels, and of which state of the member it
//! speaks.

use banyan_replication::set::ReplicationCoordinator;
use banyan_wire::{CommandError, Connection, ErrorCode, Origin, Request};
use bson::{RawArrayBuf, RawDocument, RawDocumentBuf, cstr};

use crate::commands::table::CommandSpec;
use crate::generic::Generic;

const RETRYABLE: &str = "RetryableWriteError";
/// A driver opens a change stream again where it was only if the error says that it may.
const RESUMABLE: &str = "ResumableChangeStreamError";
/// No member could go on.
const NOT_RESUMABLE: &str = "NonResumableChangeStreamError";

/// It is a write that a driver can name again: its result is remembered under its number.
fn is_numbered_write(spec: &CommandSpec, generic: &Generic<'_>) -> bool {
    spec.writes && generic.txn_number.is_some()
}

/// Labels the error of a command. `failed_by_test`: it is one that a test asked for, before the command
/// ran: nothing is known then of the stream that a `getMore` was for.
pub fn label(
    error: CommandError,
    spec: &CommandSpec,
    generic: &Generic<'_>,
    failed_by_test: bool,
) -> CommandError {
    let labelled = error.labels.contains(&RETRYABLE);
    if is_numbered_write(spec, generic) && error.code.is_retryable() && !labelled {
        return error.with_label(RETRYABLE);
    }
    let may_go_on = error.code.is_retryable() || is_about_place(error.code);
    if spec.name == "getMore" && may_go_on && !failed_by_test {
        return error.with_label(RESUMABLE);
    }
    if is_end_of_stream(error.code) {
        return error.with_label(NOT_RESUMABLE);
    }
    error
}

/// Another member may answer.
fn is_about_place(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::StaleConfig
            | ErrorCode::StaleEpoch
            | ErrorCode::RetryChangeStream
            | ErrorCode::FailedToSatisfyReadPreference
    )
}

fn is_end_of_stream(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::ChangeStreamFatalError | ErrorCode::ChangeStreamHistoryLost
    )
}

/// What went well and was then not replicated as asked may carry the same marks as an error.
pub fn mark_concern(
    mut reply: RawDocumentBuf,
    spec: &CommandSpec,
    generic: &Generic<'_>,
    replication: &ReplicationCoordinator,
) -> RawDocumentBuf {
    let Some(code) = concern_code(&reply) else {
        return reply;
    };
    if is_numbered_write(spec, generic) && code.is_retryable() {
        reply.append(cstr!("errorLabels"), RawArrayBuf::from_iter([RETRYABLE]));
    }
    if is_about_state(code, replication) {
        reply.append(cstr!("topologyVersion"), replication.topology_version());
    }
    reply
}

fn concern_code(reply: &RawDocument) -> Option<ErrorCode> {
    let error = banyan_document::field(reply, "writeConcernError")?.as_document()?;
    error.get_i32("code").ok().map(ErrorCode::from_code)
}

/// Whether the reply says how new it is. One that speaks of the end of a member which does not know of it
/// is not passed over by a driver that has heard the newest.
fn is_about_state(code: ErrorCode, replication: &ReplicationCoordinator) -> bool {
    code.is_not_primary() || code.is_shutdown() && replication.check_quiescing().is_err()
}

/// The reply that says the error.
pub fn reply(
    mut error: CommandError,
    conn: &Connection,
    request: &Request,
    replication: &ReplicationCoordinator,
) -> RawDocumentBuf {
    if request.origin != Origin::Msg || !conn.hello_ok() {
        in_old_words(&mut error);
    }
    let mut out = RawDocumentBuf::new();
    let labels = std::mem::take(&mut error.labels);
    if !labels.is_empty() {
        out.append(cstr!("errorLabels"), RawArrayBuf::from_iter(labels));
    }
    if is_about_state(error.code, replication) && replication.is_replica_set() {
        out.append(cstr!("topologyVersion"), replication.topology_version());
    }
    for (name, value) in error.to_reply().iter().flatten() {
        out.append(name, value);
    }
    out
}

/// Clients that have not said `helloOk` look for these very words.
fn in_old_words(error: &mut CommandError) {
    let old = match (error.code, &*error.message) {
        (ErrorCode::NotWritablePrimary, "not primary") => "not master",
        (ErrorCode::NotPrimaryNoSecondaryOk, "not primary and secondaryOk=false") => {
            "not master and slaveOk=false"
        }
        _ => return,
    };
    old.clone_into(&mut error.message);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::table::{CommandResult, Run};
    use crate::context::CommandContext;

    fn nothing(_: &CommandContext<'_>) -> CommandResult {
        Ok(RawDocumentBuf::new())
    }

    static READ: CommandSpec = CommandSpec::new("find", Run::Inline(nothing));
    static WRITE: CommandSpec = CommandSpec::new("insert", Run::Inline(nothing)).writes();

    static CONTINUE: CommandSpec = CommandSpec::new("getMore", Run::Inline(nothing));

    #[test]
    fn a_stream_may_be_opened_again_where_another_member_may_go_on() {
        let label = |code| {
            let error = CommandError::new(ErrorCode::from_code(code), "");
            label(error, &CONTINUE, &Generic::default(), false).labels
        };
        for code in [10107, 11600, 11602, 13436, 133, 150, 234] {
            assert_eq!(label(code), ["ResumableChangeStreamError"], "{code}");
        }
        let error = CommandError::new(ErrorCode::HostUnreachable, "");
        let labelled = super::label(error, &CONTINUE, &Generic::default(), true);
        assert!(labelled.labels.is_empty(), "a test has it fail");
        for code in [43, 47] {
            assert!(label(code).is_empty(), "{code}");
        }
        for code in [280, 286] {
            let labels = label(code);
            assert_eq!(labels, ["NonResumableChangeStreamError"], "{code}");
        }
    }

    #[test]
    fn only_numbered_writes_are_labelled_and_only_where_another_try_may_help() {
        let numbered = Generic {
            txn_number: Some(1),
            ..Generic::default()
        };
        let plain = Generic::default();
        let labels =
            |code, spec, generic| label(CommandError::new(code, ""), spec, generic, false).labels;
        for code in [10107, 13435, 13436, 189, 91, 11600, 11602, 262, 6, 89] {
            let code = ErrorCode::from_code(code);
            assert_eq!(labels(code, &WRITE, &numbered), [RETRYABLE], "{code:?}");
            assert!(labels(code, &READ, &numbered).is_empty(), "{code:?}");
            assert!(labels(code, &WRITE, &plain).is_empty());
        }
        for code in [11000, 50, 64, 112, 13] {
            let code = ErrorCode::from_code(code);
            assert!(labels(code, &WRITE, &numbered).is_empty(), "{code:?}");
        }
    }
}
