//! What a member does on its own once in a while, and no-op entries that somebody waits for.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use banyan_replication::clock;
use banyan_wire::CommandError;
use bson::{RawDocumentBuf, Timestamp, rawdoc};
use tokio::runtime::Handle;

use crate::cursors;
use crate::index_builds;
use crate::node::Node;
use crate::read_concern;
use crate::stored_defaults;

const PERIOD: Duration = Duration::from_secs(1);
/// Sessions are looked through every so many periods.
const SESSION_PERIODS: u64 = 30;
const NOOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs until the process ends. Does nothing outside of a runtime, as in some tests.
pub fn start(node: &Arc<Node>) {
    index_builds::attend(node);
    let Ok(runtime) = Handle::try_current() else {
        return;
    };
    runtime.spawn(run(Arc::downgrade(node), node.info.stop.clone()));
}

async fn run(node: Weak<Node>, stop: tokio_util::sync::CancellationToken) {
    for round in 1_u64.. {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(PERIOD) => {}
        }
        let Some(node) = node.upgrade() else { return };
        node.snapshots.reap(node.parameters.snapshot_window());
        node.cursors.rest_idle(cursors::REST_AFTER);
        write_profiles(&node).await;
        node.replica
            .machine
            .log_begins_at(node.replica.group.first_index());
        if round.is_multiple_of(SESSION_PERIODS) {
            let expired = node.expire_sessions();
            if expired > 0 {
                tracing::debug!(sessions = expired, "ended sessions that nobody uses");
            }
        }
        if node.replication.is_replica_set() {
            stored_defaults::refresh_quietly(&node);
            node.write_periodic_noop().await;
        }
    }
}

/// Writes what the profiler has kept where it waits for the disk beside everything else.
async fn write_profiles(node: &Arc<Node>) {
    let node = node.clone();
    // The process ends, or nothing was written: what is missing comes with the next round.
    let _ = tokio::task::spawn_blocking(move || node.profiler.write_files()).await;
}

impl Node {
    /// A primary that nobody writes to still lets time go on: how far a secondary is behind, and
    /// from where a change stream resumes, are told by what is in the log.
    async fn write_periodic_noop(&self) {
        let seconds = self.parameters.value("periodicNoopIntervalSecs");
        if !self.replica.is_primary() || !self.parameters.flag("writePeriodicNoops") {
            return;
        }
        let idle_ms =
            clock::wall_ms().saturating_sub(self.replica.machine.last_wall().timestamp_millis());
        if idle_ms < seconds.saturating_mul(1000) {
            return;
        }
        let message = rawdoc! { "msg": "periodic noop" };
        if let Err(error) = self.replica.write_noop(&message).await {
            tracing::debug!(%error, "no periodic no-op entry");
        }
    }

    /// Lets the log go past a time that nobody wrote at: the primary writes a no-op entry, a
    /// secondary asks it to. Returns at once; the entry comes by the log like any other.
    pub fn ask_for_noop(self: &Arc<Self>, time: Timestamp) {
        if self.asking_for_noop.swap(true, Ordering::AcqRel) {
            return;
        }
        let node = self.clone();
        tokio::spawn(async move {
            if let Err(error) = node.bring_noop(time).await {
                tracing::debug!(%error, "no no-op entry for a read that waits");
            }
            node.asking_for_noop.store(false, Ordering::Release);
        });
    }

    async fn bring_noop(&self, time: Timestamp) -> Result<(), CommandError> {
        if self.replica.is_primary() {
            if clock::to_bits(self.replica.machine.operation_time()) >= clock::to_bits(time) {
                return Ok(());
            }
            let message = rawdoc! { "msg": "noop write for afterClusterTime read concern" };
            return self.replica.write_noop(&message).await.map(drop);
        }
        let request: RawDocumentBuf = rawdoc! {
            "appendOplogNote": 1,
            "maxClusterTime": time,
            "data": { "append noop write": 1_i64 },
            "$clusterTime": read_concern::gossip(self.replica.clock.now()),
        };
        self.replication
            .ask_primary(&request, NOOP_TIMEOUT)
            .await
            .map(drop)
    }
}
