//! The taking side: everything in a store replaced by what a snapshot elsewhere held.

use std::sync::Arc;

use banyan_crash::{Point, pass};
use fjall::Slice;
use parking_lot::{Condvar, Mutex};

use super::ledger::{Counted, Ledger, Totals};
use super::{Part, broken, take_pair};
use crate::catalog::{Collection, persist};
use crate::keyspaces::{Keyspace, Operation};
use crate::{StorageError, Store, keys};

/// How much of a snapshot a member keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportScope {
    Everything,
    /// No index but those on `_id`.
    IdIndexes,
    /// Nothing but these of the caller's own keys in meta.
    MetaKeys(&'static [&'static [u8]]),
}

/// Where a slice ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SliceEnd {
    /// At this key, which belongs to it.
    Key(Vec<u8>),
    /// Where the part ends.
    Part,
}

/// A collection or index of which something else arrived than its source had counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Divergence {
    pub part: Part,
    pub id: u32,
    pub name: String,
    pub expected: Totals,
    pub arrived: Totals,
}

/// Nothing else may write to the store meanwhile; readers see nothing until the end.
pub struct Importer {
    store: Store,
    scope: ImportScope,
    state: Mutex<State>,
    turned: Condvar,
}

/// Fails the slices that wait for this one, when it's dropped.
struct Unfinished<'a>(&'a Importer);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.state.lock().failed = true;
        self.0.turned.notify_all();
    }
}

struct State {
    ledger: Ledger,
    /// Slices that have ended, for each sliced part.
    ended: [usize; 2],
    failed: bool,
    /// The caller's key that comes in with the end of the import.
    last: Option<Slice>,
}

/// The caller's key, in meta, without which the rest is worth nothing.
pub const LAST_KEY: &[u8] = b"applied";

impl Importer {
    /// Empties the store. `source` is kept for the case that the import has to be resumed.
    pub fn begin(
        store: &Store,
        source: &[u8],
        scope: ImportScope,
    ) -> Result<Importer, StorageError> {
        let engine = store.engine();
        // The mark tells nothing until all is empty: whoever finds it then empties the rest.
        write_mark(store, Some(&[]))?;
        store.persist()?;
        pass(Point::ImportBegun);
        engine.clear()?;
        pass(Point::ImportCleared);
        let ledger = Ledger {
            source: source.to_vec(),
            ..Ledger::default()
        };
        write_mark(store, Some(ledger.encode().as_bytes()))?;
        store.persist()?;
        engine.load()?;
        Ok(Importer::new(store, scope, ledger))
    }

    /// The import that was under way in this store, if there is one that can go on.
    pub fn resume(store: &Store, scope: ImportScope) -> Result<Option<Importer>, StorageError> {
        let engine = store.engine();
        let mark = engine.keyspaces().meta.get(keys::IMPORTING)?;
        let ledger = mark.and_then(|mark| Ledger::decode(&mark));
        Ok(ledger.map(|ledger| Importer::new(store, scope, ledger)))
    }

    /// Removes what an interrupted import left for the next attempt: there will be none, as the
    /// store is about to be filled otherwise.
    pub fn give_up(store: &Store) -> Result<(), StorageError> {
        let engine = store.engine();
        if engine.keyspaces().meta.get(keys::IMPORTING)?.is_none() {
            return Ok(());
        }
        write_mark(store, Some(&[]))?;
        store.persist()?;
        engine.clear()?;
        write_mark(store, None)?;
        store.persist()
    }

    fn new(store: &Store, scope: ImportScope, ledger: Ledger) -> Importer {
        Importer {
            store: store.clone(),
            scope,
            state: Mutex::new(State {
                ledger,
                ended: [0; 2],
                failed: false,
                last: None,
            }),
            turned: Condvar::new(),
        }
    }

    pub fn scope(&self) -> ImportScope {
        self.scope
    }

    /// Nothing of what arrived can be used: the next import begins anew.
    pub fn discard(self) -> Result<(), StorageError> {
        write_mark(&self.store, Some(&[]))?;
        self.store.persist()
    }

    pub fn source(&self) -> Vec<u8> {
        self.state.lock().ledger.source.clone()
    }

    /// The key up to which a part is in (empty at the beginning); `None` if all of it is.
    pub fn frontier(&self, part: Part) -> Option<Vec<u8>> {
        let mut state = self.state.lock();
        let progress = state.ledger.part(part);
        (!progress.done).then(|| progress.frontier.clone())
    }

    /// What has arrived of a part, in the form it travels in.
    pub fn bytes(&self, part: Part) -> u64 {
        self.state.lock().ledger.part(part).bytes
    }

    /// Writes the slice with this number of a sliced part (they are numbered from 0 on, beginning
    /// at the frontier) and returns once it's durable. Slices may be written at once, each from a
    /// thread of its own, if those before it are under way: they end one after the other.
    pub fn write_slice<C: AsRef<[u8]>, E: From<StorageError>>(
        &self,
        part: Part,
        number: usize,
        after: &[u8],
        end: &SliceEnd,
        chunks: impl Iterator<Item = Result<C, E>>,
    ) -> Result<(), E> {
        // Also when something in here panics: nobody must wait for its turn for ever.
        let unfinished = Unfinished(self);
        self.fill_slice(part, number, after, end, chunks)?;
        std::mem::forget(unfinished);
        Ok(())
    }

    fn fill_slice<C: AsRef<[u8]>, E: From<StorageError>>(
        &self,
        part: Part,
        number: usize,
        after: &[u8],
        end: &SliceEnd,
        chunks: impl Iterator<Item = Result<C, E>>,
    ) -> Result<(), E> {
        let keyspaces = self.store.engine().keyspaces();
        let keyspace = match part {
            Part::Records => &keyspaces.records,
            Part::Indexes => &keyspaces.indexes,
            Part::Meta => return Err(broken("meta is not cut into slices").into()),
        };
        let mut ingestion = keyspace.start_ingestion().map_err(StorageError::from)?;
        let mut slice = Filling {
            part,
            last: after.to_vec(),
            counted: Counted::new(),
            bytes: 0,
        };
        for chunk in chunks {
            slice.write(chunk?.as_ref(), |key, value| ingestion.write(key, value))?;
        }
        if let SliceEnd::Key(end) = end
            && slice.last > *end
        {
            return Err(broken("keys beyond the end of their slice").into());
        }
        self.wait_turn(part, number)?;
        ingestion.finish().map_err(StorageError::from)?;
        pass(Point::ImportSlice);
        let mut state = self.state.lock();
        let progress = state.ledger.part(part);
        match end {
            SliceEnd::Key(end) => progress.frontier = end.clone(),
            SliceEnd::Part => progress.done = true,
        }
        progress.bytes += slice.bytes;
        for (id, totals) in slice.counted {
            progress.counted.entry(id).or_default().merge(totals);
        }
        write_mark(&self.store, Some(state.ledger.encode().as_bytes()))?;
        state.ended[usize::from(part.tag())] += 1;
        drop(state);
        self.turned.notify_all();
        // Outside the lock: the next one need not wait for the disk.
        Ok(self.store.persist()?)
    }

    fn wait_turn(&self, part: Part, number: usize) -> Result<(), StorageError> {
        let mut state = self.state.lock();
        while !state.failed && state.ended[usize::from(part.tag())] < number {
            self.turned.wait(&mut state);
        }
        match state.failed {
            true => Err(broken("an earlier slice could not be written")),
            false => Ok(()),
        }
    }

    /// Writes a chunk of meta: after everything else, in key order.
    pub fn write_meta(&self, mut pairs: &[u8]) -> Result<(), StorageError> {
        let mut operations = Vec::new();
        while !pairs.is_empty() {
            let (key, value) = take_pair(&mut pairs)?;
            let own = key.strip_prefix(&[keys::CALLER]);
            let wanted = match self.scope {
                ImportScope::MetaKeys(known) => own.is_some_and(|own| known.contains(&own)),
                ImportScope::Everything | ImportScope::IdIndexes => key != keys::IMPORTING,
            };
            if !wanted {
                continue;
            }
            if own == Some(LAST_KEY) {
                self.state.lock().last = Some(value.into());
                continue;
            }
            let value = match self.scope {
                ImportScope::IdIndexes if key[0] == keys::COLLECTION => {
                    without_indexes(key, value)?
                }
                _ => value.into(),
            };
            operations.push(Operation {
                keyspace: Keyspace::Meta,
                key: key.into(),
                value: Some(value),
            });
        }
        self.store.engine().write(operations)
    }

    /// Holds what arrived against what the catalog that came with it counts. After all of meta.
    pub fn compare(&self) -> Result<Vec<Divergence>, StorageError> {
        if matches!(self.scope, ImportScope::MetaKeys(_)) {
            return Ok(Vec::new());
        }
        let (catalog, _) = self.store.engine().read_catalog()?;
        let state = self.state.lock();
        let mut found = Vec::new();
        for collection in catalog.collections() {
            compare_collection(collection, &state.ledger, &mut found);
        }
        Ok(found)
    }

    /// Everything has arrived: takes the new catalog into use and makes it durable.
    pub fn finish(self) -> Result<(), StorageError> {
        let mut operations = vec![mark(None)];
        if let Some(value) = self.state.into_inner().last {
            operations.push(Operation {
                keyspace: Keyspace::Meta,
                key: [&[keys::CALLER], LAST_KEY].concat().into(),
                value: Some(value),
            });
        }
        let engine = self.store.engine();
        pass(Point::ImportEnding);
        engine.write(operations)?;
        self.store.persist()?;
        pass(Point::ImportEnded);
        let dropped = engine.load()?;
        self.store.clean(dropped);
        Ok(())
    }
}

fn compare_collection(collection: &Arc<Collection>, ledger: &Ledger, found: &mut Vec<Divergence>) {
    let mut compare = |part, id, name: String, expected: Totals, counted: &Counted| {
        let arrived = counted.get(&id).copied().unwrap_or_default();
        if arrived != expected {
            found.push(Divergence {
                part,
                id,
                name,
                expected,
                arrived,
            });
        }
    };
    let name = collection.namespace.to_string();
    let documents = Totals {
        entries: collection.documents(),
        bytes: collection.bytes(),
    };
    let records = &ledger.records.counted;
    compare(Part::Records, collection.id, name, documents, records);
    for index in collection
        .indexes
        .iter()
        .chain(collection.building_indexes())
    {
        // How many keys an index has is not counted anywhere; how long they are together is.
        let counted = &ledger.indexes.counted;
        let entries = counted.get(&index.id).map_or(0, |totals| totals.entries);
        let ids = match index.unique {
            true => 0,
            false => entries * index.record_ids.uncounted_bytes() as u64,
        };
        let keys = Totals {
            entries,
            bytes: index.key_bytes() + ids,
        };
        let name = format!("{}, index {}", collection.namespace, index.name);
        compare(Part::Indexes, index.id, name, keys, counted);
    }
}

/// A slice on its way into tables.
struct Filling {
    part: Part,
    last: Vec<u8>,
    counted: Counted,
    bytes: u64,
}

impl Filling {
    fn write(
        &mut self,
        mut pairs: &[u8],
        mut put: impl FnMut(&[u8], &[u8]) -> Result<(), fjall::Error>,
    ) -> Result<(), StorageError> {
        self.bytes += pairs.len() as u64;
        // Neighbours nearly always share their id.
        let mut current: Option<(u32, Totals)> = None;
        while !pairs.is_empty() {
            let (key, value) = take_pair(&mut pairs)?;
            // The engine insists on it.
            if key <= &self.last[..] {
                return Err(broken("keys out of order"));
            }
            self.last.clear();
            self.last.extend_from_slice(key);
            let id = key.first_chunk().map(|id| u32::from_be_bytes(*id));
            let id = id.ok_or_else(|| broken("a key without an id"))?;
            match &mut current {
                Some((known, totals)) if *known == id => totals.add(self.part, key, value),
                _ => {
                    if let Some((id, totals)) = current.take() {
                        self.counted.entry(id).or_default().merge(totals);
                    }
                    let mut totals = Totals::default();
                    totals.add(self.part, key, value);
                    current = Some((id, totals));
                }
            }
            put(key, value)?;
        }
        if let Some((id, totals)) = current {
            self.counted.entry(id).or_default().merge(totals);
        }
        Ok(())
    }
}

/// A catalog entry that knows of no index but the one on `_id`.
fn without_indexes(key: &[u8], value: &[u8]) -> Result<Slice, StorageError> {
    let id = key.get(1..).and_then(|id| id.try_into().ok());
    let id = id.ok_or_else(|| broken("a catalog entry without an id"))?;
    let mut collection = persist::decode(u32::from_be_bytes(id), value)?;
    collection.indexes.retain(|index| index.is_id());
    collection.builds.clear();
    Ok(persist::encode(&collection).as_bytes().into())
}

fn mark(value: Option<&[u8]>) -> Operation {
    Operation {
        keyspace: Keyspace::Meta,
        key: keys::IMPORTING.into(),
        value: value.map(Slice::from),
    }
}

fn write_mark(store: &Store, value: Option<&[u8]>) -> Result<(), StorageError> {
    store.engine().write(vec![mark(value)])
}
