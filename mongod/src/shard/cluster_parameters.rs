//! The cluster's parameters, which every member of a shard has from the config servers.

use std::sync::Arc;
use std::time::Duration;

use banyan_node::cluster_parameters::ask;
use banyan_wire::{CommandError, ReadMode, RequestOptions};

use super::errors::not_a_shard;
use super::state::ShardRole;

/// How long a change may stay unknown here.
const EVERY: Duration = Duration::from_secs(5);

const TIMEOUT: Duration = Duration::from_secs(10);

/// Fetches them for as long as the process runs.
pub(super) async fn keep(role: Arc<ShardRole>) {
    let stop = role.node().info.stop.clone();
    loop {
        if role.identity().is_some()
            && let Err(error) = fetch(&role).await
        {
            tracing::debug!(%error, "cannot read the cluster's parameters");
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

async fn fetch(role: &ShardRole) -> Result<(), CommandError> {
    let identity = role.identity().ok_or_else(not_a_shard)?;
    let options = RequestOptions::read(ReadMode::PrimaryPreferred).timeout(Some(TIMEOUT));
    let reply = identity.config.command(options, &ask()).await?;
    role.node().cluster_parameters.note(&reply);
    Ok(())
}
