//! The TTL monitor: on the primary, deletes documents whose time is over. These are the documents
//! of indexes with `expireAfterSeconds` that have a date in the index's field, and those of clustered
//! collections with `expireAfterSeconds` that have one as their `_id`.
//!
//! A pass goes round all such indexes and has each delete a batch (`commands/expire_documents.rs`),
//! until none has anything left: a large one does not keep the others waiting. Batches are commands
//! like those of clients. They share the cores with them, may be ended by `killOp`, and what they
//! delete lies in the log. A member that no longer leads cannot write, which ends its pass.
//!
//! On a shard, a document that is not its own stays: its owner deletes it, and the range deleter
//! removes what is left here.

use std::sync::Arc;
use std::time::Duration;

use banyan_replication::clock;
use banyan_storage::Namespace;
use banyan_wire::CommandError;
use bson::{DateTime, RawDocumentBuf, rawdoc};

use crate::commands::expire_documents::field;
use crate::local::Local;
use crate::service::NodeService;

/// How often it looks whether `ttlMonitorSleepSecs` are over, which may change meanwhile.
const LOOK: Duration = Duration::from_secs(1);

/// What one index deletes before it is the next one's turn.
const BATCH_DOCUMENTS: i64 = 10_000;

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
        if is_wanted(&local) {
            pass(&local).await;
            node.counters.local().ttl_passes.add(1);
        }
    }
}

fn is_wanted(local: &Local) -> bool {
    let node = &local.service().node;
    node.parameters.flag("ttlMonitorEnabled")
        && node.replica.is_primary()
        && !node.info.stop.is_cancelled()
}

/// An index of which documents may be over.
struct Expiring {
    namespace: Namespace,
    index: String,
    before: DateTime,
}

/// Deletes what is over in all collections.
async fn pass(local: &Local) {
    let mut left = expiring(local);
    while !left.is_empty() && is_wanted(local) {
        let mut more = Vec::new();
        for index in left {
            match batch(local, &index).await {
                Ok(deleted) if deleted >= BATCH_DOCUMENTS => more.push(index),
                Ok(_) => {}
                Err(error) => {
                    let Expiring { namespace, .. } = &index;
                    tracing::debug!(%namespace, %error, "expired documents could not be deleted");
                }
            }
        }
        left = more;
    }
}

fn expiring(local: &Local) -> Vec<Expiring> {
    let now = clock::wall_ms();
    let catalog = local.service().node.replica.store.catalog();
    let indexes = catalog.collections().flat_map(|collection| {
        let indexes = collection.all_indexes();
        indexes.map(move |index| (&collection.namespace, index))
    });
    let expiring = indexes.filter_map(|(namespace, index)| {
        field(index)?;
        let age = index.expire_after_seconds?.saturating_mul(1000);
        Some(Expiring {
            namespace: namespace.clone(),
            index: index.name.clone(),
            before: DateTime::from_millis(now.saturating_sub(age)),
        })
    });
    expiring.collect()
}

/// Deletes some of the documents that are over; how many.
async fn batch(local: &Local, index: &Expiring) -> Result<i64, CommandError> {
    let body: RawDocumentBuf = rawdoc! {
        "_expireDocuments": index.namespace.collection(),
        "index": index.index.as_str(),
        "before": index.before,
        "most": BATCH_DOCUMENTS,
    };
    let reply = local.command(index.namespace.database(), body).await?;
    let deleted = reply.get_i64("n").unwrap_or(0);
    let node = &local.service().node;
    let count = u64::try_from(deleted).unwrap_or(0);
    node.counters.local().ttl_deleted.add(count);
    Ok(deleted)
}
