//! The TTL monitor: deletes documents whose time is over. These are the documents of clustered
//! collections with `expireAfterSeconds` that have a date as their `_id`.

use std::sync::Arc;
use std::time::Duration;

use banyan_replication::clock;
use banyan_storage::Namespace;
use banyan_wire::CommandError;
use bson::{DateTime, RawDocumentBuf, rawdoc};

use crate::local::Local;
use crate::service::NodeService;

/// How often it looks whether `ttlMonitorSleepSecs` are over, which may change meanwhile.
const LOOK: Duration = Duration::from_secs(1);

/// Runs until the process ends.
pub fn start(service: &Arc<NodeService>) {
    tokio::spawn(run(Local::new(service)));
}

async fn run(local: Local) {
    let node = local.service().node.clone();
    let mut slept = Duration::ZERO;
    loop {
        tokio::select! {
            () = node.info.stop.cancelled() => return,
            () = tokio::time::sleep(LOOK) => slept += LOOK,
        }
        let pause = node.parameters.value("ttlMonitorSleepSecs").max(1);
        if slept < Duration::from_secs(pause.unsigned_abs()) {
            continue;
        }
        slept = Duration::ZERO;
        if node.parameters.flag("ttlMonitorEnabled") && node.replica.is_primary() {
            pass(&local).await;
        }
    }
}

/// Deletes what is over in all collections.
async fn pass(local: &Local) {
    let catalog = local.service().node.replica.store.catalog();
    for collection in catalog.collections() {
        let index = collection.clustered_index.as_ref();
        let Some(seconds) = index.and_then(|index| index.expire_after_seconds) else {
            continue;
        };
        let namespace = &collection.namespace;
        if let Err(error) = delete(local, namespace, seconds).await {
            tracing::debug!(%namespace, %error, "expired documents could not be deleted");
        }
    }
}

async fn delete(local: &Local, namespace: &Namespace, seconds: i64) -> Result<(), CommandError> {
    let last = clock::wall_ms().saturating_sub(seconds.saturating_mul(1000));
    let expired = rawdoc! { "_id": {
        "$gte": DateTime::from_millis(i64::MIN), "$lte": DateTime::from_millis(last),
    } };
    let body: RawDocumentBuf = rawdoc! {
        "delete": namespace.collection(), "deletes": [{ "q": expired, "limit": 0 }],
    };
    local.command(namespace.database(), body).await.map(drop)
}
