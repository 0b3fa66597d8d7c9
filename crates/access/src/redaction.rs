//! Credentials in requests are shown to nobody: not in the log, not by `currentOp`, not in errors.

use std::borrow::Cow;

use banyan_document::elements;
use banyan_wire::{Doc, Request};
use bson::{RawDocument, RawDocumentBuf};

const HIDDEN: &str = "xxx";

/// The fields of a command that hold a password, a proof, or what is as good.
fn secrets(command: &str) -> &'static [&'static str] {
    match command {
        "createUser" | "updateUser" => &["pwd"],
        "saslStart" | "saslContinue" => &["payload"],
        "authenticate" => &["key", "nonce", "pwd"],
        "hello" | "isMaster" | "ismaster" => &["speculativeAuthenticate"],
        _ => &[],
    }
}

/// The body of a command as it may be shown. `None`: as it is.
pub fn shown(body: &RawDocument) -> Option<RawDocumentBuf> {
    let command = elements(body).next()?;
    let secrets = secrets(command.name());
    if !elements(body).any(|element| secrets.contains(&element.name())) {
        return None;
    }
    let mut shown = RawDocumentBuf::new();
    for element in elements(body) {
        let Ok(name) = bson::raw::CString::try_from(element.name()) else {
            continue;
        };
        if secrets.contains(&element.name()) {
            shown.append(&name, HIDDEN);
        } else {
            shown.append(&name, element.value());
        }
    }
    Some(shown)
}

pub fn redacted(request: &Request) -> Cow<'_, Request> {
    match shown(&request.body) {
        None => Cow::Borrowed(request),
        Some(body) => Cow::Owned(Request {
            body: Doc::from(body),
            ..request.clone()
        }),
    }
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    #[test]
    fn passwords_and_proofs_are_hidden() {
        let user = rawdoc! { "createUser": "a", "pwd": "secret", "roles": ["read"] };
        let hidden = rawdoc! { "createUser": "a", "pwd": "xxx", "roles": ["read"] };
        assert_eq!(shown(&user), Some(hidden));
        let sasl = rawdoc! { "saslContinue": 1, "conversationId": 1, "payload": "p=…" };
        let shown_sasl = shown(&sasl).expect("something is hidden");
        assert_eq!(shown_sasl.get_str("payload").ok(), Some("xxx"));
        assert_eq!(shown(&rawdoc! { "insert": "c", "pwd": "theirs" }), None);
    }
}
