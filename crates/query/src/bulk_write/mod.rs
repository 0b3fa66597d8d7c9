//! `bulkWrite`: inserts, updates and deletes of several collections in one command, as the
//! `insert`, `update` and `delete` commands that it comes to.
//!
//! Its operations name their collections by their places in `nsInfo`. A [`BulkWrite`] is cut into
//! [`Part`]s, each a write command on one collection; what those answer is put together in an
//! [`Outcome`]. The shape is that of MongoDB 8.0's manual, "bulkWrite (database command)".

mod operation;
mod outcome;

pub use operation::Kind;
pub use outcome::{Failure, Outcome};

use std::ops::Range;

use banyan_document::{DocumentWriter, elements, field, is_true, items};
use bson::spec::BinarySubtype;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use crate::error::{ErrorKind, QueryError};
use operation::Operation;

type Result<T> = std::result::Result<T, QueryError>;

/// Most operations of one command.
const OPERATIONS_MAX: usize = 100_000;

/// What its parts may carry of the command's own fields.
const PASSED_ON: &[&str] = &[
    "bypassDocumentValidation",
    "comment",
    "lsid",
    "maxTimeMS",
    "txnNumber",
    "writeConcern",
];

/// The fields of the command beside those that any may carry.
pub const FIELDS: &[&str] = &[
    "ops",
    "nsInfo",
    "ordered",
    "errorsOnly",
    "let",
    "bypassDocumentValidation",
    "cursor",
];

pub struct BulkWrite<'a> {
    body: &'a RawDocument,
    operations: Vec<Operation<'a>>,
    targets: Vec<Target<'a>>,
    /// Nothing is tried behind an operation that fails.
    pub ordered: bool,
    /// Only what fails is told of, operation by operation.
    pub errors_only: bool,
    /// The numbers of the operations, if the client says them.
    numbers: Option<Vec<i32>>,
}

/// An entry of `nsInfo`.
struct Target<'a> {
    database: &'a str,
    collection: &'a str,
    /// The operations are for the collection with this id.
    uuid: Option<RawBsonRef<'a>>,
}

/// A write command that does some operations that follow each other.
pub struct Part<'a> {
    pub database: &'a str,
    pub body: RawDocumentBuf,
    pub kind: Kind,
    pub operations: Range<usize>,
}

impl<'a> BulkWrite<'a> {
    pub fn parse(
        body: &'a RawDocument,
        ops: Vec<&'a RawDocument>,
        ns_info: Vec<&'a RawDocument>,
    ) -> Result<BulkWrite<'a>> {
        if !(1..=OPERATIONS_MAX).contains(&ops.len()) {
            return Err(QueryError::new(
                ErrorKind::InvalidLength,
                format!(
                    "Write batch sizes must be between 1 and {OPERATIONS_MAX}. Got {} operations.",
                    ops.len()
                ),
            ));
        }
        let targets = ns_info
            .into_iter()
            .map(Target::parse)
            .collect::<Result<Vec<_>>>()?;
        let operations = ops
            .iter()
            .map(|op| Operation::parse(op))
            .collect::<Result<Vec<_>>>()?;
        for (at, operation) in operations.iter().enumerate() {
            if operation.namespace >= targets.len() {
                return Err(QueryError::bad_value(format!(
                    "BulkWrite ops entry {at} has an invalid nsInfo index."
                )));
            }
        }
        let flag = |name, default| field(body, name).map_or(default, is_true);
        Ok(BulkWrite {
            body,
            numbers: numbers(body, operations.len())?,
            operations,
            targets,
            ordered: flag("ordered", true),
            errors_only: flag("errorsOnly", false),
        })
    }

    pub fn len(&self) -> usize {
        self.operations.len()
    }

    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// The operations from a place on that can go in one command: those that do the same to the same
    /// collection. Inserts do; others only `together`, as the reply to several statements does not
    /// tell what each of them did.
    pub fn part(&self, from: usize, together: bool) -> Option<Part<'_>> {
        let first = self.operations.get(from)?;
        let grouped = together || first.kind == Kind::Insert;
        let rest = self.operations[from..].iter();
        let alike = rest.take_while(|operation| {
            operation.kind == first.kind && operation.namespace == first.namespace
        });
        let count = match grouped {
            true => alike.count(),
            false => 1,
        };
        let operations = from..from + count;
        let target = &self.targets[first.namespace];
        Some(Part {
            database: target.database,
            body: self.command(first.kind, target, operations.clone()),
            kind: first.kind,
            operations,
        })
    }

    fn command(&self, kind: Kind, target: &Target<'_>, operations: Range<usize>) -> RawDocumentBuf {
        let mut out = DocumentWriter::new();
        out.append_str(kind.command(), target.collection);
        if let Some(uuid) = target.uuid {
            out.append("collectionUUID", uuid);
        }
        out.append_bool("ordered", self.ordered);
        for name in PASSED_ON {
            if let Some(value) = field(self.body, name) {
                // Deletes are not validated.
                if kind == Kind::Delete && *name == "bypassDocumentValidation" {
                    continue;
                }
                out.append(name, value);
            }
        }
        if kind != Kind::Insert
            && let Some(variables) = field(self.body, "let")
        {
            out.append("let", variables);
        }
        if field(self.body, "txnNumber").is_some() {
            out.begin_array("stmtIds");
            for at in operations.clone() {
                out.push(RawBsonRef::Int32(self.number(at)));
            }
            out.end();
        }
        out.begin_array(kind.statements());
        for operation in &self.operations[operations] {
            operation.write(&mut out);
        }
        out.end();
        out.finish()
    }

    /// The number of an operation within its transaction number.
    fn number(&self, at: usize) -> i32 {
        match &self.numbers {
            Some(numbers) => numbers.get(at).copied().unwrap_or(-1),
            None => i32::try_from(at).unwrap_or(i32::MAX),
        }
    }
}

impl<'a> Target<'a> {
    fn parse(info: &'a RawDocument) -> Result<Target<'a>> {
        let (mut name, mut uuid) = (None, None);
        for element in elements(info) {
            match (element.name(), element.value()) {
                ("ns", RawBsonRef::String(text)) => name = Some(text),
                ("ns", _) => return Err(wrong_type("ns", "string")),
                ("collectionUUID", RawBsonRef::Null) => {}
                ("collectionUUID", RawBsonRef::Binary(binary))
                    if binary.subtype == BinarySubtype::Uuid && binary.bytes.len() == 16 =>
                {
                    uuid = Some(RawBsonRef::Binary(binary));
                }
                ("collectionUUID", _) => return Err(wrong_type("collectionUUID", "binData")),
                ("encryptionInformation" | "isTimeseriesNamespace", _) => {}
                (unknown, _) => {
                    let text =
                        format!("BSON field 'bulkWrite.nsInfo.{unknown}' is an unknown field.");
                    return Err(QueryError::new(ErrorKind::Location(40_415), text));
                }
            }
        }
        let Some(name) = name else {
            return Err(QueryError::new(
                ErrorKind::Location(40_414),
                "BSON field 'bulkWrite.nsInfo.ns' is missing but a required field",
            ));
        };
        let split = name.split_once('.');
        let split =
            split.filter(|(database, collection)| !database.is_empty() && !collection.is_empty());
        let Some((database, collection)) = split else {
            let text = format!("Invalid namespace specified '{name}'");
            return Err(QueryError::new(ErrorKind::InvalidNamespace, text));
        };
        Ok(Target {
            database,
            collection,
            uuid,
        })
    }
}

fn wrong_type(name: &str, wanted: &str) -> QueryError {
    let text =
        format!("BSON field 'bulkWrite.nsInfo.{name}' is the wrong type, expected type '{wanted}'");
    QueryError::new(ErrorKind::TypeMismatch, text)
}

/// `stmtIds`, or what `stmtId` begins.
fn numbers(body: &RawDocument, count: usize) -> Result<Option<Vec<i32>>> {
    let invalid = |text: String| QueryError::new(ErrorKind::InvalidOptions, text);
    let first = field(body, "stmtId").and_then(|id| id.as_i32());
    let Some(RawBsonRef::Array(ids)) = field(body, "stmtIds") else {
        let numbered = |first: i32| {
            let ids = (0..count).map(|at| first.saturating_add(i32::try_from(at).unwrap_or(0)));
            ids.collect()
        };
        return Ok(first.map(numbered));
    };
    if first.is_some() {
        let text = "May not specify both stmtId and stmtIds in bulkWrite command.";
        return Err(invalid(text.to_owned()));
    }
    let ids: Vec<i32> = items(ids).filter_map(|id| id.value().as_i32()).collect();
    match ids.len() == count {
        true => Ok(Some(ids)),
        false => Err(QueryError::new(
            ErrorKind::InvalidLength,
            format!(
                "Number of statement ids must match the number of batch entries. Got {} statement \
                 ids but {count} operations.",
                ids.len()
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;

    fn parts(body: &RawDocument, ops: &[RawDocumentBuf], together: bool) -> Vec<String> {
        let info = [rawdoc! {"ns": "a.b"}, rawdoc! {"ns": "a.c"}];
        let ops = ops.iter().map(|op| &**op).collect();
        let bulk = BulkWrite::parse(body, ops, info.iter().map(|one| &**one).collect()).unwrap();
        let (mut at, mut shown) = (0, Vec::new());
        while let Some(part) = bulk.part(at, together) {
            at = part.operations.end;
            shown.push(format!("{} {:?}", part.database, part.body));
        }
        shown
    }

    #[test]
    fn operations_that_go_together_make_one_command() {
        let ops = [
            rawdoc! {"insert": 0, "document": {"_id": 1}},
            rawdoc! {"insert": 0, "document": {"_id": 2}},
            rawdoc! {"insert": 1, "document": {"_id": 3}},
            rawdoc! {"update": 1, "filter": {"_id": 3}, "updateMods": {"$set": {"a": 1}}},
            rawdoc! {"update": 1, "filter": {"_id": 4}, "updateMods": {}, "upsert": true},
            rawdoc! {"delete": 1, "filter": {"_id": 4}, "multi": true},
        ];
        let body = rawdoc! {"bulkWrite": 1, "txnNumber": 3_i64, "let": {"x": 1}};
        assert_eq!(parts(&body, &ops, false).len(), 5);
        let together = parts(&body, &ops, true);
        assert_eq!(together.len(), 4);
        let deletes = rawdoc! {
            "delete": "c", "ordered": true, "txnNumber": 3_i64, "let": {"x": 1}, "stmtIds": [5],
            "deletes": [{"q": {"_id": 4}, "limit": 0}],
        };
        assert_eq!(together[3], format!("a {deletes:?}"));
    }

    #[test]
    fn what_names_no_collection_is_refused() {
        let body = rawdoc! {"bulkWrite": 1};
        let refused = |op: RawDocumentBuf| {
            let info = rawdoc! {"ns": "a.b"};
            let parsed = BulkWrite::parse(&body, vec![&op], vec![&info]);
            parsed.err().map(|error| error.kind.code())
        };
        assert_eq!(refused(rawdoc! {"insert": 0, "document": {}}), None);
        assert_eq!(refused(rawdoc! {"insert": 1, "document": {}}), Some(2));
        assert_eq!(refused(rawdoc! {"insert": -1, "document": {}}), Some(2));
        assert_eq!(refused(rawdoc! {"insert": 0}), Some(40_414));
        assert_eq!(
            refused(rawdoc! {"insert": 0, "document": {}, "a": 1}),
            Some(40_415)
        );
        assert_eq!(refused(rawdoc! {"wat": 0}), Some(9));
        assert!(BulkWrite::parse(&body, vec![], vec![]).is_err());
    }
}
