//! How long the collections were worked on, for the `top` command.
//!
//! Times are kept by the collection's id: what was dropped is gone, and a new collection of the
//! same name begins at nothing.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use banyan_process::figures::Sharded;
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

/// One collection's times.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    pub reads: Spent,
    pub writes: Spent,
    kinds: [Spent; 6],
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

    fn note(&mut self, kind: Kind, writes: bool, spent: Spent) {
        self.kinds[kind as usize].add(spent);
        let lock = if writes {
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
    }
}

type Part = Mutex<HashMap<CollectionId, Usage>>;

/// The times of all collections.
#[derive(Default)]
pub struct Top(Sharded<Part>);

impl Top {
    /// `count` operations on a collection that took so long together.
    pub fn note(
        &self,
        collection: CollectionId,
        kind: Kind,
        writes: bool,
        took: Duration,
        count: u64,
    ) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let spent = Spent { micros, count };
        let mut part = self.0.local().lock();
        let is_full = part.len() >= COLLECTIONS_MAX;
        match part.entry(collection) {
            Entry::Occupied(mut usage) => usage.get_mut().note(kind, writes, spent),
            Entry::Vacant(place) if !is_full => {
                place.insert(Usage::default()).note(kind, writes, spent)
            }
            Entry::Vacant(_) => {}
        }
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
