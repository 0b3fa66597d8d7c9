//! Keeping `config.cache.collections` (see [`super::logged`]): the primary writes it, a secondary
//! follows it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use banyan_node::params;
use banyan_replication::clock;
use banyan_replication::op_observer::Change;
use banyan_wire::CommandError;
use bson::rawdoc;

use super::errors::{bad_value, conflict};
use super::logged::{self, COLLECTION, Log, Logged, NAMESPACE};
use super::metadata::{Collection, Known};
use super::state::ShardRole;

/// How long a primary may take to read a routing table for a secondary.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

impl ShardRole {
    /// Reads the collection's entry, unless a change of it is told meanwhile.
    pub(super) fn read_logged(&self, collection: &Collection) -> Result<Log, CommandError> {
        let seen = {
            let state = collection.state.read();
            if state.log != Log::Unread {
                return Ok(state.log);
            }
            state.told
        };
        let (catalog, snapshot) = self.node().replica.view();
        let says = Log::Says(logged::read(&catalog, &snapshot, &collection.ns)?);
        let mut log = says;
        collection.change(|state| {
            if state.told == seen {
                state.log = says;
            }
            log = state.log;
        });
        Ok(log)
    }

    /// Takes in a change of `config.cache.collections`.
    pub(super) fn learn(&self, change: Option<Change<'_>>) {
        let Some(change) = change else {
            for collection in self.collections.look_at_all(|c| Some(c.clone())) {
                collection.learned(Log::Unread);
            }
            return;
        };
        let (document, is_there) = match change {
            Change::Insert { document } => (document, true),
            Change::Update { after, .. } => (after, true),
            Change::Delete { before } => (before, false),
        };
        let known = document.get_str("_id").ok();
        let Some(collection) = known.and_then(|ns| self.collections.get(ns)) else {
            return;
        };
        let log = match is_there.then(|| Logged::parse(document)).transpose() {
            Ok(logged) => Log::Says(logged),
            Err(error) => {
                tracing::error!(ns = collection.ns, %error, "an entry of {NAMESPACE} is damaged");
                Log::Unread
            }
        };
        collection.learned(log);
    }

    /// Writes down what the primary is about to put in force, if it says something new.
    pub(super) async fn log_version(
        &self,
        collection: &Collection,
        known: &Known,
    ) -> Result<(), CommandError> {
        let Log::Says(before) = self.read_logged(collection)? else {
            return Err(conflict(
                "what the log says of the collection has just changed",
            ));
        };
        let body = match known {
            Known::Unknown => return Ok(()),
            Known::Unsharded if before.is_none() => return Ok(()),
            Known::Unsharded => rawdoc! {
                "delete": COLLECTION,
                "deletes": [{ "q": { "_id": collection.ns.as_str() }, "limit": 1 }],
            },
            Known::Sharded(filter) => {
                let logged = Logged::of(&filter.table, &filter.shard);
                let is_donating = collection.is_donating();
                let is_news = |before: Logged| {
                    !before.shard.is_write_compatible(&logged.shard)
                        // What was read may have changed by the time a migration is committed.
                        || before.refreshing && !is_donating
                };
                if !before.is_none_or(is_news) {
                    return Ok(());
                }
                let document = logged.to_document(&filter.table);
                rawdoc! {
                    "update": COLLECTION,
                    "updates": [{
                        "q": { "_id": collection.ns.as_str() }, "u": document, "upsert": true,
                    }],
                }
            }
        };
        self.local.write("config", body).await.map(drop)
    }

    /// From here on no secondary answers for the collection, until the primary has read who owns
    /// what.
    pub(super) async fn log_refreshing(&self, collection: &Collection) -> Result<(), CommandError> {
        // What was read before must not be written down afterwards.
        let _turn = collection.reading.lock().await;
        let ns = collection.ns.as_str();
        let body = rawdoc! {
            "update": COLLECTION,
            "updates": [{
                "q": { "_id": ns },
                "u": {
                    "$set": { "refreshing": true },
                    "$inc": { "enterCriticalSectionCounter": 1 },
                },
            }],
        };
        let reply = self.local.write("config", body).await?;
        let found = reply.get("n").ok().flatten().and_then(params::number);
        if found == Some(1) {
            return Ok(());
        }
        Err(conflict(format!("{ns} has no entry in {NAMESPACE}")))
    }

    /// What is in force counts again, whatever a migration that is over has written down.
    pub(super) async fn log_known(&self, collection: &Collection) -> Result<(), CommandError> {
        let _turn = collection.reading.lock().await;
        let known = collection.state.read().known.clone();
        self.log_version(collection, &known).await
    }

    /// The collection is gone, and so is what the log says of it.
    pub(super) async fn log_dropped(&self, collection: &Collection) -> Result<(), CommandError> {
        let _turn = collection.reading.lock().await;
        collection.change(|state| state.known = Known::Unknown);
        self.log_version(collection, &Known::Unsharded).await
    }

    /// Has the primary read the routing table, and waits until what it found is here. Whoever comes
    /// while another asks takes the answer of the next one.
    pub(super) async fn ask_primary_to_refresh(
        &self,
        collection: &Collection,
    ) -> Result<(), CommandError> {
        let seen = collection.asked.load(Ordering::Acquire);
        let _turn = collection.asking.lock().await;
        if collection.asked.load(Ordering::Acquire) > seen + 1 {
            return Ok(());
        }
        let outcome = self.ask_primary(collection).await;
        collection.asked.fetch_add(1, Ordering::AcqRel);
        outcome
    }

    async fn ask_primary(&self, collection: &Collection) -> Result<(), CommandError> {
        let node = self.node();
        let request = rawdoc! { "_flushRoutingTableCacheUpdates": collection.ns.as_str() };
        let reply = node.replication.ask_primary(&request, ASK_TIMEOUT).await?;
        let time = reply.get_timestamp("operationTime").map_err(bad_value)?;
        let target = clock::to_bits(time);
        let mut applied = node.replica.machine.applied_watch();
        let reached = applied.wait_for(|applied| *applied >= target);
        match tokio::time::timeout(ASK_TIMEOUT, reached).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(conflict("this member lags too far behind its primary")),
        }
    }
}
