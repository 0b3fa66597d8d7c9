//! Reading what the config servers say about a collection or a database.

use std::sync::Arc;
use std::time::Duration;

use banyan_configsvr::{ConfigReader, load_table};
use banyan_sharding::split;
use banyan_storage::Namespace;
use banyan_wire::CommandError;
use bson::{RawDocument, rawdoc};

use super::errors::{conflict, not_a_shard};
use super::metadata::{Collection, Filter, Known, State, Verdict};
use super::state::{Identity, ShardRole};
use banyan_sharding::ChunkVersion;

/// How long a request waits for a critical section before its router is told to try again.
const BLOCKED_MAX: Duration = Duration::from_secs(10);

/// A critical section is much shorter than this.
const BLOCKED_USUALLY: Duration = Duration::from_secs(1);

impl ShardRole {
    /// Reads the collection's routing table and puts it in force. Whoever asks while another one
    /// reads takes what that one found, unless it began before the asking.
    pub async fn refresh(&self, ns: &str) -> Result<(), CommandError> {
        let collection = self.collection(ns);
        let seen = collection.state.read().generation;
        let _turn = collection.refreshing.lock().await;
        // A reading that began after the asking has generation `seen + 2` at least: the one that
        // was under way may have begun before.
        if collection.state.read().generation > seen + 1 {
            return Ok(());
        }
        let term = self.term();
        if term != 0 {
            self.recover_migrations(term).await?;
        }
        self.read_table(&collection, term).await
    }

    /// [`ShardRole::refresh`] without settling migrations first, which itself needs the table.
    pub(super) async fn read_table(
        &self,
        collection: &Collection,
        term: u64,
    ) -> Result<(), CommandError> {
        let identity = self.identity().ok_or_else(not_a_shard)?;
        let _turn = collection.reading.lock().await;
        let before = collection.filter();
        let known = before.as_deref().map(|filter| &*filter.table);
        let table = load_table(&identity.config, &collection.ns, known).await?;
        let known = match table {
            None => Known::Unsharded,
            Some(table) => {
                let bytes_max = match table.entry().chunk_bytes_max {
                    Some(bytes) => bytes,
                    None => chunk_bytes_max(&identity).await?,
                };
                let owned = table.chunks_of(&identity.name).count().max(1);
                let held = self.bytes_held(&collection.ns);
                let estimate = i64::try_from(held / owned as u64).unwrap_or(i64::MAX);
                let shard = identity.name.clone();
                let before = before
                    .as_deref()
                    .filter(|before| before.table.version().same_collection(&table.version()));
                Known::Sharded(Arc::new(Filter::new(
                    table, shard, bytes_max, before, estimate,
                )))
            }
        };
        if term != 0 {
            self.log_version(collection, &known).await?;
        }
        if self.term() != term {
            return Err(conflict(
                "this member's state changed while it read a routing table",
            ));
        }
        collection.change(|state: &mut State| {
            state.known = known;
            state.term = term;
            state.generation += 1;
            if state.block.is_some_and(|block| block.is_over()) {
                state.block = None;
            }
        });
        Ok(())
    }

    /// Reads the database's entry from the config servers.
    pub async fn refresh_database(
        &self,
        identity: &Identity,
        database: &str,
    ) -> Result<(), CommandError> {
        let term = self.term();
        let body = rawdoc! {
            "find": "databases",
            "filter": { "_id": database },
            "limit": 1_i64,
            "singleBatch": true,
        };
        let found = identity.config.find(body).await?;
        let here = found.first().filter(|entry| {
            entry
                .get_str("primary")
                .is_ok_and(|home| *home == *identity.name)
        });
        let version = here.and_then(|entry| entry.get_document("version").ok());
        let version = version.map(RawDocument::to_owned);
        self.databases.note(database, term, version);
        Ok(())
    }

    /// What a collection takes here, orphans aside.
    pub fn bytes_held(&self, ns: &str) -> u64 {
        let Some(namespace) = Namespace::parse(ns) else {
            return 0;
        };
        let catalog = self.node().replica.store.catalog();
        let bytes = catalog
            .find(&namespace)
            .map_or(0, |collection| collection.bytes());
        bytes.saturating_sub(self.orphans.bytes(ns))
    }

    /// Waits for critical sections and reads newer tables until the request can be judged, or
    /// refused.
    pub(super) async fn catch_up(&self, collection: Arc<Collection>, received: ChunkVersion) {
        let Some(identity) = self.identity() else {
            return;
        };
        let until = tokio::time::Instant::now() + BLOCKED_MAX;
        let ask_after = tokio::time::Instant::now() + BLOCKED_USUALLY;
        let (mut refreshed, mut asked) = (false, false);
        loop {
            let mut changes = collection.changes.subscribe();
            if self.term() == 0
                && let Err(error) = self.read_logged(&collection)
            {
                tracing::warn!(ns = collection.ns, %error, "cannot read what the log says");
                return;
            }
            match collection.judge(&received, self.term(), true, &identity.name) {
                Verdict::Agreed(_) | Verdict::Stale(_) => return,
                Verdict::Behind if refreshed => return,
                Verdict::Unlogged if asked => return,
                Verdict::Unlogged => {
                    self.have_primary_refresh(&collection, until).await;
                    asked = true;
                }
                Verdict::Behind => {
                    if let Err(error) = self.refresh(&collection.ns).await {
                        tracing::warn!(ns = collection.ns, %error, "cannot read a routing table");
                        return;
                    }
                    refreshed = true;
                }
                // Perhaps nobody is left who would say that it is over.
                Verdict::Blocked
                    if self.term() == 0 && !asked && tokio::time::Instant::now() > ask_after =>
                {
                    self.have_primary_refresh(&collection, until).await;
                    asked = true;
                }
                Verdict::Blocked => {
                    // A block may also end by its own time, which nobody announces.
                    let look_again = tokio::time::Instant::now() + Duration::from_millis(100);
                    let _ = tokio::time::timeout_at(look_again.min(until), changes.changed()).await;
                    if tokio::time::Instant::now() >= until {
                        return;
                    }
                }
            }
        }
    }

    async fn have_primary_refresh(&self, collection: &Collection, until: tokio::time::Instant) {
        let asking = self.ask_primary_to_refresh(collection);
        if let Ok(Err(error)) = tokio::time::timeout_at(until, asking).await {
            tracing::debug!(ns = collection.ns, %error, "the primary did not refresh");
        }
    }
}

async fn chunk_bytes_max(identity: &Identity) -> Result<u64, CommandError> {
    let body = rawdoc! {
        "find": "settings", "filter": { "_id": "chunksize" }, "limit": 1_i64, "singleBatch": true,
    };
    let found = identity.config.find(body).await?;
    Ok(split::chunk_bytes_max(
        found.first().map(|setting| &**setting),
    ))
}
