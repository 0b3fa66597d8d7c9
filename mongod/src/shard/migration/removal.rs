//! Removing the documents of a range: in batches, each one entry of the log, with pauses in which
//! clients have the log for themselves.

use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_replication::locks::Mode;
use banyan_replication::machine::RangeRemoval;
use banyan_replication::write::remove::Removed;
use banyan_sharding::{ChunkRange, ShardKeyPattern};
use banyan_storage::{Namespace, RecordId};
use banyan_wire::CommandError;

use super::orphans::Task;
use crate::shard::errors::internal;
use crate::shard::keys::KeyView;
use crate::shard::state::ShardRole;

/// What one entry of the log removes: so little that a client's write behind it hardly waits.
const BATCH_DOCUMENTS: u64 = 1_000;
const BATCH_BYTES: usize = 1 << 20;

/// A batch of records, and where in the index of the shard key it ends.
struct Batch {
    records: Vec<RecordId>,
    last: Option<(Vec<u8>, RecordId)>,
    collection: Arc<banyan_storage::Collection>,
}

/// Removes every document of a range that the caller knows not to be this shard's in `term`.
/// `progress` is told of each batch.
pub async fn remove_range(
    role: &Arc<ShardRole>,
    ns: &str,
    pattern: &ShardKeyPattern,
    range: &ChunkRange,
    term: u64,
    progress: impl Fn(Removed),
) -> Result<(), CommandError> {
    let namespace = Namespace::parse(ns).ok_or_else(|| internal("a namespace without a dot"))?;
    let (mut after, mut left, mut begun) = (None, false, false);
    loop {
        let Some(batch) = next_batch(role, ns, pattern, range, after.take()).await? else {
            return Ok(());
        };
        if batch.records.is_empty() {
            if !left {
                return Ok(());
            }
            // Once more for those that somebody was writing.
            left = false;
            continue;
        }
        if !std::mem::replace(&mut begun, true) {
            // Cursors that rest and show the range go on in the state before.
            let removal = RangeRemoval {
                collection: batch.collection.id,
                min: range.min.document().to_owned(),
                max: range.max.document().to_owned(),
            };
            let node = role.node();
            node.replica
                .begin_range_removal(&namespace, &removal, term)
                .await?;
        }
        let removed = remove_batch(role, &namespace, pattern, range, &batch, term).await?;
        left |= removed.busy > 0;
        progress(removed);
        after = batch.last;
    }
}

/// One range at a time, whoever's it is, and not while the collection is being changed.
async fn remove_batch(
    role: &Arc<ShardRole>,
    namespace: &Namespace,
    pattern: &ShardKeyPattern,
    range: &ChunkRange,
    batch: &Batch,
    term: u64,
) -> Result<Removed, CommandError> {
    let node = role.node();
    loop {
        let turn = role.orphans.turn.lock().await;
        let Some(held) = node.replica.try_hold(namespace) else {
            drop(turn);
            let collection = node.replica.locks.collection(namespace);
            drop(
                node.replica
                    .locks
                    .lock(collection, Mode::IntentExclusive)
                    .await,
            );
            continue;
        };
        let catalog = node.replica.store.catalog();
        let collection = catalog.find(namespace);
        let Some(collection) = collection.filter(|c| c.uuid == batch.collection.uuid) else {
            return Ok(Removed::default());
        };
        let started = Instant::now();
        let is_to_go = |document: &bson::RawDocument| {
            let mut key = Vec::with_capacity(48);
            pattern.encode(document, &mut key).is_ok() && range.contains(&key)
        };
        let removed = node
            .replica
            .remove_records(collection, &batch.records, is_to_go, term)
            .await?;
        drop(held);
        // Clients have at least half of the time.
        let delay = node.parameters.value("rangeDeleterBatchDelayMS");
        let delay = Duration::from_millis(delay.max(0).unsigned_abs());
        tokio::time::sleep(delay.max(started.elapsed())).await;
        drop(turn);
        return Ok(removed);
    }
}

/// `None` if there is no such collection.
async fn next_batch(
    role: &Arc<ShardRole>,
    ns: &str,
    pattern: &ShardKeyPattern,
    range: &ChunkRange,
    after: Option<(Vec<u8>, RecordId)>,
) -> Result<Option<Batch>, CommandError> {
    let (role, ns) = (role.clone(), ns.to_owned());
    let (pattern, range) = (pattern.clone(), range.clone());
    let work = move || {
        let Some(view) = KeyView::open(role.node(), &ns, &pattern)? else {
            return Ok(None);
        };
        let size = role.node().parameters.value("rangeDeleterBatchSize");
        let most = size.max(1).unsigned_abs().min(BATCH_DOCUMENTS);
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let mut batch = Batch {
            records: Vec::new(),
            last: None,
            collection: view.collection.clone(),
        };
        let mut bytes = 0;
        let after = after.as_ref().map(|(key, record)| (key.as_slice(), record));
        for entry in view.scan_after(&range, after) {
            let (key, record) = entry?;
            bytes += view
                .record(&record)?
                .map_or(0, |document| document.as_bytes().len());
            batch.records.push(record.clone());
            batch.last = Some((key, record));
            if batch.records.len() >= most || bytes >= BATCH_BYTES {
                break;
            }
        }
        Ok(Some(batch))
    };
    tokio::task::spawn_blocking(work).await.map_err(internal)?
}

/// Removes what a task is about, as far as the routing table, read anew, says that it is somebody
/// else's.
pub async fn remove_task(role: &Arc<ShardRole>, task: &Task) -> Result<(), CommandError> {
    let term = role.node().replica.writable_term()?;
    role.refresh(&task.ns).await?;
    if let Some(filter) = role.collection(&task.ns).filter()
        && filter.table.uuid()[..] == task.uuid[..]
    {
        let foreign: Vec<ChunkRange> = filter
            .table
            .overlapping(&task.range)
            .filter(|chunk| chunk.shard != filter.shard)
            .map(|chunk| ChunkRange {
                min: chunk.range.min.clone().max(task.range.min.clone()),
                max: chunk.range.max.clone().min(task.range.max.clone()),
            })
            .collect();
        let progress = |removed| role.orphans.removed(task, removed);
        for range in foreign {
            remove_range(role, &task.ns, &task.pattern, &range, term, progress).await?;
        }
    }
    role.orphans.forget(&role.local, task.id).await
}
