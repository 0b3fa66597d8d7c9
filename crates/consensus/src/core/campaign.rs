//! Asking for the lead, and giving up a leader that says nothing.

use raft::eraftpb::{Message, MessageType};

use super::Core;
use crate::log::Disk;
use crate::machine::PeerId;

impl<D: Disk> Core<D> {
    pub(super) fn note_election(&mut self, message: &Message) {
        match message.msg_type {
            // Its term is the one before the election.
            MessageType::MsgTimeoutNow => self.election.asked(self.term() + 1, message.from),
            MessageType::MsgRequestVoteResponse if !message.reject => {
                self.election.voted(message.term, message.from);
            }
            _ => {}
        }
    }

    /// How many members have voted for this one in this term, itself included.
    pub fn votes(&self) -> usize {
        1 + self.election.votes(self.term())
    }

    /// The leader that has asked this member to take the lead in this term.
    pub fn asked_to_lead_by(&self) -> Option<PeerId> {
        self.election.asked_by(self.term())
    }

    /// Asks for the lead now, unless somebody has it.
    pub fn campaign(&mut self) {
        if self.leader().is_none() && self.may_campaign() {
            // Refused only while a change of members waits to be handed over.
            let _ = self.node.campaign();
            self.settle();
        }
    }

    /// There is reason to think that the leader is gone: what is left of the time until this
    /// member asks for the lead is the random part. Any word of the leader undoes it.
    pub fn suspect(&mut self, leader: PeerId) {
        if self.leader() == Some(leader) && !self.is_leader() {
            let raft = &mut self.node.raft;
            raft.election_elapsed = raft.election_elapsed.max(raft.election_timeout());
        }
    }

    /// Who never campaigns would otherwise take its last leader for one forever.
    pub(super) fn forget_a_silent_leader(&mut self) {
        let silent = self.node.raft.election_elapsed >= 2 * self.settings.election_ticks;
        if silent && !self.is_leader() && self.leader().is_some() {
            let term = self.term();
            self.node.raft.become_follower(term, 0);
        }
    }
}
