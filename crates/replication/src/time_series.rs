//! Time-series collections: which names are theirs, and which of their buckets are open.
//!
//! A time-series collection is there while its bucket collection is, which says in its options how it
//! is one ([`TimeSeries`]). It is a view whose definition lies nowhere: what reads it reads the
//! buckets through a stage that unpacks them.
//!
//! Which bucket took the last measurement of a source is remembered in memory ([`OpenBuckets`]), on
//! whichever member was told to write it. That spares looking for one and decides nothing: who wants
//! to add to a bucket latches it, reads it, and opens another one if it is not what was expected.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use banyan_document::time_series::{TimeSeries, buckets_name, visible_name};
use banyan_query::view::View;
use banyan_storage::{Catalog, Collection, CollectionId, RecordId};
use bson::RawDocument;
use parking_lot::Mutex;

/// What the options of a bucket collection say of it.
pub const OPTION: &str = "timeseries";

/// How measurements lie in a collection, if it is one of buckets.
pub fn of(collection: &Collection) -> Option<TimeSeries> {
    visible_name(collection.namespace.collection())?;
    TimeSeries::parse(collection.options.get_document(OPTION).ok()?)
}

/// The buckets of a time-series collection, and how measurements lie in them. `None`: there is none
/// of this name.
pub fn find(
    catalog: &Catalog,
    database: &str,
    name: &str,
) -> Option<(Arc<Collection>, TimeSeries)> {
    let buckets = catalog.get(database, &buckets_name(name))?;
    let series = of(buckets)?;
    // It was there before.
    let is_taken = catalog.get(database, name).is_some();
    (!is_taken).then(|| (buckets.clone(), series))
}

/// The view that it is.
pub fn view(catalog: &Catalog, database: &str, name: &str) -> Option<View> {
    let (buckets, series) = find(catalog, database, name)?;
    Some(View {
        on: buckets_name(name),
        stages: vec![series.unpack_stage()],
        collator: buckets.collator.clone(),
    })
}

/// So many sources are remembered at least.
const REMEMBERED: usize = 50_000;

/// The buckets that took the last measurements of their sources.
#[derive(Default)]
pub struct OpenBuckets {
    hasher: RandomState,
    generations: Mutex<Generations>,
}

/// A source, by a hash: two of one hash only take their turns in being remembered.
type Source = (CollectionId, u64);

/// What was used lately, and what was before that: who is in neither has been quiet for long.
#[derive(Default)]
struct Generations {
    young: HashMap<Source, RecordId>,
    old: HashMap<Source, RecordId>,
}

impl OpenBuckets {
    fn source(&self, collection: CollectionId, meta: &RawDocument) -> Source {
        (collection, self.hasher.hash_one(meta.as_bytes()))
    }

    pub fn find(&self, collection: CollectionId, meta: &RawDocument) -> Option<RecordId> {
        let source = self.source(collection, meta);
        let generations = self.generations.lock();
        let young = generations.young.get(&source);
        young.or_else(|| generations.old.get(&source)).cloned()
    }

    pub fn remember(&self, collection: CollectionId, meta: &RawDocument, record: RecordId) {
        let source = self.source(collection, meta);
        let mut generations = self.generations.lock();
        generations.young.insert(source, record);
        if generations.young.len() >= REMEMBERED {
            generations.old = std::mem::take(&mut generations.young);
        }
    }
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    #[test]
    fn sources_are_remembered_apart_and_as_long_as_they_are_not_many() {
        let open = OpenBuckets::default();
        let record = RecordId::number;
        let (a, b) = (rawdoc! { "meta": "a" }, rawdoc! { "meta": "b" });
        open.remember(1, &a, record(1));
        open.remember(1, &b, record(2));
        open.remember(2, &a, record(3));
        assert_eq!(open.find(1, &a), Some(record(1)));
        assert_eq!(open.find(1, &b), Some(record(2)));
        assert_eq!(open.find(2, &a), Some(record(3)));
        assert_eq!(open.find(2, &b), None);
        open.remember(1, &a, record(4));
        assert_eq!(open.find(1, &a), Some(record(4)));
        for n in 0..2 * REMEMBERED {
            let meta = rawdoc! { "meta": i64::try_from(n).unwrap() };
            open.remember(3, &meta, record(5));
        }
        assert_eq!(open.find(1, &a), None);
        let held = open.generations.lock();
        assert!(held.young.len() + held.old.len() <= 2 * REMEMBERED);
    }
}
