//! Where the results of a pipeline are written.

use std::borrow::Cow;

use banyan_document::DocumentWriter;
use banyan_document::element::{elements, field};
use bson::oid::ObjectId;
use bson::{RawBsonRef, RawDocument};

use super::merge::Merge;

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

/// Results without an `_id` get one, as inserted documents do.
pub fn with_id(result: &RawDocument) -> Cow<'_, RawDocument> {
    if field(result, "_id").is_some() {
        return Cow::Borrowed(result);
    }
    let mut writer = DocumentWriter::with_capacity(result.as_bytes().len() + 32);
    writer.append("_id", RawBsonRef::ObjectId(ObjectId::new()));
    for element in elements(result) {
        writer.append_element(&element);
    }
    Cow::Owned(writer.finish())
}
