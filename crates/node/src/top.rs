//! How long the collections were worked on, for the `top` command and for `$collStats`.
//!
//! Times are kept by the collection's id: what was dropped is gone, and a new collection of the
//! same name begins at nothing.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use banyan_process::figures::{OperationClass, Sharded, SparseLatency};
use banyan_storage::{Catalog, CollectionId};
use parking_lot::Mutex;

/// Each thread's part of the table has at most this many collections; the work on others is not
/// told. A database with more of them is not one to look at with `top`.
const COLLECTIONS_MAX: usize = 10_000;

/// What an operation was, in the words of `top`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Queries,
    GetMore,
    Insert,
    Update,
    Remove,
    Commands,
}

impl Kind {
    pub const ALL: [Kind; 6] = [
        Kind::Queries,
        Kind::GetMore,
        Kind::Insert,
        Kind::Update,
        Kind::Remove,
        Kind::Commands,
    ];
}

/// Time and number of operations.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Spent {
    pub micros: u64,
    pub count: u64,
}

impl Spent {
    fn add(&mut self, other: Spent) {
        self.micros = self.micros.saturating_add(other.micros);
        self.count = self.count.saturating_add(other.count);
    }
}

impl Scans {
    fn add(&mut self, other: Scans) {
        self.total = self.total.saturating_add(other.total);
        self.tailable = self.tailable.saturating_add(other.tailable);
    }
}

/// One collection's times.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Usage {
    pub reads: Spent,
    pub writes: Spent,
    kinds: [Spent; 6],
    latencies: [SparseLatency; 3],
    pub scans: Scans,
}

/// Scans of a whole collection.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Scans {
    pub total: u64,
    pub tailable: u64,
}

/// What a command has done to a collection.
#[derive(Debug, Clone, Copy)]
pub struct Operation {
    pub kind: Kind,
    pub class: OperationClass,
    pub writes: bool,
    /// How many operations it was.
    pub count: u64,
    /// How long they took together.
    pub took: Duration,
    pub scans: Scans,
}

impl Usage {
    pub fn total(&self) -> Spent {
        let mut total = self.reads;
        total.add(self.writes);
        total
    }

    pub fn of(&self, kind: Kind) -> Spent {
        self.kinds[kind as usize]
    }

    pub fn latency(&self, class: OperationClass) -> &SparseLatency {
        &self.latencies[class as usize]
    }

    fn note(&mut self, operation: &Operation) {
        let spent = Spent {
            micros: u64::try_from(operation.took.as_micros()).unwrap_or(u64::MAX),
            count: operation.count,
        };
        self.kinds[operation.kind as usize].add(spent);
        self.latencies[operation.class as usize].note(operation.took);
        self.scans.add(operation.scans);
        let lock = if operation.writes {
            &mut self.writes
        } else {
            &mut self.reads
        };
        lock.add(spent);
    }

    fn merge(&mut self, other: &Usage) {
        self.reads.add(other.reads);
        self.writes.add(other.writes);
        for (own, other) in self.kinds.iter_mut().zip(&other.kinds) {
            own.add(*other);
        }
        for (own, other) in self.latencies.iter_mut().zip(&other.latencies) {
            own.merge(other);
        }
        self.scans.add(other.scans);
    }
}

type Part = Mutex<HashMap<CollectionId, Usage>>;

/// The times of all collections.
#[derive(Default)]
pub struct Top(Sharded<Part>);

impl Top {
    pub fn note(&self, collection: CollectionId, operation: &Operation) {
        let mut part = self.0.local().lock();
        let is_full = part.len() >= COLLECTIONS_MAX;
        match part.entry(collection) {
            Entry::Occupied(mut usage) => usage.get_mut().note(operation),
            Entry::Vacant(place) if !is_full => place.insert(Usage::default()).note(operation),
            Entry::Vacant(_) => {}
        }
    }

    /// What is known of one collection.
    pub fn of(&self, collection: CollectionId) -> Usage {
        let mut usage = Usage::default();
        for part in self.0.all() {
            if let Some(known) = part.lock().get(&collection) {
                usage.merge(known);
            }
        }
        usage
    }

    /// The collections that exist, with their times. What is left of others is forgotten.
    pub fn totals(&self, catalog: &Catalog) -> HashMap<CollectionId, Usage> {
        let mut totals: HashMap<CollectionId, Usage> = HashMap::new();
        for part in self.0.all() {
            let mut part = part.lock();
            part.retain(|collection, _| catalog.by_id(*collection).is_some());
            for (collection, usage) in part.iter() {
                totals.entry(*collection).or_default().merge(usage);
            }
        }
        totals
    }
}
