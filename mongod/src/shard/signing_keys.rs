//! The keys of cluster times, which a shard has from the config servers.

use std::sync::Arc;
use std::time::Duration;

use banyan_access::cluster_time::{find_keys, read_reply};
use banyan_wire::{ReadMode, RequestOptions};

use super::errors::not_a_shard;
use super::state::ShardRole;

const TIMEOUT: Duration = Duration::from_secs(10);

/// Fetches them for as long as the process runs. Before the shard belongs to a cluster it has none:
/// clients are told no time, and not believed any.
pub(super) async fn keep(role: Arc<ShardRole>) {
    let node = role.node();
    if !node.access.has_users() {
        return;
    }
    let fetch = || async {
        let identity = role.identity().ok_or_else(not_a_shard)?;
        let options = RequestOptions::read(ReadMode::PrimaryPreferred).timeout(Some(TIMEOUT));
        let command = find_keys();
        let reply = identity.config.command(options, &command).await?;
        read_reply(&reply)
    };
    let now = || node.replica.clock.now();
    tokio::select! {
        () = node.info.stop.cancelled() => {}
        () = node.access.times.keep_fetching(fetch, now) => {}
    }
}
