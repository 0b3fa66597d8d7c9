//! The members: how a requested change becomes an entry, and a committed entry a membership.

use bytes::Bytes;
use protobuf::Message as _;
use raft::eraftpb::{ConfChange, ConfChangeType, Entry, EntryType, Message, MessageType};

use super::Core;
use crate::log::{Disk, LogError};
use crate::machine::{Change, Member, Membership, PeerId, Position};
use crate::status::PeerProgress;

/// The outcome of a request to change the membership.
pub(crate) enum ChangeOutcome {
    Proposed(Position),
    /// There is nothing to change.
    Unchanged,
    /// Another change is under way.
    Later,
    NotLeader,
    Refused(String),
}

impl<D: Disk> Core<D> {
    /// Begins a group of one. The first entry names its first member, so that whoever follows the
    /// log from its beginning learns of it. False if the log is not empty.
    pub fn bootstrap(&mut self, address: &str) -> bool {
        let blank = self.last_index() == 0
            && self.term() == 0
            && self.membership().members.is_empty()
            && !self.installing();
        if !blank {
            return false;
        }
        let id = self.settings.id;
        let mut entry = Entry::default();
        entry.set_entry_type(EntryType::EntryConfChange);
        entry.term = 1;
        entry.index = 1;
        entry.data = conf_change(ConfChangeType::AddNode, id, address);
        let mut append = Message::default();
        append.set_msg_type(MessageType::MsgAppend);
        append.from = id;
        append.to = id;
        append.term = 1;
        append.commit = 1;
        append.set_entries(vec![entry].into());
        // As if a leader before it had committed the entry.
        self.node.step(append).is_ok()
    }

    pub fn propose_change(&mut self, change: &Change) -> ChangeOutcome {
        if !self.serves() {
            return ChangeOutcome::NotLeader;
        }
        // Until an entry of this term is committed an older change may still be in the log.
        if self.node.raft.has_pending_conf() || !self.node.raft.commit_to_current_term() {
            return ChangeOutcome::Later;
        }
        let (kind, id, address) = match self.plan(change) {
            Ok(Some(plan)) => plan,
            Ok(None) => return ChangeOutcome::Unchanged,
            Err(reason) => return ChangeOutcome::Refused(reason),
        };
        let mut entry = Entry::default();
        entry.set_entry_type(EntryType::EntryConfChange);
        entry.data = conf_change(kind, id, &address);
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgPropose);
        message.from = self.settings.id;
        message.set_entries(vec![entry].into());
        match self.node.step(message) {
            Ok(()) => ChangeOutcome::Proposed(Position {
                term: self.term(),
                index: self.last_index(),
            }),
            Err(_) => ChangeOutcome::Later,
        }
    }

    /// The Raft change for a requested one; none if there is nothing to change.
    fn plan(&self, change: &Change) -> Result<Option<(ConfChangeType, PeerId, String)>, String> {
        let membership = self.membership();
        let known = |id: PeerId| {
            membership
                .get(id)
                .ok_or_else(|| format!("no member has the id {id}"))
        };
        let own = self.settings.id;
        match change {
            Change::AddLearner { id: 0, .. } => Err("zero is not an id".into()),
            Change::AddLearner { id, address } => match membership.get(*id) {
                Some(member) if member.address == *address => Ok(None),
                Some(_) => Err(format!("the member {id} has another address")),
                None => Ok(Some((ConfChangeType::AddLearnerNode, *id, address.clone()))),
            },
            Change::Promote(id) => match known(*id)? {
                member if member.voter => Ok(None),
                member => Ok(Some((ConfChangeType::AddNode, *id, member.address.clone()))),
            },
            Change::Demote(id) => match known(*id)? {
                member if !member.voter => Ok(None),
                _ if *id == own => Err("the leader cannot give up its own vote".into()),
                member => Ok(Some((
                    ConfChangeType::AddLearnerNode,
                    *id,
                    member.address.clone(),
                ))),
            },
            Change::Remove(id) if *id == own => Err("the leader cannot remove itself".into()),
            Change::Remove(id) => Ok(membership
                .get(*id)
                .map(|_| (ConfChangeType::RemoveNode, *id, String::new()))),
            Change::UpdateAddress { id, address } => match known(*id)? {
                member if member.address == *address => Ok(None),
                member if member.voter => Ok(Some((ConfChangeType::AddNode, *id, address.clone()))),
                _ => Ok(Some((ConfChangeType::AddLearnerNode, *id, address.clone()))),
            },
        }
    }

    pub(super) fn change_members(&mut self, entry: &Entry) -> Result<Option<Membership>, LogError> {
        // Seen before a restart: the membership is written before its entry is applied.
        if entry.index <= self.membership().index {
            let latest = entry.index == self.membership().index;
            return Ok(latest.then(|| self.membership().clone()));
        }
        if entry.get_entry_type() == EntryType::EntryConfChangeV2 {
            return self.replace_members(entry);
        }
        let mut change = ConfChange::default();
        let readable = entry.get_entry_type() == EntryType::EntryConfChange
            && change.merge_from_bytes(&entry.data).is_ok();
        if !readable {
            return Ok(None);
        }
        // Refused by every member alike, for instance when it would leave no voter.
        if self.node.apply_conf_change(&change).is_err() {
            return Ok(None);
        }
        let position = Position {
            term: entry.term,
            index: entry.index,
        };
        let membership = next_membership(self.membership(), position, &change);
        self.adopt(membership).map(Some)
    }

    pub(super) fn adopt(&mut self, membership: Membership) -> Result<Membership, LogError> {
        self.log_mut().set_membership(membership.clone())?;
        let voter = membership
            .get(self.settings.id)
            .is_some_and(|member| member.voter);
        if self.is_leader() && !voter {
            let term = self.term();
            self.node.raft.become_follower(term, 0);
        }
        self.strangers.retain(|&id, _| membership.get(id).is_none());
        Ok(membership)
    }

    /// How far each member is, as far as this one knows.
    pub fn progress(&self) -> Vec<PeerProgress> {
        let leader = self.is_leader();
        let progress_of = |member: &Member| {
            let progress = self.node.raft.prs().get(member.id).filter(|_| leader);
            PeerProgress {
                id: member.id,
                address: member.address.clone(),
                voter: member.voter,
                matched: progress.map_or(0, |progress| progress.matched),
                recent_active: progress.is_some_and(|progress| progress.recent_active),
                in_snapshot: progress
                    .is_some_and(|progress| progress.state == raft::ProgressState::Snapshot),
                last_contact: None,
            }
        };
        self.membership().members.iter().map(progress_of).collect()
    }
}

pub(super) fn conf_change(kind: ConfChangeType, id: PeerId, address: &str) -> Bytes {
    let mut change = ConfChange::default();
    change.set_change_type(kind);
    change.node_id = id;
    change.context = Bytes::copy_from_slice(address.as_bytes());
    // Writing to memory fails only for a message that lacks a required field; it has none.
    change.write_to_bytes().unwrap_or_default().into()
}

fn next_membership(membership: &Membership, at: Position, change: &ConfChange) -> Membership {
    let id = change.node_id;
    let mut members: Vec<Member> = membership
        .members
        .iter()
        .filter(|member| member.id != id)
        .cloned()
        .collect();
    if change.get_change_type() != ConfChangeType::RemoveNode && id != 0 {
        members.push(Member {
            id,
            address: String::from_utf8_lossy(&change.context).into_owned(),
            voter: change.get_change_type() == ConfChangeType::AddNode,
        });
        members.sort_by_key(|member| member.id);
    }
    Membership {
        index: at.index,
        term: at.term,
        members,
    }
}
