//! Credentials in requests are shown to nobody: not in the log, not by `currentOp`, not in errors.

use std::borrow::Cow;

use banyan_document::elements;
use banyan_wire::{Doc, Request};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use crate::cluster_time::KEYS_COLLECTION;

/// What stands in place of a secret.
pub const HIDDEN: &str = "xxx";

/// Whether documents of a collection are secret, whatever writes them.
pub fn is_secret(collection: &str) -> bool {
    matches!(collection, "system.users" | KEYS_COLLECTION)
}

/// The fields of a command that hold a password, a proof, or what is as good. `target`: the value of
/// its first field.
fn secrets(command: &str, target: RawBsonRef<'_>, body: &RawDocument) -> &'static [&'static str] {
    if let ("insert", RawBsonRef::String(KEYS_COLLECTION)) = (command, target) {
        return &["documents"];
    }
    if let RawBsonRef::String("system.users") = target {
        return match command {
            "insert" => &["documents"],
            "update" => &["updates"],
            "findAndModify" | "findandmodify" => &["update"],
            _ => &[],
        };
    }
    match command {
        "aggregate" if hashes_names(body) => &["pipeline"],
        "createUser" | "updateUser" => &["pwd"],
        "saslStart" | "saslContinue" => &["payload"],
        "authenticate" => &["key", "nonce", "pwd"],
        "hello" | "isMaster" | "ismaster" => &["speculativeAuthenticate"],
        _ => &[],
    }
}

/// Whether a pipeline says by which key clients' names are hashed (`$queryStats`).
fn hashes_names(body: &RawDocument) -> bool {
    let first = banyan_document::field(body, "pipeline")
        .and_then(|pipeline| pipeline.as_array()?.into_iter().next()?.ok());
    let stage = first.and_then(|stage| stage.as_document());
    let stats = stage.and_then(|stage| banyan_document::field(stage, "$queryStats"));
    let options = stats.and_then(|options| options.as_document());
    options.is_some_and(|options| !options.is_empty())
}

/// The body of a command as it may be shown. `None`: as it is.
pub fn shown(body: &RawDocument) -> Option<RawDocumentBuf> {
    let command = elements(body).next()?;
    if let ("explain", RawBsonRef::Document(explained)) = (command.name(), command.value()) {
        return explanation_of(body, &shown(explained)?);
    }
    let secrets = secrets(command.name(), command.value(), body);
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

/// A user's document without what its password is proved by.
pub fn without_credentials(document: &RawDocument) -> RawDocumentBuf {
    let mut shown = RawDocumentBuf::new();
    for element in elements(document) {
        let Ok(name) = bson::raw::CString::try_from(element.name()) else {
            continue;
        };
        match element.name() {
            "credentials" => shown.append(&name, HIDDEN),
            _ => shown.append(&name, element.value()),
        }
    }
    shown
}

/// An `explain` with another command in it.
fn explanation_of(body: &RawDocument, explained: &RawDocument) -> Option<RawDocumentBuf> {
    let mut shown = rawdoc! { "explain": explained.to_owned() };
    for element in elements(body).skip(1) {
        let Ok(name) = bson::raw::CString::try_from(element.name()) else {
            continue;
        };
        shown.append(&name, element.value());
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
    use super::*;

    #[test]
    fn passwords_and_proofs_are_hidden() {
        let user = rawdoc! { "createUser": "a", "pwd": "secret", "roles": ["read"] };
        let hidden = rawdoc! { "createUser": "a", "pwd": "xxx", "roles": ["read"] };
        assert_eq!(shown(&user), Some(hidden.clone()));
        let sasl = rawdoc! { "saslContinue": 1, "conversationId": 1, "payload": "p=…" };
        let shown_sasl = shown(&sasl).expect("something is hidden");
        assert_eq!(shown_sasl.get_str("payload").ok(), Some("xxx"));
        let explain = rawdoc! { "explain": user, "verbosity": "queryPlanner" };
        let hidden = rawdoc! { "explain": hidden, "verbosity": "queryPlanner" };
        assert_eq!(shown(&explain), Some(hidden));
        assert_eq!(shown(&rawdoc! { "insert": "c", "pwd": "theirs" }), None);
        let direct = rawdoc! { "insert": "system.users", "documents": [{ "credentials": 1 }] };
        let hidden = rawdoc! { "insert": "system.users", "documents": "xxx" };
        assert_eq!(shown(&direct), Some(hidden));
        let user = rawdoc! { "_id": "test.a", "credentials": { "SCRAM-SHA-1": {} }, "roles": [] };
        let hidden = rawdoc! { "_id": "test.a", "credentials": "xxx", "roles": [] };
        assert_eq!(without_credentials(&user), hidden);
        let stats = |options| rawdoc! { "aggregate": 1, "pipeline": [{ "$queryStats": options }] };
        assert_eq!(shown(&stats(rawdoc! {})), None);
        let keyed = rawdoc! { "transformIdentifiers": { "hmacKey": "secret" } };
        let hidden = rawdoc! { "aggregate": 1, "pipeline": "xxx" };
        assert_eq!(shown(&stats(keyed)), Some(hidden));
        let key = rawdoc! { "insert": "system.keys", "documents": [{ "key": "secret" }] };
        let hidden = rawdoc! { "insert": "system.keys", "documents": "xxx" };
        assert_eq!(shown(&key), Some(hidden));
    }
}
