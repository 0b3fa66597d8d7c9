//! What the operations of a `bulkWrite` have come to.

use std::collections::BTreeMap;

use banyan_document::{DocumentWriter, elements, field, items};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use super::{BulkWrite, Kind, Part};

/// Why a part was not run at all.
pub struct Failure<'a> {
    pub code: i32,
    pub message: &'a str,
    /// Fields beside code and message.
    pub extra: Option<&'a RawDocument>,
}

pub struct Outcome {
    ordered: bool,
    errors_only: bool,
    /// A document for each operation that is told of, in their order.
    pub items: Vec<RawDocumentBuf>,
    errors: i64,
    inserted: i64,
    matched: i64,
    modified: i64,
    upserted: i64,
    deleted: i64,
    /// Statements that an earlier try had settled.
    retried: Vec<i32>,
    concern_error: Option<RawDocumentBuf>,
}

impl Outcome {
    pub fn new(bulk: &BulkWrite<'_>) -> Outcome {
        Outcome {
            ordered: bulk.ordered,
            errors_only: bulk.errors_only,
            items: Vec::new(),
            errors: 0,
            inserted: 0,
            matched: 0,
            modified: 0,
            upserted: 0,
            deleted: 0,
            retried: Vec::new(),
            concern_error: None,
        }
    }

    /// Nothing further is tried.
    pub fn is_over(&self) -> bool {
        self.ordered && self.errors > 0
    }

    /// A part was answered.
    pub fn take(&mut self, part: &Part<'_>, reply: &RawDocument) {
        let number = |name| field(reply, name).and_then(integer).unwrap_or(0);
        let documents = |name| match field(reply, name) {
            Some(RawBsonRef::Array(array)) => Some(array),
            _ => None,
        };
        let by_place = |name| {
            let entries = documents(name).into_iter().flat_map(items);
            let mut found = BTreeMap::new();
            for entry in entries {
                if let RawBsonRef::Document(entry) = entry.value()
                    && let Some(place) = field(entry, "index").and_then(integer)
                    && let Ok(place) = usize::try_from(place)
                {
                    found.insert(place, entry);
                }
            }
            found
        };
        let (failed, upserts) = (by_place("writeErrors"), by_place("upserted"));
        let n = number("n");
        let new = i64::try_from(upserts.len()).unwrap_or(i64::MAX);
        match part.kind {
            Kind::Insert => self.inserted += n,
            Kind::Update => {
                self.matched += n - new;
                self.modified += number("nModified");
                self.upserted += new;
            }
            Kind::Delete => self.deleted += n,
        }
        if let Some(ids) = documents("retriedStmtIds") {
            let ids = items(ids).filter_map(|id| id.value().as_i32());
            self.retried.extend(ids);
        }
        if let Some(RawBsonRef::Document(error)) = field(reply, "writeConcernError") {
            self.concern_error.get_or_insert_with(|| error.to_owned());
        }
        for (place, at) in part.operations.clone().enumerate() {
            if let Some(error) = failed.get(&place) {
                self.fail(part.kind, at, error);
                if self.ordered {
                    return;
                }
            } else if !self.errors_only {
                let n = match part.kind {
                    Kind::Insert => 1,
                    // Alone in its part, or it would not be told of.
                    Kind::Update | Kind::Delete => n,
                };
                self.succeed(
                    part.kind,
                    at,
                    n,
                    number("nModified"),
                    upserts.get(&place).copied(),
                );
            }
        }
    }

    /// A part was refused as a whole: so is each of its operations.
    pub fn refuse(&mut self, part: &Part<'_>, failure: &Failure<'_>) {
        let mut error = DocumentWriter::new();
        error.append_i32("code", failure.code);
        error.append_str("errmsg", failure.message);
        for extra in failure.extra.into_iter().flat_map(elements) {
            error.append_element(&extra);
        }
        let error = error.finish();
        for at in part.operations.clone() {
            self.fail(part.kind, at, &error);
            if self.ordered {
                return;
            }
        }
    }

    fn succeed(
        &mut self,
        kind: Kind,
        at: usize,
        n: i64,
        modified: i64,
        upserted: Option<&RawDocument>,
    ) {
        let mut item = DocumentWriter::new();
        item.append_f64("ok", 1.0);
        item.append("idx", place(at));
        item.append("n", shown(n));
        if kind == Kind::Update {
            item.append("nModified", shown(modified));
        }
        if let Some(id) = upserted.and_then(|upserted| field(upserted, "_id")) {
            item.begin_document("upserted");
            item.append("_id", id);
            item.end();
        }
        self.items.push(item.finish());
    }

    /// `error` is as a write command tells of a statement's.
    fn fail(&mut self, kind: Kind, at: usize, error: &RawDocument) {
        self.errors += 1;
        let mut item = DocumentWriter::new();
        item.append_f64("ok", 0.0);
        item.append("idx", place(at));
        for element in elements(error) {
            if element.name() != "index" {
                item.append_element(&element);
            }
        }
        item.append_i32("n", 0);
        if kind == Kind::Update {
            item.append_i32("nModified", 0);
        }
        self.items.push(item.finish());
    }

    /// Appends what the reply tells beside the cursor.
    pub fn append_to(&self, out: &mut DocumentWriter) {
        for (name, count) in [
            ("nErrors", self.errors),
            ("nInserted", self.inserted),
            ("nMatched", self.matched),
            ("nModified", self.modified),
            ("nUpserted", self.upserted),
            ("nDeleted", self.deleted),
        ] {
            out.append(name, shown(count));
        }
        if !self.retried.is_empty() {
            out.begin_array("retriedStmtIds");
            for id in &self.retried {
                out.push(RawBsonRef::Int32(*id));
            }
            out.end();
        }
        if let Some(error) = &self.concern_error {
            out.append_doc("writeConcernError", error);
        }
        out.append_f64("ok", 1.0);
    }
}

fn integer(value: RawBsonRef<'_>) -> Option<i64> {
    match value {
        RawBsonRef::Int32(number) => Some(number.into()),
        RawBsonRef::Int64(number) => Some(number),
        RawBsonRef::Double(number) => Some(number as i64),
        _ => None,
    }
}

fn place(at: usize) -> RawBsonRef<'static> {
    shown(i64::try_from(at).unwrap_or(i64::MAX))
}

/// As small an integer as holds it.
fn shown(number: i64) -> RawBsonRef<'static> {
    i32::try_from(number).map_or(RawBsonRef::Int64(number), RawBsonRef::Int32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;

    #[test]
    fn replies_of_parts_are_put_together_operation_by_operation() {
        let ops = [
            rawdoc! {"insert": 0, "document": {"_id": 1}},
            rawdoc! {"insert": 0, "document": {"_id": 1}},
            rawdoc! {"update": 0, "filter": {}, "updateMods": {}, "upsert": true},
        ];
        let body = rawdoc! {"bulkWrite": 1, "ordered": false};
        let info = rawdoc! {"ns": "a.b"};
        let ops = ops.iter().map(|op| &**op).collect();
        let bulk = BulkWrite::parse(&body, ops, vec![&info]).unwrap();
        let mut outcome = Outcome::new(&bulk);
        let inserts = bulk.part(0, false).unwrap();
        let reply = rawdoc! {"n": 1, "writeErrors": [{"index": 1, "code": 11000, "errmsg": "E"}]};
        outcome.take(&inserts, &reply);
        let update = bulk.part(2, false).unwrap();
        let reply = rawdoc! {"n": 1, "nModified": 0, "upserted": [{"index": 0, "_id": 7}]};
        outcome.take(&update, &reply);
        assert_eq!(
            outcome.items,
            [
                rawdoc! {"ok": 1.0, "idx": 0, "n": 1},
                rawdoc! {"ok": 0.0, "idx": 1, "code": 11000, "errmsg": "E", "n": 0},
                rawdoc! {"ok": 1.0, "idx": 2, "n": 1, "nModified": 0, "upserted": {"_id": 7}},
            ]
        );
        let mut told = DocumentWriter::new();
        outcome.append_to(&mut told);
        let counts = rawdoc! {
            "nErrors": 1, "nInserted": 1, "nMatched": 0, "nModified": 0, "nUpserted": 1,
            "nDeleted": 0, "ok": 1.0,
        };
        assert_eq!(told.finish(), counts);
        assert!(!outcome.is_over());
    }
}
