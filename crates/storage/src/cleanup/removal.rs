//! What was dropped and is not removed yet.

use std::collections::BTreeSet;
use std::mem;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use banyan_crash::{Point, pass};
use fjall::{AbstractTree, Readable};

use super::dead::DeadIds;
use super::dropped::Dropped;
use crate::engine::{Engine, drop_tables};
use crate::keyspaces::{Keyspace, Operation};
use crate::{StorageError, keys};

const IN_USE_POLL: Duration = Duration::from_millis(200);
/// Between two looks at whether tables can go.
const TABLES_POLL: Duration = Duration::from_secs(1);
/// For the engine to write a table from memory.
const FLUSH_TIME: Duration = Duration::from_secs(5);
/// Less than that is removed key by key rather than written to a table first.
const FLUSH_BYTES_MIN: u64 = 1 << 20;
/// So many may wait for tables to go as a whole.
const READY_MAX: usize = 1000;

pub(super) struct Removal {
    engine: Arc<Engine>,
    delay: Duration,
    /// Of the engine, when the ids below were known to be dead.
    epoch: u64,
    dead: DeadIds,
    /// In the order of arrival.
    waiting: Vec<Waiting>,
    /// How many are waiting or about to be added.
    pending: Arc<AtomicUsize>,
}

struct Waiting {
    epoch: u64,
    dropped: Dropped,
    /// When it is removed key by key. `None` while it is in use.
    due: Option<Instant>,
    is_flushing: bool,
}

impl Removal {
    pub(super) fn new(engine: Arc<Engine>, delay: Duration, pending: Arc<AtomicUsize>) -> Removal {
        Removal {
            epoch: engine.epoch.load(Ordering::Acquire),
            engine,
            delay,
            dead: DeadIds::default(),
            waiting: Vec::new(),
            pending,
        }
    }

    /// The caller has counted them as pending.
    pub(super) fn add(&mut self, epoch: u64, dropped: Vec<Dropped>) {
        self.waiting
            .extend(dropped.into_iter().map(|dropped| Waiting {
                epoch,
                dropped,
                due: None,
                is_flushing: false,
            }));
    }

    /// When to look next. `None`: there is nothing to wait for.
    pub(super) fn pause(&self) -> Option<Duration> {
        let now = Instant::now();
        let until = |waiting: &Waiting| match waiting.due {
            None => IN_USE_POLL,
            Some(due) => due.saturating_duration_since(now).min(TABLES_POLL),
        };
        self.waiting.iter().map(until).min()
    }

    /// Removes what can be removed.
    pub(super) fn look(&mut self) {
        let epoch = self.engine.epoch.load(Ordering::Acquire);
        if epoch != self.epoch {
            // An import has replaced all that there was; the same ids may be alive in what came.
            self.epoch = epoch;
            self.dead = DeadIds::default();
        }
        let known = self.waiting.len();
        self.waiting.retain(|waiting| waiting.epoch == epoch);
        let now = Instant::now();
        let mut is_news = false;
        for waiting in &mut self.waiting {
            if waiting.due.is_none() && !waiting.dropped.is_in_use() {
                waiting.due = Some(now + self.delay);
                self.dead.insert(waiting.dropped.id);
                is_news = true;
            }
        }
        let mut resurfaced = Vec::new();
        for part in [Keyspace::Records, Keyspace::Indexes] {
            match self.drop_dead_tables(part, &mut resurfaced) {
                Ok(any) => is_news |= any,
                Err(error) => {
                    tracing::error!(%error, "cannot remove tables of dropped data");
                }
            }
        }
        self.remove_due(now, is_news);
        let done = known - self.waiting.len();
        self.pending.fetch_add(resurfaced.len(), Ordering::Release);
        self.pending.fetch_sub(done, Ordering::Release);
        self.add(epoch, resurfaced);
    }

    /// Takes out the tables that hold nothing but what was dropped. False: there are none.
    fn drop_dead_tables(
        &self,
        part: Keyspace,
        resurfaced: &mut Vec<Dropped>,
    ) -> Result<bool, StorageError> {
        let keyspaces = self.engine.keyspaces();
        // They are replaced after the epoch has changed: these are what the ids belong to.
        if self.engine.epoch.load(Ordering::Acquire) != self.epoch {
            return Ok(false);
        }
        let keyspace = keyspaces.of(part);
        let ranges: BTreeSet<(u32, u32)> = (keyspace.tree.current_version().iter_tables())
            .filter_map(|table| {
                let range = &table.metadata.key_range;
                self.dead.around_keys(range.min(), range.max())
            })
            .collect();
        if !ranges.is_empty() {
            // Tables go at once. A crash must not bring back the time when they were in use.
            self.engine.persist()?;
        }
        for &range in &ranges {
            drop_tables(keyspace, range)?;
            self.find_resurfaced(part, range, resurfaced)?;
        }
        Ok(!ranges.is_empty())
    }

    /// What a dropped table said to be deleted may lie in another one. Nobody waits for that any
    /// more if nothing was to be seen of it before.
    fn find_resurfaced(
        &self,
        part: Keyspace,
        (mut first, last): (u32, u32),
        resurfaced: &mut Vec<Dropped>,
    ) -> Result<(), StorageError> {
        while let Some(id) = self.first_id(part, first, last)? {
            let is_it = |dropped: &Dropped| dropped.id == id && dropped.keyspace() == part;
            if !self.waiting.iter().any(|waiting| is_it(&waiting.dropped)) {
                resurfaced.push(Dropped::found(part, id));
            }
            if id == last {
                break;
            }
            first = id + 1;
        }
        Ok(())
    }

    /// The first id from `first` to `last` that has keys.
    fn first_id(&self, part: Keyspace, first: u32, last: u32) -> Result<Option<u32>, StorageError> {
        let view = self.engine.snapshot();
        let keyspaces = self.engine.keyspaces();
        let bounds = (
            Bound::Included(first.to_be_bytes().to_vec()),
            keys::end_of_id(last),
        );
        let entry = view.range::<Vec<u8>, _>(keyspaces.of(part), bounds).next();
        let Some(entry) = entry else {
            return Ok(None);
        };
        let key = entry.key()?;
        let id = key.first_chunk().map(|id| u32::from_be_bytes(*id));
        id.map(Some)
            .ok_or_else(|| StorageError::damaged("the state", format!("key {key:?} without an id")))
    }

    fn remove_due(&mut self, now: Instant, is_news: bool) {
        let ready = |waiting: &&Waiting| waiting.due.is_some();
        let ready = self.waiting.iter().filter(ready).count();
        let mut too_many = ready.saturating_sub(READY_MAX);
        let mut flushing = Vec::new();
        let mut waiting = mem::take(&mut self.waiting);
        waiting.retain_mut(|waiting| {
            let Some(due) = waiting.due else {
                return true;
            };
            let is_excess = too_many > 0;
            too_many = too_many.saturating_sub(1);
            let is_due = is_excess || due <= now;
            if is_due && !is_excess && !waiting.is_flushing {
                waiting.is_flushing = true;
                if self.is_flushed(&waiting.dropped, &mut flushing) {
                    waiting.due = Some(now + FLUSH_TIME);
                    return true;
                }
            }
            match self.remove(&waiting.dropped, is_due, is_news) {
                Ok(is_removed) => !is_removed,
                Err(error) => {
                    let dropped = &waiting.dropped;
                    tracing::error!(%error, ?dropped, "cannot remove dropped data");
                    false
                }
            }
        });
        self.waiting = waiting;
    }

    /// False: it has to wait.
    fn remove(
        &mut self,
        dropped: &Dropped,
        is_due: bool,
        is_news: bool,
    ) -> Result<bool, StorageError> {
        let keyspace = dropped.keyspace();
        let is_gone = is_news && self.first_id(keyspace, dropped.id, dropped.id)?.is_none();
        if !is_gone && !is_due {
            return Ok(false);
        }
        if !is_gone {
            // What says that its keys are gone must not go with a table before the keys do.
            self.dead.remove(dropped.id);
            self.engine.remove_keys(keyspace, dropped.id, self.epoch)?;
        }
        pass(Point::CleanupEnding);
        let mark = Operation {
            keyspace: Keyspace::Meta,
            key: dropped.meta_key().into(),
            value: None,
        };
        self.engine.write_in(self.epoch, vec![mark])?;
        Ok(true)
    }

    /// Has the engine write what it holds in memory to a table, if all of that was dropped: the
    /// table can go as a whole then.
    fn is_flushed(&self, dropped: &Dropped, flushing: &mut Vec<(Keyspace, (u32, u32))>) -> bool {
        let Some(range) = self.dead.around(dropped.id, dropped.id) else {
            return false;
        };
        let part = dropped.keyspace();
        if flushing.contains(&(part, range)) {
            return true;
        }
        let keyspaces = self.engine.keyspaces();
        let keyspace = keyspaces.of(part);
        let memtable = keyspace.tree.active_memtable();
        if memtable.size() < FLUSH_BYTES_MIN {
            return false;
        }
        let mut entries = memtable.iter();
        let Some(min) = entries.next() else {
            return false;
        };
        let max = entries.next_back();
        let max = max.as_ref().unwrap_or(&min);
        if self.dead.around_keys(&min.key.user_key, &max.key.user_key) != Some(range) {
            return false;
        }
        match self.engine.flush_ahead(part) {
            Ok(_) => {
                flushing.push((part, range));
                true
            }
            Err(error) => {
                tracing::error!(%error, "cannot seal what is in memory");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;
    use crate::{Batch, CatalogChange, Collection, Namespace, RecordId, Store, StoreOptions};

    fn create(store: &Store, name: &str) -> Arc<Collection> {
        let namespace = Namespace::new("db", name);
        let mut batch = Batch::new();
        batch.change_catalog(CatalogChange::CreateCollection {
            id: store.allocate_id(),
            namespace: namespace.clone(),
            uuid: [1; 16],
            options: rawdoc! {},
            indexes: Vec::new(),
        });
        store.commit(batch).unwrap();
        store.catalog().find(&namespace).unwrap().clone()
    }

    fn write(store: &Store, collection: &Arc<Collection>, is_there: bool) {
        let mut batch = Batch::new();
        for number in 1..=10 {
            let (record, document) = (RecordId::number(number), rawdoc! { "_id": 1 });
            match is_there {
                true => batch.insert_record(collection, &record, &document),
                false => batch.delete_record(collection, &record, &document),
            }
        }
        store.commit(batch).unwrap();
    }

    fn drop_and_wait(store: &Store, collection: Arc<Collection>) {
        let mut batch = Batch::new();
        batch.change_catalog(CatalogChange::DropCollection { id: collection.id });
        drop(collection);
        store.commit(batch).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while store.is_cleaning() {
            assert!(Instant::now() < deadline, "dropped data is still there");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// What was deleted before its collection was dropped lies beside something else; what says
    /// that it was deleted has a table of its own.
    #[test]
    fn what_comes_back_with_a_table_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), &StoreOptions::default()).unwrap();
        let [kept, emptied, next] = ["kept", "emptied", "next"].map(|name| create(&store, name));
        let emptied_id = emptied.id;
        let keyspaces = store.engine().keyspaces();
        let flush = || store.persist().unwrap();
        write(&store, &kept, true);
        write(&store, &emptied, true);
        flush();
        write(&store, &emptied, false);
        write(&store, &next, true);
        flush();
        drop_and_wait(&store, emptied);
        let tables = keyspaces.records.table_count();
        drop_and_wait(&store, next);
        assert!(keyspaces.records.table_count() < tables);
        let view = store.snapshot();
        assert_eq!(view.records(emptied_id, .., false).count(), 0);
        assert_eq!(view.records(kept.id, .., false).count(), 10);
    }
}
