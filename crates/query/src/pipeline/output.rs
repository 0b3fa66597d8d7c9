//! Where the results of a pipeline are written.

use std::collections::BTreeSet;

use banyan_document::Collator;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use crate::error::QueryError;
use crate::expression::value::error;

#[derive(Clone, Debug)]
pub enum Output {
    /// `$out`: replaces the collection. The database is the pipeline's own unless named.
    Replace {
        database: Option<String>,
        collection: String,
    },
    /// `$merge`: document by document into an existing collection.
    Merge(Merge),
}

impl Output {
    pub fn stage_name(&self) -> &'static str {
        match self {
            Output::Replace { .. } => "$out",
            Output::Merge(_) => "$merge",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Merge {
    pub database: Option<String>,
    pub collection: String,
    /// The fields that identify a document; `_id` (or the shard key) if empty.
    pub on: Vec<String>,
    pub when_matched: WhenMatched,
    pub when_not_matched: WhenNotMatched,
    pub variables: Option<RawDocumentBuf>,
}

#[derive(Clone, Debug)]
pub enum WhenMatched {
    Merge,
    Replace,
    KeepExisting,
    Fail,
    Pipeline(Vec<RawDocumentBuf>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenNotMatched {
    Insert,
    Discard,
    Fail,
}

impl Output {
    /// The target: the database where it is named, and the collection.
    pub fn target(&self) -> (Option<&str>, &str) {
        match self {
            Output::Replace {
                database,
                collection,
            } => (database.as_deref(), collection),
            Output::Merge(merge) => (merge.database.as_deref(), &merge.collection),
        }
    }
}

impl Merge {
    /// Whether each document finds one of the target at most: by `_id` or, as one of the target's
    /// indexes ensures for strings as `collator` compares them, by the fields of `on`.
    pub fn finds_one<'i>(
        &self,
        indexes: impl IntoIterator<Item = &'i RawDocument>,
        collator: Option<&Collator>,
    ) -> Result<(), QueryError> {
        let on: BTreeSet<&str> = self.on.iter().map(String::as_str).collect();
        let by_id = on.is_empty() || on.iter().eq(&["_id"]);
        if by_id
            || indexes
                .into_iter()
                .any(|index| ensures(index, &on, collator))
        {
            return Ok(());
        }
        error(
            51183,
            "Cannot find index to verify that join fields will be unique",
        )
    }
}

/// Whether no two documents have the same values of the fields.
fn ensures(index: &RawDocument, fields: &BTreeSet<&str>, collator: Option<&Collator>) -> bool {
    let Ok(key) = index.get_document("key") else {
        return false;
    };
    let mut keyed = BTreeSet::new();
    for (field, direction) in key.iter().flatten() {
        if matches!(direction, RawBsonRef::String(_)) {
            return false;
        }
        keyed.insert(field.as_str());
    }
    let collation = index.get_document("collation").ok();
    let own = collation
        .and_then(|collation| Collator::parse(collation).ok())
        .flatten();
    index.get_bool("unique").unwrap_or(false)
        && index.get_document("partialFilterExpression").is_err()
        && keyed == *fields
        && own.as_ref() == collator
}
