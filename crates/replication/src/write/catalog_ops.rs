//! Changes of what exists: collections and indexes come and go.
//!
//! Whoever changes a collection holds its lock exclusively from the look at the catalog until the
//! change is applied, so that no write is under way whose effects were computed against the old state.

use std::time::Duration;

use banyan_document::key::KeyPattern;
use banyan_storage::{Catalog, CatalogChange, Collection, IndexBuild, IndexDefinition, Namespace};
use banyan_wire::params;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArrayBuf, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::context::WriteContext;
use crate::entry::EntryBuilder;
use crate::machine::Prepared;
use crate::propose::Outcome;
use crate::replica::Replica;
use crate::{views, virtual_collections};

pub const ID_INDEX: &str = "_id_";

/// Makes these changes one entry. The caller holds the collections' locks.
pub async fn apply(
    replica: &Replica,
    changes: &[CatalogChange],
    term: u64,
) -> Result<Outcome, CommandError> {
    propose(replica, changes, &Circumstances::default(), term).await
}

/// As [`apply`], where index builds are aborted for this reason.
pub async fn abort_builds(
    replica: &Replica,
    changes: &[CatalogChange],
    cause: &CommandError,
    term: u64,
) -> Result<Outcome, CommandError> {
    let circumstances = Circumstances {
        cause: Some(cause),
        ..Circumstances::default()
    };
    propose(replica, changes, &circumstances, term).await
}

/// What an entry says besides its changes.
#[derive(Default)]
struct Circumstances<'a> {
    /// The changes leave nothing of this database.
    dropped_database: Option<&'a str>,
    /// Why index builds are aborted.
    cause: Option<&'a CommandError>,
}

/// As [`apply`], where the changes leave nothing of the database of this name.
pub async fn drop_database(
    replica: &Replica,
    changes: &[CatalogChange],
    database: &str,
    term: u64,
) -> Result<Outcome, CommandError> {
    let circumstances = Circumstances {
        dropped_database: Some(database),
        ..Circumstances::default()
    };
    propose(replica, changes, &circumstances, term).await
}

async fn propose(
    replica: &Replica,
    changes: &[CatalogChange],
    circumstances: &Circumstances<'_>,
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
        let mut about = about(&catalog, change, changes);
        if let (CatalogChange::AbortIndexBuild { .. }, Some(cause)) = (change, circumstances.cause)
        {
            about.append(cstr!("cause"), cause.to_reply());
        }
        entry.catalog(change, &about);
    }
    if let Some(database) = circumstances.dropped_database {
        entry.drop_database(database);
    }
    // Definitions change rarely: each change waits for the disk, so that a write concern with `j`
    // is kept whatever command brings it.
    replica
        .propose(entry, Prepared::nothing(replica), term, true)
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
        CatalogChange::CommitIndexBuild { build, .. }
        | CatalogChange::AbortIndexBuild { build, .. } => {
            if let Some(known) = collection.build(build) {
                about.append(cstr!("indexes"), build_specs(known));
            }
        }
        CatalogChange::CreateCollection { .. }
        | CatalogChange::CreateIndex { .. }
        | CatalogChange::StartIndexBuild { .. }
        | CatalogChange::FinishIndexBuild { .. } => {}
    }
    about
}

/// The specifications of a build's indexes.
pub fn build_specs(build: &IndexBuild) -> RawArrayBuf {
    let specs = build.indexes.iter().map(|index| index.spec.clone());
    specs.collect()
}

/// What it takes to make a collection, with its index on `_id` unless it is clustered.
pub fn creation(
    replica: &Replica,
    namespace: &Namespace,
    options: RawDocumentBuf,
) -> CatalogChange {
    creation_with_id_format(replica, namespace, options, None)
}

/// The same, with keys of this format (`v`) in the index over `_id`.
pub fn creation_with_id_format(
    replica: &Replica,
    namespace: &Namespace,
    options: RawDocumentBuf,
    format: Option<i32>,
) -> CatalogChange {
    let mut indexes = Vec::new();
    if options.get_document("clusteredIndex").is_err() {
        let mut spec = rawdoc! { "v": format.unwrap_or(2), "key": { "_id": 1 }, "name": ID_INDEX };
        if let Ok(collation) = options.get_document("collation") {
            spec.append(cstr!("collation"), collation);
        }
        indexes.push(IndexDefinition {
            id: replica.store.allocate_id(),
            spec,
        });
    }
    CatalogChange::CreateCollection {
        id: replica.store.allocate_id(),
        namespace: namespace.clone(),
        uuid: *uuid::Uuid::new_v4().as_bytes(),
        options,
        indexes,
    }
}

/// Makes a collection unless there is one. False if there was one. `timeout`: how long its locks
/// are waited for.
pub async fn create_if_missing(
    ctx: &WriteContext<'_>,
    namespace: &Namespace,
    timeout: Option<Duration>,
) -> Result<bool, CommandError> {
    let replica = ctx.replica;
    let term = replica.writable_term()?;
    let is_there = || replica.store.catalog().find(namespace).is_some();
    if is_there() {
        return Ok(false);
    }
    let namespaces = [namespace];
    let locks = replica.locks.exclusive(&namespaces);
    let _locks = ctx.lock(locks, timeout).await?;
    if is_there() {
        return Ok(false);
    }
    views::refuse(replica, namespace)?;
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

/// A specification that makes the same index in any collection: one without a collation names the
/// simple one, so that it does not get the collection's. One of the format that knows no collations
/// gets none anyway, and cannot name any.
pub fn independent_spec(spec: &RawDocument) -> RawDocumentBuf {
    let mut independent = match key_of_expiring_words(spec) {
        Some(key) => {
            let mut asked = RawDocumentBuf::new();
            for (name, value) in spec.iter().flatten() {
                match name.as_str() {
                    "key" => asked.append(name, key.clone()),
                    _ => asked.append(name, value),
                }
            }
            asked
        }
        None => spec.to_owned(),
    };
    let knows_collations = spec.get_i32("v").is_ok_and(|version| version > 1);
    if knows_collations && spec.get_document("collation").is_err() {
        independent.append(cstr!("collation"), rawdoc! { "locale": "simple" });
    }
    independent
}

/// The key that a text index by which documents expire was asked with: of one field, which is not seen
/// of the key that is kept. The other fields are among the weights.
fn key_of_expiring_words(spec: &RawDocument) -> Option<RawDocumentBuf> {
    spec.get("expireAfterSeconds").ok().flatten()?;
    spec.get_document("key").ok()?.get("_fts").ok().flatten()?;
    let weights = spec.get_document("weights").ok()?;
    let (field, _) = weights.iter().next()?.ok()?;
    let mut key = RawDocumentBuf::new();
    key.append(field, "text");
    Some(key)
}

/// Whether the two patterns are the same index.
pub fn same_pattern(a: &KeyPattern, b: &KeyPattern) -> bool {
    a.fields.len() == b.fields.len()
        && a.fields
            .iter()
            .zip(&b.fields)
            .all(|((p, o), (q, r))| p.to_string() == q.to_string() && o == r)
}
