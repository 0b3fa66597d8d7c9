//! What exists: databases, collections, indexes.
//!
//! A [`Catalog`] is immutable. A batch that carries [`CatalogChange`]s makes a new one, which
//! replaces the old the moment the batch is committed; readers keep the one they took. Take the
//! catalog first and the snapshot second: every index that the catalog names is then complete in
//! the snapshot.
//!
//! What changes with every write (counts, sizes, the next record id, whether an index has become
//! multikey) is atomic and shared between the versions of a collection.

pub(crate) mod capped;
mod oldest;
pub(crate) mod persist;

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use banyan_document::Collator;
use bson::{RawDocument, RawDocumentBuf};

use self::oldest::Oldest;
use crate::StorageError;
use crate::build::building::Building;
use crate::build::index_build::{BuildId, IndexBuild, IndexBuildDefinition};
use crate::index::{Index, IndexDefinition, clustered_index, collator_in};
use crate::keys::{CollectionId, IndexId};
use crate::kind::ArrayPaths;
use crate::record_id::{RecordId, RecordIdFormat};

/// `database.collection`. The collection's part may hold further dots.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace {
    full: Arc<str>,
    database_bytes: usize,
}

impl Namespace {
    pub fn new(database: &str, collection: &str) -> Namespace {
        let full = [database, ".", collection].concat().into();
        Namespace {
            full,
            database_bytes: database.len(),
        }
    }

    /// Splits at the first dot.
    pub fn parse(full: &str) -> Option<Namespace> {
        let (database, _) = full.split_once('.')?;
        Some(Namespace {
            full: full.into(),
            database_bytes: database.len(),
        })
    }

    pub fn database(&self) -> &str {
        &self.full[..self.database_bytes]
    }

    pub fn collection(&self) -> &str {
        &self.full[self.database_bytes + 1..]
    }

    pub fn as_str(&self) -> &str {
        &self.full
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.full)
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.full, f)
    }
}

/// All collections, by name and by id.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    databases: BTreeMap<Arc<str>, Arc<Database>>,
    by_id: HashMap<CollectionId, Arc<Collection>>,
}

/// One database: its collections in name order. A database exists while it has a collection.
#[derive(Debug, Clone)]
pub struct Database {
    pub name: Arc<str>,
    collections: BTreeMap<Box<str>, Arc<Collection>>,
}

impl Database {
    pub fn collections(&self) -> impl Iterator<Item = &Arc<Collection>> {
        self.collections.values()
    }

    pub fn get(&self, collection: &str) -> Option<&Arc<Collection>> {
        self.collections.get(collection)
    }
}

impl Catalog {
    pub fn get(&self, database: &str, collection: &str) -> Option<&Arc<Collection>> {
        self.databases.get(database)?.get(collection)
    }

    pub fn find(&self, namespace: &Namespace) -> Option<&Arc<Collection>> {
        self.get(namespace.database(), namespace.collection())
    }

    pub fn by_id(&self, id: CollectionId) -> Option<&Arc<Collection>> {
        self.by_id.get(&id)
    }

    pub fn database(&self, name: &str) -> Option<&Arc<Database>> {
        self.databases.get(name)
    }

    /// In name order.
    pub fn databases(&self) -> impl Iterator<Item = &Arc<Database>> {
        self.databases.values()
    }

    /// A database whose name differs from `name` in letter case alone.
    pub fn database_in_other_case(&self, name: &str) -> Option<&Arc<Database>> {
        self.databases()
            .find(|other| *other.name != *name && other.name.eq_ignore_ascii_case(name))
    }

    pub fn collections(&self) -> impl Iterator<Item = &Arc<Collection>> {
        self.databases
            .values()
            .flat_map(|database| database.collections())
    }

    pub(crate) fn insert(&mut self, collection: Arc<Collection>) {
        self.remove(collection.id);
        let name: Arc<str> = collection.namespace.database().into();
        let database = self.databases.entry(name.clone()).or_insert_with(|| {
            Arc::new(Database {
                name,
                collections: BTreeMap::new(),
            })
        });
        Arc::make_mut(database)
            .collections
            .insert(collection.namespace.collection().into(), collection.clone());
        self.by_id.insert(collection.id, collection);
    }

    pub(crate) fn remove(&mut self, id: CollectionId) -> Option<Arc<Collection>> {
        let removed = self.by_id.remove(&id)?;
        let name = removed.namespace.database();
        if let Some(database) = self.databases.get_mut(name) {
            let database = Arc::make_mut(database);
            database.collections.remove(removed.namespace.collection());
            if database.collections.is_empty() {
                self.databases.remove(name);
            }
        }
        Some(removed)
    }
}

/// One collection. `id` is never given to another, not even after a drop.
#[derive(Debug, Clone)]
pub struct Collection {
    pub id: CollectionId,
    pub namespace: Namespace,
    pub uuid: [u8; 16],
    /// As `listCollections` shows them.
    pub options: RawDocumentBuf,
    /// How operations that name no collation compare strings here; `None`: by their bytes.
    pub collator: Option<Collator>,
    /// In a clustered collection: the order of its records, as an index without entries. Its keys
    /// are the record ids.
    pub clustered_index: Option<Arc<Index>>,
    /// Its records stay in the order in which they were inserted.
    pub is_capped: bool,
    /// In the order of their creation; `_id_` first, where the collection is not clustered. All of
    /// them are complete.
    pub indexes: Vec<Arc<Index>>,
    /// Builds under way, in the order in which they began.
    pub builds: Vec<Arc<IndexBuild>>,
    pub(crate) counters: Arc<Counters>,
    /// What callers have derived from the options.
    pub(crate) from_options: OnceLock<Arc<dyn Any + Send + Sync>>,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) documents: AtomicI64,
    pub(crate) bytes: AtomicI64,
    /// One more than the highest record id ever seen here; 0 until that is known.
    pub(crate) next_record: AtomicU64,
    pub(crate) oldest: Oldest,
    extension: OnceLock<Arc<dyn Any + Send + Sync>>,
}

impl Collection {
    pub fn documents(&self) -> u64 {
        self.counters.documents.load(Ordering::Relaxed).max(0) as u64
    }

    /// The sum of the documents' BSON lengths.
    pub fn bytes(&self) -> u64 {
        self.counters.bytes.load(Ordering::Relaxed).max(0) as u64
    }

    pub fn index(&self, name: &str) -> Option<&Arc<Index>> {
        self.indexes.iter().find(|index| index.name == name)
    }

    pub fn index_by_id(&self, id: IndexId) -> Option<&Arc<Index>> {
        self.indexes.iter().find(|index| index.id == id)
    }

    pub fn build(&self, id: &BuildId) -> Option<&Arc<IndexBuild>> {
        self.builds.iter().find(|build| build.id == *id)
    }

    /// Indexes that writes keep up and readers do not see yet.
    pub fn building_indexes(&self) -> impl Iterator<Item = &Arc<Index>> {
        self.builds.iter().flat_map(|build| &build.indexes)
    }

    pub(crate) fn written_by_id(&self, id: IndexId) -> Option<&Arc<Index>> {
        let mut building = self.building_indexes();
        self.index_by_id(id)
            .or_else(|| building.find(|index| index.id == id))
    }

    /// Gives readers the indexes of a build, or sees to it that they get them once they are loaded.
    fn commit_build(&mut self, id: &BuildId) -> Result<(), StorageError> {
        let Some(at) = self.builds.iter().position(|build| build.id == *id) else {
            return Ok(());
        };
        if !self.builds[at].is_loaded() {
            Arc::make_mut(&mut self.builds[at]).is_committed = true;
            return Ok(());
        }
        let build = self.builds.remove(at);
        for index in &build.indexes {
            let ready = index.succeed(&index.definition())?;
            // Another one may have come meanwhile.
            let place = match ready.is_id() {
                true => 0,
                false => self.indexes.len(),
            };
            self.indexes.insert(place, Arc::new(ready));
        }
        Ok(())
    }

    /// Takes out an index, also one of a committed build that this member still loads: the member
    /// that dropped it had it complete.
    fn drop_index(&mut self, id: IndexId) {
        self.indexes.retain(|index| index.id != id);
        let is_it = |index: &Arc<Index>| index.id == id;
        for build in &mut self.builds {
            if build.indexes.iter().any(is_it) {
                let build = Arc::make_mut(build);
                build.indexes.retain(|index| index.id != id);
            }
        }
        self.builds.retain(|build| !build.indexes.is_empty());
    }

    /// Gives an index another definition, also one that this member still loads.
    fn redefine_index(&mut self, definition: &IndexDefinition) -> Result<(), StorageError> {
        redefine(&mut self.indexes, definition)?;
        for build in &mut self.builds {
            if build.indexes.iter().any(|index| index.id == definition.id) {
                redefine(&mut Arc::make_mut(build).indexes, definition)?;
            }
        }
        Ok(())
    }

    /// The index on `_id`, which every collection with records has: `_id_` or the clustered one.
    pub fn id_index(&self) -> Option<&Arc<Index>> {
        let first = self.indexes.first().filter(|index| index.is_id());
        self.clustered_index.as_ref().or(first)
    }

    /// What queries may be answered with: the clustered index goes first.
    pub fn all_indexes(&self) -> impl Iterator<Item = &Arc<Index>> {
        self.clustered_index.iter().chain(&self.indexes)
    }

    /// What its record ids are.
    pub fn record_ids(&self) -> RecordIdFormat {
        match self.clustered_index {
            Some(_) => RecordIdFormat::Bytes,
            None => RecordIdFormat::Number,
        }
    }

    /// Replaces the options and what follows from them.
    fn set_options(&mut self, options: &RawDocument) -> Result<(), StorageError> {
        self.collator = collator_in(options)?;
        self.clustered_index = clustered_index(self.id, options)?;
        self.is_capped = options.get_bool("capped").unwrap_or(false);
        self.options = options.to_owned();
        self.from_options = OnceLock::new();
        Ok(())
    }

    /// Something derived from the options that the caller wants to work out once, such as a parsed
    /// validator. Always asked for with the same type.
    pub fn from_options<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Option<Arc<T>> {
        let derived = self.from_options.get_or_init(|| Arc::new(make()));
        derived.clone().downcast().ok()
    }

    /// What a caller keeps in memory with the collection for as long as it exists, under whichever
    /// name and with whichever indexes. Always asked for with the same type.
    pub fn extension<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Option<Arc<T>> {
        let extension = &self.counters.extension;
        let extension = extension.get_or_init(|| Arc::new(make()));
        extension.clone().downcast().ok()
    }

    /// Reserves `count` consecutive numbers for record ids and returns the first; `last_known` is
    /// asked once. Not for clustered collections.
    pub fn reserve_records<E>(
        &self,
        count: u64,
        last_known: impl FnOnce() -> Result<Option<RecordId>, E>,
    ) -> Result<u64, E> {
        let next = &self.counters.next_record;
        if next.load(Ordering::Relaxed) == 0 {
            let last = last_known()?.and_then(|last| last.as_number());
            let first = last.map_or(1, |last| last + 1);
            next.fetch_max(first, Ordering::Relaxed);
        }
        Ok(next.fetch_add(count, Ordering::Relaxed))
    }
}

fn redefine(indexes: &mut [Arc<Index>], definition: &IndexDefinition) -> Result<(), StorageError> {
    for known in indexes.iter_mut().filter(|known| known.id == definition.id) {
        let index = known.succeed(definition)?;
        *known = Arc::new(match &known.building {
            Some(building) => index.under(building),
            None => index,
        });
    }
    Ok(())
}

/// One change of the catalog, part of a batch. Repeating one changes nothing further.
#[derive(Debug, Clone, PartialEq)]
pub enum CatalogChange {
    CreateCollection {
        id: CollectionId,
        namespace: Namespace,
        uuid: [u8; 16],
        options: RawDocumentBuf,
        indexes: Vec<IndexDefinition>,
    },
    /// Its records and index keys are removed in the background.
    DropCollection {
        id: CollectionId,
    },
    RenameCollection {
        id: CollectionId,
        to: Namespace,
    },
    SetOptions {
        id: CollectionId,
        options: RawDocumentBuf,
    },
    /// The collection has no records.
    CreateIndex {
        collection: CollectionId,
        index: IndexDefinition,
    },
    /// From here on writes keep the keys of these indexes up, and every member loads the others.
    StartIndexBuild {
        collection: CollectionId,
        build: IndexBuildDefinition,
    },
    /// The build's indexes are there, on a member that still loads as soon as it has all keys.
    CommitIndexBuild {
        collection: CollectionId,
        build: BuildId,
    },
    /// The keys are removed in the background.
    AbortIndexBuild {
        collection: CollectionId,
        build: BuildId,
    },
    /// Each member's own: it has loaded all keys.
    FinishIndexBuild {
        collection: CollectionId,
        build: BuildId,
    },
    DropIndex {
        collection: CollectionId,
        index: IndexId,
    },
    /// Replaces a definition whose keys stay as they are.
    SetIndexSpec {
        collection: CollectionId,
        index: IndexDefinition,
    },
}

impl CatalogChange {
    pub fn collection(&self) -> CollectionId {
        match self {
            CatalogChange::CreateCollection { id, .. }
            | CatalogChange::DropCollection { id }
            | CatalogChange::RenameCollection { id, .. }
            | CatalogChange::SetOptions { id, .. } => *id,
            CatalogChange::CreateIndex { collection, .. }
            | CatalogChange::StartIndexBuild { collection, .. }
            | CatalogChange::CommitIndexBuild { collection, .. }
            | CatalogChange::AbortIndexBuild { collection, .. }
            | CatalogChange::FinishIndexBuild { collection, .. }
            | CatalogChange::DropIndex { collection, .. }
            | CatalogChange::SetIndexSpec { collection, .. } => *collection,
        }
    }

    /// The highest id that the change gives out.
    pub(crate) fn highest_id(&self) -> u32 {
        match self {
            CatalogChange::CreateCollection { id, indexes, .. } => {
                indexes.iter().map(|index| index.id).fold(*id, u32::max)
            }
            CatalogChange::CreateIndex { index, .. } => index.id,
            CatalogChange::StartIndexBuild { build, .. } => {
                let ids = build.indexes.iter().map(|index| index.id);
                ids.fold(build.duplicates, u32::max)
            }
            _ => 0,
        }
    }

    /// Whether an index build may have come to its end with it.
    pub(crate) fn finishes_build(&self) -> bool {
        matches!(
            self,
            CatalogChange::CommitIndexBuild { .. } | CatalogChange::FinishIndexBuild { .. }
        )
    }

    /// The collection as the change leaves it; `None` once dropped. A change of a collection
    /// that is no longer there changes nothing.
    pub(crate) fn apply(
        &self,
        collection: Option<&Collection>,
    ) -> Result<Option<Collection>, StorageError> {
        if let CatalogChange::CreateCollection {
            id,
            namespace,
            uuid,
            options,
            indexes,
        } = self
        {
            let counters = collection
                .map(|known| known.counters.clone())
                .unwrap_or_default();
            let mut created = Collection {
                id: *id,
                namespace: namespace.clone(),
                uuid: *uuid,
                options: RawDocumentBuf::new(),
                collator: None,
                clustered_index: None,
                is_capped: false,
                indexes: Vec::with_capacity(indexes.len()),
                builds: Vec::new(),
                counters,
                from_options: OnceLock::new(),
            };
            created.set_options(options)?;
            for definition in indexes {
                let index = Index::parse(definition, ArrayPaths::default())?;
                let index = index.of_records(created.record_ids());
                created.indexes.push(Arc::new(index));
            }
            return Ok(Some(created));
        }
        let Some(mut changed) = collection.cloned() else {
            return Ok(None);
        };
        match self {
            CatalogChange::CreateCollection { .. } => {}
            CatalogChange::DropCollection { .. } => return Ok(None),
            CatalogChange::RenameCollection { to, .. } => changed.namespace = to.clone(),
            CatalogChange::SetOptions { options, .. } => changed.set_options(options)?,
            CatalogChange::CreateIndex { index, .. } => {
                let built = Index::parse(index, ArrayPaths::default())?;
                let built = Arc::new(built.of_records(changed.record_ids()));
                changed.indexes.retain(|other| other.id != index.id);
                changed.indexes.push(built);
            }
            CatalogChange::StartIndexBuild { build, .. } => {
                if changed.build(&build.id).is_none() {
                    let building = Arc::new(Building::begun(build.duplicates));
                    let begun = IndexBuild::parse(build, building, changed.record_ids())?;
                    changed.builds.push(Arc::new(begun));
                }
            }
            CatalogChange::CommitIndexBuild { build, .. } => changed.commit_build(build)?,
            CatalogChange::FinishIndexBuild { build, .. } => {
                if let Some(build) = changed.build(build).cloned() {
                    build.building.set_loaded();
                    if build.is_committed {
                        changed.commit_build(&build.id)?;
                    }
                }
            }
            CatalogChange::AbortIndexBuild { build, .. } => {
                changed.builds.retain(|other| other.id != *build);
            }
            CatalogChange::DropIndex { index, .. } => changed.drop_index(*index),
            CatalogChange::SetIndexSpec { index, .. } => changed.redefine_index(index)?,
        }
        Ok(Some(changed))
    }
}
