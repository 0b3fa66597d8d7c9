//! Cutting chunks that have grown.
//!
//! Writes count what they add to their chunk ([`super::metadata::Filter::account`]) and send a
//! hint when it goes over the limit. The count is a guess (after a restart it starts from one), so
//! the chunk is measured before it is cut. Whoever wants to cut chunks himself sets `enabled: false`
//! in the document `autosplit` of config.settings.

use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_configsvr::ConfigReader;
use banyan_sharding::{Chunk, ShardKey};
use banyan_wire::{CommandError, RequestOptions};
use bson::{RawArrayBuf, rawdoc};
use tokio::sync::mpsc;

use super::errors::internal;
use super::keys::KeyView;
use super::metadata::{Filter, SplitHint};
use super::state::ShardRole;

/// Pieces that one cut makes at most.
const PARTS_MAX: u64 = 16;

const COMMIT_TIMEOUT: Duration = Duration::from_secs(30);

/// After a failed split its chunk is left alone for this long.
const BACKOFF: Duration = Duration::from_secs(1);

/// How long the operator's wish is taken to be what it was.
const SETTING_KEPT: Duration = Duration::from_secs(1);

/// Whether chunks are to be cut, as the cluster's settings had it a moment ago.
#[derive(Default)]
struct Setting {
    read: Option<(Instant, bool)>,
}

impl Setting {
    async fn check(&mut self, role: &ShardRole) -> Result<(), CommandError> {
        let enabled = match self.read {
            Some((at, enabled)) if at.elapsed() < SETTING_KEPT => enabled,
            _ => {
                let enabled = is_enabled(role).await?;
                self.read = Some((Instant::now(), enabled));
                enabled
            }
        };
        match enabled {
            true => Ok(()),
            false => Err(super::errors::conflict("splitting is switched off")),
        }
    }
}

/// `{_id: "autosplit", enabled: <bool>}`; where nothing is said, chunks are cut.
async fn is_enabled(role: &ShardRole) -> Result<bool, CommandError> {
    let body = rawdoc! {
        "find": "settings", "filter": { "_id": "autosplit" }, "limit": 1_i64, "singleBatch": true,
    };
    let found = role.identified()?.config.find(body).await?;
    let enabled = found
        .first()
        .and_then(|setting| setting.get("enabled").ok()?);
    Ok(enabled.is_none_or(banyan_document::is_true))
}

pub async fn run(role: Arc<ShardRole>, mut hints: mpsc::Receiver<SplitHint>) {
    let stop = role.node().info.stop.clone();
    let mut setting = Setting::default();
    loop {
        let hint = tokio::select! {
            () = stop.cancelled() => return,
            hint = hints.recv() => hint,
        };
        let Some(hint) = hint else { return };
        let considered = async {
            setting.check(&role).await?;
            consider(&role, &hint).await
        };
        match considered.await {
            Ok(measured) => hint.filter.checked(hint.position, measured),
            Err(error) => {
                tracing::debug!(ns = hint.ns, %error, "a chunk was not split");
                // Let it rest, but don't keep the others waiting.
                tokio::spawn(async move {
                    tokio::time::sleep(BACKOFF).await;
                    hint.filter.checked(hint.position, None);
                });
            }
        }
    }
}

/// Measures the chunk and cuts it if it is too large. The answer is its size if it stays whole.
async fn consider(role: &Arc<ShardRole>, hint: &SplitHint) -> Result<Option<u64>, CommandError> {
    let collection = role.collection(&hint.ns);
    let Some(current) = collection.filter() else {
        return Ok(None);
    };
    let Some(seen) = hint.filter.table.chunks().get(hint.position).cloned() else {
        return Ok(None);
    };
    let chunk = current.table.find(&seen.range.min).clone();
    if chunk.range != seen.range || chunk.shard != current.shard {
        // It has been cut or moved since.
        return Ok(None);
    }
    let (bytes, points) = find_points(role, &hint.ns, &current, &chunk).await?;
    if points.is_empty() {
        return Ok(Some(bytes));
    }
    let _stays = role.chunk_changes.lock().await;
    let moving = role
        .donor
        .lock()
        .as_ref()
        .is_some_and(|donor| donor.ns == hint.ns && donor.range.overlaps(&chunk.range));
    if moving {
        return Err(super::errors::conflict("the chunk is being moved"));
    }
    commit(role, &hint.ns, &current, &chunk, &points).await?;
    tracing::debug!(ns = hint.ns, chunk = %chunk.range, bytes, "split a chunk");
    Ok(None)
}

async fn find_points(
    role: &Arc<ShardRole>,
    ns: &str,
    filter: &Arc<Filter>,
    chunk: &Arc<Chunk>,
) -> Result<(u64, Vec<ShardKey>), CommandError> {
    let (role, ns) = (role.clone(), ns.to_owned());
    let (filter, chunk) = (filter.clone(), chunk.clone());
    let work = move || {
        let Some(view) = KeyView::open(role.node(), &ns, filter.table.pattern())? else {
            return Ok((0, Vec::new()));
        };
        let count = view.count(&chunk.range)?;
        let bytes = view.bytes_of(count);
        let limit = filter.limit();
        if bytes <= limit {
            return Ok((bytes, Vec::new()));
        }
        // Pieces of half the limit, so that each has as far to go again.
        let parts = (bytes / (limit / 2).max(1)).clamp(2, PARTS_MAX);
        let parts = usize::try_from(parts).unwrap_or(2);
        Ok((bytes, view.split_points(&chunk.range, count, parts)?))
    };
    tokio::task::spawn_blocking(work).await.map_err(internal)?
}

async fn commit(
    role: &ShardRole,
    ns: &str,
    filter: &Filter,
    chunk: &Chunk,
    points: &[ShardKey],
) -> Result<(), CommandError> {
    let identity = role.identified()?;
    let mut keys = RawArrayBuf::new();
    for point in points {
        keys.push(point.document().to_owned());
    }
    let body = rawdoc! {
        "_configsvrCommitChunkSplit": ns,
        "shard": &*identity.name,
        "collEpoch": filter.table.version().epoch,
        "min": chunk.range.min.document().to_owned(),
        "max": chunk.range.max.document().to_owned(),
        "splitPoints": keys,
    };
    let request_options = RequestOptions::write()
        .idempotent()
        .timeout(Some(COMMIT_TIMEOUT));
    identity.config.command(request_options, &body).await?;
    role.refresh(ns).await
}
