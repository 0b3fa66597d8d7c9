//! Clients: each has one write under way, and tries it again, wherever it thinks the leader is,
//! until it is acknowledged. Readers ask for an index that shows everything acknowledged before.

use banyan_consensus::{PeerId, Position, ProposeError};
use futures::future::BoxFuture;

use crate::state::Op;

pub type Outcome = Result<Position, ProposeError>;

pub struct Client {
    pub id: u64,
    pub number: u64,
    /// Where it goes next.
    pub target: PeerId,
    pub under_way: Option<UnderWay>,
}

pub struct UnderWay {
    pub member: PeerId,
    pub lives: u64,
    pub since: u64,
    pub outcome: BoxFuture<'static, Outcome>,
}

impl Client {
    pub fn new(id: u64) -> Client {
        Client {
            id,
            number: 1,
            target: 1,
            under_way: None,
        }
    }

    pub fn op(&self) -> Op {
        Op {
            client: self.id,
            number: self.number,
        }
    }
}

pub struct Read {
    pub member: PeerId,
    pub lives: u64,
    /// What it must show.
    pub floor: u64,
    pub outcome: BoxFuture<'static, Result<u64, String>>,
}
