//! The core: the `raft` crate's state machine, this crate's log, and the rules that join them.
//!
//! Nothing in here waits, reads a clock or talks to a network. Whoever drives it steps messages
//! in, ticks it, and calls [`Core::pump`], which writes what must be written and hands the rest to
//! an [`Outlet`].
//!
//! Here is what every core does. `opening` is how it begins and `pump` what a round comes to; then
//! `campaign`, `members` and `read_index` (who leads, who belongs, who confirms it), `entering`
//! (which terms are believed), `fetching` (snapshots), and what only some sets have: `witness`
//! (arbiters), `delay`, `forced`. What they remember is in `election`, `asking` and `witness_state`, which know no core.

mod asking;
mod campaign;
mod delay;
mod election;
mod entering;
mod fetching;
mod forced;
mod members;
mod mix;
mod opening;
mod pump;
mod read_index;
#[cfg(test)]
mod tests;
mod witness;
mod witness_state;

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use raft::eraftpb::{Entry, Message, MessageType};
use raft::{RawNode, ReadState, StateRole};

use crate::log::{Disk, Log, LogError};
use crate::machine::{Membership, PeerId, Position, SnapshotMeta};
use crate::message::{self, Frame, Receiver};
#[cfg(feature = "simulation")]
use crate::simulated::world::{Bug, planted};
use crate::status::Role;
use asking::Asking;
use election::Election;
pub(crate) use forced::ForceError;
pub(crate) use members::ChangeOutcome;
use mix::mix;
pub(crate) use opening::{Settings, plain};
use opening::{raft_node, reconcile, replay};
use witness_state::WitnessState;

/// An entry that is committed, and what the core made of it.
pub(crate) struct Decided {
    pub position: Position,
    pub data: Bytes,
    pub membership: Option<Membership>,
}

/// Takes what comes out of the core, in order.
pub(crate) trait Outlet {
    fn send(&mut self, to: PeerId, address: &str, frame: Bytes);
    /// What was sent since the last flush should leave now.
    fn flush(&mut self);
    fn decided(&mut self, decided: Decided);
    /// If there is none, entries wait in the log, and not in memory, to be decided.
    fn has_room(&self) -> bool {
        true
    }
    fn read_state(&mut self, state: ReadState);
    /// The state has to be fetched from the leader; [`Core::snapshot_installed`] follows.
    fn install(&mut self, meta: SnapshotMeta, held: Message);
}

pub(crate) struct Core<D: Disk> {
    node: RawNode<Log<D>>,
    settings: Settings,
    /// May campaign, as far as its user is concerned.
    electable: bool,
    /// The state is missing or incomplete: nothing is applied until a snapshot is installed.
    needs_snapshot: bool,
    /// Entries up to here were not handed over, or what was made of them is gone: only a snapshot
    /// brings them.
    missed: u64,
    installing: bool,
    /// What was handed over before the snapshot: applied before its state is touched.
    installing_from: u64,
    /// A snapshot that is installed and waits for a leader in whose name it can be stepped.
    installed: Option<Message>,
    /// Where those are whose address the membership does not know, or has wrong.
    strangers: HashMap<PeerId, String>,
    campaigns: u64,
    ticks: u64,
    since_heartbeat: usize,
    witness_state: WitnessState,
    asking: Asking,
    election: Election,
    /// The leader that has shown that it leads in an epoch above ours, and the epoch.
    confirmed: Option<(PeerId, u64)>,
    /// Entries are handed over only once their user says that they are due.
    delayed: bool,
    /// The last entry handed over, or not to be handed over at all.
    released: u64,
    /// How far the state on the disk goes.
    durable: Box<dyn Fn() -> u64 + Send>,
    /// The log cannot begin anew before the state on the disk goes further.
    awaits_durable: bool,
    /// A write failed where nobody could be told.
    broken: Option<LogError>,
}

#[derive(Debug)]
pub(crate) struct Dropped;

impl<D: Disk> Core<D> {
    pub fn open(
        disk: D,
        settings: Settings,
        applied: Arc<Mutex<Position>>,
        committed: u64,
        apply: impl FnMut(Vec<(Position, Bytes)>) -> Result<(), LogError>,
    ) -> Result<Core<D>, LogError> {
        let mut log = Log::open(disk, applied.clone(), committed)?;
        replay(&log, &applied, apply)?;
        let state = *applied.lock();
        reconcile(&mut log, state, settings.id)?;
        log.verify(state.index + 1)?;
        let needs_snapshot = log.is_stale() || state.index < log.base().index;
        let handed_over = match log.is_stale() {
            true => 0,
            // What the state has skipped is handed over once more: it may have changed the members.
            false if log.is_ahead() => log.base().index.max(log.membership().index),
            false => state.index,
        }
        .min(state.index);
        let node = raft_node(&settings, log, handed_over)?;
        let mut core = Core {
            released: node.raft.raft_log.applied(),
            node,
            settings,
            electable: true,
            needs_snapshot,
            missed: 0,
            installing: false,
            installing_from: 0,
            installed: None,
            strangers: HashMap::new(),
            campaigns: 0,
            ticks: 0,
            since_heartbeat: 0,
            witness_state: WitnessState::default(),
            asking: Asking::default(),
            election: Election::default(),
            confirmed: None,
            delayed: false,
            durable: Box::new(|| u64::MAX),
            awaits_durable: false,
            broken: None,
        };
        core.settle();
        core.campaign_if_sole();
        Ok(core)
    }

    /// Begins again with what the log holds, as after a restart.
    fn restart_node(&mut self, handed_over: u64) -> Result<(), LogError> {
        self.node = raft_node(&self.settings, self.log().clone(), handed_over)?;
        self.released = self.released.min(self.handed_over());
        self.settle();
        Ok(())
    }

    /// From now on `durable` says how far the state on the disk goes.
    pub fn ask_for_durable(&mut self, durable: Box<dyn Fn() -> u64 + Send>) {
        self.durable = durable;
    }

    /// Whether the state should be made durable without waiting for the log to grow.
    pub fn take_awaits_durable(&mut self) -> bool {
        std::mem::take(&mut self.awaits_durable)
    }

    pub fn log(&self) -> &Log<D> {
        self.node.store()
    }

    pub fn log_mut(&mut self) -> &mut Log<D> {
        self.node.mut_store()
    }

    pub fn membership(&self) -> &Membership {
        self.log().membership()
    }

    pub fn term(&self) -> u64 {
        self.node.raft.term
    }

    #[cfg(feature = "simulation")]
    pub fn vote(&self) -> PeerId {
        self.node.raft.vote
    }

    pub fn leader(&self) -> Option<PeerId> {
        Some(self.node.raft.leader_id).filter(|&id| id != 0)
    }

    pub fn commit(&self) -> u64 {
        self.node.raft.raft_log.committed
    }

    /// The last entry handed to the outlet.
    pub fn handed_over(&self) -> u64 {
        self.node.raft.raft_log.applied()
    }

    pub fn last_index(&self) -> u64 {
        self.node.raft.raft_log.last_index()
    }

    pub fn last_term(&self) -> u64 {
        self.node.raft.raft_log.last_term()
    }

    pub fn is_leader(&self) -> bool {
        self.node.raft.state == StateRole::Leader
    }

    /// It leads, and not only until somebody with data can.
    pub fn serves(&self) -> bool {
        self.is_leader() && !self.witness_state.is_witness()
    }

    pub fn installing(&self) -> bool {
        self.installing || self.needs_snapshot
    }

    /// It is the only voter, and there is nobody else to tell.
    pub fn is_alone(&self) -> bool {
        matches!(self.membership().members.as_slice(),
            [only] if only.id == self.settings.id && only.voter)
    }

    pub fn role(&self) -> Role {
        match (
            self.node.raft.state,
            self.membership().get(self.settings.id),
        ) {
            (StateRole::Leader, _) => Role::Leader,
            (_, None) => Role::Outsider,
            (_, Some(member)) if !member.voter => Role::Learner,
            (StateRole::Follower, _) => Role::Follower,
            (StateRole::Candidate | StateRole::PreCandidate, _) => Role::Candidate,
        }
    }

    /// The only voter there is; nobody else can take the lead or decide anything.
    pub fn is_sole_voter(&self) -> bool {
        let mut voters = self.membership().voters();
        voters
            .next()
            .is_some_and(|voter| voter.id == self.settings.id)
            && voters.next().is_none()
    }

    pub fn campaign_if_sole(&mut self) {
        if self.is_sole_voter() && !self.is_leader() && self.may_campaign() {
            // Refused only while a change of members waits to be handed over; a tick tries again.
            let _ = self.node.campaign();
        }
    }

    /// Appends entries of this term; their indexes follow the returned one.
    pub fn propose(&mut self, data: Vec<Bytes>) -> Result<u64, Dropped> {
        if !self.serves() || data.is_empty() {
            return Err(Dropped);
        }
        let before = self.last_index();
        let entries: Vec<Entry> = data
            .into_iter()
            .map(|data| Entry {
                data,
                ..Entry::default()
            })
            .collect();
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgPropose);
        message.from = self.settings.id;
        message.set_entries(entries.into());
        self.node.step(message).map_err(|_| Dropped)?;
        Ok(before)
    }

    /// Takes a message from another member, and says from which; none if it was refused.
    pub fn step(&mut self, frame: Frame, outlet: &mut impl Outlet) -> Option<PeerId> {
        let mut message = frame.message;
        let from = message.from;
        let receiver = Receiver {
            id: self.settings.id,
            term: self.term(),
            last_index: self.last_index(),
            may_lead: self.may_campaign(),
            term_max: self.term_max(message.term),
        };
        if !self.is_of_our_history(&message) {
            self.doubt(&message, &frame.sender_address, outlet);
            return None;
        }
        if let Err(reason) = message::check(&message, &receiver) {
            tracing::debug!(from = message.from, kind = ?message.msg_type, reason, "refused");
            return None;
        }
        #[cfg(feature = "simulation")]
        if planted(Bug::SkipLogCheck)
            && matches!(
                message.msg_type,
                MessageType::MsgRequestVote | MessageType::MsgRequestPreVote
            )
        {
            message.index = receiver.last_index.max(message.index);
            message.log_term = self.node.raft.raft_log.last_term();
        }
        self.note_address(&message, frame.sender_address);
        self.witness_heard(&message);
        if self.is_foreign(&message) && !self.compare_histories(&message) {
            return self.broken.is_none().then_some(from);
        }
        match message.msg_type {
            MessageType::MsgSnapshot => {
                self.take_snapshot(message, outlet);
                return Some(from);
            }
            // A commit index beyond our log is no use to us.
            MessageType::MsgHeartbeat if message.commit > self.last_index() => message.commit = 0,
            _ => {}
        }
        self.note_answer(&message);
        self.note_election(&message);
        // An answer from somebody who is not a member is refused.
        let stepped = self.node.step(message).is_ok();
        self.settle();
        stepped.then_some(from)
    }

    /// Where the sender is, if the membership here does not know that. A leader may have moved, and
    /// knows its address by a membership that did not come here yet; anybody else's is as likely
    /// to be the older one.
    fn note_address(&mut self, message: &Message, address: String) {
        let known = self.membership().get(message.from);
        let leads = message.term >= self.term()
            && matches!(
                message.msg_type,
                MessageType::MsgAppend | MessageType::MsgHeartbeat | MessageType::MsgSnapshot
            );
        if known.is_some_and(|known| known.address == address) {
            self.strangers.remove(&message.from);
        } else if !address.is_empty() && (known.is_none() || leads) {
            if self.strangers.len() >= 64 {
                self.strangers.clear();
            }
            self.strangers.insert(message.from, address);
        }
    }

    /// Its log and its state are its own, and it knows who the members are.
    fn is_whole(&self) -> bool {
        !self.needs_snapshot
            && !self.installing
            && self.installed.is_none()
            && self.knows_the_members()
    }

    fn may_campaign(&self) -> bool {
        self.electable && !self.delayed && !self.witness_state.is_witness() && self.is_whole()
    }

    pub fn set_electable(&mut self, electable: bool) {
        self.electable = electable;
        let candidate = matches!(
            self.node.raft.state,
            StateRole::Candidate | StateRole::PreCandidate
        );
        if !electable && candidate {
            let term = self.term();
            self.node.raft.become_follower(term, 0);
        }
        self.settle();
        self.campaign_if_sole();
    }

    pub fn step_down(&mut self) {
        if self.is_leader() {
            let term = self.term();
            self.node.raft.become_follower(term, 0);
            self.settle();
        }
    }

    pub fn transfer_leadership(&mut self, to: PeerId) {
        if self.is_leader() && !self.witness_state.is_without_data(to) {
            self.node.transfer_leader(to);
        }
    }

    /// Tells followers what is committed without waiting for the next entry or heartbeat.
    pub fn broadcast_commit(&mut self) {
        if self.is_leader() {
            self.node.raft.bcast_append();
        }
    }

    pub fn tick(&mut self) {
        self.ticks += 1;
        self.tend_witness();
        if self.is_leader() || self.may_campaign() {
            self.node.tick();
            self.beat();
        } else {
            // Time passes, so that it grants votes to others, but it never campaigns.
            let elapsed = self.node.raft.election_elapsed;
            self.node.raft.election_elapsed = (elapsed + 1).min(1 << 20);
        }
        self.forget_a_silent_leader();
        self.step_installed();
        if self.is_leader()
            && self
                .ticks
                .is_multiple_of(self.settings.election_ticks as u64)
        {
            self.retry_snapshots();
        }
        self.campaign_if_sole();
        self.settle();
    }

    /// The `raft` crate's own heartbeats come at a pace that cannot be changed, and rarely.
    fn beat(&mut self) {
        self.since_heartbeat += 1;
        if self.is_leader() && self.since_heartbeat >= self.settings.heartbeat_ticks {
            self.since_heartbeat = 0;
            self.node.ping();
        }
    }

    pub fn set_heartbeat_ticks(&mut self, ticks: usize) {
        self.settings.heartbeat_ticks = ticks;
    }

    fn settle(&mut self) {
        self.draw_timeout();
        self.ask_for_snapshot();
    }

    /// The `raft` crate draws its election timeouts from a generator of its own; ours come from
    /// the seed, so that a simulation repeats itself.
    fn draw_timeout(&mut self) {
        let lowest = self.settings.election_ticks as u64;
        let span = lowest / 2 + 1;
        let draw = mix(self.settings.seed ^ mix(self.settings.id))
            ^ mix(self.term().wrapping_mul(31).wrapping_add(self.campaigns));
        let timeout = lowest + mix(draw) % span;
        self.node
            .raft
            .set_randomized_election_timeout(timeout as usize);
    }

    fn address(&self, id: PeerId, membership: &Membership) -> String {
        let known = membership.get(id).map(|member| member.address.clone());
        known
            .or_else(|| self.strangers.get(&id).cloned())
            .unwrap_or_default()
    }
}
