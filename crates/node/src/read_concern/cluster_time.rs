//! The cluster time that members and clients tell each other.

use banyan_access::cluster_time::{DRIFT_PARAMETER, SignedTime};
use banyan_access::{gossip as judging, identity};
use banyan_replication::clock::{self, Clock};
use banyan_wire::{CommandError, Connection, OWN_CONNECTION_ID};
use bson::{RawBsonRef, RawDocumentBuf, Timestamp, cstr};

use crate::access::signing_keys;
use crate::node::Node;

/// Refuses a `$clusterTime` that cannot be one or that the client cannot have heard, and takes note
/// of what it says.
pub async fn observe(
    node: &Node,
    conn: &Connection,
    gossip: RawBsonRef<'_>,
) -> Result<(), CommandError> {
    let told = SignedTime::parse(gossip)?;
    if node.access.is_enforced() && conn.id != OWN_CONNECTION_ID {
        signing_keys::refresh(&node.access, &node.replica);
        let identity = identity::known(conn);
        let (access, latest) = (&node.access, node.replica.clock.now());
        let refresh = signing_keys::bring(access, &node.replica);
        if !judging::judge(access, &identity, &told, latest, refresh).await? {
            return Ok(());
        }
    }
    told.check_drift(
        Clock::wall_seconds(),
        node.parameters.value(DRIFT_PARAMETER),
    )?;
    node.replica.clock.observe(told.time);
    Ok(())
}

/// What members of a set append to every reply: how far time has come.
pub fn attach_time(node: &Node, conn: &Connection, reply: &mut RawDocumentBuf) {
    if !node.replication.is_replica_set() {
        return;
    }
    let applied = node.replica.machine.operation_time();
    let now = node.replica.clock.now();
    if clock::to_bits(now) == 0 {
        return;
    }
    if !node.access.is_enforced() || conn.id == OWN_CONNECTION_ID {
        reply.append(cstr!("$clusterTime"), gossip(now));
    } else {
        signing_keys::refresh(&node.access, &node.replica);
        let identity = identity::known(conn);
        if let Some(told) = judging::for_client(&node.access, &identity, now) {
            reply.append(cstr!("$clusterTime"), told.document());
        }
    }
    reply.append(cstr!("operationTime"), applied);
}

/// A `$clusterTime` for those who ask for no proof: members.
pub fn gossip(time: Timestamp) -> RawDocumentBuf {
    let signature = Default::default();
    SignedTime { time, signature }.document()
}
