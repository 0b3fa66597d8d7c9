//! What is known of a document beside its fields, and is not the score of a search: `{$meta: ..}` asks
//! for it.
//!
//! It goes with its document in fields of its own, whose names no client writes. Whoever finds the
//! documents adds those that are asked for ([`MetadataSet`]), and whoever hands documents out drops
//! them. Where nobody adds them they are missing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use banyan_document::DocumentWriter;
use banyan_document::element::elements;
use bson::{RawDocument, RawDocumentBuf};

use crate::error::{ErrorKind, QueryError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metadata {
    /// The key of the index that it was found by.
    IndexKey,
    RecordId,
    /// What it is sorted by.
    SortKey,
    /// How far it is from what it was searched near to.
    Distance,
    /// The shape that is so far away.
    Place,
}

/// The field in which shards send a router how far away documents are, as MongoDB's do.
pub const DISTANCE_FIELD: &str = "$dis";
/// The field in which documents bring the shape that is so far away.
pub const PLACE_FIELD: &str = "$pt";

impl Metadata {
    const ALL: [Metadata; 5] = [
        Metadata::IndexKey,
        Metadata::RecordId,
        Metadata::SortKey,
        Metadata::Distance,
        Metadata::Place,
    ];

    /// As `$meta` calls it.
    pub fn named(name: &str) -> Option<Metadata> {
        Some(match name {
            "indexKey" => Metadata::IndexKey,
            "recordId" => Metadata::RecordId,
            "sortKey" => Metadata::SortKey,
            "geoNearDistance" => Metadata::Distance,
            "geoNearPoint" => Metadata::Place,
            _ => return None,
        })
    }

    /// The field in which documents bring it.
    pub fn field(self) -> &'static str {
        match self {
            Metadata::IndexKey => "$indexKey",
            Metadata::RecordId => "$recordId",
            Metadata::SortKey => "$sortKey",
            Metadata::Distance => DISTANCE_FIELD,
            Metadata::Place => PLACE_FIELD,
        }
    }

    fn described(self) -> &'static str {
        match self {
            Metadata::IndexKey => "index key",
            Metadata::RecordId => "record ID",
            Metadata::SortKey => "sort key",
            Metadata::Distance => "$geoNear distance",
            Metadata::Place => "$geoNear point",
        }
    }

    /// Documents cannot have it.
    pub(crate) fn missing(self) -> QueryError {
        let what = self.described();
        QueryError::new(
            ErrorKind::Location(40218),
            format!("query requires {what} metadata, but it is not available"),
        )
    }
}

/// Some of what can be known of documents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetadataSet(u8);

impl MetadataSet {
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn has(self, metadata: Metadata) -> bool {
        self.0 & metadata.bit() != 0
    }

    /// Whether distances, or the shapes at them, are among it.
    pub fn is_of_places(self) -> bool {
        self.has(Metadata::Distance) || self.has(Metadata::Place)
    }

    #[must_use]
    pub(crate) fn only_of_places(self) -> MetadataSet {
        MetadataSet(self.0 & (Metadata::Distance.bit() | Metadata::Place.bit()))
    }

    #[must_use]
    pub fn without(self, metadata: Metadata) -> MetadataSet {
        MetadataSet(self.0 & !metadata.bit())
    }

    #[must_use]
    pub fn and(self, other: MetadataSet) -> MetadataSet {
        MetadataSet(self.0 | other.0)
    }

    pub(crate) fn first(self) -> Option<Metadata> {
        Metadata::ALL.into_iter().find(|one| self.has(*one))
    }

    /// What only a search by distance tells, where there is none.
    pub fn check_places(self) -> Result<(), QueryError> {
        match [Metadata::Distance, Metadata::Place]
            .into_iter()
            .find(|one| self.has(*one))
        {
            Some(missing) => Err(missing.missing()),
            None => Ok(()),
        }
    }
}

impl Metadata {
    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// What something that is parsed has asked for. All clones take note in one place.
#[derive(Clone, Debug, Default)]
pub struct AskedMetadata(Arc<AtomicU8>);

impl AskedMetadata {
    pub(crate) fn ask(&self, metadata: Metadata) {
        self.0.fetch_or(metadata.bit(), Ordering::Relaxed);
    }

    /// Something else was parsed meanwhile.
    pub(crate) fn restore(&self, before: MetadataSet) {
        self.0.fetch_or(before.0, Ordering::Relaxed);
    }

    /// Whether something has been asked for since it was last taken.
    pub(crate) fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// What has been asked for since this was last called.
    pub fn take(&self) -> MetadataSet {
        MetadataSet(self.0.swap(0, Ordering::Relaxed))
    }
}

/// The keys of a sort are wanted where there is none.
pub(crate) fn no_sort() -> QueryError {
    QueryError::bad_value("cannot use sortKey $meta projection without a sort")
}

/// Whether a field is one in which documents bring what is known of them.
pub(crate) fn is_metadata(name: &str) -> bool {
    name.starts_with('$') && Metadata::ALL.into_iter().any(|one| one.field() == name)
}

/// The names of all such fields.
pub(crate) fn field_names() -> impl Iterator<Item = &'static str> {
    Metadata::ALL.into_iter().map(Metadata::field)
}

/// A document without what is known of it, if it brings any of that.
pub fn without_metadata(document: &RawDocument) -> Option<RawDocumentBuf> {
    let brings = elements(document).any(|element| is_metadata(element.name()));
    brings.then(|| {
        let mut writer = DocumentWriter::new();
        for element in elements(document) {
            if !is_metadata(element.name()) {
                writer.append_element(&element);
            }
        }
        writer.finish()
    })
}
