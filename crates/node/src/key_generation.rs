//! The primary makes the keys that sign cluster times, and removes those that have long expired.

use std::sync::Arc;
use std::time::Duration;

use banyan_access::cluster_time::{KEYS_COLLECTION, KEYS_DATABASE, ROTATION_PARAMETER, bits};
use banyan_replication::clock;
use banyan_security::cluster_time::{HASH_BYTES, SigningKey};
use banyan_wire::CommandError;
use bson::{RawArrayBuf, rawdoc};
use tracing::{debug, info};

use crate::access::signing_keys;
use crate::local::Local;
use crate::service::NodeService;

/// How often the primary looks whether a key is missing.
const LOOK: Duration = Duration::from_millis(200);

/// Makes keys whenever this member is primary, until the process ends.
pub fn start(service: &Arc<NodeService>) {
    let node = &service.node;
    if node.access.times.are_stored_here() && node.replication.is_replica_set() {
        tokio::spawn(run(Local::new(service)));
    }
}

async fn run(local: Local) {
    let node = local.service().node.clone();
    loop {
        tokio::select! {
            () = node.info.stop.cancelled() => return,
            () = tokio::time::sleep(LOOK) => {}
        }
        if !node.replica.is_primary() {
            continue;
        }
        if let Err(error) = make_missing(&local).await {
            debug!(%error, "cannot make a key of cluster times yet");
        }
    }
}

async fn make_missing(local: &Local) -> Result<(), CommandError> {
    let node = &local.service().node;
    signing_keys::read(&node.access, &node.replica)?;
    let interval = node.parameters.value(ROTATION_PARAMETER);
    let interval = u32::try_from(interval).unwrap_or(u32::MAX);
    let now = bits(node.replica.clock.now());
    let missing = node.access.times.keys().missing(now, interval);
    if missing.is_empty() {
        return Ok(());
    }
    let documents = missing.iter().map(|missing| {
        let key = SigningKey {
            id: missing.id,
            secret: rand::random::<[u8; HASH_BYTES]>(),
            expires_at: missing.expires_at,
        };
        key.document()
    });
    let documents: RawArrayBuf = documents.collect();
    let insert = rawdoc! { "insert": KEYS_COLLECTION, "documents": documents };
    local.write(KEYS_DATABASE, insert).await?;
    info!(keys = missing.len(), "made keys that sign cluster times");
    // Nothing is signed with a key that has expired, and nothing is verified with it.
    let long_ago = now.saturating_sub(u64::from(interval) << 32);
    let expired = rawdoc! { "expiresAt": { "$lt": clock::from_bits(long_ago) } };
    let delete = rawdoc! {
        "delete": KEYS_COLLECTION, "deletes": [{ "q": expired, "limit": 0 }],
    };
    local.write(KEYS_DATABASE, delete).await.map(drop)
}
