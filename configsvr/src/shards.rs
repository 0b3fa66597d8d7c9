//! Talking to the shards.

use std::collections::HashMap;
use std::time::Duration;

use banyan_wire::{CommandError, PoolOptions, ReplicaSet, ReplicaSetError, RequestOptions};
use bson::{RawDocument, RawDocumentBuf};
use parking_lot::Mutex;

/// For commands that a shard answers from memory or with a few writes.
pub const SHORT: Duration = Duration::from_secs(30);

#[derive(Default)]
pub struct Shards {
    /// By connection string.
    sets: Mutex<HashMap<String, ReplicaSet>>,
}

impl Shards {
    pub fn set(&self, host: &str) -> Result<ReplicaSet, ReplicaSetError> {
        let mut sets = self.sets.lock();
        if let Some(set) = sets.get(host) {
            return Ok(set.clone());
        }
        let set = ReplicaSet::parse(host, PoolOptions::default())?;
        sets.insert(host.to_owned(), set.clone());
        Ok(set)
    }

    /// Runs a command that may be repeated on a shard's primary.
    pub async fn command(
        &self,
        host: &str,
        body: &RawDocument,
        timeout: Duration,
    ) -> Result<RawDocumentBuf, CommandError> {
        let request_options = RequestOptions::write().idempotent().timeout(Some(timeout));
        Ok(self
            .set(host)?
            .command(request_options, "admin", body)
            .await?)
    }

    /// Runs a command that is not worth waiting for: a shard that has no primary right now is an
    /// error soon.
    pub async fn command_if_up(
        &self,
        host: &str,
        body: &RawDocument,
        timeout: Duration,
    ) -> Result<RawDocumentBuf, CommandError> {
        let request_options = RequestOptions::write()
            .idempotent()
            .timeout(Some(timeout))
            .server_selection_timeout(timeout / 2);
        Ok(self
            .set(host)?
            .command(request_options, "admin", body)
            .await?)
    }

    /// Runs a command once: its outcome is unknown if the connection fails.
    pub async fn command_once(
        &self,
        host: &str,
        body: &RawDocument,
        timeout: Duration,
    ) -> Result<RawDocumentBuf, CommandError> {
        let request_options = RequestOptions::write().timeout(Some(timeout));
        Ok(self
            .set(host)?
            .command(request_options, "admin", body)
            .await?)
    }
}
