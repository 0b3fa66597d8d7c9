//! The network between members: it drops, delays, doubles, reorders and cuts, also one way only.

use std::collections::BTreeSet;
use std::sync::Arc;

use banyan_consensus::{PeerId, Transport};
use bytes::Bytes;
use parking_lot::Mutex;

use crate::life::Life;

/// A message that a member has sent.
pub struct Sent {
    pub from: PeerId,
    pub to: PeerId,
    pub frame: Bytes,
    /// Of the round in which it was sent.
    pub after_micros: u64,
}

#[derive(Default)]
pub struct Network {
    pub outbox: Mutex<Vec<Sent>>,
    /// Ways that are cut, each from one member to another.
    cuts: Mutex<BTreeSet<(PeerId, PeerId)>>,
}

impl Network {
    pub fn is_cut(&self, from: PeerId, to: PeerId) -> bool {
        self.cuts.lock().contains(&(from, to))
    }

    pub fn heal(&self) {
        self.cuts.lock().clear();
    }

    /// Cuts every way from one side to the other; and back, unless it is `one_way`.
    pub fn part(&self, from: &[PeerId], to: &[PeerId], one_way: bool) {
        let mut cuts = self.cuts.lock();
        for &a in from {
            for &b in to {
                cuts.insert((a, b));
                if !one_way {
                    cuts.insert((b, a));
                }
            }
        }
    }
}

/// Where a member is reached. The number changes when its address does.
pub fn address(id: PeerId, number: u64) -> String {
    format!("m{id}:{number}")
}

/// The end of the network at one member, for one life.
pub struct Wire {
    pub own: PeerId,
    pub life: Arc<Life>,
    pub network: Arc<Network>,
}

impl Transport for Wire {
    fn send(&self, to: PeerId, _address: &str, messages: Vec<Bytes>) {
        for frame in messages {
            if !self.life.lives_on() {
                return;
            }
            self.network.outbox.lock().push(Sent {
                from: self.own,
                to,
                frame,
                after_micros: self.life.spent(),
            });
        }
    }
}
