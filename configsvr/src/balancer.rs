//! The balancer: looks at the cluster, asks the policy what should move, and has it moved.
//!
//! It runs on the config primary only. The moves of a round start at once, each on its own pair
//! of shards, and the next look comes when one of them ends or a moment has passed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use banyan_node::commands::table::BoxFuture;
use banyan_sharding::balancer::{plan, zone_splits};
use banyan_sharding::{ClusterPicture, CollectionPicture, Move, ShardPicture, commit};
use banyan_wire::CommandError;
use bson::oid::ObjectId;
use bson::{RawArrayBuf, RawBsonRef, RawDocument, rawdoc};
use chrono::Timelike;
use tokio::task::JoinSet;

use crate::concurrent::join_all;
use crate::metadata::{ShardEntry, is_true, uuid_binary};
use crate::migrations::{MoveOrder, carry_out};
use crate::role::ConfigRole;

/// Between two looks at a cluster in which nothing moves.
const REST: Duration = Duration::from_secs(1);

/// After a failed move, its collection is left alone for this long.
const BACKOFF: Duration = Duration::from_secs(2);

/// How long a shard may take to say how much it holds.
const STATS_TIMEOUT: Duration = Duration::from_secs(3);

/// Balances until this member is no longer primary.
pub async fn run(role: &Arc<ConfigRole>) {
    let mut moves: JoinSet<(String, Result<(), CommandError>)> = JoinSet::new();
    let mut resting: BTreeMap<String, Instant> = BTreeMap::new();
    let mut told = Told::default();
    while role.is_primary() {
        resting.retain(|_, until| *until > Instant::now());
        if is_enabled(role).await.unwrap_or(false) {
            role.balancer_in_round.store(true, Ordering::Relaxed);
            let began = Instant::now();
            let planned = round(role, &resting).await;
            told.tell(role, began, &planned).await;
            match planned {
                Ok(planned) => {
                    for order in planned {
                        start(role, order, &mut moves).await;
                    }
                }
                Err(error) => tracing::debug!(%error, "the balancer cannot see the cluster"),
            }
            role.balancer_rounds.fetch_add(1, Ordering::Relaxed);
            role.balancer_in_round
                .store(!moves.is_empty(), Ordering::Relaxed);
        }
        let ended = tokio::time::timeout(REST, async {
            match moves.join_next().await {
                Some(ended) => ended.ok(),
                None => std::future::pending().await,
            }
        });
        if let Ok(Some((ns, Err(error)))) = ended.await {
            tracing::warn!(ns, %error, "a chunk could not be moved");
            resting.insert(ns, Instant::now() + BACKOFF);
        }
    }
}

/// Of rounds that fail alike one is told of in this time.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// The failure that was told of last.
#[derive(Default)]
struct Told(Option<(String, Instant)>);

impl Told {
    /// Notes a round that found something to do, or failed.
    async fn tell(
        &mut self,
        role: &ConfigRole,
        began: Instant,
        planned: &Result<Vec<Move>, CommandError>,
    ) {
        // Spelt as in MongoDB: status pages look for it.
        let millis = i32::try_from(began.elapsed().as_millis()).unwrap_or(i32::MAX);
        let details = match planned {
            Ok(planned) if planned.is_empty() => return,
            Ok(planned) => {
                self.0 = None;
                rawdoc! {
                    "executionTimeMillis": millis,
                    "errorOccured": false,
                    "candidateChunks": i32::try_from(planned.len()).unwrap_or(i32::MAX),
                }
            }
            Err(error) => {
                let again = self.0.as_ref().is_some_and(|(message, at)| {
                    *message == error.message && at.elapsed() < TELL_EVERY
                });
                if again {
                    return;
                }
                self.0 = Some((error.message.clone(), Instant::now()));
                rawdoc! {
                    "executionTimeMillis": millis,
                    "errorOccured": true,
                    "errmsg": error.message.as_str(),
                }
            }
        };
        role.changelog.note_round(&role.metadata, details).await;
    }
}

async fn start(
    role: &Arc<ConfigRole>,
    order: Move,
    moves: &mut JoinSet<(String, Result<(), CommandError>)>,
) {
    let Some(pair) = role.slots.try_take(&order.from, &order.to) else {
        return;
    };
    let role = role.clone();
    moves.spawn(async move {
        let _pair = pair;
        let ns = order.ns.clone();
        let order = MoveOrder {
            ns: order.ns,
            range: order.range,
            from: order.from,
            to: order.to,
            wait_for_delete: false,
        };
        let outcome = carry_out(&role, &order).await;
        (ns, outcome)
    });
}

/// What the operator wants: `{_id: "balancer", mode, stopped, activeWindow: {start, stop}}`.
pub async fn is_enabled(role: &ConfigRole) -> Result<bool, CommandError> {
    let Some(setting) = role.metadata.setting("balancer").await? else {
        return Ok(true);
    };
    Ok(mode(&setting) == "full" && in_window(&setting, minute_of_day()))
}

/// `full` or `off`. Old shells only know `stopped`.
pub fn mode(setting: &RawDocument) -> &str {
    if is_true(setting, "stopped") {
        return "off";
    }
    setting.get_str("mode").unwrap_or("full")
}

fn minute_of_day() -> u32 {
    let now = chrono::Local::now();
    now.hour() * 60 + now.minute()
}

/// Whether the balancer's window is open; a window may lie across midnight. One that makes no
/// sense counts as none.
fn in_window(setting: &RawDocument, minute: u32) -> bool {
    let Ok(window) = setting.get_document("activeWindow") else {
        return true;
    };
    let at = |name: &str| -> Option<u32> {
        let (hour, minute) = window.get_str(name).ok()?.split_once(':')?;
        Some(hour.parse::<u32>().ok()? * 60 + minute.parse::<u32>().ok()?)
    };
    match (at("start"), at("stop")) {
        (Some(start), Some(stop)) if start <= stop => (start..stop).contains(&minute),
        (Some(start), Some(stop)) => minute >= start || minute < stop,
        _ => true,
    }
}

async fn round(
    role: &ConfigRole,
    resting: &BTreeMap<String, Instant>,
) -> Result<Vec<Move>, CommandError> {
    let shards = role.metadata.shards().await?;
    if shards.len() < 2 {
        return Ok(Vec::new());
    }
    let mut picture = look(role, &shards).await?;
    for split in zone_splits(&picture) {
        let _lock = role.namespaces.lock(&split.ns).await;
        let table = role.metadata.sharded_table(&split.ns).await?;
        let epoch = Some(split.version.epoch);
        let mut new_id = ObjectId::new;
        let done = commit::split(
            &table,
            &split.shard,
            epoch,
            &split.range,
            &split.points,
            &mut new_id,
        );
        if let Ok(done) = done {
            role.metadata.put_chunks(&table, &done.changed).await?;
        }
    }
    picture
        .collections
        .retain(|collection| !resting.contains_key(collection.table.ns()));
    Ok(plan(&picture, &role.slots.busy()))
}

/// The picture that the policy judges.
async fn look(role: &ConfigRole, shards: &[ShardEntry]) -> Result<ClusterPicture, CommandError> {
    let mut collections = Vec::new();
    for ns in role.metadata.sharded().await? {
        let Some(table) = role.metadata.table(&ns).await? else {
            continue;
        };
        let zones = role.metadata.zones(&table).await.unwrap_or_default();
        let balanced = table.entry().balanced;
        collections.push(CollectionPicture {
            table,
            zones,
            bytes: BTreeMap::new(),
            balanced,
        });
    }
    if !collections.is_empty() {
        weigh(role, shards, &mut collections).await;
    }
    let shards = shards
        .iter()
        .map(|shard| ShardPicture {
            id: shard.id.clone(),
            draining: shard.draining,
            zones: shard.zones.clone(),
        })
        .collect();
    Ok(ClusterPicture {
        shards,
        collections,
    })
}

/// Asks all shards how much they hold of each collection. One that does not answer in time is
/// left out, and its collections are then weighed by chunks.
async fn weigh(role: &ConfigRole, shards: &[ShardEntry], collections: &mut [CollectionPicture]) {
    let mut wanted = RawArrayBuf::new();
    for collection in collections.iter() {
        let uuid = uuid_binary(collection.table.uuid());
        wanted.push(rawdoc! { "ns": collection.table.ns(), "UUID": uuid });
    }
    let body = rawdoc! { "_shardsvrGetStatsForBalancing": 1, "collections": wanted };
    let asks = shards.iter().map(|shard| -> BoxFuture<'_, _> {
        Box::pin(async {
            let reply = role
                .shards
                .command_if_up(&shard.host, &body, STATS_TIMEOUT)
                .await;
            (shard.id.clone(), reply)
        })
    });
    for (shard, reply) in join_all(asks).await {
        let Ok(reply) = reply else { continue };
        let Ok(stats) = reply.get_array("stats") else {
            continue;
        };
        let sizes = stats.into_iter().flatten().filter_map(|entry| {
            let entry = entry.as_document()?;
            match entry.get("bytes") {
                Ok(Some(RawBsonRef::Int64(n))) => u64::try_from(n).ok(),
                _ => None,
            }
        });
        for (collection, bytes) in collections.iter_mut().zip(sizes) {
            collection.bytes.insert(shard.clone(), bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_may_cross_midnight() {
        let setting = |start: &str, stop: &str| {
            rawdoc! { "_id": "balancer", "activeWindow": { "start": start, "stop": stop } }
        };
        let night = setting("22:00", "6:30");
        assert!(in_window(&night, 23 * 60) && in_window(&night, 6 * 60));
        assert!(!in_window(&night, 7 * 60) && !in_window(&night, 21 * 60 + 59));
        let day = setting("08:00", "18:00");
        assert!(in_window(&day, 12 * 60) && !in_window(&day, 18 * 60));
        assert!(in_window(&rawdoc! {}, 0) && in_window(&setting("x", "y"), 0));
    }

    #[test]
    fn both_ways_to_stop_are_known() {
        assert_eq!(mode(&rawdoc! { "stopped": true }), "off");
        assert_eq!(mode(&rawdoc! { "mode": "off" }), "off");
        assert_eq!(mode(&rawdoc! { "mode": "full", "stopped": false }), "full");
        assert_eq!(mode(&rawdoc! {}), "full");
    }
}
