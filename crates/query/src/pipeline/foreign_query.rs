//! What a stage asks of another collection, for a document or for all of them.
//!
//! A `$lookup` asks once a document. What was written is parsed once, with its pipeline; what the
//! document adds are values, of which the filter is made without a document to parse. A router,
//! which sends the question on, writes it down.

use std::sync::Arc;

use bson::{RawBson, RawBsonRef, RawDocumentBuf};

use banyan_document::{Collator, DocumentWriter};

use super::near_query::GeoNear;
use super::read_cost::ReadCost;
use crate::budget::Budget;
use crate::context::Context;
use crate::error::QueryError;
use crate::filter::{Comparison, Filter};
use crate::metadata::MetadataSet;

/// All of its conditions have to hold.
pub struct ForeignQuery {
    conditions: Vec<Condition>,
    /// How strings are compared: as in the pipeline that asks, whatever the other collection's way.
    collator: Option<Collator>,
    /// For what has to be parsed.
    budget: Budget,
    /// Near what they are wanted, the closest first. There are no other conditions then.
    near: Option<GeoNear>,
    /// Documents are to bring the scores of the search.
    is_scored: bool,
    /// What else is to be known of them.
    metadata: MetadataSet,
    /// Where it is added up what reading them costs.
    cost: Option<Arc<ReadCost>>,
}

/// A filter without variables.
#[derive(Clone, Debug)]
pub(super) struct PlainFilter {
    pub filter: Arc<Filter>,
    /// As it was written.
    pub source: RawDocumentBuf,
}

pub(super) enum Condition {
    Plain(Arc<PlainFilter>),
    /// One of the values is at the path.
    OneOf {
        path: String,
        values: Vec<RawBson>,
    },
    /// The same, or what one of the values matches.
    OneOfPatterns {
        path: String,
        values: Vec<RawBson>,
    },
    /// `{$expr: {$gt: ["$path", value]}}`.
    Compare {
        path: String,
        comparison: Comparison,
        value: RawBson,
    },
}

impl ForeignQuery {
    pub(super) fn new(
        conditions: Vec<Condition>,
        collator: Option<&Collator>,
        budget: &Budget,
    ) -> ForeignQuery {
        ForeignQuery {
            conditions,
            collator: collator.cloned(),
            budget: budget.clone(),
            near: None,
            is_scored: false,
            metadata: MetadataSet::default(),
            cost: None,
        }
    }

    pub(super) fn costing(self, cost: &Arc<ReadCost>) -> ForeignQuery {
        ForeignQuery {
            cost: Some(cost.clone()),
            ..self
        }
    }

    /// Where it is to be added up what reading the documents costs.
    pub fn cost(&self) -> Option<&Arc<ReadCost>> {
        self.cost.as_ref()
    }

    pub(super) fn near_to(self, near: Option<GeoNear>) -> ForeignQuery {
        ForeignQuery { near, ..self }
    }

    pub(super) fn scored(self, is_scored: bool) -> ForeignQuery {
        ForeignQuery { is_scored, ..self }
    }

    pub(super) fn told(self, metadata: MetadataSet) -> ForeignQuery {
        ForeignQuery { metadata, ..self }
    }

    /// What is to be known of the documents beside their fields.
    pub fn metadata(&self) -> MetadataSet {
        self.metadata
    }

    /// Whether documents are to bring the scores of the search that the query holds.
    pub fn is_scored(&self) -> bool {
        self.is_scored
    }

    /// Near what the documents are wanted, if they are: the closest first, each with what
    /// [`GeoNear::fields`] adds. The filter says nothing then.
    pub fn near(&self) -> Option<&GeoNear> {
        self.near.as_ref()
    }

    pub fn filter(&self) -> Result<Arc<Filter>, QueryError> {
        let (collator, budget) = (self.collator.as_ref(), &self.budget);
        let filters = self.conditions.iter();
        let filters = filters.map(|condition| condition.filter(collator, budget));
        Filter::all_of(filters.collect::<Result<_, _>>()?, collator, budget)
    }

    /// The values of `_id` of which documents are asked for, each of which one at most has, if the query
    /// says nothing else.
    pub fn ids(&self) -> Option<&[RawBson]> {
        let [Condition::OneOf { path, values }] = self.conditions.as_slice() else {
            return None;
        };
        // Others may be equal to more than one value.
        let is_one = |value: &RawBson| {
            !matches!(
                value,
                RawBson::Array(_)
                    | RawBson::Null
                    | RawBson::RegularExpression(_)
                    | RawBson::Undefined
            )
        };
        (path == "_id" && values.iter().all(is_one)).then_some(values)
    }

    /// How its strings are compared; `None`: by their bytes.
    pub fn collator(&self) -> Option<&Collator> {
        self.collator.as_ref()
    }

    /// The same filter, to be sent to whoever answers it.
    pub fn to_document(&self) -> RawDocumentBuf {
        match self.conditions.as_slice() {
            [] => RawDocumentBuf::new(),
            [only] => only.to_document(),
            several => {
                let documents = several.iter().map(Condition::to_document);
                branches("$and", documents)
            }
        }
    }
}

impl Condition {
    fn filter(
        &self,
        collator: Option<&Collator>,
        budget: &Budget,
    ) -> Result<Arc<Filter>, QueryError> {
        let made = match self {
            Condition::Plain(plain) => return Ok(plain.filter.clone()),
            Condition::OneOf { path, values } => Filter::one_of(path, values, collator, budget)?,
            // The planner reads more of a comparison than one tree node says.
            Condition::Compare { .. } | Condition::OneOfPatterns { .. } => None,
        };
        let filter = match made {
            Some(filter) => filter,
            None => {
                let context = Context {
                    collator: collator.cloned(),
                    budget: budget.clone(),
                    ..Context::default()
                };
                Filter::parse(&self.to_document(), &context)?
            }
        };
        Ok(Arc::new(filter))
    }

    fn to_document(&self) -> RawDocumentBuf {
        match self {
            Condition::Plain(plain) => plain.source.clone(),
            Condition::OneOf { path, values } => one_of(path, values),
            Condition::OneOfPatterns { path, values } => among(path, values),
            Condition::Compare {
                path,
                comparison,
                value,
            } => compare(path, *comparison, value),
        }
    }
}

/// `{path: {$in: values}}`; an `$or` where a value would be taken for a pattern.
fn one_of(path: &str, values: &[RawBson]) -> RawDocumentBuf {
    let is_regex = |value: &RawBson| matches!(value, RawBson::RegularExpression(_));
    let mut each = values.iter().map(|value| equality(path, value));
    if values.len() == 1
        && let Some(only) = each.next()
    {
        return only;
    }
    if values.iter().any(is_regex) {
        return branches("$or", each);
    }
    among(path, values)
}

/// `{path: {$in: values}}`, in which a regular expression is a pattern.
fn among(path: &str, values: &[RawBson]) -> RawDocumentBuf {
    let mut writer = DocumentWriter::new();
    writer.begin_document(path);
    writer.begin_array("$in");
    values
        .iter()
        .for_each(|value| writer.push(value.as_raw_bson_ref()));
    writer.end();
    writer.end();
    writer.finish()
}

/// `{path: {$eq: value}}`.
fn equality(path: &str, value: &RawBson) -> RawDocumentBuf {
    let mut writer = DocumentWriter::new();
    writer.begin_document(path);
    writer.append("$eq", value.as_raw_bson_ref());
    writer.end();
    writer.finish()
}

fn compare(path: &str, comparison: Comparison, value: &RawBson) -> RawDocumentBuf {
    let operator = match comparison {
        Comparison::Eq => "$eq",
        Comparison::Lt => "$lt",
        Comparison::Lte => "$lte",
        Comparison::Gt => "$gt",
        Comparison::Gte => "$gte",
    };
    let mut writer = DocumentWriter::new();
    writer.begin_document("$expr");
    writer.begin_array(operator);
    writer.push(RawBsonRef::String(&format!("${path}")));
    writer.push_document();
    writer.append("$literal", value.as_raw_bson_ref());
    writer.end();
    writer.end();
    writer.end();
    writer.finish()
}

fn branches(operator: &str, conditions: impl Iterator<Item = RawDocumentBuf>) -> RawDocumentBuf {
    let mut writer = DocumentWriter::new();
    writer.begin_array(operator);
    for condition in conditions {
        writer.push(RawBsonRef::Document(&condition));
    }
    writer.end();
    writer.finish()
}
