//! What the config primary does on its own: it finishes what was begun, settles changes of indexes
//! and of whether users may write, and balances.

use std::sync::Arc;
use std::time::Duration;

use banyan_node::service::NodeService;

use crate::role::ConfigRole;
use crate::{balancer, index_changes, pending, user_writes};

/// How often a member looks whether it has become primary.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Makes the member a config server. Must be called within a runtime.
pub fn start(service: &Arc<NodeService>) -> Arc<ConfigRole> {
    let role = ConfigRole::assign(service);
    tokio::spawn(run(role.clone()));
    role
}

/// Waits for this member to be primary, finishes what the last one left, balances until it no
/// longer is, and waits again.
async fn run(role: Arc<ConfigRole>) {
    let stop = role.metadata.local.service().node.info.stop.clone();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(LOOK_INTERVAL) => {}
        }
        if !role.is_primary() {
            continue;
        }
        let started = async {
            role.initialize().await?;
            pending::finish(&role).await
        };
        if let Err(error) = started.await {
            tracing::warn!(%error, "the config primary cannot start its work yet");
            continue;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = balancer::run(&role) => {}
            () = index_changes::keep_settling(&role) => {}
            () = user_writes::keep_settling(&role) => {}
        }
    }
}
