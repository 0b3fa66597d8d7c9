//! What an entry may hold.

use std::borrow::Cow;

use banyan_query::update::Update;
use banyan_storage::{CatalogChange, CollectionId, RecordId};
use bson::RawDocument;

/// One change. `Cow`s borrow from the entry's bytes where they can.
#[derive(Debug, Clone, PartialEq)]
pub enum Operation<'a> {
    Insert {
        collection: CollectionId,
        record: RecordId,
        document: &'a RawDocument,
    },
    Update {
        collection: CollectionId,
        record: RecordId,
        before: Cow<'a, RawDocument>,
        after: &'a RawDocument,
        style: Style<'a>,
    },
    Delete {
        collection: CollectionId,
        record: RecordId,
        before: &'a RawDocument,
    },
    /// Changes the catalog. The document is about what it found ([`about`]).
    Catalog(CatalogChange, &'a RawDocument),
    /// The operations before have emptied the database of this name.
    DropDatabase { name: &'a str },
    /// Replaces the replica set's configuration.
    SetConfig { document: &'a RawDocument },
    /// Nothing but a message and the passing of time.
    Noop { document: &'a RawDocument },
}

/// How an update's statement was written, for those who describe the change later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Style<'a> {
    /// With operators. The paths are those of which the whole value is told
    /// ([`banyan_query::update::Update::wholes`]).
    Modifiers { wholes: Vec<&'a str> },
    /// As the whole document.
    Replacement,
    /// As a pipeline.
    Pipeline,
}

impl<'a> Style<'a> {
    pub fn of(update: &'a Update) -> Style<'a> {
        if update.is_replacement() {
            Style::Replacement
        } else if update.is_pipeline() {
            Style::Pipeline
        } else {
            let wholes = update.wholes().iter().map(String::as_str).collect();
            Style::Modifiers { wholes }
        }
    }
}

/// Numbers of operations by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    pub inserts: u64,
    pub updates: u64,
    pub deletes: u64,
    /// Changes of the catalog.
    pub commands: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.inserts += other.inserts;
        self.updates += other.updates;
        self.deletes += other.deletes;
        self.commands += other.commands;
    }
}

/// No record has this number: bytes follow instead.
pub(super) const NO_NUMBER: u64 = 0;

/// What an operation begins with.
pub(super) mod tag {
    pub const INSERT: u8 = 1;
    pub const UPDATE: u8 = 2;
    pub const DELETE: u8 = 3;
    pub const SET_CONFIG: u8 = 4;
    pub const NOOP: u8 = 5;
    pub const REPLACE: u8 = 6;
    pub const UPDATE_BY_PIPELINE: u8 = 7;
    pub const CREATE_COLLECTION: u8 = 16;
    pub const DROP_COLLECTION: u8 = 17;
    pub const RENAME_COLLECTION: u8 = 18;
    pub const SET_OPTIONS: u8 = 19;
    pub const CREATE_INDEX: u8 = 20;
    pub const DROP_INDEX: u8 = 21;
    pub const SET_INDEX_SPEC: u8 = 22;
    pub const DROP_DATABASE: u8 = 23;
    pub const START_INDEX_BUILD: u8 = 24;
    pub const COMMIT_INDEX_BUILD: u8 = 25;
    pub const ABORT_INDEX_BUILD: u8 = 26;
}
