//! Forced changes of the members: for a group that has lost its majority.
//!
//! One member makes itself the only voter, on its own word, and leads from there. That is no Raft:
//! the others may have decided something else since, or may do so yet. What is kept is that nobody
//! mixes the two histories up, and that the forced one wins wherever both meet.
//!
//! - **Epochs.** The upper half of a term counts forced changes. A forced change begins a higher
//!   epoch, so its terms are higher than any that the others can reach by electing each other, and
//!   no term of one history is a term of the other: an entry is still known by its index and term.
//! - A member refuses everything from a lower epoch. It enters a higher one only when the leader of
//!   it speaks to it and answers a question (`entering`; votes are not asked for across epochs), and
//!   campaigns there only once it knows the members as the forced change made them: by then it follows that history.
//! - **The entry.** The change is an entry that names all members. Whatever a member believed before,
//!   it applies the difference. The member that forces it writes the entry, the membership, and its
//!   vote for itself in one batch, as if it had been elected in a term of its own; a crash comes
//!   before or after it.
//! - **Comparing.** A member whose committed entries are of a lower epoch than its leader's compares
//!   them before it says that it has any: Raft takes it for granted that what is committed is equal
//!   everywhere. If they are not, it gives up its log and its state and fetches the leader's.

use protobuf::Message as _;
use raft::eraftpb::{
    ConfChange, ConfChangeType, Entry, EntryType, HardState, Message, MessageType,
};

use super::Core;
use super::mix::mix;
use crate::log::{Disk, LogError, decode_membership, encode_membership};
use crate::machine::{Member, Membership, PeerId, Position};

pub(super) const EPOCH_SHIFT: u32 = 32;
/// Two that force a change of the same group at the same time should not begin the same epoch.
const EPOCH_STEP_MAX: u64 = 1 << 16;
const EPOCHS: u64 = 1 << 28;
/// Read at once while the log is searched.
const SEARCH_BYTES: u64 = 4 << 20;

pub(super) fn epoch(term: u64) -> u64 {
    term >> EPOCH_SHIFT
}

impl<D: Disk> Core<D> {
    /// Makes this member the only voter and the others learners. It is on disk when this returns.
    pub fn force_membership(&mut self, members: &[Member]) -> Result<Membership, ForceError> {
        if !self.is_whole() {
            return Err(ForceError::Refused(
                "the state of this member is incomplete".into(),
            ));
        }
        let own = self.settings.id;
        let draw = mix(self.settings.seed ^ mix(self.term()) ^ own) % EPOCH_STEP_MAX;
        let epoch = epoch(self.term()) + 1 + draw;
        if epoch >= EPOCHS {
            return Err(ForceError::Refused("it was forced too often".into()));
        }
        let position = Position {
            term: (epoch << EPOCH_SHIFT) + 1,
            // What is not yet written is not yet acknowledged either, and is given up.
            index: self.log().last() + 1,
        };
        let membership = forced_membership(members, own, position).map_err(ForceError::Refused)?;
        let mut entry = Entry::default();
        entry.set_entry_type(EntryType::EntryConfChangeV2);
        entry.term = position.term;
        entry.index = position.index;
        entry.data = encode_membership(&membership).into();
        let hard = HardState {
            term: position.term,
            vote: own,
            commit: position.index,
            ..HardState::default()
        };
        let handed_over = self.handed_over();
        self.log_mut()
            .force(&entry, &hard, membership.clone())
            .map_err(ForceError::Log)?;
        self.strangers.retain(|&id, _| membership.get(id).is_none());
        self.restart_node(handed_over).map_err(ForceError::Log)?;
        tracing::warn!(
            members = membership.members.len(),
            term = position.term,
            "the members were forced: this member decides alone"
        );
        Ok(membership)
    }

    /// One of two voters is gone for good, and with it the majority. The other may go on without it:
    /// what two voters have committed is in the logs of both, and the lost one can decide nothing
    /// by itself, should it come back. So this is a forced change that loses nothing, unless
    /// somebody forces another one at the lost member.
    ///
    /// That nobody else could decide anything is certain only if the log holds no further change to
    /// other voters: what the lost one and another voter decided would be missing here.
    pub fn replace_lost_voter(
        &mut self,
        lost: PeerId,
        newcomer: &Member,
    ) -> Result<Membership, ForceError> {
        let refuse = |why: &str| Err(ForceError::Refused(why.into()));
        if self.leader().is_some() {
            return refuse("the group has a leader");
        }
        let own = self.settings.id;
        let mut voters: Vec<PeerId> = self.membership().voters().map(|voter| voter.id).collect();
        voters.retain(|&id| id != own && id != lost);
        let votes = |id| self.membership().get(id).is_some_and(|member| member.voter);
        if own == lost || !votes(own) || !votes(lost) || !voters.is_empty() {
            return refuse("this member and the lost one are not the only voters");
        }
        if self.witness_state.is_witness() {
            return refuse("this member has no data");
        }
        if self.may_be_passed_over(lost).map_err(ForceError::Log)? {
            return refuse("a change of members may have been decided");
        }
        let stays = |member: &&Member| member.id != lost && member.id != newcomer.id;
        let mut members: Vec<Member> = self
            .membership()
            .members
            .iter()
            .filter(stays)
            .cloned()
            .collect();
        if newcomer.id == own {
            return refuse("a member cannot replace another");
        }
        members.push(newcomer.clone());
        self.force_membership(&members)
    }

    /// A change of members is in the log and not known to be committed, after which somebody could
    /// have decided something without this member.
    fn may_be_passed_over(&self, lost: PeerId) -> Result<bool, LogError> {
        let last = self.last_index();
        let mut next = self.handed_over() + 1;
        while next <= last {
            let entries = self.log().read(next, last + 1, SEARCH_BYTES)?;
            let passes = |entry: &Entry| passes_over(entry, self.settings.id, lost);
            match entries.last() {
                _ if entries.iter().any(passes) => return Ok(true),
                Some(entry) => next = entry.index + 1,
                // Not written yet: nobody knows of it.
                None => return Ok(false),
            }
        }
        Ok(false)
    }

    /// It knows the members as the latest forced change that it heard of made them.
    pub(super) fn knows_the_members(&self) -> bool {
        epoch(self.membership().term) == epoch(self.term())
    }

    /// What is committed here is a part of the leader's history for certain.
    pub(super) fn is_of_one_history(&self) -> bool {
        self.commit() == 0 || self.committed_epoch() == epoch(self.term())
    }

    fn committed_epoch(&self) -> u64 {
        epoch(self.log().term_of(self.commit()).unwrap_or(0))
    }

    /// A message of another epoch is let in only if a leader brings a higher one.
    pub(super) fn is_of_our_history(&self, message: &Message) -> bool {
        // A read that is passed on to the leader has no term.
        if message.term == 0 {
            return true;
        }
        let (theirs, ours) = (epoch(message.term), epoch(self.term()));
        theirs == ours || theirs > ours && leads(message) && self.is_confirmed(message)
    }

    pub(super) fn is_foreign(&self, message: &Message) -> bool {
        leads(message) && self.commit() > 0 && self.committed_epoch() < epoch(message.term)
    }

    /// Looks at a message of a leader whose history may not be ours. False if nothing else is to be
    /// done about it.
    pub(super) fn compare_histories(&mut self, message: &Message) -> bool {
        if self.installing {
            // The state is being replaced. What is made of it is decided when that is over.
            self.node.raft.pending_request_snapshot = 1;
            return message.msg_type == MessageType::MsgHeartbeat;
        }
        if self.needs_snapshot || self.installed.is_some() {
            // What it asks for may be further than the other history has come.
            self.abandon();
            return self.broken.is_none();
        }
        match self.common(message) {
            Common::Maybe => true,
            Common::UpTo(index) => {
                self.acknowledge(message, index);
                false
            }
            Common::No => {
                tracing::warn!(
                    commit = self.commit(),
                    leader = message.from,
                    "committed entries are not those of the group as it was forced: they are given up"
                );
                self.abandon();
                self.broken.is_none()
            }
        }
    }

    fn common(&self, message: &Message) -> Common {
        let committed = self.commit();
        let base = self.log().base().index;
        let ours = |index: u64, term: u64| self.log().term_of(index) == Some(term);
        match message.msg_type {
            MessageType::MsgAppend if message.index < committed => {
                let begins = message.index >= base && ours(message.index, message.log_term);
                let mut known = message.entries.iter().filter(|e| e.index <= committed);
                if !begins || known.any(|entry| !ours(entry.index, entry.term)) {
                    return Common::No;
                }
                match message.index + message.entries.len() as u64 {
                    last if last < committed => Common::UpTo(last),
                    _ => Common::Maybe,
                }
            }
            MessageType::MsgSnapshot => {
                let metadata = message.get_snapshot().get_metadata();
                match metadata.index <= committed {
                    true if ours(metadata.index, metadata.term) => Common::UpTo(metadata.index),
                    true => Common::No,
                    false => Common::Maybe,
                }
            }
            // What comes after everything committed is compared by Raft.
            _ => Common::Maybe,
        }
    }

    /// Says that the entries up to `index` are here, which is less than is committed.
    fn acknowledge(&mut self, message: &Message, index: u64) {
        let mut heartbeat = Message::default();
        heartbeat.set_msg_type(MessageType::MsgHeartbeat);
        heartbeat.from = message.from;
        heartbeat.to = message.to;
        heartbeat.term = message.term;
        if message.term < self.term() || self.node.step(heartbeat).is_err() {
            return;
        }
        let mut answer = Message::default();
        answer.set_msg_type(MessageType::MsgAppendResponse);
        answer.from = self.settings.id;
        answer.to = message.from;
        answer.term = self.term();
        answer.index = index;
        self.node.raft.msgs.push(answer);
        self.settle();
    }

    /// Gives up log and state.
    pub(super) fn abandon(&mut self) {
        self.needs_snapshot = true;
        self.installed = None;
        self.missed = 0;
        let given_up = self.log_mut().abandon().and_then(|()| {
            self.released = 0;
            self.restart_node(0)
        });
        if let Err(error) = given_up {
            self.broken = Some(error);
        }
    }

    /// Applies an entry that names all members.
    pub(super) fn replace_members(
        &mut self,
        entry: &Entry,
    ) -> Result<Option<Membership>, LogError> {
        let Some(mut target) = decode_membership(&entry.data) else {
            return Ok(None);
        };
        target.index = entry.index;
        target.term = entry.term;
        if target.voters().next().is_none() {
            return Ok(None);
        }
        for (kind, id) in difference(self.membership(), &target) {
            let mut change = ConfChange::default();
            change.set_change_type(kind);
            change.node_id = id;
            self.node.apply_conf_change(&change).map_err(|error| {
                LogError::Damaged(format!("entry {} cannot be followed: {error}", entry.index))
            })?;
        }
        self.adopt(target).map(Some)
    }
}

/// After this entry, voters other than these two could decide something, or one without the other.
pub(super) fn passes_over(entry: &Entry, own: PeerId, lost: PeerId) -> bool {
    match entry.get_entry_type() {
        EntryType::EntryNormal => false,
        EntryType::EntryConfChangeV2 => true,
        EntryType::EntryConfChange => {
            let mut change = ConfChange::default();
            if change.merge_from_bytes(&entry.data).is_err() {
                // It changes nothing on any member.
                return false;
            }
            match change.get_change_type() {
                ConfChangeType::AddNode => change.node_id != own && change.node_id != lost,
                ConfChangeType::AddLearnerNode | ConfChangeType::RemoveNode => {
                    change.node_id == own
                }
            }
        }
    }
}

pub(super) fn leads(message: &Message) -> bool {
    matches!(
        message.msg_type,
        MessageType::MsgAppend | MessageType::MsgHeartbeat | MessageType::MsgSnapshot
    )
}

enum Common {
    /// Everything that is committed, or nothing that this message speaks of.
    Maybe,
    UpTo(u64),
    No,
}

/// Why a change could not be forced.
pub(crate) enum ForceError {
    Refused(String),
    Log(LogError),
}

fn forced_membership(
    members: &[Member],
    own: PeerId,
    position: Position,
) -> Result<Membership, String> {
    let mut members = members.to_vec();
    members.sort_by_key(|member| member.id);
    if members.iter().any(|member| member.id == 0) {
        return Err("zero is not an id".into());
    }
    if members.windows(2).any(|pair| pair[0].id == pair[1].id) {
        return Err("two members have the same id".into());
    }
    if members.iter().any(|member| member.address.len() > 1024) {
        return Err("an address is too long".into());
    }
    for member in &mut members {
        member.voter = member.id == own;
    }
    if !members.iter().any(|member| member.voter) {
        return Err("this member is not among them".into());
    }
    Ok(Membership {
        index: position.index,
        term: position.term,
        members,
    })
}

/// The changes that lead from one membership to another, one voter at a time and never without any.
fn difference(from: &Membership, to: &Membership) -> Vec<(ConfChangeType, PeerId)> {
    let votes = |members: &Membership, id: PeerId| members.get(id).is_some_and(|m| m.voter);
    let mut changes = Vec::new();
    for member in to.voters().filter(|member| !votes(from, member.id)) {
        changes.push((ConfChangeType::AddNode, member.id));
    }
    for member in to.members.iter().filter(|member| !member.voter) {
        if votes(from, member.id) || from.get(member.id).is_none() {
            changes.push((ConfChangeType::AddLearnerNode, member.id));
        }
    }
    for member in from
        .members
        .iter()
        .filter(|member| to.get(member.id).is_none())
    {
        changes.push((ConfChangeType::RemoveNode, member.id));
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn membership(members: &[(PeerId, bool)]) -> Membership {
        let member = |&(id, voter): &(PeerId, bool)| Member {
            id,
            address: format!("m{id}"),
            voter,
        };
        Membership {
            index: 1,
            term: 1,
            members: members.iter().map(member).collect(),
        }
    }

    #[test]
    fn voters_come_before_others_go() {
        let from = membership(&[(1, true), (2, true), (3, true), (4, false)]);
        let to = membership(&[(2, false), (4, true), (5, false)]);
        let expected = [
            (ConfChangeType::AddNode, 4),
            (ConfChangeType::AddLearnerNode, 2),
            (ConfChangeType::AddLearnerNode, 5),
            (ConfChangeType::RemoveNode, 1),
            (ConfChangeType::RemoveNode, 3),
        ];
        assert_eq!(difference(&from, &to), expected);
        assert_eq!(difference(&to, &to), []);
    }

    #[test]
    fn a_forced_membership_has_one_voter_and_is_sound() {
        let at = Position { term: 9, index: 4 };
        let wished = membership(&[(2, true), (1, true)]);
        let forced = forced_membership(&wished.members, 1, at);
        let expected = membership(&[(1, true), (2, false)]).members;
        assert_eq!(forced.map(|forced| forced.members), Ok(expected));
        assert!(forced_membership(&wished.members, 3, at).is_err());
        let twice = membership(&[(1, true), (1, true)]);
        assert!(forced_membership(&twice.members, 1, at).is_err());
        let zero = membership(&[(0, true), (1, true)]);
        assert!(forced_membership(&zero.members, 1, at).is_err());
    }
}
