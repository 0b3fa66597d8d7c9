//! Raft's messages over the ordinary port: one-way `_raftMessages` commands, in order, on one
//! connection for each member.

use std::collections::HashMap;
use std::sync::OnceLock;

use banyan_consensus::{PeerId, Transport};
use banyan_wire::{Pool, PoolOptions};
use bson::spec::BinarySubtype;
use bson::{RawArrayBuf, RawBinaryRef, rawdoc};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::runtime::Handle;

/// About how much travels in one command.
const COMMAND_BYTES_MAX: usize = 16 << 20;

/// Connections to the other members, by address; shared by all that talk to them.
#[derive(Default)]
pub struct Peers {
    /// They carry vital commands only: those that are served on threads of their own.
    vital: Mutex<HashMap<String, Pool>>,
    ordinary: Mutex<HashMap<String, Pool>>,
    runtime: OnceLock<Handle>,
}

impl Peers {
    /// The runtime that carries the messages; without one nothing is sent.
    pub fn use_runtime(&self, handle: Handle) {
        // The first one is as good as any other.
        let _ = self.runtime.set(handle);
    }

    pub fn runtime(&self) -> Option<&Handle> {
        self.runtime.get()
    }

    /// For consensus, heartbeats and acknowledgements: the other end serves these connections on
    /// threads that no query can occupy, for as long as they carry nothing else.
    pub fn vital_pool(&self, address: &str) -> Option<Pool> {
        self.pool_of(&self.vital, address)
    }

    /// For everything else.
    pub fn pool(&self, address: &str) -> Option<Pool> {
        self.pool_of(&self.ordinary, address)
    }

    fn pool_of(&self, pools: &Mutex<HashMap<String, Pool>>, address: &str) -> Option<Pool> {
        let _context = self.runtime.get()?.enter();
        let mut pools = pools.lock();
        if let Some(pool) = pools.get(address) {
            return Some(pool.clone());
        }
        let pool = Pool::new(address, PoolOptions::default());
        pools.insert(address.to_owned(), pool.clone());
        Some(pool)
    }

    /// Forgets those that are no longer members.
    pub fn keep_only(&self, keep: impl Fn(&str) -> bool) {
        for pools in [&self.vital, &self.ordinary] {
            pools.lock().retain(|address, _| keep(address));
        }
    }
}

impl Transport for Peers {
    fn send(&self, to: PeerId, address: &str, messages: Vec<Bytes>) {
        let Some(pool) = self.vital_pool(address) else {
            return;
        };
        let mut batch = RawArrayBuf::new();
        let mut bytes = 0;
        let leave = |batch: &mut RawArrayBuf| {
            let messages = std::mem::replace(batch, RawArrayBuf::new());
            let body = rawdoc! { "_raftMessages": 1, "to": to as i64, "messages": messages };
            // A full queue drops messages, and Raft repeats what was lost.
            let _ = pool.send_one_way("admin", &body, &[]);
        };
        for message in &messages {
            if bytes > 0 && bytes + message.len() > COMMAND_BYTES_MAX {
                leave(&mut batch);
                bytes = 0;
            }
            bytes += message.len();
            batch.push(RawBinaryRef {
                subtype: BinarySubtype::Generic,
                bytes: message,
            });
        }
        leave(&mut batch);
    }
}
