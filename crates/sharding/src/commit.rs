//! What a split or a move changes in the routing table, and when it must be refused.
//!
//! The config primary runs these on its own, freshly read table while it holds the
//! collection's lock, writes the changed chunks in one atomic batch, and that is the commit.
//! A request that is repeated after its answer was lost finds its work done
//! ([`CommitError::AlreadyDone`]) and is answered as if it had just succeeded.

use std::sync::Arc;

use bson::oid::ObjectId;
use bson::{RawBsonRef, Timestamp};

use crate::chunk::{Chunk, ChunkRange};
use crate::routing::RoutingTable;
use crate::shard_key::ShardKey;
use crate::version::ChunkVersion;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    #[error("collection epoch has changed, expected {expected}, found {found}")]
    Epoch { expected: String, found: String },
    #[error("no chunk {0} in the collection; the nearest is {1}")]
    NoSuchChunk(String, String),
    #[error("chunk {range} is owned by shard {owner}, not by {claimed}")]
    NotOwner {
        range: String,
        owner: String,
        claimed: String,
    },
    #[error("chunk {0} has changed since the move began")]
    ChunkChanged(String),
    #[error("split point {0} is not inside the chunk {1} or not in order")]
    BadSplitPoint(String, String),
    #[error("no split points given")]
    NoSplitPoints,
    #[error("split points may not contain MinKey or MaxKey alone: {0}")]
    BoundaryValue(String),
    #[error("already done")]
    AlreadyDone,
}

/// Chunks to write, each with a new version; `changed` holds whole documents (by `_id`).
#[derive(Debug, Clone)]
pub struct SplitCommit {
    pub before: Arc<Chunk>,
    pub changed: Vec<Arc<Chunk>>,
}

#[derive(Debug, Clone)]
pub struct MoveCommit {
    pub before: Arc<Chunk>,
    pub changed: Vec<Arc<Chunk>>,
}

/// Cuts the chunk with exactly `range`, owned by `shard`, at `points`.
pub fn split(
    table: &RoutingTable,
    shard: &str,
    expected: Option<ObjectId>,
    range: &ChunkRange,
    points: &[ShardKey],
    new_id: &mut dyn FnMut() -> ObjectId,
) -> Result<SplitCommit, CommitError> {
    check_epoch(table, expected)?;
    check_points(range, points)?;
    let Some(chunk) = table.exact(range) else {
        let done = is_split_at(table, range, points);
        return Err(if done {
            CommitError::AlreadyDone
        } else {
            no_such_chunk(table, range)
        });
    };
    check_owner(chunk, shard)?;
    let bounds = std::iter::once(&range.min)
        .chain(points)
        .chain(std::iter::once(&range.max));
    let bounds: Vec<&ShardKey> = bounds.collect();
    let mut version = table.version();
    let mut changed = Vec::with_capacity(bounds.len());
    for (min, max) in bounds.iter().zip(bounds.iter().skip(1)) {
        version.minor += 1;
        changed.push(Arc::new(Chunk {
            id: if changed.is_empty() {
                chunk.id
            } else {
                new_id()
            },
            range: ChunkRange {
                min: (*min).clone(),
                max: (*max).clone(),
            },
            lastmod: version.lastmod(),
            jumbo: false,
            ..Chunk::clone(chunk)
        }));
    }
    Ok(SplitCommit {
        before: chunk.clone(),
        changed,
    })
}

/// What the donor of a move knew when it started.
#[derive(Debug, Clone, Copy, Default)]
pub struct Expected {
    pub epoch: Option<ObjectId>,
    /// The chunk's version. A donor that took over from a crashed one raises it ([`fence`]), so
    /// that a commit still under way from its predecessor comes too late.
    pub lastmod: Option<Timestamp>,
}

/// Raises the version of the chunk that starts at `range.min` if it is still at `lastmod`.
pub fn fence(
    table: &RoutingTable,
    range: &ChunkRange,
    lastmod: Timestamp,
) -> Result<Arc<Chunk>, CommitError> {
    let chunk = table.find(&range.min);
    if chunk.lastmod != lastmod {
        return Err(CommitError::AlreadyDone);
    }
    let raised = Timestamp {
        time: table.version().major + 1,
        increment: 0,
    };
    Ok(Arc::new(Chunk {
        lastmod: raised,
        ..Chunk::clone(chunk)
    }))
}

/// Hands `range`, a whole chunk or a part of one, from one shard to another. What remains of
/// the chunk on either side stays where it is. One chunk of the donor rises to the new major
/// version with it, so that requests routed by an older table are refused on the donor too.
pub fn move_range(
    table: &RoutingTable,
    from: &str,
    to: &str,
    expected: Expected,
    range: &ChunkRange,
    at: Timestamp,
    new_id: &mut dyn FnMut() -> ObjectId,
) -> Result<MoveCommit, CommitError> {
    check_epoch(table, expected.epoch)?;
    let chunk = table.find(&range.min);
    if !chunk.range.covers(range) {
        return Err(no_such_chunk(table, range));
    }
    if &*chunk.shard == to {
        return Err(CommitError::AlreadyDone);
    }
    check_owner(chunk, from)?;
    if expected
        .lastmod
        .is_some_and(|lastmod| lastmod != chunk.lastmod)
    {
        return Err(CommitError::ChunkChanged(chunk.range.to_string()));
    }
    let mut version = ChunkVersion {
        major: table.version().major + 1,
        minor: 0,
        ..table.version()
    };
    let mut moved = chunk.handed_to(to.into(), at);
    moved.range = range.clone();
    moved.lastmod = version.lastmod();
    let mut changed = Vec::new();
    let mut rest = |min: &ShardKey, max: &ShardKey| {
        if min < max {
            version.minor += 1;
            changed.push(Chunk {
                range: ChunkRange {
                    min: min.clone(),
                    max: max.clone(),
                },
                lastmod: version.lastmod(),
                ..Chunk::clone(chunk)
            });
        }
    };
    rest(&chunk.range.min, &range.min);
    rest(&range.max, &chunk.range.max);
    if changed.is_empty() {
        let control = table.chunks_of(from).find(|other| other.id != chunk.id);
        if let Some(control) = control {
            version.minor += 1;
            changed.push(Chunk {
                lastmod: version.lastmod(),
                ..Chunk::clone(control)
            });
        }
    }
    // The part that starts where the chunk did keeps the chunk's document; the others are new.
    for part in changed.iter_mut().chain(std::iter::once(&mut moved)) {
        if part.range.min != chunk.range.min && part.id == chunk.id {
            part.id = new_id();
        }
    }
    changed.insert(0, moved);
    let changed = changed.into_iter().map(Arc::new).collect();
    Ok(MoveCommit {
        before: chunk.clone(),
        changed,
    })
}

fn check_epoch(table: &RoutingTable, expected: Option<ObjectId>) -> Result<(), CommitError> {
    match expected {
        Some(epoch) if epoch != table.version().epoch => Err(CommitError::Epoch {
            expected: epoch.to_hex(),
            found: table.version().epoch.to_hex(),
        }),
        _ => Ok(()),
    }
}

fn check_owner(chunk: &Chunk, claimed: &str) -> Result<(), CommitError> {
    if &*chunk.shard == claimed {
        return Ok(());
    }
    Err(CommitError::NotOwner {
        range: chunk.range.to_string(),
        owner: chunk.shard.to_string(),
        claimed: claimed.to_owned(),
    })
}

fn check_points(range: &ChunkRange, points: &[ShardKey]) -> Result<(), CommitError> {
    if points.is_empty() {
        return Err(CommitError::NoSplitPoints);
    }
    let mut floor = &range.min;
    for point in points {
        if *point <= *floor || *point >= range.max {
            return Err(CommitError::BadSplitPoint(
                point.to_string(),
                range.to_string(),
            ));
        }
        let ends = |e: RawBsonRef<'_>| matches!(e, RawBsonRef::MinKey | RawBsonRef::MaxKey);
        if point
            .document()
            .iter()
            .all(|e| e.is_ok_and(|(_, value)| ends(value)))
        {
            return Err(CommitError::BoundaryValue(point.to_string()));
        }
        floor = point;
    }
    Ok(())
}

fn is_split_at(table: &RoutingTable, range: &ChunkRange, points: &[ShardKey]) -> bool {
    let is_border = |key: &ShardKey| table.find(key).range.min == *key;
    let upper = range.max.is_global_max() || is_border(&range.max);
    is_border(&range.min) && upper && points.iter().all(is_border)
}

fn no_such_chunk(table: &RoutingTable, range: &ChunkRange) -> CommitError {
    let nearest = table.find(&range.min).range.to_string();
    CommitError::NoSuchChunk(range.to_string(), nearest)
}
