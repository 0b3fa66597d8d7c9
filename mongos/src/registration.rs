//! The router tells the cluster that it is there, and looks what has changed.

use std::sync::Arc;
use std::time::Duration;

use banyan_wire::version::COMPATIBLE_VERSION;
use banyan_wire::{CommandError, RequestOptions};
use bson::{DateTime, RawArrayBuf, rawdoc};
use tracing::debug;

use crate::router::Router;

const EVERY: Duration = Duration::from_secs(10);

/// Writes this router's entry in config.mongos and reads config.shards, now and then.
pub async fn keep(router: Arc<Router>) {
    loop {
        // While the config servers have no primary there is nothing to tell and nobody to ask.
        if let Err(error) = router.shards.reload().await {
            debug!("cannot read the shards: {error}");
        }
        if let Err(error) = register(&router).await {
            debug!("cannot register this router: {error}");
        }
        tokio::select! {
            () = router.identity.stop.cancelled() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

async fn register(router: &Router) -> Result<(), CommandError> {
    let identity = &router.identity;
    let entry = rawdoc! {
        "advisoryHostFQDNs": RawArrayBuf::new(),
        "mongoVersion": COMPATIBLE_VERSION,
        "ping": DateTime::now(),
        "up": identity.started_instant.elapsed().as_secs() as i64,
        "waiting": true,
    };
    let created = DateTime::from_system_time(identity.started);
    let statement = rawdoc! {
        "q": {"_id": identity.address.as_str()},
        "u": {"$set": entry, "$setOnInsert": {"created": created}},
        "upsert": true,
    };
    let command = rawdoc! {"update": "mongos", "updates": RawArrayBuf::from_iter([statement])};
    let once = RequestOptions::write()
        .idempotent()
        .server_selection_timeout(Duration::from_secs(5));
    router.config.command(once, "config", &command).await?;
    Ok(())
}
