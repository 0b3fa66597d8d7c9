//! What this shard knows of one collection: its routing table, what has been written to each
//! chunk, whether writes must wait, and whether a migration listens.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

use banyan_execution::ShardFilter;
use banyan_replication::op_observer::Change;
use banyan_replication::write::shard_rules::Versions;
use banyan_sharding::split::chunk_bytes_limit;
use banyan_sharding::{ChunkError, ChunkRange, ChunkVersion, Coverage, RoutingTable, ShardKey};
use bson::{RawBsonRef, RawDocument};
use parking_lot::RwLock;
use tokio::sync::{Mutex, watch};

use super::logged::Log;
use super::migration::capture::ChangeCapture;

/// Requests may name as many collections as they like; beyond this many, those are forgotten of
/// which no more is known than that they are not sharded. It is read again when it is needed.
const COLLECTIONS_MAX: usize = 10_000;

/// The collections that somebody has asked for.
#[derive(Default)]
pub struct Collections {
    by_ns: RwLock<HashMap<String, Arc<Collection>>>,
}

impl Collections {
    pub fn get(&self, ns: &str) -> Option<Arc<Collection>> {
        self.by_ns.read().get(ns).cloned()
    }

    pub fn get_or_new(&self, ns: &str) -> Arc<Collection> {
        if let Some(known) = self.get(ns) {
            return known;
        }
        let mut by_ns = self.by_ns.write();
        if by_ns.len() >= COLLECTIONS_MAX {
            by_ns.retain(|_, known| Arc::strong_count(known) > 1 || known.is_to_be_kept());
        }
        let new = || Arc::new(Collection::new(ns));
        by_ns.entry(ns.to_owned()).or_insert_with(new).clone()
    }

    pub fn look_at_all<T>(&self, look: impl FnMut(&Arc<Collection>) -> Option<T>) -> Vec<T> {
        self.by_ns.read().values().filter_map(look).collect()
    }
}

/// One collection, as long as this process lives, unless there is nothing to know about it.
pub struct Collection {
    pub ns: String,
    pub state: RwLock<State>,
    /// One reader of the config servers at a time; the others use what it finds.
    pub refreshing: Mutex<()>,
    /// Held from the reading of a table until it is in force, so that no older one follows a newer.
    pub reading: Mutex<()>,
    /// Held while this secondary has its primary read one, and how often it has.
    pub asking: Mutex<()>,
    pub asked: AtomicU64,
    /// Counts the changes of `state` that somebody may wait for.
    pub changes: watch::Sender<u64>,
}

#[derive(Default)]
pub struct State {
    pub known: Known,
    /// The term as primary in which `known` was read (0 on a secondary).
    pub term: u64,
    /// Counts the readings.
    pub generation: u64,
    pub block: Option<Block>,
    /// What the log has come to say, and how often it has said something.
    pub log: Log,
    pub told: u64,
    /// The migration away from here that is under way.
    pub capture: Option<Arc<ChangeCapture>>,
}

#[derive(Clone, Default)]
pub enum Known {
    #[default]
    Unknown,
    Unsharded,
    Sharded(Arc<Filter>),
}

/// A chunk seems to have grown over its limit.
pub struct SplitHint {
    pub ns: String,
    pub filter: Arc<Filter>,
    /// Among the chunks of the filter's table.
    pub position: usize,
}

/// A critical section: writes wait, and reads too once a commit may have happened.
#[derive(Debug, Clone, Copy)]
pub struct Block {
    pub reads: bool,
    /// Whoever asked for it may be gone: after this it counts as lifted.
    pub until: Option<Instant>,
}

impl Block {
    pub fn is_over(&self) -> bool {
        self.until.is_some_and(|until| until <= Instant::now())
    }
}

/// What a request's version means here.
pub enum Verdict {
    /// The request may run.
    Agreed(Option<Arc<Filter>>),
    /// It was routed by an older table than the one known here.
    Stale(ChunkVersion),
    /// Nothing is known here, or less than the request knows.
    Behind,
    /// This secondary's log has not come to what the request knows.
    Unlogged,
    Blocked,
}

impl Collection {
    pub fn new(ns: &str) -> Collection {
        Collection {
            ns: ns.to_owned(),
            state: RwLock::default(),
            refreshing: Mutex::default(),
            reading: Mutex::default(),
            asking: Mutex::default(),
            asked: AtomicU64::new(0),
            changes: watch::Sender::new(0),
        }
    }

    fn is_to_be_kept(&self) -> bool {
        let state = self.state.read();
        matches!(state.known, Known::Sharded(_)) || state.block.is_some() || state.capture.is_some()
    }

    pub fn judge(&self, received: &ChunkVersion, term: u64, writes: bool, shard: &str) -> Verdict {
        let state = self.state.read();
        if let Some(block) = state.block
            && (writes || block.reads)
            && !block.is_over()
        {
            return Verdict::Blocked;
        }
        if term == 0 {
            return state.judge_by_log(received, shard);
        }
        if state.term != term || state.block.is_some_and(|block| block.is_over()) {
            return Verdict::Behind;
        }
        let filter = match &state.known {
            Known::Unknown => return Verdict::Behind,
            Known::Unsharded if received.is_unsharded() => return Verdict::Agreed(None),
            Known::Unsharded => return Verdict::Behind,
            Known::Sharded(filter) => filter,
        };
        let wanted = filter.table.shard_version(shard);
        if received.is_write_compatible(&wanted) {
            return Verdict::Agreed(Some(filter.clone()));
        }
        if is_stale(received, &filter.table.version(), &wanted) {
            return Verdict::Stale(wanted);
        }
        Verdict::Behind
    }

    /// Takes in what the log says.
    pub fn learned(&self, log: Log) {
        self.change(|state| {
            state.log = log;
            state.told += 1;
        });
    }

    /// Changes the state and wakes whoever waits for it.
    pub fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.write());
        self.changes.send_modify(|count| *count += 1);
    }

    /// A migration away from here is in its critical section.
    pub fn is_donating(&self) -> bool {
        let state = self.state.read();
        state.block.is_some_and(|block| block.until.is_none())
    }

    pub fn filter(&self) -> Option<Arc<Filter>> {
        match &self.state.read().known {
            Known::Sharded(filter) => Some(filter.clone()),
            _ => None,
        }
    }
}

/// Whether a request that does not agree with this shard's version is older for certain. A shard
/// without chunks has version 0, which is older or newer than any other.
fn is_stale(received: &ChunkVersion, collection: &ChunkVersion, shard: &ChunkVersion) -> bool {
    received.same_collection(shard)
        && received.major != shard.major
        && received.major != 0
        && received.major <= collection.major
}

impl State {
    /// On a secondary: the version that its log has come to counts, and a routing table only helps
    /// if it is of that version. A newer table promises documents that have not arrived, an older
    /// one those that are going.
    fn judge_by_log(&self, received: &ChunkVersion, shard: &str) -> Verdict {
        let logged = match self.log {
            Log::Unread => return Verdict::Behind,
            Log::Says(None) if received.is_unsharded() => return Verdict::Agreed(None),
            Log::Says(None) => return Verdict::Unlogged,
            Log::Says(Some(logged)) if logged.refreshing => return Verdict::Blocked,
            Log::Says(Some(logged)) => logged,
        };
        if !received.is_write_compatible(&logged.shard) {
            return match is_stale(received, &logged.collection, &logged.shard) {
                true => Verdict::Stale(logged.shard),
                false => Verdict::Unlogged,
            };
        }
        let Known::Sharded(filter) = &self.known else {
            return Verdict::Behind;
        };
        let (table, own) = (filter.table.version(), filter.table.shard_version(shard));
        if own.is_write_compatible(&logged.shard) {
            return Verdict::Agreed(Some(filter.clone()));
        }
        match is_stale(received, &table, &own) {
            true => Verdict::Stale(own),
            false => Verdict::Behind,
        }
    }
}

/// Which documents of a sharded collection are this shard's, and how much each of its chunks
/// holds.
pub struct Filter {
    pub table: Arc<RoutingTable>,
    pub shard: Arc<str>,
    pub chunk_bytes_max: u64,
    /// For each chunk of the table.
    chunks: Box<[Tracked]>,
    owns_all: bool,
}

struct Tracked {
    owned: bool,
    bytes: AtomicI64,
    /// Someone is looking whether it should be cut.
    checked: AtomicBool,
}

impl Filter {
    /// Sizes carry over from what was known before; chunks that are new here start from
    /// `estimate`.
    pub fn new(
        table: Arc<RoutingTable>,
        shard: Arc<str>,
        chunk_bytes_max: u64,
        before: Option<&Filter>,
        estimate: i64,
    ) -> Filter {
        let known = |min: &ShardKey| -> Option<(usize, i64)> {
            let before = before?;
            let position = before.table.position_encoded(min.encoded());
            let tracked = before.chunks.get(position)?;
            tracked
                .owned
                .then(|| (position, tracked.bytes.load(Ordering::Relaxed)))
        };
        let places: Vec<Option<(usize, i64)>> = table
            .chunks()
            .iter()
            .map(|chunk| known(&chunk.range.min))
            .collect();
        let parts = |position: usize| {
            let same = places
                .iter()
                .flatten()
                .filter(|(other, _)| *other == position);
            i64::try_from(same.count()).unwrap_or(1).max(1)
        };
        let chunks = table.chunks().iter().zip(&places).map(|(chunk, place)| {
            let owned = chunk.shard == shard;
            let bytes = match place {
                Some((position, bytes)) => bytes / parts(*position),
                None => estimate,
            };
            Tracked {
                owned,
                bytes: AtomicI64::new(if owned { bytes } else { 0 }),
                checked: AtomicBool::new(false),
            }
        });
        let chunks: Box<[Tracked]> = chunks.collect();
        let owns_all = chunks.iter().all(|chunk| chunk.owned);
        Filter {
            table,
            shard,
            chunk_bytes_max,
            chunks,
            owns_all,
        }
    }

    pub fn owns_all(&self) -> bool {
        self.owns_all
    }

    pub fn limit(&self) -> u64 {
        chunk_bytes_limit(self.table.chunks().len(), self.chunk_bytes_max)
    }

    /// Counts a change. The answer is the chunk that has just grown over its limit, if any.
    pub fn account(&self, change: Change<'_>) -> Option<usize> {
        let length = |document: &RawDocument| document.as_bytes().len() as i64;
        let (document, growth) = match change {
            Change::Insert { document } => (document, length(document)),
            Change::Update { before, after } => (after, length(after) - length(before)),
            Change::Delete { before } => (before, -length(before)),
        };
        let position = self.position(document)?;
        let chunk = self.chunks.get(position).filter(|chunk| chunk.owned)?;
        let bytes = chunk.bytes.fetch_add(growth, Ordering::Relaxed) + growth;
        let over = growth > 0 && u64::try_from(bytes).is_ok_and(|bytes| bytes > self.limit());
        (over && !chunk.checked.swap(true, Ordering::Relaxed)).then_some(position)
    }

    /// The check that [`Filter::account`] asked for is over.
    pub fn checked(&self, position: usize, bytes: Option<u64>) {
        if let Some(chunk) = self.chunks.get(position) {
            if let Some(bytes) = bytes.and_then(|bytes| i64::try_from(bytes).ok()) {
                chunk.bytes.store(bytes, Ordering::Relaxed);
            }
            chunk.checked.store(false, Ordering::Relaxed);
        }
    }

    fn position(&self, document: &RawDocument) -> Option<usize> {
        Some(self.table.position_encoded(&self.key(document)?))
    }

    fn key(&self, document: &RawDocument) -> Option<Vec<u8>> {
        let mut key = Vec::with_capacity(48);
        self.table.pattern().encode(document, &mut key).ok()?;
        Some(key)
    }
}

impl ShardFilter for Filter {
    fn owns(&self, document: &RawDocument) -> bool {
        // A document without a usable key belongs to nobody; hiding it could lose it for good.
        let Some(position) = self.position(document) else {
            return true;
        };
        self.chunks.get(position).is_some_and(|chunk| chunk.owned)
    }

    fn owns_part_of(&self, min: &RawDocument, max: &RawDocument) -> bool {
        // A range of another shard key may hold anything.
        let Ok(range) = ChunkRange::parse(self.table.pattern(), min, max) else {
            return true;
        };
        let mut chunks = self.table.overlapping(&range);
        chunks.any(|chunk| chunk.shard == self.shard)
    }

    fn dependencies(&self, paths: &mut BTreeSet<String>) {
        let fields = self.table.pattern().fields().iter();
        paths.extend(fields.map(|field| field.name().to_owned()));
    }
}

/// The part of what this shard owns that a statement is to be run for: it has been run for the rest
/// where that was before.
pub struct Limits {
    filter: Arc<Filter>,
    ranges: Coverage,
    /// Whether the ranges are that part, or the rest.
    only: bool,
}

impl Limits {
    /// Reads what the version in a request says about it.
    pub fn parse(
        versions: &Versions<'_>,
        filter: &Arc<Filter>,
    ) -> Result<Option<Limits>, ChunkError> {
        let Some(RawBsonRef::Document(version)) = versions.shard else {
            return Ok(None);
        };
        for (name, only) in [("only", true), ("except", false)] {
            if let Ok(Some(ranges)) = version.get(name) {
                return Ok(Some(Limits {
                    filter: filter.clone(),
                    ranges: Coverage::parse(filter.table.pattern(), ranges)?,
                    only,
                }));
            }
        }
        Ok(None)
    }
}

impl ShardFilter for Limits {
    fn owns(&self, document: &RawDocument) -> bool {
        let inside = self
            .filter
            .key(document)
            .is_some_and(|key| self.ranges.contains(&key));
        inside == self.only && self.filter.owns(document)
    }

    fn owns_part_of(&self, min: &RawDocument, max: &RawDocument) -> bool {
        self.filter.owns_part_of(min, max)
    }

    fn dependencies(&self, paths: &mut BTreeSet<String>) {
        self.filter.dependencies(paths);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::logged::Logged;
    use bson::oid::ObjectId;
    use bson::spec::BinarySubtype;
    use bson::{Binary, RawBson, Timestamp, rawdoc};

    /// Two chunks, the upper one's owner and the majors as given.
    fn table(upper: &str, lower_major: u32, upper_major: u32) -> Arc<RoutingTable> {
        let time = |time, increment| Timestamp { time, increment };
        let collection = rawdoc! {
            "_id": "a.b",
            "lastmodEpoch": ObjectId::from_bytes([7; 12]),
            "timestamp": time(100, 1),
            "uuid": Binary { subtype: BinarySubtype::Uuid, bytes: vec![5; 16] },
            "key": { "k": 1 },
        };
        let chunk = |n: u8, min: RawBson, max: RawBson, shard: &str, major: u32| {
            rawdoc! {
                "_id": ObjectId::from_bytes([n; 12]), "min": { "k": min }, "max": { "k": max },
                "shard": shard, "lastmod": time(major, 0),
            }
        };
        let middle = RawBson::Int32(0);
        let chunks = [
            chunk(1, RawBson::MinKey, middle.clone(), "one", lower_major),
            chunk(2, middle, RawBson::MaxKey, upper, upper_major),
        ];
        let chunks = chunks.iter().map(|chunk| &**chunk);
        Arc::new(RoutingTable::build(&collection, chunks).unwrap())
    }

    fn knows(collection: &Collection, table: &Arc<RoutingTable>) {
        let filter = Filter::new(table.clone(), "one".into(), 1 << 20, None, 0);
        collection.change(|state| state.known = Known::Sharded(Arc::new(filter)));
    }

    #[test]
    fn a_secondary_answers_for_what_its_log_has_come_to() {
        let judge = |collection: &Collection, version: &ChunkVersion| match collection
            .judge(version, 0, false, "one")
        {
            Verdict::Agreed(_) => "agreed",
            Verdict::Stale(_) => "stale",
            Verdict::Behind => "behind",
            Verdict::Unlogged => "unlogged",
            Verdict::Blocked => "blocked",
        };
        // The upper chunk goes to the other shard, and comes back.
        let tables = [table("one", 1, 1), table("two", 2, 2), table("one", 2, 3)];
        let [here, gone, back] = tables.each_ref().map(|table| table.shard_version("one"));
        let logged = tables.each_ref().map(|table| Logged::of(table, "one"));
        let collection = Collection::new("a.b");
        assert_eq!(
            judge(&collection, &here),
            "behind",
            "the log has not been read"
        );
        collection.learned(Log::Says(None));
        assert_eq!(judge(&collection, &ChunkVersion::UNSHARDED), "agreed");
        assert_eq!(judge(&collection, &here), "unlogged");
        collection.learned(Log::Says(Some(logged[0])));
        assert_eq!(judge(&collection, &ChunkVersion::UNSHARDED), "unlogged");
        assert_eq!(judge(&collection, &here), "behind", "no table yet");
        knows(&collection, &tables[0]);
        assert_eq!(judge(&collection, &here), "agreed");
        assert_eq!(judge(&collection, &gone), "unlogged");
        // A table from the config servers is ahead of the log.
        knows(&collection, &tables[1]);
        assert_eq!(judge(&collection, &here), "stale");
        assert_eq!(judge(&collection, &gone), "unlogged");
        knows(&collection, &tables[0]);
        collection.learned(Log::Says(Some(Logged {
            refreshing: true,
            ..logged[0]
        })));
        assert_eq!(judge(&collection, &here), "blocked");
        assert_eq!(judge(&collection, &gone), "blocked");
        collection.learned(Log::Says(Some(logged[1])));
        assert_eq!(judge(&collection, &here), "stale");
        assert_eq!(
            judge(&collection, &gone),
            "behind",
            "the table is older than the log"
        );
        // Everything is known of the return but the documents.
        knows(&collection, &tables[2]);
        assert_eq!(judge(&collection, &back), "unlogged");
        collection.learned(Log::Says(Some(logged[2])));
        assert_eq!(judge(&collection, &back), "agreed");
        assert_eq!(judge(&collection, &gone), "stale");
    }

    #[test]
    fn names_without_a_table_do_not_pile_up() {
        let collections = Collections::default();
        let blocked = Block {
            reads: false,
            until: None,
        };
        collections
            .get_or_new("a.blocked")
            .change(|state| state.block = Some(blocked));
        let held = collections.get_or_new("a.held");
        for number in 0..2 * COLLECTIONS_MAX {
            collections.get_or_new(&format!("a.{number}"));
        }
        assert!(collections.by_ns.read().len() <= COLLECTIONS_MAX);
        assert!(collections.get("a.blocked").is_some());
        assert!(Arc::ptr_eq(&collections.get_or_new("a.held"), &held));
        assert!(collections.get("a.0").is_none());
    }
}
