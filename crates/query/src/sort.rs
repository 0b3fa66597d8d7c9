//! Sorting: a document's place as bytes, and a sorter over them that holds no more than it may.
//!
//! A sort key is an index key: where arrays give a document several, the lowest counts (the
//! highest of a descending field is its lowest). Where `_id` is all that documents are sorted by, it
//! counts as a whole, array or not, as in MongoDB. Equal keys keep the order they came in.

mod kept;
mod parts;
mod sorted;
mod sorter;

use std::cmp::Ordering;

use banyan_document::Collator;
use banyan_document::element::{elements, field};
use banyan_document::key::{self, FieldOrder, KeyError, KeyPattern};
use banyan_document::number::Number;
use banyan_document::path::Path;
use bson::raw::CStr;
use bson::spec::BinarySubtype;
use bson::{RawArrayBuf, RawBinaryRef, RawBsonRef, RawDocument, RawDocumentBuf, cstr};

use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::field::FieldPath;
use crate::expression::value::describe;
use crate::metadata::{DISTANCE_FIELD, Metadata};
use crate::text::{self, TEXT_SCORE_FIELD};

pub use kept::Piece;
pub(crate) use parts::Parts;
pub use sorted::{SortStats, Sorted};
pub use sorter::{Sorter, Sorters};

/// The field in which a shard sends a router the bytes that a document sorts by, where what it sends
/// of the document may not say them.
pub const SORT_KEY_FIELD: &CStr = cstr!("$sortKey");

/// The option with which a router asks a shard for them.
pub const NEEDS_MERGE: &CStr = cstr!("needsMerge");

/// As many fields as an index may have.
const FIELDS_MAX: usize = 32;

/// The fields to sort by, most significant first. Without fields, all documents are equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortPattern {
    pattern: KeyPattern,
    /// Whether documents are sorted by something else before.
    comes_second: bool,
}

/// Two fields of a sort have arrays.
pub(crate) fn parallel_arrays() -> QueryError {
    let message = "cannot sort with keys that are parallel arrays";
    QueryError::new(ErrorKind::BadValue, message)
}

impl SortPattern {
    /// With a collator, strings are sorted by it.
    pub fn parse(
        sort: &RawDocument,
        collator: Option<&Collator>,
    ) -> Result<SortPattern, QueryError> {
        SortPattern::parse_told(sort, collator, None)
    }

    /// As [`SortPattern::parse`], of documents that may have scores or distances.
    pub fn parse_in(sort: &RawDocument, context: &Context) -> Result<SortPattern, QueryError> {
        SortPattern::parse_told(sort, context.collator.as_ref(), Some(context))
    }

    fn parse_told(
        sort: &RawDocument,
        collator: Option<&Collator>,
        context: Option<&Context>,
    ) -> Result<SortPattern, QueryError> {
        let (mut fields, mut by_score) = (Vec::new(), false);
        if elements(sort).count() > FIELDS_MAX {
            let message = "too many compound keys";
            return Err(QueryError::new(ErrorKind::Location(13103), message));
        }
        for element in elements(sort) {
            // Of an order that is none it is told before it is looked at what is to be sorted by.
            let order = match METADATA.iter().any(|name| is_meta(element.value(), name)) {
                true => FieldOrder::Ascending,
                false => order(element.name(), element.value())?,
            };
            let is_score = is_meta(element.value(), "textScore");
            if is_meta(element.value(), "geoNearDistance") {
                let Some(context) = context else {
                    return Err(text::score_missing());
                };
                context.metadata.ask(Metadata::Distance);
                // What is farthest away comes first, as MongoDB has it.
                fields.push((Path::field(DISTANCE_FIELD), FieldOrder::Descending));
                continue;
            }
            if is_score {
                by_score = true;
                // The best come first.
                fields.push((Path::field(TEXT_SCORE_FIELD), FieldOrder::Descending));
                continue;
            }
            // Any order is a random one: it takes no part in the one that there is.
            if is_meta(element.value(), "randVal") {
                continue;
            }
            FieldPath::parse(element.name())?;
            let path = Path::parse(element.name())
                .map_err(|error| QueryError::new(ErrorKind::BadValue, error.to_string()))?;
            fields.push((path, order));
        }
        // Whether there are scores is asked once the pattern is known to be one.
        if by_score {
            text::ask_score(context.and_then(|context| context.text.as_ref()))?;
        }
        Ok(SortPattern {
            pattern: KeyPattern {
                fields,
                collator: collator.cloned(),
            },
            comes_second: false,
        })
    }

    /// The order among documents that are sorted by something else before.
    pub fn coming_second(self) -> SortPattern {
        SortPattern {
            comes_second: true,
            ..self
        }
    }

    /// The order of distances, which documents bring for a router.
    pub fn by_distance() -> SortPattern {
        SortPattern {
            pattern: KeyPattern {
                fields: vec![(Path::field(DISTANCE_FIELD), FieldOrder::Ascending)],
                collator: None,
            },
            comes_second: false,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.pattern.fields.is_empty()
    }

    pub fn fields(&self) -> &[(Path, FieldOrder)] {
        &self.pattern.fields
    }

    /// The sort as a key pattern, for comparing with those of indexes.
    pub fn pattern(&self) -> &KeyPattern {
        &self.pattern
    }

    /// Bytes that sort as the documents do. There are none where two of the fields go through
    /// different arrays.
    pub fn key(&self, document: &RawDocument) -> Result<Vec<u8>, QueryError> {
        let mut key = Vec::new();
        self.write_key(document, &mut key)?;
        Ok(key)
    }

    /// Appends those bytes.
    pub fn write_key(&self, document: &RawDocument, out: &mut Vec<u8>) -> Result<(), QueryError> {
        if let Some(order) = self.order_of_ids() {
            let id = field(document, "_id").unwrap_or(RawBsonRef::Null);
            let collator = self.pattern.collator.as_ref();
            match order {
                FieldOrder::Descending => key::encode_descending_collated(id, collator, out),
                _ => key::encode_collated(id, collator, out),
            }
            return Ok(());
        }
        let written = self.pattern.write_first(document, out);
        written.map_err(|error| match error {
            KeyError::AmbiguousField(_) => {
                let code = error.code().unsigned_abs();
                QueryError::new(ErrorKind::Location(code), error.to_string())
            }
            _ => parallel_arrays(),
        })
    }

    /// Appends them to what a shard sends of the document, in [`SORT_KEY_FIELD`].
    pub fn append_key(
        &self,
        document: &RawDocument,
        sent: &mut RawDocumentBuf,
    ) -> Result<(), QueryError> {
        let bytes = &self.key(document)?;
        let subtype = BinarySubtype::Generic;
        sent.append(SORT_KEY_FIELD, RawBinaryRef { subtype, bytes });
        Ok(())
    }

    /// The values that a document is sorted by.
    pub fn key_values(&self, document: &RawDocument) -> Result<RawArrayBuf, QueryError> {
        let mut values = RawArrayBuf::new();
        if self.order_of_ids().is_some() {
            values.push(field(document, "_id").unwrap_or(RawBsonRef::Null));
            return Ok(values);
        }
        let key = self.key(document)?;
        let found = self.pattern.value_of_key(document, &key);
        for (_, value) in found.iter().flat_map(|found| found.iter().flatten()) {
            values.push(value);
        }
        Ok(values)
    }

    /// How documents are sorted by their `_id`s, if by nothing else. Then an `_id` that is an array is
    /// one value, as in the index over it, and elsewhere stands for its least item.
    fn order_of_ids(&self) -> Option<FieldOrder> {
        if self.comes_second {
            return None;
        }
        match &*self.pattern.fields {
            [(path, order)] if path.parts().len() == 1 && path.head() == "_id" => Some(*order),
            _ => None,
        }
    }

    pub fn compare(&self, a: &RawDocument, b: &RawDocument) -> Result<Ordering, QueryError> {
        Ok(self.key(a)?.cmp(&self.key(b)?))
    }
}

/// What documents can be sorted by beside their fields.
const METADATA: [&str; 3] = ["geoNearDistance", "textScore", "randVal"];

/// `{$meta: name}`
fn is_meta(value: RawBsonRef<'_>, name: &str) -> bool {
    let RawBsonRef::Document(document) = value else {
        return false;
    };
    let mut fields = elements(document);
    let is_named = fields
        .next()
        .is_some_and(|field| field.name() == "$meta" && field.value() == RawBsonRef::String(name));
    is_named && fields.next().is_none()
}

fn order(name: &str, value: RawBsonRef<'_>) -> Result<FieldOrder, QueryError> {
    let error = |code, message: String| Err(QueryError::new(ErrorKind::Location(code), message));
    if let RawBsonRef::Document(document) = value {
        let mut fields = elements(document);
        if let Some(meta) = fields.next().filter(|first| first.name() == "$meta") {
            if fields.next().is_some() {
                return Err(QueryError::new(
                    ErrorKind::FailedToParse,
                    "Cannot have additional keys in a $meta sort specification",
                ));
            }
            if let RawBsonRef::String(score @ ("searchScore" | "vectorSearchScore")) = meta.value()
            {
                let message = format!("$meta sort by '{score}' metadata is not supported");
                return error(31218, message);
            }
            let shown = describe(Some(meta.value()));
            return error(31138, format!("Illegal $meta sort: $meta: {shown}"));
        }
        return error(
            17312,
            "$meta is the only expression supported by $sort right now".into(),
        );
    }
    match Number::from_raw(value).map(Number::to_i64_rounded) {
        Some(1) => Ok(FieldOrder::Ascending),
        Some(-1) => Ok(FieldOrder::Descending),
        Some(_) => error(
            15975,
            "$sort key ordering must be 1 (for ascending) or -1 (for descending)".into(),
        ),
        None => {
            let shown = describe(Some(value));
            error(
                15974,
                format!("Illegal key in $sort specification: {name}: {shown}"),
            )
        }
    }
}

#[cfg(test)]
mod tests;
