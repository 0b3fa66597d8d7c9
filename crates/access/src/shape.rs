//! A request as the log shows it: what was asked for, in a line of bounded length.

use std::borrow::Cow;
use std::fmt::Write as _;

use banyan_process::logging;
use banyan_wire::Request;
use bson::{RawBsonRef, RawDocument};

/// The line ends about here.
const BYTES_MAX: usize = 2_000;
/// Longer strings are cut.
const STRING_BYTES_MAX: usize = 200;
/// Of a longer array only the first items are shown.
const ITEMS_MAX: usize = 20;
/// Deeper values are not shown.
const DEPTH_MAX: usize = 20;

/// The command without what belongs to the connection and the session, and without the documents
/// of an insert: those are the client's data. Of many statements the first few are shown.
pub fn of(request: &Request) -> String {
    shown(request, false)
}

/// As [`of`], without the values where the log carries no client's data.
pub fn logged(request: &Request) -> String {
    shown(request, logging::redacts_client_data())
}

fn shown(request: &Request, redacts: bool) -> String {
    let mut line = Line {
        out: String::new(),
        redacts,
    };
    line.out.push('{');
    let mut first = true;
    for (name, value) in request.body.iter().flatten() {
        let name = name.as_str();
        let hidden = matches!(
            name,
            "lsid" | "documents" | "shardVersion" | "databaseVersion"
        );
        if hidden || name.starts_with('$') {
            continue;
        }
        line.field(&mut first, name);
        line.value(value, 0);
    }
    for sequence in &request.sequences {
        if sequence.identifier == "documents" {
            continue;
        }
        line.field(&mut first, &sequence.identifier);
        let items = sequence.docs().map(RawBsonRef::Document);
        line.array(items, sequence.len(), 0);
    }
    line.out.push('}');
    line.out
}

/// A text of bounded length, cut between two characters.
pub fn shortened(text: &str) -> Cow<'_, str> {
    if text.len() <= STRING_BYTES_MAX {
        return text.into();
    }
    let mut end = STRING_BYTES_MAX;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &text[..end]).into()
}

struct Line {
    out: String,
    redacts: bool,
}

fn is_nested(value: RawBsonRef<'_>) -> bool {
    matches!(value, RawBsonRef::Document(_) | RawBsonRef::Array(_))
}

impl Line {
    fn is_full(&self) -> bool {
        self.out.len() >= BYTES_MAX
    }

    fn field(&mut self, first: &mut bool, name: &str) {
        if !std::mem::take(first) {
            self.out.push(',');
        }
        self.text(name);
        self.out.push(':');
    }

    fn plain(&mut self, value: impl std::fmt::Display) {
        // Writing to a string cannot fail.
        let _ = write!(self.out, "{value}");
    }

    fn text(&mut self, text: &str) {
        self.plain(serde_json::Value::from(shortened(text)));
    }

    fn value(&mut self, value: RawBsonRef<'_>, depth: usize) {
        match value {
            _ if self.is_full() => self.out.push('…'),
            _ if self.redacts && !is_nested(value) => self.text(logging::REDACTED),
            RawBsonRef::Document(_) | RawBsonRef::Array(_) if depth >= DEPTH_MAX => {
                self.out.push('…');
            }
            RawBsonRef::Document(document) => self.document(document, depth + 1),
            RawBsonRef::Array(array) => {
                let count = array.into_iter().take(ITEMS_MAX + 1).count();
                self.array(array.into_iter().flatten(), count, depth + 1);
            }
            RawBsonRef::String(text) => self.text(text),
            RawBsonRef::JavaScriptCode(code) => self.text(code),
            RawBsonRef::Binary(binary) => {
                self.plain(format_args!("\"<{} bytes>\"", binary.bytes.len()));
            }
            RawBsonRef::Int32(n) => self.plain(n),
            RawBsonRef::Int64(n) => self.plain(n),
            RawBsonRef::Double(n) => self.plain(n),
            RawBsonRef::Boolean(flag) => self.plain(flag),
            RawBsonRef::Null => self.plain("null"),
            RawBsonRef::ObjectId(id) => self.plain(format_args!("{{\"$oid\":\"{id}\"}}")),
            RawBsonRef::DateTime(time) => {
                self.plain(format_args!("{{\"$date\":{}}}", time.timestamp_millis()));
            }
            other => self.text(&format!("{other:?}")),
        }
    }

    fn document(&mut self, document: &RawDocument, depth: usize) {
        self.out.push('{');
        let mut first = true;
        for (name, value) in document.iter().flatten() {
            if self.is_full() {
                self.out.push('…');
                break;
            }
            self.field(&mut first, name.as_str());
            self.value(value, depth);
        }
        self.out.push('}');
    }

    fn array<'a>(
        &mut self,
        items: impl Iterator<Item = RawBsonRef<'a>>,
        count: usize,
        depth: usize,
    ) {
        self.out.push('[');
        for (at, item) in items.take(ITEMS_MAX).enumerate() {
            if self.is_full() {
                break;
            }
            if at > 0 {
                self.out.push(',');
            }
            self.value(item, depth);
        }
        if count > ITEMS_MAX || self.is_full() {
            self.out.push('…');
        }
        self.out.push(']');
    }
}

#[cfg(test)]
mod tests {
    use banyan_wire::{Doc, Origin};
    use bson::rawdoc;

    use super::*;

    fn request(body: bson::RawDocumentBuf) -> Request {
        Request {
            request_id: 1,
            database: "test".to_owned(),
            name: String::new(),
            body: Doc::from(body),
            sequences: Vec::new(),
            more_to_come: false,
            exhaust_allowed: false,
            origin: Origin::Msg,
        }
    }

    #[test]
    fn a_command_is_shown_without_session_and_data() {
        let find = request(rawdoc! {
            "find": "c", "filter": { "a": { "$gt": 3 }, "b": "x" }, "$db": "test", "lsid": {},
        });
        let shown = r#"{"find":"c","filter":{"a":{"$gt":3},"b":"x"}}"#;
        assert_eq!(of(&find), shown);
        let insert = request(rawdoc! { "insert": "c", "documents": [{ "secret": 1 }] });
        assert_eq!(of(&insert), r#"{"insert":"c"}"#);
        let hidden = r####"{"find":"###","filter":{"a":{"$gt":"###"},"b":"###"}}"####;
        assert_eq!(super::shown(&find, true), hidden);
    }

    #[test]
    fn whatever_comes_the_line_stays_short() {
        let many: bson::RawArrayBuf = (0..100_000).collect();
        let mut deep = rawdoc! {};
        for _ in 0..90 {
            deep = rawdoc! { "a": deep };
        }
        let long = "é".repeat(100_000);
        let mut wide = bson::RawDocumentBuf::new();
        for n in 0..10_000 {
            let name = bson::raw::CString::try_from(format!("field{n}")).unwrap();
            wide.append(name, "x".repeat(500));
        }
        for filter in [rawdoc! { "a": many }, deep, rawdoc! { "a": long }, wide] {
            let line = of(&request(rawdoc! { "find": "c", "filter": filter }));
            assert!(line.len() < 2 * BYTES_MAX, "{} bytes", line.len());
            assert!(line.contains('…'), "{line}");
        }
    }
}
