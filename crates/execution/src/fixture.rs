//! A collection in a store of its own, for tests of plans.

use std::sync::Arc;

use banyan_document::Collator;
use banyan_query::canonical::{CanonicalQuery, Order};
use banyan_query::{Context, Filter};
use banyan_storage::{
    Batch, CatalogChange, Collection, Index, IndexDefinition, Namespace, RecordId, Store,
    StoreOptions,
};
use bson::{RawDocument, RawDocumentBuf, rawdoc};

use crate::executor::Executor;
use crate::interrupt::InterruptSlot;
use crate::later::LaterStates;
use crate::plan::{Solution, solutions};
use crate::planned::Planned;
use crate::request::{ReadView, Request};

pub struct Fixture {
    _directory: tempfile::TempDir,
    pub store: Store,
}

impl Fixture {
    pub fn new() -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), &StoreOptions::default()).unwrap();
        Fixture {
            _directory: directory,
            store,
        }
    }

    /// A collection with these documents and indexes (besides `_id_`).
    pub fn collection(
        &self,
        name: &str,
        documents: &[RawDocumentBuf],
        indexes: &[RawDocumentBuf],
    ) -> Arc<Collection> {
        let ids = rawdoc! { "v": 2, "key": { "_id": 1 }, "name": "_id_" };
        let indexes: Vec<_> = std::iter::once(&ids).chain(indexes).cloned().collect();
        self.fill(name, rawdoc! {}, documents, &indexes)
    }

    /// The same in the order of `_id`, without an index on it.
    pub fn clustered(
        &self,
        name: &str,
        documents: &[RawDocumentBuf],
        indexes: &[RawDocumentBuf],
    ) -> Arc<Collection> {
        let options = rawdoc! { "clusteredIndex": {
            "v": 2, "key": { "_id": 1 }, "name": "_id_", "unique": true,
        } };
        self.fill(name, options, documents, indexes)
    }

    fn fill(
        &self,
        name: &str,
        options: RawDocumentBuf,
        documents: &[RawDocumentBuf],
        indexes: &[RawDocumentBuf],
    ) -> Arc<Collection> {
        let definition = |spec: &RawDocumentBuf| IndexDefinition {
            id: self.store.allocate_id(),
            spec: spec.clone(),
        };
        let definitions = indexes.iter().map(definition).collect();
        let mut batch = Batch::new();
        let id = self.store.allocate_id();
        batch.change_catalog(CatalogChange::CreateCollection {
            id,
            namespace: Namespace::new("test", name),
            uuid: [7; 16],
            options,
            indexes: definitions,
        });
        self.store.commit(batch).unwrap();
        let collection = self.store.catalog().by_id(id).unwrap().clone();
        let mut batch = Batch::new();
        for (record, document) in documents.iter().enumerate() {
            let record = match &collection.clustered_index {
                Some(index) => RecordId::bytes(&index.kind.keys(document).unwrap().keys[0]),
                None => RecordId::number(record as u64 + 1),
            };
            insert(&mut batch, &collection, &record, document);
        }
        self.store.commit(batch).unwrap();
        collection
    }

    pub fn solutions(&self, collection: &Arc<Collection>, request: &Request<'_>) -> Vec<Solution> {
        solutions(Some(collection), request, None).unwrap()
    }

    pub fn open(&self, collection: &Arc<Collection>, request: &Request<'_>) -> Executor {
        let later = LaterStates::newest(self.store.clone());
        self.open_in(collection, request, Some(later), &Arc::default())
    }

    pub fn open_in(
        &self,
        collection: &Arc<Collection>,
        request: &Request<'_>,
        later: Option<LaterStates>,
        slot: &Arc<InterruptSlot>,
    ) -> Executor {
        let view = ReadView {
            collection: Some(collection.clone()),
            snapshot: self.store.snapshot(),
            later,
        };
        let planned = Planned::new(view, request.clone()).unwrap();
        planned.open(slot).unwrap()
    }

    /// The ids that a query finds, and how. The plan rests between any two documents.
    pub fn find(
        &self,
        collection: &Arc<Collection>,
        request: &Request<'_>,
    ) -> (Vec<i32>, RawDocumentBuf) {
        let mut executor = self.open(collection, request);
        let mut found = Vec::new();
        while let Some((_, row)) = executor.next_record().unwrap() {
            found.push(row.get_i32("_id").unwrap());
            executor.save();
        }
        (found, executor.explain_run())
    }
}

/// A request for what matches a filter, in an order.
pub fn request(filter: &RawDocument, sort: Option<&RawDocument>) -> Request<'static> {
    collated_request(filter, sort, None)
}

/// As above, of a query with this collation.
pub fn collated_request(
    filter: &RawDocument,
    sort: Option<&RawDocument>,
    collator: Option<Collator>,
) -> Request<'static> {
    let context = Context {
        collator,
        ..Context::default()
    };
    let filter = Filter::of_query(filter, &context).unwrap();
    let query = CanonicalQuery {
        order: Order::parse(sort, context.collator.as_ref()).unwrap(),
        ..CanonicalQuery::of_filter(Arc::new(filter))
    };
    Request {
        query: Arc::new(query),
        ..Request::default()
    }
}

pub fn index(key: RawDocumentBuf, name: &str) -> RawDocumentBuf {
    rawdoc! { "v": 2, "key": key, "name": name }
}

pub fn insert(
    batch: &mut Batch,
    collection: &Arc<Collection>,
    record: &RecordId,
    document: &RawDocumentBuf,
) {
    batch.insert_record(collection, record, document);
    for index in &collection.indexes {
        add_keys(batch, collection, index, record, document);
    }
}

/// Without partial indexes.
pub fn remove(
    batch: &mut Batch,
    collection: &Arc<Collection>,
    record: &RecordId,
    document: &RawDocumentBuf,
) {
    batch.delete_record(collection, record, document);
    for index in &collection.indexes {
        for key in index.kind.keys(document).unwrap().keys {
            batch.delete_index_key(collection, index, &key, record);
        }
    }
}

fn add_keys(
    batch: &mut Batch,
    collection: &Collection,
    index: &Arc<Index>,
    record: &RecordId,
    document: &RawDocumentBuf,
) {
    if let Some(filter) = crate::partial::filter_of(index)
        && !filter
            .as_ref()
            .as_ref()
            .unwrap()
            .try_matches(document)
            .unwrap()
    {
        return;
    }
    let keys = index.kind.keys(document).unwrap();
    batch.note_arrays(collection.id, index, &keys.arrays);
    for key in keys.keys {
        batch.put_index_key(collection, index, &key, record);
    }
}
