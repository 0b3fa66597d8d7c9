//! Witnesses: voters that keep the log and no data.
//!
//! A witness may be the only one left that has the newest committed entries: with two members of
//! data and a witness, an entry counts once one of the two and the witness have it, and then the one
//! may fail. The other cannot be elected, as its log is shorter than the witness's. So the witness
//! takes the lead for as long as it takes to hand its log over: as a caretaker it serves nobody,
//! brings the others up to its log, and gives the lead to the first of them that has all of it.

use raft::eraftpb::{Message, MessageType};

use super::Core;
use super::mix::mix;
use crate::log::Disk;
use crate::machine::PeerId;

/// So many election timeouts without a leader pass before a witness campaigns: those with data go
/// first.
const CAMPAIGN_AFTER: u64 = 3;
/// It leads for so many election timeouts at most; whoever could not be brought up by then needs
/// more than its log.
const OFFICE: u64 = 10;

impl<D: Disk> Core<D> {
    pub fn set_witness(&mut self, witness: bool) {
        if self.witness_state.witness == witness {
            return;
        }
        self.witness_state.witness = witness;
        self.log_mut().set_offers_snapshots(!witness);
        if witness {
            self.step_down();
        } else {
            self.campaign_if_sole();
        }
    }

    /// Those are never given the lead.
    pub fn set_witnesses(&mut self, witnesses: Vec<PeerId>) {
        self.witness_state.witnesses = witnesses;
    }

    /// Somebody with data cannot be elected because of what only this witness has.
    pub(super) fn witness_heard(&mut self, message: &Message) {
        let asks = matches!(
            message.msg_type,
            MessageType::MsgRequestVote | MessageType::MsgRequestPreVote
        );
        if !asks || !self.witness_state.witness || self.witness_state.is_without_data(message.from)
        {
            return;
        }
        let lacks = !self
            .node
            .raft
            .raft_log
            .is_up_to_date(message.index, message.log_term);
        self.witness_state.needed |= lacks;
    }

    pub(super) fn tend_witness(&mut self) {
        if !self.witness_state.witness {
            return;
        }
        let timeout = self.settings.election_ticks as u64;
        if self.is_leader() {
            self.witness_state.leaderless = 0;
            self.witness_state.leading += 1;
            if self.witness_state.leading > OFFICE * timeout {
                self.step_down();
            } else {
                self.hand_on();
            }
            return;
        }
        self.witness_state.leading = 0;
        if self.leader().is_some() {
            self.witness_state.leaderless = 0;
            self.witness_state.needed = false;
            return;
        }
        self.witness_state.leaderless += 1;
        // Two witnesses should not disturb each other.
        let spread = mix(self.settings.seed ^ self.term()) % timeout;
        if self.witness_state.needed
            && self.witness_state.leaderless >= CAMPAIGN_AFTER * timeout + spread
            && self.is_whole()
        {
            self.witness_state.leaderless -= timeout;
            // Refused only while a change of members waits to be handed over.
            let _ = self.node.campaign();
        }
    }

    /// Gives the lead to somebody who has data and the whole log. Who does not take it (it may not
    /// want to lead) is passed over after an election timeout.
    fn hand_on(&mut self) {
        if self.node.raft.lead_transferee.is_some() {
            return;
        }
        let last = self.last_index();
        let heirs: Vec<PeerId> = self
            .progress()
            .into_iter()
            .filter(|peer| peer.voter && peer.recent_active && peer.matched == last)
            .map(|peer| peer.id)
            .filter(|&id| id != self.settings.id && !self.witness_state.is_without_data(id))
            .collect();
        let turn = self.witness_state.leading / self.settings.election_ticks as u64;
        if !heirs.is_empty() {
            self.node
                .transfer_leader(heirs[turn as usize % heirs.len()]);
        }
    }
}
