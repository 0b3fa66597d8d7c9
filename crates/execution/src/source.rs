//! Records in a plan's order, straight from a snapshot.

use std::collections::HashSet;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use banyan_query::QueryError;
use banyan_storage::{
    Collection, Index, IndexKey, IndexScan, KeyRange, Record, RecordId, RecordScan, Snapshot,
    StorageError, Store,
};
use parking_lot::Mutex;

use crate::error::{self, plan_killed};
use crate::interrupt::{InterruptSlot, Rest, Ticker};
use crate::plan::summary::Summary;
use crate::plan::{Access, IndexBounds, Plan, ScanRange};

/// What running a plan has cost so far, for `explain` and the counters.
#[derive(Debug, Default)]
pub struct Cost {
    keys: AtomicU64,
    documents: AtomicU64,
    /// What of it has been taken note of already.
    counted_keys: AtomicU64,
    counted_documents: AtomicU64,
    has_begun: AtomicBool,
    /// The plan in a line.
    pub summary: Summary,
    tailable: bool,
}

/// A scan of a whole collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scan {
    pub tailable: bool,
}

impl Cost {
    pub fn keys(&self) -> u64 {
        self.keys.load(Ordering::Relaxed)
    }

    pub fn documents(&self) -> u64 {
        self.documents.load(Ordering::Relaxed)
    }

    /// What a plan is going to cost.
    pub fn of(plan: &Plan) -> Cost {
        Cost {
            summary: Summary::of(plan),
            ..Cost::default()
        }
    }

    /// What a cursor that tails a collection is going to cost.
    pub fn of_tailing() -> Cost {
        Cost {
            summary: Summary::Scan,
            tailable: true,
            ..Cost::default()
        }
    }

    /// It begins, or goes on; the scan of a collection that has just begun.
    pub fn begin(&self) -> Option<Scan> {
        let is_scan = matches!(self.summary, Summary::Scan);
        let begins = is_scan && !self.has_begun.swap(true, Ordering::Relaxed);
        begins.then_some(Scan {
            tailable: self.tailable,
        })
    }

    /// The keys and documents that were examined since this was last asked.
    pub fn take_new(&self) -> (u64, u64) {
        let (keys, documents) = (self.keys(), self.documents());
        let known_keys = self.counted_keys.swap(keys, Ordering::Relaxed);
        let known_documents = self.counted_documents.swap(documents, Ordering::Relaxed);
        (
            keys.saturating_sub(known_keys),
            documents.saturating_sub(known_documents),
        )
    }
}

/// The records that a plan visits, unfiltered.
///
/// One that may rest ([`Source::may_rest`]) keeps its position and not its snapshot while its
/// cursor is idle, and goes on in the state of then. What it has passed is not visited again; a
/// record that was changed meanwhile may be visited again or missed, as in MongoDB.
pub struct Source {
    reading: Arc<Mutex<Reading>>,
    ticker: Ticker,
    slot: Arc<InterruptSlot>,
    pub cost: Arc<Cost>,
}

/// A plan at work.
struct Reading {
    /// `None` while it rests.
    snapshot: Option<Snapshot>,
    /// Where the next snapshot comes from, if there may be another one.
    store: Option<Store>,
    collection: Option<Arc<Collection>>,
    walk: Walk,
    /// Nothing but the bounds is asked of the documents, which says too little of arrays in an
    /// index that had none when the plan was made.
    exact: bool,
}

enum Walk {
    Nothing,
    Collection {
        scan: Option<RecordScan>,
        reverse: bool,
        last: Option<RecordId>,
    },
    Index(IndexWalk),
}

impl Source {
    pub fn new(snapshot: Snapshot, plan: &Plan, slot: Arc<InterruptSlot>) -> Source {
        let walk = match (&plan.collection, &plan.access) {
            (None, _) | (_, Access::Nothing) => Walk::Nothing,
            (Some(collection), Access::Collection { reverse }) => Walk::Collection {
                scan: Some(snapshot.records(collection.id, .., *reverse)),
                reverse: *reverse,
                last: None,
            },
            (_, Access::Index { bounds, reverse }) => {
                Walk::Index(IndexWalk::new(std::slice::from_ref(bounds), *reverse))
            }
            (_, Access::Union(parts)) => Walk::Index(IndexWalk::new(parts, false)),
        };
        let reading = Reading {
            snapshot: Some(snapshot),
            store: None,
            collection: plan.collection.clone(),
            walk,
            exact: plan.exact,
        };
        Source {
            reading: Arc::new(Mutex::new(reading)),
            ticker: Ticker::new(slot.clone()),
            slot,
            cost: Arc::new(Cost::of(plan)),
        }
    }

    /// Lets it go on in later states of the store, when its cursor has been idle.
    pub fn may_rest(self, store: &Store) -> Source {
        self.reading.lock().store = Some(store.clone());
        let reader: Arc<dyn Rest> = self.reading.clone();
        self.slot.add_resting(Arc::downgrade(&reader));
        self
    }

    /// Counts what is inside the bounds without reading a record; only right for exact plans.
    pub fn count_keys(mut self, limit: u64) -> Result<u64, QueryError> {
        let mut reading = self.reading.lock();
        let mut count = 0;
        while count < limit && reading.next_id()? {
            self.cost.keys.fetch_add(1, Ordering::Relaxed);
            self.ticker.tick()?;
            count += 1;
        }
        Ok(count)
    }

    fn step(&mut self) -> Result<Option<(RecordId, Record)>, QueryError> {
        let mut reading = self.reading.lock();
        loop {
            self.ticker.tick()?;
            let found = reading.next(&self.cost)?;
            match found {
                Visited::Record(id, record) => {
                    self.ticker.tick_over(record.as_bytes().len())?;
                    return Ok(Some((id, record)));
                }
                Visited::Again => {}
                Visited::End => return Ok(None),
            }
        }
    }
}

impl Iterator for Source {
    type Item = Result<(RecordId, Record), QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step().transpose()
    }
}

/// What a step of a plan has come to.
enum Visited {
    Record(RecordId, Record),
    /// A record that was visited before.
    Again,
    End,
}

impl Rest for Mutex<Reading> {
    fn rest(&self) {
        let mut reading = self.lock();
        reading.walk.rest();
        reading.snapshot = None;
    }

    fn holds_snapshot(&self) -> bool {
        self.lock().snapshot.is_some()
    }
}

impl Reading {
    /// Opens a snapshot again after a rest.
    fn wake(&mut self) -> Result<(), QueryError> {
        if self.snapshot.is_some() || matches!(self.walk, Walk::Nothing) {
            return Ok(());
        }
        let (Some(store), Some(collection)) = (&self.store, &self.collection) else {
            return Ok(());
        };
        // Every index that the catalog names is complete in a snapshot taken after it.
        let catalog = store.catalog();
        let snapshot = store.snapshot();
        let Some(current) = catalog.by_id(collection.id) else {
            return Err(plan_killed("collection dropped between getMore calls"));
        };
        match &mut self.walk {
            Walk::Nothing => {}
            Walk::Collection {
                scan,
                reverse,
                last,
            } => {
                let range = match (*last, *reverse) {
                    (None, _) => (Bound::Unbounded, Bound::Unbounded),
                    (Some(last), false) => (Bound::Excluded(last), Bound::Unbounded),
                    (Some(last), true) => (Bound::Unbounded, Bound::Excluded(last)),
                };
                *scan = Some(snapshot.records(collection.id, range, *reverse));
            }
            Walk::Index(walk) => walk.wake(current, &snapshot, self.exact)?,
        }
        self.snapshot = Some(snapshot);
        Ok(())
    }

    /// The next key or record, unread; false at the end.
    fn next_id(&mut self) -> Result<bool, QueryError> {
        self.wake()?;
        let Some(snapshot) = &self.snapshot else {
            return Ok(false);
        };
        match &mut self.walk {
            Walk::Nothing => Ok(false),
            Walk::Collection { scan, last, .. } => match scan.as_mut().and_then(Iterator::next) {
                Some(found) => {
                    *last = Some(found.map_err(error::storage)?.0);
                    Ok(true)
                }
                None => Ok(false),
            },
            Walk::Index(walk) => {
                let found = walk.next(snapshot).map_err(error::storage)?;
                Ok(found.is_some())
            }
        }
    }

    fn next(&mut self, cost: &Cost) -> Result<Visited, QueryError> {
        self.wake()?;
        let Some(snapshot) = &self.snapshot else {
            return Ok(Visited::End);
        };
        match &mut self.walk {
            Walk::Nothing => Ok(Visited::End),
            Walk::Collection { scan, last, .. } => {
                let found = scan.as_mut().and_then(Iterator::next).transpose();
                match found.map_err(error::storage)? {
                    Some((id, record)) => {
                        *last = Some(id);
                        cost.documents.fetch_add(1, Ordering::Relaxed);
                        Ok(Visited::Record(id, record))
                    }
                    None => Ok(Visited::End),
                }
            }
            Walk::Index(walk) => {
                let Some(id) = walk.next(snapshot).map_err(error::storage)? else {
                    return Ok(Visited::End);
                };
                cost.keys.fetch_add(1, Ordering::Relaxed);
                if !walk.is_new(id) {
                    return Ok(Visited::Again);
                }
                let Some(collection) = &self.collection else {
                    return Ok(Visited::End);
                };
                let record = snapshot.record(collection.id, id).map_err(error::storage)?;
                cost.documents.fetch_add(1, Ordering::Relaxed);
                // Index and records are of one snapshot, so a key without a record is damage.
                match record {
                    Some(record) => Ok(Visited::Record(id, record)),
                    None => Err(error::storage(StorageError::Damaged {
                        place: format!("index of {}", collection.namespace),
                        reason: format!("a key names record {id}, which does not exist"),
                    })),
                }
            }
        }
    }
}

impl Walk {
    fn rest(&mut self) {
        match self {
            Walk::Nothing => {}
            Walk::Collection { scan, .. } => *scan = None,
            Walk::Index(walk) => walk.rest(),
        }
    }
}

/// Ranges of one or several indexes, one after another.
struct IndexWalk {
    ranges: std::vec::IntoIter<(Arc<Index>, ScanRange)>,
    reverse: bool,
    /// The range that is being scanned.
    current: Option<Current>,
    /// The records that have been seen, where one may come again.
    seen: Option<HashSet<RecordId>>,
}

struct Current {
    index: Arc<Index>,
    range: KeyRange,
    /// `None` during a rest.
    scan: Option<IndexScan>,
    last: Last,
}

/// The entry that a scan has come to.
enum Last {
    None,
    Entry(IndexKey, RecordId),
    /// The same during a rest: it would keep a whole block of the index.
    Copied(Vec<u8>, RecordId),
}

impl Last {
    fn entry(&self) -> Option<(&[u8], RecordId)> {
        match self {
            Last::None => None,
            Last::Entry(key, record) => Some((&**key, *record)),
            Last::Copied(key, record) => Some((key.as_slice(), *record)),
        }
    }
}

impl IndexWalk {
    fn new(parts: &[IndexBounds], reverse: bool) -> IndexWalk {
        let repeats = parts.len() > 1 || parts.iter().any(|part| part.multikey);
        let mut ranges: Vec<_> = parts
            .iter()
            .flat_map(|part| {
                part.ranges
                    .iter()
                    .map(|range| (part.index.clone(), range.clone()))
            })
            .collect();
        if reverse {
            ranges.reverse();
        }
        IndexWalk {
            ranges: ranges.into_iter(),
            reverse,
            current: None,
            seen: repeats.then(HashSet::new),
        }
    }

    fn is_new(&mut self, id: RecordId) -> bool {
        self.seen.as_mut().is_none_or(|seen| seen.insert(id))
    }

    fn next(&mut self, snapshot: &Snapshot) -> Result<Option<RecordId>, StorageError> {
        loop {
            if let Some(current) = &mut self.current {
                match current.scan.as_mut().and_then(Iterator::next).transpose()? {
                    Some((key, id)) => {
                        current.last = Last::Entry(key, id);
                        return Ok(Some(id));
                    }
                    None => self.current = None,
                }
            }
            let Some((index, range)) = self.ranges.next() else {
                return Ok(None);
            };
            match range.point {
                Some(key) if index.unique => {
                    if let Some(id) = snapshot.unique_lookup(&index, &key)? {
                        return Ok(Some(id));
                    }
                }
                _ => {
                    let scan = snapshot.scan_index(&index, range.range.clone(), self.reverse);
                    self.current = Some(Current {
                        index,
                        range: range.range,
                        scan: Some(scan),
                        last: Last::None,
                    });
                }
            }
        }
    }

    fn rest(&mut self) {
        if let Some(current) = &mut self.current {
            current.scan = None;
            if let Last::Entry(key, record) = &current.last {
                current.last = Last::Copied(key.to_vec(), *record);
            }
        }
    }

    /// Goes on in another snapshot, if the indexes are still there.
    fn wake(
        &mut self,
        collection: &Collection,
        snapshot: &Snapshot,
        exact: bool,
    ) -> Result<(), QueryError> {
        let left = self.ranges.as_slice().iter().map(|(index, _)| index);
        let mut became_multikey = false;
        for index in left.chain(self.current.iter().map(|current| &current.index)) {
            if !collection.indexes.iter().any(|known| known.id == index.id) {
                return Err(plan_killed(&format!("index '{}' dropped", index.name)));
            }
            became_multikey |= index.is_multikey() && self.seen.is_none();
        }
        if became_multikey {
            if exact {
                return Err(plan_killed(
                    "an index became multikey between getMore calls",
                ));
            }
            // Only what was written meanwhile has several keys.
            self.seen = Some(HashSet::new());
        }
        if let Some(current) = &mut self.current {
            let scan = match current.last.entry() {
                None => snapshot.scan_index(&current.index, current.range.clone(), self.reverse),
                Some(last) => {
                    snapshot.scan_index_after(&current.index, &current.range, self.reverse, last)
                }
            };
            current.scan = Some(scan);
        }
        Ok(())
    }
}
