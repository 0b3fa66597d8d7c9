//! Changes of what exists: collections and indexes come and go.
//!
//! Whoever changes a namespace holds its latch exclusively from the look at the catalog until the
//! change is applied, so that no write is under way that was worked out against the old state.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use banyan_document::key::KeyPattern;
use banyan_execution::Interrupt;
use banyan_storage::{
    Catalog, CatalogChange, Collection, Index, IndexDefinition, Namespace, Snapshot,
};
use banyan_wire::params;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::unique::duplicate;
use crate::entry::EntryBuilder;
use crate::errors;
use crate::machine::Prepared;
use crate::machine::effects;
use crate::propose::Outcome;
use crate::replica::Replica;
use crate::virtual_collections;

pub const ID_INDEX: &str = "_id_";

/// Makes these changes one entry. The caller holds the namespaces' latches.
pub async fn apply(
    replica: &Replica,
    changes: &[CatalogChange],
    term: u64,
) -> Result<Outcome, CommandError> {
    propose(replica, changes, None, term).await
}

/// As [`apply`], where the changes leave nothing of the database of this name.
pub async fn drop_database(
    replica: &Replica,
    changes: &[CatalogChange],
    database: &str,
    term: u64,
) -> Result<Outcome, CommandError> {
    propose(replica, changes, Some(database), term).await
}

async fn propose(
    replica: &Replica,
    changes: &[CatalogChange],
    database: Option<&str>,
    term: u64,
) -> Result<Outcome, CommandError> {
    let mut entry = EntryBuilder::new();
    let catalog = replica.store.catalog();
    for change in changes {
        if let CatalogChange::CreateCollection { namespace, .. }
        | CatalogChange::RenameCollection { to: namespace, .. } = change
        {
            virtual_collections::refuse_write(namespace)?;
        }
        entry.catalog(change, &about(&catalog, change, changes));
    }
    if let Some(database) = database {
        entry.drop_database(database);
    }
    // Definitions change rarely: each change waits for the disk, so that a write concern with `j`
    // is kept whatever command brings it.
    replica
        .propose(&entry, Prepared::nothing(replica), term, true)
        .await
}

/// What readers of the log want to know of what a change found: its collection, what is dropped
/// and replaced.
fn about(catalog: &Catalog, change: &CatalogChange, all: &[CatalogChange]) -> RawDocumentBuf {
    let mut about = RawDocumentBuf::new();
    let Some(collection) = catalog.by_id(change.collection()) else {
        return about;
    };
    let count = |collection: &Collection| i64::try_from(collection.documents()).unwrap_or(i64::MAX);
    about.append(cstr!("ns"), collection.namespace.as_str());
    about.append(cstr!("ui"), params::uuid(&collection.uuid));
    match change {
        CatalogChange::DropCollection { .. } => {
            about.append(cstr!("numRecords"), count(collection));
            let replaced = all.iter().any(|other| {
                matches!(other, CatalogChange::RenameCollection { to, .. }
                    if *to == collection.namespace)
            });
            if replaced {
                about.append(cstr!("replaced"), true);
            }
        }
        CatalogChange::RenameCollection { to, .. } => {
            if let Some(target) = catalog.find(to) {
                about.append(cstr!("dropTarget"), params::uuid(&target.uuid));
                about.append(cstr!("numRecords"), count(target));
            }
        }
        CatalogChange::SetOptions { .. } => {
            about.append(cstr!("options"), collection.options.clone());
        }
        CatalogChange::DropIndex { index, .. } => {
            if let Some(known) = collection.index_by_id(*index) {
                about.append(cstr!("index"), known.spec.clone());
            }
        }
        CatalogChange::SetIndexSpec { index, .. } => {
            if let Some(known) = collection.index_by_id(index.id) {
                about.append(cstr!("index"), known.spec.clone());
            }
        }
        CatalogChange::CreateCollection { .. } | CatalogChange::CreateIndex { .. } => {}
    }
    about
}

/// What it takes to make a collection with its index on `_id`.
pub fn creation(
    replica: &Replica,
    namespace: &Namespace,
    options: RawDocumentBuf,
) -> CatalogChange {
    let id_index = IndexDefinition {
        id: replica.store.allocate_id(),
        spec: rawdoc! { "v": 2, "key": { "_id": 1 }, "name": ID_INDEX },
    };
    CatalogChange::CreateCollection {
        id: replica.store.allocate_id(),
        namespace: namespace.clone(),
        uuid: *uuid::Uuid::new_v4().as_bytes(),
        options,
        indexes: vec![id_index],
    }
}

/// Makes a collection unless there is one. False if there was one.
pub async fn create_if_missing(
    replica: &Replica,
    namespace: &Namespace,
) -> Result<bool, CommandError> {
    let term = replica.writable_term()?;
    let _exclusive = replica.namespaces.exclusive(&[namespace]).await;
    if replica.store.catalog().find(namespace).is_some() {
        return Ok(false);
    }
    refuse_other_case(replica, namespace)?;
    apply(
        replica,
        &[creation(replica, namespace, RawDocumentBuf::new())],
        term,
    )
    .await?;
    Ok(true)
}

/// Databases whose names differ in letter case alone could not live side by side everywhere.
pub fn refuse_other_case(replica: &Replica, namespace: &Namespace) -> Result<(), CommandError> {
    match replica
        .store
        .catalog()
        .database_in_other_case(namespace.database())
    {
        Some(other) => Err(CommandError::new(
            ErrorCode::DatabaseDifferCase,
            format!(
                "db already exists with different case already have: [{}] trying to create [{}]",
                other.name,
                namespace.database()
            ),
        )),
        None => Ok(()),
    }
}

/// Refuses an index that the collection's records do not allow. Reads all of them, and for a
/// unique index keeps a hash of each key: only keys whose hashes meet are compared.
pub fn check_records(
    replica: &Replica,
    collection: &Collection,
    definition: &IndexDefinition,
    interrupt: &Interrupt,
) -> Result<(), CommandError> {
    let index = Index::parse(definition, false).map_err(errors::storage)?;
    let snapshot = replica.store.snapshot();
    let hasher = RandomState::new();
    let mut hashes: Vec<u64> = Vec::new();
    for_each_record(&snapshot, collection, interrupt, |document| {
        let keys = effects::keys_of(&index, document).map_err(|error| {
            CommandError::new(ErrorCode::from_code(error.code()), error.to_string())
        })?;
        if index.unique {
            hashes.extend(keys.keys.iter().map(|key| hasher.hash_one(key)));
        }
        Ok(())
    })?;
    hashes.sort_unstable();
    let met: HashSet<u64> = hashes
        .windows(2)
        .filter(|pair| pair[0] == pair[1])
        .map(|pair| pair[0])
        .collect();
    if met.is_empty() {
        return Ok(());
    }
    let mut seen: HashSet<Vec<u8>> = HashSet::new();
    for_each_record(&snapshot, collection, interrupt, |document| {
        let keys = effects::keys_of(&index, document).unwrap_or_default();
        for key in keys.keys {
            if !met.contains(&hasher.hash_one(&key)) {
                continue;
            }
            if seen.contains(&key) {
                return Err(duplicate(collection, &index, document, &key));
            }
            seen.insert(key);
        }
        Ok(())
    })
}

fn for_each_record(
    snapshot: &Snapshot,
    collection: &Collection,
    interrupt: &Interrupt,
    mut look: impl FnMut(&RawDocument) -> Result<(), CommandError>,
) -> Result<(), CommandError> {
    // Between two looks so many bytes may pass; a record counts as some more.
    const LOOK_BYTES: usize = 256 * 1024;
    const RECORD_BYTES: usize = 4096;
    let mut since_look = LOOK_BYTES;
    for found in snapshot.records(collection.id, .., false) {
        let (_, document) = found.map_err(errors::storage)?;
        if since_look >= LOOK_BYTES {
            since_look = 0;
            interrupt.check().map_err(errors::query)?;
        }
        since_look += RECORD_BYTES + document.as_bytes().len();
        look(&document)?;
    }
    Ok(())
}

/// The name that an index gets when none is given: `a_1_b_-1`.
pub fn index_name(key: &RawDocument) -> String {
    let part = |(name, value): (&bson::raw::CStr, bson::RawBsonRef<'_>)| {
        format!(
            "{}_{}",
            name.as_str(),
            errors::shown(value).trim_matches('"')
        )
    };
    key.iter().flatten().map(part).collect::<Vec<_>>().join("_")
}

/// Whether the two patterns are the same index.
pub fn same_pattern(a: &KeyPattern, b: &KeyPattern) -> bool {
    a.fields.len() == b.fields.len()
        && a.fields
            .iter()
            .zip(&b.fields)
            .all(|((p, o), (q, r))| p.to_string() == q.to_string() && o == r)
}
