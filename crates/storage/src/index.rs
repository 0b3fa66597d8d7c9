//! What the catalog knows of one index.

use std::any::Any;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use banyan_document::Collator;
use banyan_document::key::KeyPattern;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr};
use parking_lot::RwLock;

use crate::StorageError;
use crate::build::building::Building;
use crate::keys::{CollectionId, EntryForm, IndexId};
use crate::kind::{self, ArrayPaths, IndexKind};
use crate::record_id::RecordIdFormat;

pub const ID_INDEX_NAME: &str = "_id_";

/// What a change of the catalog says about one index.
#[derive(Debug, Clone, PartialEq)]
pub struct IndexDefinition {
    pub id: IndexId,
    /// As `listIndexes` shows it: `v`, `key`, `name`, options.
    pub spec: RawDocumentBuf,
}

pub struct Index {
    pub id: IndexId,
    pub name: String,
    pub spec: RawDocumentBuf,
    pub pattern: Arc<KeyPattern>,
    pub kind: Arc<dyn IndexKind>,
    pub unique: bool,
    /// It is to become unique: what is there may have one key twice, what is written may not.
    pub prepares_unique: bool,
    pub sparse: bool,
    pub hidden: bool,
    pub partial_filter: Option<RawDocumentBuf>,
    pub expire_after_seconds: Option<i64>,
    /// What the record ids in its entries are.
    pub record_ids: RecordIdFormat,
    is_clustered: bool,
    arrays: RwLock<Arc<ArrayPaths>>,
    pub(crate) key_bytes: AtomicI64,
    pub(crate) building: Option<Arc<Building>>,
    extension: OnceLock<Arc<dyn Any + Send + Sync>>,
    usage: Usage,
}

/// How often an index was used, and since when that is counted.
#[derive(Debug)]
struct Usage {
    operations: AtomicU64,
    since: SystemTime,
}

impl Index {
    pub fn parse(definition: &IndexDefinition, arrays: ArrayPaths) -> Result<Index, StorageError> {
        let spec = &definition.spec;
        let bad = |what: &str| StorageError::Catalog(format!("index {spec:?}: {what}"));
        let flag = |name: &str| match spec.get(name) {
            Ok(Some(RawBsonRef::Boolean(value))) => value,
            Ok(Some(RawBsonRef::Int32(value))) => value != 0,
            Ok(Some(RawBsonRef::Int64(value))) => value != 0,
            Ok(Some(RawBsonRef::Double(value))) => value != 0.0,
            _ => false,
        };
        let key = spec.get_document("key").map_err(|_| bad("no key"))?;
        let pattern = KeyPattern::parse(key).map_err(|error| bad(&error.to_string()))?;
        let pattern = Arc::new(pattern.with_collator(collator_in(spec)?));
        let sparse = flag("sparse");
        let kind = match kind::text::of(spec, &pattern).map_err(|error| bad(&error.to_string()))? {
            Some(text) => text,
            None => kind::of(&pattern, sparse, spec).map_err(|error| bad(&error.to_string()))?,
        };
        let name = spec.get_str("name").map_err(|_| bad("no name"))?.to_owned();
        let is_id = name == ID_INDEX_NAME;
        let partial_filter = spec
            .get_document("partialFilterExpression")
            .ok()
            .map(RawDocument::to_owned);
        let expire_after_seconds = match spec.get("expireAfterSeconds") {
            Ok(Some(RawBsonRef::Int32(seconds))) => Some(i64::from(seconds)),
            Ok(Some(RawBsonRef::Int64(seconds))) => Some(seconds),
            Ok(Some(RawBsonRef::Double(seconds))) => Some(seconds as i64),
            _ => None,
        };
        Ok(Index {
            id: definition.id,
            name,
            pattern,
            kind,
            unique: is_id || flag("unique"),
            prepares_unique: flag("prepareUnique"),
            sparse,
            hidden: flag("hidden"),
            partial_filter,
            expire_after_seconds,
            record_ids: RecordIdFormat::Number,
            is_clustered: false,
            spec: spec.clone(),
            arrays: RwLock::new(Arc::new(arrays)),
            key_bytes: AtomicI64::new(0),
            building: None,
            extension: OnceLock::new(),
            usage: Usage {
                operations: AtomicU64::new(0),
                since: SystemTime::now(),
            },
        })
    }

    /// Whether a write may not give a record a key that another record has.
    pub fn refuses_duplicates(&self) -> bool {
        self.unique || self.prepares_unique
    }

    /// With entries for records whose ids are of this format.
    pub(crate) fn of_records(self, record_ids: RecordIdFormat) -> Index {
        Index { record_ids, ..self }
    }

    pub(crate) fn under(self, building: &Arc<Building>) -> Index {
        Index {
            building: Some(building.clone()),
            ..self
        }
    }

    /// The same index with another definition or in another state, with the same keys.
    pub(crate) fn succeed(&self, definition: &IndexDefinition) -> Result<Index, StorageError> {
        let index = Index::parse(definition, ArrayPaths::clone(&self.arrays()))?;
        let index = index.of_records(self.record_ids);
        let key_bytes = self.key_bytes.load(Ordering::Relaxed);
        index.key_bytes.store(key_bytes, Ordering::Relaxed);
        Ok(index)
    }

    /// An operation finds documents by it.
    pub fn note_use(&self) {
        self.usage.operations.fetch_add(1, Ordering::Relaxed);
    }

    /// How many operations have found documents by it, and since when they are counted: since it was
    /// made or changed, or since the start of the process.
    pub fn uses(&self) -> (u64, SystemTime) {
        let operations = self.usage.operations.load(Ordering::Relaxed);
        (operations, self.usage.since)
    }

    /// Whether it is the index on `_id` of a collection that is not clustered.
    pub fn is_id(&self) -> bool {
        self.name == ID_INDEX_NAME && !self.is_clustered
    }

    /// Whether it is the order of a clustered collection's records. Its id is then the collection's.
    pub fn is_clustered(&self) -> bool {
        self.is_clustered
    }

    pub(crate) fn entry_form(&self) -> EntryForm {
        EntryForm {
            unique: self.unique,
            ids: self.record_ids,
        }
    }

    /// Where documents have arrays. Only grows.
    pub fn arrays(&self) -> Arc<ArrayPaths> {
        self.arrays.read().clone()
    }

    /// Whether a record may have several keys here because of arrays.
    pub fn is_multikey(&self) -> bool {
        !self.arrays.read().is_empty()
    }

    pub(crate) fn add_arrays(&self, paths: &BTreeSet<Box<str>>) {
        Arc::make_mut(&mut self.arrays.write()).add(paths);
    }

    /// The sum of the lengths of all keys.
    pub fn key_bytes(&self) -> u64 {
        self.key_bytes.load(Ordering::Relaxed).max(0) as u64
    }

    /// Something derived from the definition that the caller wants to work out once, such as a
    /// parsed partial filter. Always asked for with the same type.
    pub fn extension<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Option<Arc<T>> {
        self.extension
            .get_or_init(|| Arc::new(make()))
            .clone()
            .downcast()
            .ok()
    }

    pub fn definition(&self) -> IndexDefinition {
        IndexDefinition {
            id: self.id,
            spec: self.spec.clone(),
        }
    }
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Index({} {:?} {:?})", self.id, self.name, self.spec)
    }
}

/// The index that the `clusteredIndex` among a collection's options stands for.
pub(crate) fn clustered_index(
    id: CollectionId,
    options: &RawDocument,
) -> Result<Option<Arc<Index>>, StorageError> {
    let Ok(clustered) = options.get_document("clusteredIndex") else {
        return Ok(None);
    };
    let mut spec = clustered.to_owned();
    if let Ok(collation) = options.get_document("collation") {
        spec.append(cstr!("collation"), collation);
    }
    spec.append(cstr!("clustered"), true);
    let index = Index::parse(&IndexDefinition { id, spec }, ArrayPaths::default())?;
    let expire_after_seconds = options.get_i64("expireAfterSeconds").ok();
    Ok(Some(Arc::new(Index {
        expire_after_seconds,
        record_ids: RecordIdFormat::Bytes,
        is_clustered: true,
        ..index
    })))
}

/// What the `collation` among the options of a collection or of an index stands for.
pub(crate) fn collator_in(options: &RawDocument) -> Result<Option<Collator>, StorageError> {
    let Ok(collation) = options.get_document("collation") else {
        return Ok(None);
    };
    Collator::parse(collation)
        .map_err(|error| StorageError::Catalog(format!("collation {collation:?}: {error}")))
}
