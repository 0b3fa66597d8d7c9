//! The cluster's default read and write concern, put into requests that name none.
//!
//! The config servers keep them; a router reads them now and then ([`crate::upkeep`]), and at once
//! after it has changed them.

use std::sync::Arc;

use banyan_wire::Request;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr};
use parking_lot::RwLock;

use crate::fields;

#[derive(Default)]
pub struct Defaults {
    known: RwLock<Option<Arc<Known>>>,
}

/// What the config servers answered, and of it what was set by somebody.
#[derive(Debug, PartialEq)]
pub struct Known {
    pub reply: RawDocumentBuf,
    read: Option<RawDocumentBuf>,
    write: Option<RawDocumentBuf>,
}

impl Known {
    fn of(reply: RawDocumentBuf) -> Known {
        let set = |name: &str, source: &str| {
            let global = fields::get(&reply, source) == Some(RawBsonRef::String("global"));
            match fields::get(&reply, name) {
                Some(RawBsonRef::Document(concern)) if global => {
                    let mut concern = concern.to_owned();
                    concern.append(cstr!("provenance"), "customDefault");
                    Some(concern)
                }
                _ => None,
            }
        };
        Known {
            read: set("defaultReadConcern", "defaultReadConcernSource"),
            write: set("defaultWriteConcern", "defaultWriteConcernSource"),
            reply,
        }
    }

    /// The request with the concern that it does not name. `None`: it stays as it is.
    fn completed(&self, request: &Request) -> Option<Request> {
        let (concern, field) = match kind(request)? {
            Kind::Read => (self.read.as_ref()?, cstr!("readConcern")),
            Kind::Write => (self.write.as_ref()?, cstr!("writeConcern")),
        };
        let named = match request.get(field.as_str()) {
            Some(RawBsonRef::Document(named)) => named.to_owned(),
            _ => RawDocumentBuf::new(),
        };
        let key = match kind(request)? {
            Kind::Read => "level",
            Kind::Write => "w",
        };
        if fields::get(&named, key).is_some() {
            return None;
        }
        let mut body = RawDocumentBuf::new();
        for (name, value) in request.body.iter().flatten() {
            if name.as_str() != field.as_str() {
                body.append(name, value);
            }
        }
        body.append(field, merged(concern, &named));
        Some(Request {
            body: body.into(),
            ..request.clone()
        })
    }
}

/// The default, with what the request says in its place: a concern without its main field keeps
/// its other ones.
fn merged(default: &RawDocument, named: &RawDocument) -> RawDocumentBuf {
    if named.is_empty() {
        return default.to_owned();
    }
    let mut out = named.to_owned();
    for (name, value) in default.iter().flatten() {
        if matches!(name.as_str(), "w" | "level") {
            out.append(name, value);
        }
    }
    out
}

enum Kind {
    Read,
    Write,
}

fn kind(request: &Request) -> Option<Kind> {
    match &*request.name {
        "aggregate" if writes_output(&request.body) => Some(Kind::Write),
        "mapReduce" | "mapreduce" if !is_inline(&request.body) => Some(Kind::Write),
        "find" | "aggregate" | "count" | "distinct" => Some(Kind::Read),
        "insert" | "update" | "delete" | "bulkWrite" | "findAndModify" | "findandmodify"
        | "create" | "createIndexes" | "drop" | "dropDatabase" | "dropIndexes"
        | "deleteIndexes" | "renameCollection" | "collMod" => Some(Kind::Write),
        _ => None,
    }
}

fn writes_output(body: &RawDocument) -> bool {
    let Some(RawBsonRef::Array(stages)) = fields::get(body, "pipeline") else {
        return false;
    };
    let last = stages.into_iter().flatten().last();
    let stage = last.and_then(|stage| stage.as_document()?.iter().next()?.ok());
    stage.is_some_and(|(name, _)| matches!(name.as_str(), "$out" | "$merge"))
}

/// Whether a map-reduce answers its results instead of writing them.
pub fn is_inline(body: &RawDocument) -> bool {
    match fields::get(body, "out") {
        Some(RawBsonRef::String(_)) => false,
        Some(RawBsonRef::Document(out)) => fields::get(out, "inline").is_some(),
        // Nothing that will be run.
        _ => true,
    }
}

impl Defaults {
    pub fn known(&self) -> Option<Arc<Known>> {
        self.known.read().clone()
    }

    /// The request as it is to be understood.
    pub fn completed(&self, request: &Request) -> Option<Request> {
        self.known()?.completed(request)
    }

    pub fn note(&self, reply: RawDocumentBuf) -> Arc<Known> {
        let known = Arc::new(Known::of(reply));
        *self.known.write() = Some(known.clone());
        known
    }
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    fn known() -> Known {
        Known::of(rawdoc! {
            "defaultReadConcern": { "level": "majority" },
            "defaultWriteConcern": { "w": 2, "wtimeout": 9 },
            "defaultReadConcernSource": "implicit",
            "defaultWriteConcernSource": "global",
        })
    }

    #[test]
    fn what_a_request_leaves_open_is_the_default() {
        let completed = |body: RawDocumentBuf| known().completed(&Request::command("t", body));
        let insert = completed(rawdoc! { "insert": "a" }).unwrap();
        let concern = insert.body.get_document("writeConcern").unwrap();
        assert_eq!(
            concern,
            &*rawdoc! { "w": 2, "wtimeout": 9, "provenance": "customDefault" }
        );
        let journaled = rawdoc! { "insert": "a", "writeConcern": { "j": true } };
        let journaled = completed(journaled).unwrap();
        let concern = journaled.body.get_document("writeConcern").unwrap();
        assert_eq!(concern, &*rawdoc! { "j": true, "w": 2 });
        assert!(completed(rawdoc! { "insert": "a", "writeConcern": { "w": 1 } }).is_none());
        assert!(completed(rawdoc! { "find": "a" }).is_none(), "not set");
        assert!(completed(rawdoc! { "ping": 1 }).is_none());
        let output = rawdoc! { "aggregate": "a", "pipeline": [{ "$out": "b" }] };
        assert!(completed(output).is_some());
    }
}
