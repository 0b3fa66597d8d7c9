//! `auditConfig`: which audit events are wanted, as it may be changed while processes run.
//!
//! It is a parameter of a set or cluster. Processes that were started with
//! `--auditRuntimeConfiguration` hold to it; for others their own flags and parameters count.

use banyan_security::audit::{Wanted, auditor};
use banyan_wire::params::{self, Field};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, Timestamp, cstr, rawdoc};

use crate::audit::SUCCESS_PARAMETER;

/// The parameter's name.
pub const PARAMETER: &str = "auditConfig";

/// When it was set, in its document and in replies.
const TIME: &str = "clusterParameterTime";

/// Every event, and of requests those that are refused.
pub fn default() -> RawDocumentBuf {
    rawdoc! { "filter": {}, "auditAuthorizationSuccess": false }
}

/// A value as it is kept.
///
/// # Errors
/// What is wrong with its fields, or with the filter.
pub fn parse(value: &RawDocument) -> Result<RawDocumentBuf, CommandError> {
    let (mut filter, mut successes) = (None, false);
    for (name, value) in value.iter().flatten() {
        let field = Field {
            command: PARAMETER,
            name: name.as_str(),
            value,
        };
        match name.as_str() {
            "filter" => filter = Some(field.document()?),
            SUCCESS_PARAMETER => successes = field.strict_bool()?,
            "_id" | TIME => {}
            other => return Err(params::unknown_field(PARAMETER, other)),
        }
    }
    let filter = filter.map(RawDocument::to_owned).unwrap_or_default();
    Wanted::new(&filter, successes, None)
        .map_err(|error| CommandError::new(ErrorCode::BadValue, error))?;
    Ok(rawdoc! { "filter": filter, "auditAuthorizationSuccess": successes })
}

/// Whether this process holds to it.
pub fn is_in_force() -> bool {
    auditor().is_some_and(|auditor| auditor.is_configurable())
}

/// # Errors
/// This process keeps no audit log, or does not hold to the parameter.
pub fn require() -> Result<(), CommandError> {
    let auditor = auditor().ok_or_else(not_enabled)?;
    match auditor.is_configurable() {
        true => Ok(()),
        false => Err(CommandError::new(
            ErrorCode::RuntimeAuditConfigurationNotEnabled,
            "auditing is not configured at run time here",
        )),
    }
}

fn not_enabled() -> CommandError {
    CommandError::new(ErrorCode::AuditingNotEnabled, "Auditing is not enabled")
}

/// Holds to the parameter's document from now on, where that is to be.
pub fn apply(document: &RawDocument) {
    let Some(auditor) = auditor().filter(|auditor| auditor.is_configurable()) else {
        return;
    };
    let filter = document.get_document("filter").map(RawDocument::to_owned);
    let successes = document.get_bool(SUCCESS_PARAMETER).unwrap_or(false);
    let since = document.get_timestamp(TIME).ok();
    match Wanted::new(&filter.unwrap_or_default(), successes, since) {
        Ok(wanted) => auditor.configure(wanted),
        // It was checked where it was set, maybe by a newer version.
        Err(error) => tracing::warn!(%error, "the filter of audit events is not understood"),
    }
}

/// Whether requests are noted that were let in. `parameter`: what the process's own says.
pub fn notes_successes(parameter: impl FnOnce() -> bool) -> bool {
    match auditor().filter(|auditor| auditor.is_configurable()) {
        Some(auditor) => auditor.wanted().wants_successes(),
        None => parameter(),
    }
}

/// # Errors
/// The process's own parameter does not count, so it is not to be changed.
pub fn check_parameter(name: &str) -> Result<(), CommandError> {
    match name == SUCCESS_PARAMETER && is_in_force() {
        true => Err(CommandError::new(
            ErrorCode::IllegalOperation,
            format!("{name} is set by setAuditConfig where auditing is configured at run time"),
        )),
        false => Ok(()),
    }
}

/// What `getAuditConfig` answers. `parameter` as in [`notes_successes`].
///
/// # Errors
/// This process keeps no audit log.
pub fn describe(parameter: impl FnOnce() -> bool) -> Result<RawDocumentBuf, CommandError> {
    let auditor = auditor().ok_or_else(not_enabled)?;
    let wanted = auditor.wanted();
    let mut reply = RawDocumentBuf::new();
    if auditor.is_configurable() {
        let never = Timestamp {
            time: 0,
            increment: 0,
        };
        reply.append(
            cstr!("clusterParameterTime"),
            wanted.since().unwrap_or(never),
        );
    }
    reply.append(cstr!("filter"), wanted.filter().to_owned());
    reply.append(
        cstr!("auditAuthorizationSuccess"),
        notes_successes(parameter),
    );
    reply.append(cstr!("ok"), 1.0);
    Ok(reply)
}

/// The value that the fields of a `setAuditConfig` come to.
///
/// # Errors
/// One of them is missing or has another type.
pub fn asked(body: &RawDocument) -> Result<RawDocumentBuf, CommandError> {
    const COMMAND: &str = "setAuditConfig";
    let field = |name| {
        let value = banyan_document::field(body, name);
        value
            .map(|value| Field {
                command: COMMAND,
                name,
                value,
            })
            .ok_or_else(|| params::missing_field(COMMAND, name))
    };
    let filter = field("filter")?.document()?;
    let successes = field(SUCCESS_PARAMETER)?.strict_bool()?;
    let mut value = RawDocumentBuf::new();
    value.append(cstr!("filter"), RawBsonRef::Document(filter));
    value.append(cstr!("auditAuthorizationSuccess"), successes);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_checked_before_it_is_kept() {
        let filter = rawdoc! { "atype": { "$in": ["dropCollection"] }, "param.db": "test" };
        let kept = parse(&rawdoc! { "filter": filter.clone() }).unwrap();
        assert_eq!(
            kept,
            rawdoc! { "filter": filter, "auditAuthorizationSuccess": false }
        );
        assert_eq!(parse(&rawdoc! {}).unwrap(), default());
        for wrong in [
            rawdoc! { "filter": { "a": { "$no": 1 } } },
            rawdoc! { "filter": 1 },
            rawdoc! { "auditAuthorizationSuccess": 1 },
            rawdoc! { "more": 1 },
        ] {
            assert!(parse(&wrong).is_err(), "{wrong:?}");
        }
        assert!(asked(&rawdoc! { "setAuditConfig": 1, "filter": {} }).is_err());
    }
}
