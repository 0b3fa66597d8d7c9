//! One round: what the core has come to is written, sent, and handed over.

use bytes::Bytes;
use raft::eraftpb::{Entry, EntryType, Message, MessageType};

use super::{Core, Decided, Outlet};
use crate::log::{Disk, LogError, decode_membership};
use crate::machine::Position;
use crate::message;
#[cfg(feature = "simulation")]
use crate::simulated::world::{Bug, planted};

impl<D: Disk> Core<D> {
    /// Writes, sends and hands over until nothing is left to do. `sync`: entries count only once
    /// they are on disk.
    pub fn pump(&mut self, sync: bool, outlet: &mut impl Outlet) -> Result<(), LogError> {
        if let Some(error) = self.broken.take() {
            return Err(error);
        }
        while self.node.has_ready() {
            let mut ready = self.node.ready();
            self.send(ready.take_messages(), outlet);
            for state in ready.take_read_states() {
                // Whoever's own history was not yet compared with the leader's asks again.
                if self.is_of_one_history() {
                    outlet.read_state(state);
                }
            }
            let mut committed = ready.take_committed_entries();
            self.persist(&ready, sync)?;
            let messages = ready.take_persisted_messages();
            self.send(messages, outlet);
            let snapshot_index = ready.snapshot().get_metadata().index;
            let mut light = self.node.advance_append(ready);
            if snapshot_index > self.handed_over() {
                self.node.advance_apply_to(snapshot_index);
            }
            self.released = self.released.max(snapshot_index);
            let messages = light.take_messages();
            self.send(messages, outlet);
            committed.append(&mut light.take_committed_entries());
            let commit = self.commit();
            self.log_mut().note_commit(commit);
            self.hand_over(committed, outlet)?;
            self.settle();
        }
        Ok(())
    }

    fn persist(&mut self, ready: &raft::Ready, sync: bool) -> Result<(), LogError> {
        let snapshot = ready.snapshot();
        if !snapshot.is_empty() {
            let metadata = snapshot.get_metadata();
            let base = Position {
                term: metadata.term,
                index: metadata.index,
            };
            let hard = ready
                .hs()
                .cloned()
                .unwrap_or_else(|| self.node.raft.hard_state());
            let membership = decode_membership(&snapshot.data)
                .ok_or_else(|| LogError::Damaged("a snapshot lists no members".into()))?;
            self.log_mut().reset(base, &hard, membership)?;
            self.needs_snapshot = self.state_is_behind();
        }
        // A commit index alone is not worth a write: it rides along with the next entries.
        #[cfg(feature = "simulation")]
        if planted(Bug::ForgetVote) && ready.entries().is_empty() {
            return Ok(());
        }
        if ready.must_sync() {
            let log = self.node.mut_store();
            log.append(ready.entries(), ready.hs(), sync)?;
        }
        Ok(())
    }

    fn send(&mut self, messages: Vec<Message>, outlet: &mut impl Outlet) {
        if messages.is_empty() {
            return;
        }
        let membership = self.node.store().membership();
        let own = membership
            .get(self.settings.id)
            .map_or("", |member| member.address.as_str());
        for message in messages {
            if message.to == self.settings.id || message.to == 0 {
                continue;
            }
            if message.msg_type == MessageType::MsgRequestPreVote {
                self.campaigns += 1;
            }
            let to = message.to;
            let known = membership.get(to).map(|member| &member.address);
            let Some(address) = self.strangers.get(&to).or(known) else {
                continue;
            };
            message::in_pieces(message, |piece| {
                outlet.send(to, address, message::encode(own, piece));
            });
        }
        outlet.flush();
    }

    fn hand_over(
        &mut self,
        committed: Vec<Entry>,
        outlet: &mut impl Outlet,
    ) -> Result<(), LogError> {
        let Some(last) = committed.last().map(|entry| entry.index) else {
            return Ok(());
        };
        for entry in committed {
            let position = Position {
                term: entry.term,
                index: entry.index,
            };
            let decided = match entry.get_entry_type() {
                EntryType::EntryNormal => Decided {
                    position,
                    data: entry.data,
                    membership: None,
                },
                EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => Decided {
                    position,
                    data: Bytes::new(),
                    membership: self.change_members(&entry)?,
                },
            };
            // What is decided while the state is being replaced comes with the next state.
            let replaced = self.needs_snapshot || self.installing;
            if self.holds_back(position.index) || !replaced && !outlet.has_room() {
                continue;
            }
            self.released = position.index;
            if replaced {
                self.missed = position.index;
            } else {
                outlet.decided(decided);
            }
        }
        self.node.advance_apply_to(last);
        let fetches = self.installing || self.needs_snapshot || self.installed.is_some();
        if !fetches && last >= self.log().applied().index {
            self.log_mut().set_ahead(false)?;
        }
        self.campaign_if_sole();
        Ok(())
    }
}
