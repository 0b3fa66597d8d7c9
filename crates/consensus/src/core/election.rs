//! An election before its time, and what is remembered of one.

use raft::eraftpb::{Message, MessageType};

use super::Core;
use crate::log::Disk;
use crate::machine::PeerId;

/// What is said of the election of a term.
#[derive(Default)]
pub(super) struct Election {
    term: u64,
    /// Those who gave their vote to this member.
    voted: Vec<PeerId>,
    /// The leader that asked this member to campaign.
    asked_by: Option<PeerId>,
}

impl<D: Disk> Core<D> {
    pub(super) fn note_election(&mut self, message: &Message) {
        match message.msg_type {
            MessageType::MsgTimeoutNow => {
                // Its term is the one before the election.
                self.election = Election {
                    term: self.term() + 1,
                    voted: Vec::new(),
                    asked_by: Some(message.from),
                };
            }
            MessageType::MsgRequestVoteResponse if !message.reject => {
                let term = message.term;
                if self.election.term != term {
                    self.election = Election {
                        term,
                        ..Election::default()
                    };
                }
                if !self.election.voted.contains(&message.from) {
                    self.election.voted.push(message.from);
                }
            }
            _ => {}
        }
    }

    /// How many members have voted for this one in this term, itself included.
    pub fn votes(&self) -> usize {
        let others = match self.election.term == self.term() {
            true => self.election.voted.len(),
            false => 0,
        };
        1 + others
    }

    /// The leader that has asked this member to take the lead in this term.
    pub fn asked_to_lead_by(&self) -> Option<PeerId> {
        let asked = self.election.asked_by;
        asked.filter(|_| self.election.term == self.term())
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
