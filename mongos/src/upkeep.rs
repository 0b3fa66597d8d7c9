//! What a router reads again and again.

use std::sync::Arc;
use std::time::Duration;

use banyan_access::cluster_time::{find_keys, read_reply};
use banyan_wire::{CommandError, ReadMode, ReadPreference, RequestOptions};
use bson::rawdoc;

use crate::defaults::Known;
use crate::router::Router;

/// How long a change made elsewhere may stay unknown here.
const REFRESH_EVERY: Duration = Duration::from_secs(5);

/// How long the config servers may take to tell their keys.
const KEYS_TIMEOUT: Duration = Duration::from_secs(10);

impl Router {
    /// Asks the config servers.
    pub async fn refresh_defaults(&self) -> Result<Arc<Known>, CommandError> {
        let read = RequestOptions::read(ReadPreference::default());
        let command = rawdoc! { "getDefaultRWConcern": 1 };
        let reply = self.config.command(read, "admin", &command).await?;
        Ok(self.defaults.note(reply))
    }

    /// Asks the config servers.
    pub async fn refresh_cluster_parameters(&self) -> Result<(), CommandError> {
        let read = RequestOptions::read(ReadPreference::default());
        let command = rawdoc! { "getClusterParameter": "*" };
        let reply = self.config.command(read, "admin", &command).await?;
        self.cluster_parameters.note(&reply);
        Ok(())
    }

    /// Reads the defaults and the cluster's parameters anew. What cannot be read now is read the next
    /// time.
    pub async fn refresh_settings(&self) {
        if let Err(error) = self.refresh_defaults().await {
            tracing::debug!(%error, "cannot read the default read and write concern");
        }
        if let Err(error) = self.refresh_cluster_parameters().await {
            tracing::debug!(%error, "cannot read the cluster's parameters");
        }
    }
}

/// Keeps the defaults and the cluster's parameters up to date for as long as the router runs.
pub async fn keep_defaults(router: Arc<Router>) {
    loop {
        router.refresh_settings().await;
        tokio::select! {
            () = router.identity.stop.cancelled() => return,
            () = tokio::time::sleep(REFRESH_EVERY) => {}
        }
    }
}

/// Fetches the keys of cluster times from the config servers, for as long as the router runs.
pub async fn keep_signing_keys(router: Arc<Router>) {
    let access = &router.users.access;
    if !access.has_users() {
        return;
    }
    let fetch = || async {
        let options = RequestOptions::read(ReadMode::PrimaryPreferred).timeout(Some(KEYS_TIMEOUT));
        let command = find_keys();
        let reply = router.config.command(options, "admin", &command).await?;
        router.gossip.observe(&reply);
        read_reply(&reply)
    };
    tokio::select! {
        () = router.identity.stop.cancelled() => {}
        () = access.times.keep_fetching(fetch, || router.gossip.latest()) => {}
    }
}
