//! The error that a command answers with, and what it looks like in a reply.

use std::fmt;

use bson::raw::cstr;
use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf};

use crate::codes::ErrorCode;

/// A command's failure: becomes `{ok: 0, errmsg, code, codeName, …}`.
#[derive(Clone, Debug)]
pub struct CommandError {
    pub code: ErrorCode,
    pub message: String,
    /// `errorLabels`: tell a driver what it may do next (`RetryableWriteError`, …).
    pub labels: Vec<&'static str>,
    /// Fields merged into the reply (`keyPattern`, `keyValue`, `errInfo`, …).
    pub extra: Option<Box<RawDocumentBuf>>,
}

/// The labels that the protocol knows; others that a peer sends are dropped.
const LABELS: &[&str] = &[
    "RetryableWriteError",
    "TransientTransactionError",
    "UnknownTransactionCommitResult",
    "ResumableChangeStreamError",
    "NonResumableChangeStreamError",
    "NoWritesPerformed",
];

impl CommandError {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> CommandError {
        CommandError {
            code,
            message: message.into(),
            labels: Vec::new(),
            extra: None,
        }
    }

    pub fn with_label(mut self, label: &'static str) -> CommandError {
        self.labels.push(label);
        self
    }

    pub fn with_extra(mut self, extra: RawDocumentBuf) -> CommandError {
        self.extra = Some(Box::new(extra));
        self
    }

    pub fn to_reply(&self) -> RawDocumentBuf {
        let mut out = RawDocumentBuf::new();
        out.append(cstr!("ok"), 0.0);
        out.append(cstr!("errmsg"), self.message.as_str());
        out.append(cstr!("code"), self.code.code());
        out.append(cstr!("codeName"), &*self.code.name());
        for (name, value) in self.extra.iter().flat_map(|extra| extra.iter().flatten()) {
            out.append(name, value);
        }
        if !self.labels.is_empty() {
            out.append(
                cstr!("errorLabels"),
                RawArrayBuf::from_iter(self.labels.iter().copied()),
            );
        }
        out
    }

    /// The first error that a write command's reply reports, of a statement or of the write concern.
    pub fn from_write_reply(reply: &RawDocument) -> Option<CommandError> {
        let field = |name| banyan_document::field(reply, name);
        let statement = match field("writeErrors") {
            Some(RawBsonRef::Array(errors)) => errors.get_document(0).ok(),
            _ => None,
        };
        let concern = || field("writeConcernError")?.as_document();
        let error = statement.or_else(concern)?;
        let code = error
            .get_i32("code")
            .unwrap_or(ErrorCode::UnknownError.code());
        let message = error.get_str("errmsg").unwrap_or("write failed");
        let mut extra = RawDocumentBuf::new();
        for (name, value) in error.iter().flatten() {
            if !matches!(name.as_str(), "index" | "code" | "codeName" | "errmsg") {
                extra.append(name, value);
            }
        }
        let told = CommandError::new(ErrorCode::from_code(code), message);
        Some(match extra.is_empty() {
            true => told,
            false => told.with_extra(extra),
        })
    }

    /// Reads the error out of a reply with `ok: 0`; `None` when the reply says it went well.
    pub fn from_reply(reply: &RawDocument) -> Option<CommandError> {
        let ok = banyan_document::field(reply, "ok").and_then(number);
        if ok.is_some_and(|ok| ok != 0.0) {
            return None;
        }
        let mut code = None;
        let mut message = None;
        let mut labels = Vec::new();
        let mut extra = RawDocumentBuf::new();
        for element in reply.iter_elements() {
            let Ok(element) = element else { break };
            let Ok(value) = element.value() else { break };
            match (element.key().as_str(), value) {
                ("code", value) => code = number(value),
                ("errmsg", RawBsonRef::String(text)) => message = Some(text.to_owned()),
                ("errorLabels", RawBsonRef::Array(array)) => labels = known_labels(array),
                ("ok" | "codeName" | "$clusterTime" | "operationTime" | "$gleStats", _) => {}
                (_, value) => extra.append(element.key(), value),
            }
        }
        let code = code.map_or(ErrorCode::UnknownError, |code| {
            ErrorCode::from_code(code as i32)
        });
        Some(CommandError {
            code,
            message: message.unwrap_or_else(|| "the reply says neither ok nor why not".to_owned()),
            labels,
            extra: (!extra.is_empty()).then(|| Box::new(extra)),
        })
    }
}

fn known_labels(array: &bson::RawArray) -> Vec<&'static str> {
    array
        .into_iter()
        .filter_map(|label| label.ok()?.as_str())
        .filter_map(|label| LABELS.iter().copied().find(|known| *known == label))
        .collect()
}

fn number(value: RawBsonRef<'_>) -> Option<f64> {
    match value {
        RawBsonRef::Double(n) => Some(n),
        RawBsonRef::Int32(n) => Some(f64::from(n)),
        RawBsonRef::Int64(n) => Some(n as f64),
        RawBsonRef::Boolean(b) => Some(f64::from(u8::from(b))),
        _ => None,
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({}): {}",
            self.code.name(),
            self.code.code(),
            self.message
        )
    }
}

impl std::error::Error for CommandError {}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;

    #[test]
    fn a_reply_reads_back_as_the_same_error() {
        let error = CommandError::new(ErrorCode::DuplicateKey, "E11000 duplicate key error")
            .with_extra(rawdoc! {"keyPattern": {"_id": 1}, "keyValue": {"_id": 7}})
            .with_label("RetryableWriteError");
        let reply = error.to_reply();
        assert_eq!(reply.get_i32("code").unwrap(), 11000);
        assert_eq!(reply.get_str("codeName").unwrap(), "DuplicateKey");
        let back = CommandError::from_reply(&reply).unwrap();
        assert_eq!(back.code, ErrorCode::DuplicateKey);
        assert_eq!(back.labels, ["RetryableWriteError"]);
        assert_eq!(
            *back.extra.unwrap(),
            rawdoc! {"keyPattern": {"_id": 1}, "keyValue": {"_id": 7}}
        );
        assert!(CommandError::from_reply(&rawdoc! {"ok": 1.0}).is_none());
        assert!(CommandError::from_reply(&rawdoc! {"ok": 1}).is_none());
        assert!(CommandError::from_reply(&rawdoc! {}).is_some());
    }
}
