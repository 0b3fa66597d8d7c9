//! What a simulation asks of a state machine, whichever it is.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use banyan_consensus::{PeerId, Position, StateMachine};
use parking_lot::Mutex;

use crate::life::Life;
use crate::network::Network;
use crate::random::Random;
use crate::truth::Truth;

/// The `number`th write of a client. It is retried until it is acknowledged, and must have its
/// effect once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Op {
    pub client: u64,
    pub number: u64,
}

/// What a leader makes of a write.
pub enum Attempt<P> {
    Propose(Vec<u8>, P),
    /// Something else has to be written before.
    First(Vec<u8>, P),
    /// It has had its effect: this is a retry.
    Done,
    /// Another write is in the way.
    Busy,
}

/// What the members of one run share.
pub struct Surroundings<M> {
    pub truth: Mutex<Truth>,
    pub network: Arc<Network>,
    /// The machines of those who live, by member.
    pub machines: Mutex<BTreeMap<PeerId, Arc<M>>>,
    /// Bytes that a write carries along, at most.
    pub padding: u64,
    /// Whether the documents lie in a clustered collection.
    pub clustered: bool,
}

impl<M> Surroundings<M> {
    /// The machine of another member, if it is alive and can be reached both ways.
    pub fn reach(&self, from: PeerId, to: PeerId) -> Option<Arc<M>> {
        if self.network.is_cut(from, to) || self.network.is_cut(to, from) {
            return None;
        }
        self.machines.lock().get(&to).cloned()
    }
}

/// The state of one member: what lies on its disk, over all its lives.
pub trait State: Sized {
    type Machine: StateMachine;

    fn blank(id: PeerId, home: &Path, around: &Arc<Surroundings<Self::Machine>>) -> Self;

    fn start(&mut self, life: &Arc<Life>) -> Result<Arc<Self::Machine>, String>;

    /// The member is dead; what is on its disk becomes what a crash leaves of it.
    fn crash(&mut self, machine: Arc<Self::Machine>, random: &mut Random) -> Result<(), String>;

    fn write(
        machine: &Arc<Self::Machine>,
        op: Op,
    ) -> Attempt<<Self::Machine as StateMachine>::Prepared>;

    /// The position of the state, and what it comes to; perhaps only when it is looked at
    /// `thoroughly`.
    fn digest(machine: &Self::Machine, thoroughly: bool)
    -> Result<(Position, Option<u64>), String>;

    /// How often each write has had its effect.
    fn counts(machine: &Self::Machine) -> Result<BTreeMap<Op, u64>, String>;
}
