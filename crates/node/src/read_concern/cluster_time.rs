//! The cluster time that members and clients tell each other.

use banyan_replication::clock::{self, Clock};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocumentBuf, Timestamp, cstr, rawdoc};

use super::concern::wrong_type;
use crate::node::Node;

/// Refuses a `$clusterTime` that cannot be one, and takes note of what it says.
pub fn observe(node: &Node, gossip: RawBsonRef<'_>) -> Result<(), CommandError> {
    let RawBsonRef::Document(gossip) = gossip else {
        return Err(CommandError::new(
            ErrorCode::Location(10065),
            "invalid parameter: expected an object ($clusterTime)",
        ));
    };
    let missing = |name: &str| {
        CommandError::new(
            ErrorCode::NoSuchKey,
            format!("Missing expected field \"{name}\""),
        )
    };
    let field = |name: &str| gossip.get(name).ok().flatten();
    let time = match field("clusterTime") {
        Some(RawBsonRef::Timestamp(time)) => time,
        Some(value) => return Err(wrong_type("clusterTime", "timestamp", value)),
        None => return Err(missing("clusterTime")),
    };
    match field("signature") {
        Some(RawBsonRef::Document(_)) => {}
        Some(value) => return Err(wrong_type("signature", "object", value)),
        None => return Err(missing("signature")),
    }
    let drift = node.parameters.value("maxAcceptableLogicalClockDriftSecs");
    let wall = Clock::wall_seconds();
    if u64::from(time.time) > wall.saturating_add(drift.max(0).unsigned_abs()) {
        return Err(CommandError::new(
            ErrorCode::ClusterTimeFailsRateLimiter,
            format!(
                "New $clusterTime, {}, is too far from this node's wall clock time, {wall}.",
                time.time
            ),
        ));
    }
    node.replica.clock.observe(time);
    Ok(())
}

/// What members of a set append to every reply: how far time has come.
pub fn attach_time(node: &Node, reply: &mut RawDocumentBuf) {
    if !node.replication.is_replica_set() {
        return;
    }
    let applied = node.replica.machine.operation_time();
    let now = node.replica.clock.now();
    if clock::to_bits(now) == 0 {
        return;
    }
    reply.append(cstr!("$clusterTime"), gossip(now));
    reply.append(cstr!("operationTime"), applied);
}

/// A `$clusterTime`. The signature is the one of a deployment without keys.
pub fn gossip(time: Timestamp) -> RawDocumentBuf {
    let hash = bson::Binary {
        subtype: bson::spec::BinarySubtype::Generic,
        bytes: vec![0; 20],
    };
    let signature = rawdoc! { "hash": hash, "keyId": 0_i64 };
    rawdoc! { "clusterTime": time, "signature": signature }
}
