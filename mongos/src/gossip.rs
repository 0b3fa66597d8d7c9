//! How far time has come in the cluster, as replies and clients tell it.
//!
//! A client hears from a router what the router has heard from anybody, so that its next request,
//! wherever it goes, is behind nothing that this client may know of. What shards tell a router is not
//! signed, as a member needs no proof: the router signs for its own clients, with the keys of the
//! config servers.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use banyan_access::cluster_time::{DRIFT_SECONDS_DEFAULT, FIELD, SignedTime, bits};
use banyan_access::{gossip, identity};
use banyan_wire::{CommandError, Connection};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, Timestamp, cstr};

use crate::fields;
use crate::users::ClusterUsers;

/// How long a request waits for the config servers to tell their keys.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct Gossip {
    cluster: AtomicU64,
    /// The latest time at which some shard has written.
    operation: AtomicU64,
    /// `maxAcceptableLogicalClockDriftSecs`.
    pub drift_seconds_max: AtomicI64,
}

impl Default for Gossip {
    fn default() -> Gossip {
        Gossip {
            cluster: AtomicU64::new(0),
            operation: AtomicU64::new(0),
            drift_seconds_max: AtomicI64::new(DRIFT_SECONDS_DEFAULT),
        }
    }
}

impl Gossip {
    /// The latest time that anybody was heard of.
    pub fn latest(&self) -> Timestamp {
        time(self.cluster.load(Ordering::Relaxed))
    }

    /// Takes note of what a shard's reply tells.
    pub fn observe(&self, reply: &RawDocument) {
        if let Some(RawBsonRef::Timestamp(time)) = fields::get(reply, "operationTime") {
            self.operation.fetch_max(bits(time), Ordering::Relaxed);
            self.cluster.fetch_max(bits(time), Ordering::Relaxed);
        }
        if let Some(RawBsonRef::Document(gossip)) = fields::get(reply, FIELD)
            && let Some(RawBsonRef::Timestamp(time)) = fields::get(gossip, "clusterTime")
        {
            self.cluster.fetch_max(bits(time), Ordering::Relaxed);
        }
    }

    /// Takes note of what a client tells, unless it cannot be, or the client cannot have heard it.
    pub async fn hear(
        &self,
        users: &ClusterUsers,
        connection: &Connection,
        request: &RawDocument,
    ) -> Result<(), CommandError> {
        let Some(told) = fields::get(request, FIELD) else {
            return Ok(());
        };
        let told = SignedTime::parse(told)?;
        let identity = identity::known(connection);
        let refresh = users.access.times.ask_again(FETCH_TIMEOUT);
        let latest = self.latest();
        if !gossip::judge(&users.access, &identity, &told, latest, refresh).await? {
            return Ok(());
        }
        let wall = SystemTime::now().duration_since(UNIX_EPOCH);
        let wall = wall.map_or(0, |since| since.as_secs());
        told.check_drift(wall, self.drift_seconds_max.load(Ordering::Relaxed))?;
        self.cluster.fetch_max(bits(told.time), Ordering::Relaxed);
        Ok(())
    }

    /// Completes a reply that a shard has not completed, and signs it for this client.
    pub fn attach(
        &self,
        users: &ClusterUsers,
        connection: &Connection,
        reply: &mut RawDocumentBuf,
    ) {
        let cluster = self.latest();
        if bits(cluster) == 0 {
            return;
        }
        let has_time = fields::get(reply, FIELD).is_some();
        // Without access control a shard's word is as good as this router's.
        if users.access.is_enforced() || !has_time {
            let identity = identity::known(connection);
            let told = gossip::for_client(&users.access, &identity, cluster);
            gossip::replace(reply, told.as_ref());
        }
        let operation = self.operation.load(Ordering::Relaxed);
        if operation != 0 && !has_time && fields::get(reply, "operationTime").is_none() {
            reply.append(cstr!("operationTime"), time(operation));
        }
    }
}

fn time(bits: u64) -> Timestamp {
    Timestamp {
        time: (bits >> 32) as u32,
        increment: bits as u32,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use banyan_access::control::AccessOptions;
    use banyan_security::cluster_time::{Signature, SigningKey, SigningKeys};
    use banyan_wire::{ErrorCode, PoolOptions, ReplicaSet};
    use bson::rawdoc;
    use tokio_util::sync::CancellationToken;

    use super::*;

    fn users(authorization: bool) -> ClusterUsers {
        let options = AccessOptions {
            authorization,
            ..AccessOptions::default()
        };
        let config = ReplicaSet::parse("config/localhost:1", PoolOptions::default()).unwrap();
        ClusterUsers::new(options, config)
    }

    fn stranger() -> Connection {
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Connection::new(1, nowhere, nowhere, CancellationToken::new())
    }

    fn claim(at: u64, signature: Signature) -> RawDocumentBuf {
        let told = SignedTime {
            time: time(at),
            signature,
        };
        rawdoc! { "$clusterTime": told.document() }
    }

    fn told(reply: &RawDocument) -> SignedTime {
        SignedTime::parse(fields::get(reply, FIELD).expect("a time")).unwrap()
    }

    #[tokio::test]
    async fn the_latest_time_is_passed_on() {
        let (gossip, users, connection) = (Gossip::default(), users(false), stranger());
        let mut reply = rawdoc! { "ok": 1.0 };
        gossip.attach(&users, &connection, &mut reply);
        assert_eq!(reply, rawdoc! { "ok": 1.0 }, "nothing is known yet");
        gossip.observe(&rawdoc! { "operationTime": time(5 << 32 | 2) });
        gossip.observe(&rawdoc! { "operationTime": time(4 << 32 | 9) });
        let unsigned = claim(6 << 32, Signature::default());
        gossip.hear(&users, &connection, &unsigned).await.unwrap();
        gossip.attach(&users, &connection, &mut reply);
        assert_eq!(told(&reply).time, time(6 << 32));
        assert_eq!(told(&reply).signature, Signature::default());
        assert_eq!(
            reply.get_timestamp("operationTime").unwrap(),
            time(5 << 32 | 2)
        );
        let far = claim(u64::MAX, Signature::default());
        let error = gossip.hear(&users, &connection, &far).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::ClusterTimeFailsRateLimiter);
    }

    #[tokio::test]
    async fn a_router_signs_for_its_own_clients() {
        let (gossip, users, connection) = (Gossip::default(), users(true), stranger());
        let dummy = rawdoc! { "ok": 1.0, "$clusterTime": claim(5 << 32, Signature::default())
        .get_document("$clusterTime").unwrap().to_owned(), "operationTime": time(5 << 32) };
        gossip.observe(&dummy);
        let mut reply = dummy.clone();
        gossip.attach(&users, &connection, &mut reply);
        assert!(fields::get(&reply, FIELD).is_none(), "there is no key yet");

        let key = SigningKey {
            id: 3,
            secret: [7; 20],
            expires_at: 100 << 32,
        };
        let keys = SigningKeys::new(vec![key.clone()]);
        users.access.times.install(keys);
        let mut reply = dummy.clone();
        gossip.attach(&users, &connection, &mut reply);
        let signature = |at: u64| Signature {
            hash: key.sign(at),
            key_id: 3,
        };
        assert_eq!(told(&reply).signature, signature(5 << 32));
        assert_eq!(reply.get_timestamp("operationTime").unwrap(), time(5 << 32));

        let forged = claim(9 << 32, signature(8 << 32));
        let error = gossip.hear(&users, &connection, &forged).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::TimeProofMismatch);
        let unsigned = claim(9 << 32, Signature::default());
        gossip.hear(&users, &connection, &unsigned).await.unwrap();
        assert_eq!(gossip.latest(), time(5 << 32), "a stranger's word");
        let honest = claim(9 << 32, signature(9 << 32));
        gossip.hear(&users, &connection, &honest).await.unwrap();
        assert_eq!(gossip.latest(), time(9 << 32));
    }
}
