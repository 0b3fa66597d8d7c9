//! By what `$top`, `$bottom` and their kin order documents.
//!
//! MongoDB sorts by what the expressions `"$path"` come to. Unlike in a sort an array counts as a
//! whole, and a position in a path names no item of one; an empty array comes before everything.

use std::collections::BTreeSet;

use bson::{RawBsonRef, RawDocument};

use banyan_document::{Number, key};

use crate::context::Context;
use crate::error::QueryError;
use crate::expression::Expression;
use crate::pipeline::sort_key::SortKey;
use crate::sort::parallel_arrays;

#[derive(Debug)]
pub(in crate::pipeline) struct DocumentKey {
    key: SortKey,
    /// The fields with whether they descend; `None` where something else than fields is sorted by.
    fields: Option<Vec<(Expression, bool)>>,
}

impl DocumentKey {
    pub(super) fn parse(
        source: &RawDocument,
        context: &Context,
    ) -> Result<DocumentKey, QueryError> {
        let key = SortKey::parse(source, context)?;
        let mut fields = Vec::new();
        for (path, order) in source.iter().map_while(Result::ok) {
            let Some(order) = Number::from_raw(order) else {
                return Ok(DocumentKey { key, fields: None });
            };
            let path = format!("${}", path.as_str());
            let value = Expression::parse(RawBsonRef::String(&path), context)?;
            fields.push((value, order.compare(Number::Int32(0)).is_lt()));
        }
        let fields = Some(fields);
        Ok(DocumentKey { key, fields })
    }

    pub(super) fn encode(&self, document: &RawDocument) -> Result<Vec<u8>, QueryError> {
        let Some(fields) = &self.fields else {
            return self.key.pattern.key(document);
        };
        let (mut encoded, mut arrays) = (Vec::new(), 0);
        for (expression, descends) in fields {
            let value = expression.evaluate_owned(document)?;
            let value = value.as_ref().map(|value| value.as_raw_bson_ref());
            let value = match value.unwrap_or(RawBsonRef::Null) {
                RawBsonRef::Array(items) => {
                    arrays += 1;
                    match items.is_empty() {
                        true => RawBsonRef::Undefined,
                        false => RawBsonRef::Array(items),
                    }
                }
                value => value,
            };
            match descends {
                true => {
                    key::encode_descending_collated(value, expression.collator(), &mut encoded);
                }
                false => key::encode_collated(value, expression.collator(), &mut encoded),
            }
        }
        match arrays {
            0 | 1 => Ok(encoded),
            _ => Err(parallel_arrays()),
        }
    }

    pub(super) fn dependencies(&self, paths: &mut BTreeSet<String>) {
        self.key.dependencies(paths);
    }
}
