//! Which chunks should move, given a picture of the cluster.
//!
//! [`plan`] is one round: at most one move per shard, as donor or recipient, so that all
//! moves of a round can run at once. In order of urgency: chunks leave draining shards, then
//! chunks go to shards of their zone, then each collection is evened out, zone by zone.
//!
//! Evenness is measured in bytes where the shards reported them, else in chunks. A move
//! happens when the fullest shard holds over two average chunks more than the emptiest one:
//! each move then makes the pair strictly more even, and moves die out by themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::chunk::{Chunk, ChunkRange};
use crate::routing::RoutingTable;
use crate::shard_key::ShardKey;
use crate::version::ChunkVersion;
use crate::zone::Zones;

/// Chunks of difference, in average chunks of the fuller shard, that set off a move.
const IMBALANCE_CHUNKS: f64 = 2.0;

#[derive(Debug, Clone)]
pub struct ShardPicture {
    pub id: Arc<str>,
    pub draining: bool,
    pub zones: BTreeSet<String>,
}

#[derive(Debug, Clone)]
pub struct CollectionPicture {
    pub table: Arc<RoutingTable>,
    pub zones: Zones,
    /// Bytes of the collection that each shard owns. A shard that did not answer is absent,
    /// and then chunks are counted instead.
    pub bytes: BTreeMap<Arc<str>, u64>,
    /// False while `noBalance` is set; draining still moves its chunks.
    pub balanced: bool,
}

#[derive(Debug, Clone, Default)]
pub struct ClusterPicture {
    pub shards: Vec<ShardPicture>,
    pub collections: Vec<CollectionPicture>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveReason {
    Draining,
    Zone,
    Balance,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    pub ns: String,
    pub range: ChunkRange,
    pub from: Arc<str>,
    pub to: Arc<str>,
    pub version: ChunkVersion,
    pub reason: MoveReason,
}

/// A chunk that crosses the border of a zone, and where to cut it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZoneSplit {
    pub ns: String,
    pub shard: Arc<str>,
    pub range: ChunkRange,
    pub points: Vec<ShardKey>,
    pub version: ChunkVersion,
}

/// The cuts that must happen before every chunk lies in one zone or none.
pub fn zone_splits(picture: &ClusterPicture) -> Vec<ZoneSplit> {
    let mut splits = Vec::new();
    for collection in picture.collections.iter().filter(|c| !c.zones.is_empty()) {
        for chunk in collection.table.chunks() {
            let points = collection.zones.borders_inside(&chunk.range);
            if !points.is_empty() {
                splits.push(ZoneSplit {
                    ns: collection.table.ns().to_owned(),
                    shard: chunk.shard.clone(),
                    range: chunk.range.clone(),
                    points,
                    version: collection.table.version(),
                });
            }
        }
    }
    splits
}

/// The moves of one round. `busy` shards already take part in a migration and get no other.
pub fn plan(picture: &ClusterPicture, busy: &BTreeSet<Arc<str>>) -> Vec<Move> {
    let mut round = Round {
        picture,
        taken: busy.clone(),
        moves: Vec::new(),
    };
    for collection in &picture.collections {
        round.drain(collection);
    }
    for collection in picture.collections.iter().filter(|c| c.balanced) {
        round.enforce_zones(collection);
    }
    for collection in picture.collections.iter().filter(|c| c.balanced) {
        round.even_out(collection);
    }
    round.moves
}

struct Round<'a> {
    picture: &'a ClusterPicture,
    taken: BTreeSet<Arc<str>>,
    moves: Vec<Move>,
}

impl Round<'_> {
    fn drain(&mut self, collection: &CollectionPicture) {
        for shard in self.picture.shards.iter().filter(|shard| shard.draining) {
            if self.taken.contains(&shard.id) {
                continue;
            }
            for chunk in collection
                .table
                .chunks_of(&shard.id)
                .filter(|chunk| !chunk.jumbo)
            {
                let zone = collection.zones.of(&chunk.range);
                if let Some(to) = self.emptiest(collection, zone, &shard.id) {
                    self.push(collection, chunk, &to, MoveReason::Draining);
                    break;
                }
            }
        }
    }

    fn enforce_zones(&mut self, collection: &CollectionPicture) {
        if collection.zones.is_empty() {
            return;
        }
        for shard in &self.picture.shards {
            if self.taken.contains(&shard.id) {
                continue;
            }
            for chunk in collection
                .table
                .chunks_of(&shard.id)
                .filter(|chunk| !chunk.jumbo)
            {
                let zone = collection.zones.of(&chunk.range);
                if zone.is_none_or(|zone| shard.zones.contains(zone)) {
                    continue;
                }
                if let Some(to) = self.emptiest(collection, zone, &shard.id) {
                    self.push(collection, chunk, &to, MoveReason::Zone);
                    break;
                }
            }
        }
    }

    fn even_out(&mut self, collection: &CollectionPicture) {
        let mut zones: BTreeSet<Option<&str>> = BTreeSet::new();
        zones.extend(
            collection
                .table
                .chunks()
                .iter()
                .map(|c| collection.zones.of(&c.range)),
        );
        for zone in zones {
            while self.even_out_once(collection, zone) {}
        }
    }

    /// Plans one move from the fullest to the emptiest free shard of a zone, if they differ
    /// enough.
    fn even_out_once(&mut self, collection: &CollectionPicture, zone: Option<&str>) -> bool {
        let mut loads: Vec<Load> = self
            .eligible(zone)
            .filter(|shard| !self.taken.contains(shard))
            .map(|shard| Load::of(collection, zone, shard))
            .collect();
        loads.sort_by(|a, b| a.weight.total_cmp(&b.weight));
        let Some(emptiest) = loads.first() else {
            return false;
        };
        for fullest in loads.iter().skip(1).rev() {
            let Some(unit) = fullest.unit() else { continue };
            if fullest.weight - emptiest.weight < IMBALANCE_CHUNKS * unit {
                continue;
            }
            let chunk = collection
                .table
                .chunks_of(&fullest.shard)
                .find(|c| !c.jumbo && collection.zones.of(&c.range) == zone);
            if let Some(chunk) = chunk {
                self.push(collection, chunk, &emptiest.shard, MoveReason::Balance);
                return true;
            }
        }
        false
    }

    /// Shards that may hold chunks of a zone.
    fn eligible<'s>(&'s self, zone: Option<&'s str>) -> impl Iterator<Item = Arc<str>> + 's {
        let open = self.picture.shards.iter().filter(|shard| !shard.draining);
        open.filter(move |shard| zone.is_none_or(|zone| shard.zones.contains(zone)))
            .map(|shard| shard.id.clone())
    }

    fn emptiest(
        &self,
        collection: &CollectionPicture,
        zone: Option<&str>,
        but: &str,
    ) -> Option<Arc<str>> {
        let free = self
            .eligible(zone)
            .filter(|s| &**s != but && !self.taken.contains(s));
        let loads = free.map(|shard| Load::of(collection, zone, shard));
        loads
            .min_by(|a, b| a.weight.total_cmp(&b.weight))
            .map(|load| load.shard)
    }

    fn push(
        &mut self,
        collection: &CollectionPicture,
        chunk: &Chunk,
        to: &Arc<str>,
        reason: MoveReason,
    ) {
        self.taken.insert(chunk.shard.clone());
        self.taken.insert(to.clone());
        self.moves.push(Move {
            ns: collection.table.ns().to_owned(),
            range: chunk.range.clone(),
            from: chunk.shard.clone(),
            to: to.clone(),
            version: collection.table.version(),
            reason,
        });
    }
}

/// What one shard holds of one zone of a collection.
struct Load {
    shard: Arc<str>,
    chunks: usize,
    weight: f64,
}

impl Load {
    fn of(collection: &CollectionPicture, zone: Option<&str>, shard: Arc<str>) -> Load {
        let all = collection.table.chunks_of(&shard).count();
        let zoned = collection.table.chunks_of(&shard);
        let chunks = zoned
            .filter(|chunk| collection.zones.of(&chunk.range) == zone)
            .count();
        let known = collection
            .table
            .shards()
            .all(|shard| collection.bytes.contains_key(shard));
        let weight = match collection.bytes.get(&shard) {
            Some(bytes) if known && all > 0 => *bytes as f64 * chunks as f64 / all as f64,
            None if known && all == 0 => 0.0,
            Some(_) if known => 0.0,
            _ => chunks as f64,
        };
        Load {
            shard,
            chunks,
            weight,
        }
    }

    /// The weight of an average chunk.
    fn unit(&self) -> Option<f64> {
        (self.chunks > 0 && self.weight > 0.0).then(|| self.weight / self.chunks as f64)
    }
}
