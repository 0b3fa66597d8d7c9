//! How far time has come in the cluster, as replies and clients tell it.
//!
//! A client hears from a router what the router has heard from anybody, so that its next request,
//! wherever it goes, is behind nothing that this client may know of.

use std::sync::atomic::{AtomicU64, Ordering};

use banyan_wire::{CommandError, ErrorCode};
use bson::spec::BinarySubtype;
use bson::{Binary, RawBsonRef, RawDocument, RawDocumentBuf, Timestamp, cstr, rawdoc};

use crate::fields;

#[derive(Debug, Default)]
pub struct Gossip {
    cluster: AtomicU64,
    /// The latest time at which some shard has written.
    operation: AtomicU64,
}

/// Nobody's clock is further ahead than this.
const DRIFT_SECONDS_MAX: u64 = 365 * 24 * 3600;

impl Gossip {
    /// Takes note of what a shard's reply tells.
    pub fn observe(&self, reply: &RawDocument) {
        if let Some(RawBsonRef::Timestamp(time)) = fields::get(reply, "operationTime") {
            self.operation.fetch_max(bits(time), Ordering::Relaxed);
            self.cluster.fetch_max(bits(time), Ordering::Relaxed);
        }
        if let Some(RawBsonRef::Document(gossip)) = fields::get(reply, "$clusterTime")
            && let Some(RawBsonRef::Timestamp(time)) = fields::get(gossip, "clusterTime")
        {
            self.cluster.fetch_max(bits(time), Ordering::Relaxed);
        }
    }

    /// Takes note of what a client tells, unless it cannot be.
    pub fn hear(&self, request: &RawDocument) -> Result<(), CommandError> {
        let Some(RawBsonRef::Document(gossip)) = fields::get(request, "$clusterTime") else {
            return Ok(());
        };
        let Some(RawBsonRef::Timestamp(time)) = fields::get(gossip, "clusterTime") else {
            return Ok(());
        };
        let wall = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        if u64::from(time.time) > wall + DRIFT_SECONDS_MAX {
            let text = format!(
                "New $clusterTime, {}, is too far from this node's wall clock time, {wall}.",
                time.time
            );
            return Err(CommandError::new(
                ErrorCode::ClusterTimeFailsRateLimiter,
                text,
            ));
        }
        self.cluster.fetch_max(bits(time), Ordering::Relaxed);
        Ok(())
    }

    /// Completes a reply that a shard has not completed.
    pub fn attach(&self, reply: &mut RawDocumentBuf) {
        let (cluster, operation) = (
            self.cluster.load(Ordering::Relaxed),
            self.operation.load(Ordering::Relaxed),
        );
        if cluster == 0 || fields::get(reply, "$clusterTime").is_some() {
            return;
        }
        let hash = Binary {
            subtype: BinarySubtype::Generic,
            bytes: vec![0; 20],
        };
        let signature = rawdoc! { "hash": hash, "keyId": 0_i64 };
        let gossip = rawdoc! { "clusterTime": time(cluster), "signature": signature };
        reply.append(cstr!("$clusterTime"), gossip);
        if operation != 0 && fields::get(reply, "operationTime").is_none() {
            reply.append(cstr!("operationTime"), time(operation));
        }
    }
}

fn bits(time: Timestamp) -> u64 {
    u64::from(time.time) << 32 | u64::from(time.increment)
}

fn time(bits: u64) -> Timestamp {
    Timestamp {
        time: (bits >> 32) as u32,
        increment: bits as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_time_is_passed_on() {
        let gossip = Gossip::default();
        let mut reply = rawdoc! { "ok": 1.0 };
        gossip.attach(&mut reply);
        assert_eq!(reply, rawdoc! { "ok": 1.0 }, "nothing is known yet");
        gossip.observe(&rawdoc! { "operationTime": time(5 << 32 | 2) });
        gossip.observe(&rawdoc! { "operationTime": time(4 << 32 | 9) });
        let claim = rawdoc! { "$clusterTime": { "clusterTime": time(6 << 32) } };
        gossip.hear(&claim).unwrap();
        gossip.attach(&mut reply);
        let told = reply.get_document("$clusterTime").unwrap();
        assert_eq!(told.get_timestamp("clusterTime").unwrap(), time(6 << 32));
        assert_eq!(
            reply.get_timestamp("operationTime").unwrap(),
            time(5 << 32 | 2)
        );
        let far = rawdoc! { "$clusterTime": { "clusterTime": time(u64::MAX) } };
        assert!(gossip.hear(&far).is_err());
    }
}
