//! Reads of a view, as aggregations of the collection below it.
//!
//! Each takes the command as it was written and keeps what every command may carry (sessions, read
//! concern, times, comments) as it stands.

use banyan_document::number::{Number, is_true};
use banyan_document::time_series::{UNPACK_STAGE, index_keys};
use banyan_document::{Collator, DocumentWriter, Element, elements, field};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::Resolved;
use crate::error::{ErrorKind, QueryError};

type Result<T> = std::result::Result<T, QueryError>;

/// The fields of a `find` that an aggregation does not have, or has in another form.
const FIND_FIELDS: &[&str] = &[
    "filter",
    "sort",
    "projection",
    "skip",
    "limit",
    "batchSize",
    "singleBatch",
    "min",
    "max",
    "returnKey",
    "showRecordId",
    "tailable",
    "awaitData",
    "noCursorTimeout",
    "allowPartialResults",
    "oplogReplay",
    "readOnce",
    "ntoreturn",
    "term",
    "_use44SortKeys",
];

/// What no aggregation can do.
const REFUSED: &[&str] = &[
    "singleBatch",
    "returnKey",
    "showRecordId",
    "noCursorTimeout",
    "allowPartialResults",
    "readOnce",
];

/// Where a `distinct` has the values of a document before they are put together.
const VALUES: &bson::raw::CStr = cstr!("_internalUnwoundArray");

/// The field in which a `count` of a view finds its result.
pub const COUNT: &str = "count";
/// The field in which a `distinct` of a view finds its result.
pub const DISTINCT: &str = "distinct";

/// What an aggregation of a view is made with.
#[derive(Default)]
struct Parts<'a> {
    /// The stages behind those of the view.
    stages: Vec<RawDocumentBuf>,
    /// Fields of the command that do not go into the aggregation.
    dropped: &'a [&'a str],
    /// Fields that the aggregation has besides.
    added: RawDocumentBuf,
}

impl Resolved {
    pub fn of_aggregate(&self, command: &RawDocument) -> Result<RawDocumentBuf> {
        let mut stages = Vec::new();
        if let Some(RawBsonRef::Array(own)) = field(command, "pipeline") {
            let own = own.into_iter().flatten();
            stages.extend(own.filter_map(|stage| stage.as_document().map(ToOwned::to_owned)));
        }
        self.aggregation(
            command,
            Parts {
                stages,
                ..Parts::default()
            },
        )
    }

    /// A `find` that has been read without an error.
    pub fn of_find(&self, command: &RawDocument) -> Result<RawDocumentBuf> {
        let limit = number(command, "limit");
        refuse_options(command, limit)?;
        let mut stages = Vec::new();
        push(&mut stages, "$match", not_empty(command, "filter"));
        let sort = not_empty(command, "sort");
        let natural = sort.and_then(|sort| field(sort, "$natural"));
        push(&mut stages, "$sort", sort.filter(|_| natural.is_none()));
        push_number(&mut stages, "$skip", number(command, "skip"));
        push_number(&mut stages, "$limit", limit);
        push(&mut stages, "$project", not_empty(command, "projection"));
        let mut cursor = DocumentWriter::new();
        cursor.begin_document("cursor");
        // What is limited to one document ends with it.
        let ends = flag(command, "singleBatch");
        if let Some(size) = field(command, "batchSize").filter(|_| !ends) {
            cursor.append("batchSize", size);
        }
        cursor.end();
        if let (Some(direction), None) = (natural, field(command, "hint")) {
            cursor.begin_document("hint");
            cursor.append("$natural", direction);
            cursor.end();
        }
        self.aggregation(
            command,
            Parts {
                stages,
                dropped: FIND_FIELDS,
                added: cursor.finish(),
            },
        )
    }

    /// A `count` that has been read without an error. The result is one document with the number
    /// in the field [`COUNT`], or none.
    pub fn of_count(&self, command: &RawDocument) -> Result<RawDocumentBuf> {
        let mut stages = Vec::new();
        push(&mut stages, "$match", not_empty(command, "query"));
        push_number(&mut stages, "$skip", number(command, "skip"));
        if let Some(limit) = field(command, "limit").and_then(Number::from_raw) {
            // As everywhere, a negative one means the same.
            stages.push(rawdoc! { "$limit": limit.to_i64_saturating().saturating_abs() });
        }
        stages.push(rawdoc! { "$count": COUNT });
        self.aggregation(
            command,
            Parts {
                stages,
                dropped: &["query", "skip", "limit", "fields", "mode"],
                added: rawdoc! { "cursor": {} },
            },
        )
    }

    /// A `distinct` that has been read without an error. The result is one document with the values
    /// in the field [`DISTINCT`], or none.
    pub fn of_distinct(&self, command: &RawDocument) -> Result<RawDocumentBuf> {
        let key = field(command, "key").and_then(|key| key.as_str());
        let mut stages = Vec::new();
        push(&mut stages, "$match", not_empty(command, "query"));
        let all = rawdoc! { "$_internalFindAllValuesAtPath": key.unwrap_or_default() };
        let mut made = RawDocumentBuf::new();
        made.append(VALUES, all);
        stages.push(rawdoc! { "$replaceRoot": { "newRoot": made } });
        let values = format!("${}", VALUES.as_str());
        stages.push(rawdoc! {
            "$unwind": { "path": values.as_str(), "preserveNullAndEmptyArrays": true },
        });
        stages.push(rawdoc! { "$group": { "_id": null, "distinct": { "$addToSet": values } } });
        self.aggregation(
            command,
            Parts {
                stages,
                dropped: &["key", "query"],
                added: rawdoc! { "cursor": {} },
            },
        )
    }

    fn aggregation(&self, command: &RawDocument, parts: Parts<'_>) -> Result<RawDocumentBuf> {
        self.check_collation(command)?;
        let mut out = DocumentWriter::new();
        out.append_str("aggregate", &self.collection);
        out.begin_array("pipeline");
        for stage in self.stages.iter().chain(&parts.stages) {
            out.push(RawBsonRef::Document(stage));
        }
        out.end();
        for element in elements(command).skip(1) {
            let name = element.name();
            let is_made = matches!(name, "pipeline" | "collation");
            if is_made || parts.dropped.contains(&name) {
                continue;
            }
            match self.hint_to_buckets(&element) {
                Some(hint) => out.append_doc(name, &hint),
                None => out.append_element(&element),
            }
        }
        out.append_all(&parts.added);
        out.append_doc("collation", &self.explicit_collation());
        Ok(out.finish())
    }

    /// The hint of a read of measurements, if `element` is one that is another for their buckets.
    fn hint_to_buckets(&self, element: &Element<'_>) -> Option<RawDocumentBuf> {
        if element.name() != "hint" {
            return None;
        }
        let unpacked = field(self.stages.first()?, UNPACK_STAGE)?.as_document()?;
        let time_field = field(unpacked, "timeField")?.as_str()?;
        let meta_field = field(unpacked, "metaField").and_then(|meta| meta.as_str());
        index_keys::hint_to_buckets(element.value(), time_field, meta_field)
    }

    /// Who reads a view compares strings as the view does.
    fn check_collation(&self, command: &RawDocument) -> Result<()> {
        let Some(named) = not_empty(command, "collation") else {
            return Ok(());
        };
        let asked = Collator::parse(named).map_err(|error| {
            let kind = ErrorKind::Location(error.code().unsigned_abs());
            QueryError::new(kind, error.to_string())
        })?;
        match asked == self.collator {
            true => Ok(()),
            false => Err(QueryError::new(
                ErrorKind::OptionNotSupportedOnView,
                "Cannot override a view's default collation",
            )),
        }
    }
}

fn refuse_options(command: &RawDocument, limit: i64) -> Result<()> {
    let refuse = |what: String| Err(QueryError::new(ErrorKind::InvalidPipelineOperator, what));
    let unsupported = |name: &str| refuse(format!("Option {name} not supported in aggregation."));
    for bound in ["min", "max"] {
        if not_empty(command, bound).is_some() {
            return unsupported(bound);
        }
    }
    if flag(command, "tailable") {
        return refuse("Tailable cursors are not supported in aggregation.".to_owned());
    }
    let is_refused = |name: &&&str| flag(command, name) && !(**name == "singleBatch" && limit == 1);
    match REFUSED.iter().find(is_refused) {
        Some(name) => unsupported(name),
        None => Ok(()),
    }
}

fn not_empty<'a>(command: &'a RawDocument, name: &str) -> Option<&'a RawDocument> {
    let document = field(command, name)?.as_document()?;
    Some(document).filter(|document| !document.is_empty())
}

fn flag(command: &RawDocument, name: &str) -> bool {
    field(command, name).is_some_and(is_true)
}

/// A number that counts only above zero.
fn number(command: &RawDocument, name: &str) -> i64 {
    let number = field(command, name).and_then(Number::from_raw);
    number.map_or(0, |number| number.to_i64_saturating().max(0))
}

fn push(stages: &mut Vec<RawDocumentBuf>, stage: &str, argument: Option<&RawDocument>) {
    if let Some(argument) = argument {
        let mut out = DocumentWriter::new();
        out.append_doc(stage, argument);
        stages.push(out.finish());
    }
}

fn push_number(stages: &mut Vec<RawDocumentBuf>, stage: &str, number: i64) {
    if number > 0 {
        let mut out = DocumentWriter::new();
        out.append_i64(stage, number);
        stages.push(out.finish());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> Resolved {
        Resolved {
            collection: "c".to_owned(),
            stages: vec![rawdoc! { "$match": { "a": 1 } }],
            collator: None,
        }
    }

    #[test]
    fn a_find_becomes_stages_in_the_order_in_which_it_works() {
        let find = rawdoc! {
            "find": "v",
            "projection": { "b": 1 },
            "filter": { "b": "x" },
            "sort": { "b": 1 },
            "limit": 3,
            "skip": 2,
            "batchSize": 5,
            "comment": "why",
        };
        let expected = rawdoc! {
            "aggregate": "c",
            "pipeline": [
                { "$match": { "a": 1 } },
                { "$match": { "b": "x" } },
                { "$sort": { "b": 1 } },
                { "$skip": 2_i64 },
                { "$limit": 3_i64 },
                { "$project": { "b": 1 } },
            ],
            "comment": "why",
            "cursor": { "batchSize": 5 },
            "collation": { "locale": "simple" },
        };
        assert_eq!(view().of_find(&find).unwrap(), expected);
    }

    #[test]
    fn the_natural_order_becomes_a_hint() {
        let find = rawdoc! { "find": "v", "sort": { "$natural": -1 } };
        let made = view().of_find(&find).unwrap();
        assert_eq!(
            made.get_document("hint").unwrap(),
            &*rawdoc! { "$natural": -1 }
        );
        assert_eq!(made.get_array("pipeline").unwrap().into_iter().count(), 1);
    }

    #[test]
    fn what_an_aggregation_cannot_do_is_refused() {
        let refused = [
            rawdoc! { "find": "v", "min": { "a": 1 } },
            rawdoc! { "find": "v", "tailable": true },
            rawdoc! { "find": "v", "returnKey": true },
            rawdoc! { "find": "v", "singleBatch": true, "limit": 2 },
        ];
        for find in refused {
            let error = view().of_find(&find).unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidPipelineOperator, "{find:?}");
        }
        let one = rawdoc! { "find": "v", "singleBatch": true, "limit": 1 };
        assert!(view().of_find(&one).is_ok());
    }

    #[test]
    fn nobody_reads_a_view_with_another_collation() {
        let named = |collation| rawdoc! { "count": "v", "collation": collation };
        let error = view()
            .of_count(&named(rawdoc! { "locale": "en" }))
            .unwrap_err();
        assert_eq!(error.kind, ErrorKind::OptionNotSupportedOnView);
        assert!(
            view()
                .of_count(&named(rawdoc! { "locale": "simple" }))
                .is_ok()
        );
        assert!(view().of_count(&named(rawdoc! {})).is_ok());
    }
}
