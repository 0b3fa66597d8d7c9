//! One round: everything that waits goes into the core, and what comes out goes where it belongs.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use raft::ReadState;
use raft::eraftpb::Message;

use super::Shared;
use super::inbox::{Control, Proposal, Work};
use super::rounds::{ChangeAnswer, Pending, Rounds};
use crate::apply::{Item, Job, Listener};
use crate::core::{Decided, ForceError, Outlet};
use crate::error::{Error, ProposeError};
use crate::log::LogError;
use crate::machine::{
    Committed, Membership, PeerId, Position, SnapshotMeta, StateMachine, Transport,
};
use crate::options::SyncMode;
use crate::surroundings;

/// Followers hear of a commit with the next entry, or after this long.
const COMMIT_DELAY: Duration = Duration::from_millis(4);

impl<S: StateMachine> Shared<S> {
    pub(super) fn round(&self, rounds: &mut Rounds<S>, work: Work<S::Prepared>, ticking: bool) {
        let Work {
            proposals,
            controls,
        } = work;
        let queued = self.applier.queued_bytes();
        let room = self.options.apply_queue_bytes_max.saturating_sub(queued);
        let mut out = Out::new(self.transport.as_ref(), room);
        for control in controls {
            self.take(rounds, control, &mut out);
        }
        let now = surroundings::now();
        if ticking {
            rounds
                .core
                .set_heartbeat_ticks(self.timing.heartbeat_ticks());
            rounds.core.tick();
            let late = rounds.reads.give_up_late(now);
            self.asked.lock().return_to(late, now);
        }
        rounds.propose_changes();
        let proposed = !proposals.is_empty();
        for proposal in &proposals {
            let bytes = proposal.data.len();
            self.waiting_bytes.fetch_sub(bytes, Ordering::AcqRel);
        }
        let mut waiting = std::mem::take(&mut rounds.held);
        waiting.extend(proposals);
        self.append(rounds, waiting);
        if proposed {
            rounds.commit_due = None;
        } else if rounds.commit_due.is_some_and(|due| due <= now) {
            rounds.commit_due = None;
            rounds.core.broadcast_commit();
        }
        rounds.reads.ask_everybody(&mut rounds.core, now);
        self.begin_reads(rounds, now);
        let sync = self.must_sync(rounds);
        let last_before = rounds.core.log().last();
        let pumping = surroundings::now();
        let mut pumped = rounds.core.pump(sync, &mut out);
        while pumped.is_ok() && self.answer_reads(rounds, &mut out, now) {
            pumped = rounds.core.pump(sync, &mut out);
        }
        if let Err(error) = pumped.and_then(|()| self.release(rounds, &mut out)) {
            self.fatal(&error.to_string());
            return;
        }
        let took = surroundings::now().duration_since(pumping);
        self.note_delay(rounds, "the log was slow to write", took);
        if sync {
            self.synced
                .store(rounds.core.log().last(), Ordering::Release);
        } else if rounds.core.log().last() != last_before {
            self.note_unsynced();
        }
        self.finish(rounds, out, sync, ticking);
    }

    fn must_sync(&self, rounds: &Rounds<S>) -> bool {
        #[cfg(feature = "simulation")]
        if crate::simulated::world::planted(crate::simulated::world::Bug::AcknowledgeBeforeSync) {
            return self.options.sync == SyncMode::EveryEntry;
        }
        self.options.sync == SyncMode::EveryEntry || !rounds.core.is_alone()
    }

    fn note_unsynced(&self) {
        let mut inbox = self.inbox.lock();
        if inbox.unsynced_since.is_none() {
            inbox.unsynced_since = Some(surroundings::now());
            drop(inbox);
            self.wake.notify_one();
        }
    }

    fn take(&self, rounds: &mut Rounds<S>, control: Control, out: &mut Out<'_>) {
        match control {
            Control::Message(frame) => {
                let term = rounds.core.term();
                if let Some(from) = rounds.core.step(*frame, out) {
                    if rounds.core.term() > term {
                        rounds.lead.note_newer_term(from, rounds.core.term());
                    }
                    self.contacts.lock().insert(from, surroundings::now());
                }
            }
            Control::Installed(held, success) => rounds.core.snapshot_installed(*held, success),
            Control::Change(change, answer) => rounds.changes.push_back((change, answer)),
            // The round that it calls for has begun.
            Control::Reads | Control::Room => {}
            Control::Force(members, answer) => {
                let outcome = rounds.core.force_membership(&members);
                self.answer_forced(outcome, answer);
            }
            Control::Replace(lost, newcomer, answer) => {
                let outcome = rounds.core.replace_lost_voter(lost, &newcomer);
                self.answer_forced(outcome, answer);
            }
            Control::Witness(witness) => rounds.core.set_witness(witness),
            Control::Witnesses(witnesses) => rounds.core.set_witnesses(witnesses),
            Control::Transfer(to, why) => {
                rounds.lead.note_told(why);
                rounds.core.transfer_leadership(to);
            }
            Control::AnnounceCommit => {
                rounds.commit_due = None;
                rounds.core.broadcast_commit();
            }
            Control::StepDown(why) => {
                rounds.lead.note_told(why);
                rounds.core.step_down();
            }
            Control::Campaign => {
                rounds.lead.note_told("told to ask for the lead");
                rounds.core.campaign();
            }
            Control::Suspect(leader) => {
                if rounds.core.leader() == Some(leader) {
                    rounds
                        .lead
                        .note_told("the leader's host refuses connections");
                }
                rounds.core.suspect(leader);
            }
            Control::Electable(electable) => rounds.core.set_electable(electable),
        }
    }

    /// All proposals that wait become entries of one append.
    fn append(&self, rounds: &mut Rounds<S>, proposals: Vec<Proposal<S::Prepared>>) {
        if proposals.is_empty() {
            return;
        }
        let serving = self.leader_term.load(Ordering::Acquire);
        let term = rounds.core.term();
        let leads = serving != 0 && serving == term && rounds.core.is_leader();
        let mut data = Vec::with_capacity(proposals.len());
        let mut accepted = Vec::with_capacity(proposals.len());
        for mut proposal in proposals {
            if leads && (proposal.options.term == 0 || proposal.options.term == term) {
                self.machine.seal(&mut proposal.data);
                data.push(Bytes::from(std::mem::take(&mut proposal.data)));
                accepted.push(proposal);
            } else {
                rounds.refused.push(proposal);
            }
        }
        if accepted.is_empty() {
            return;
        }
        match rounds.core.propose(data.clone()) {
            Ok(before) => {
                for (offset, proposal) in accepted.into_iter().enumerate() {
                    rounds.pending.push_back(Pending {
                        position: Position {
                            term,
                            index: before + 1 + offset as u64,
                        },
                        prepared: proposal.prepared,
                        answer: proposal.answer,
                        sync: proposal.options.sync,
                    });
                }
            }
            // The lead is being given to somebody else, who may not take it.
            Err(_) => {
                for (proposal, data) in accepted.iter_mut().zip(data) {
                    proposal.data = data.into();
                }
                rounds.held = accepted;
            }
        }
    }

    fn finish(&self, rounds: &mut Rounds<S>, out: Out<'_>, synced: bool, ticking: bool) {
        let jobs = self.jobs(rounds, out.decided, synced);
        for (meta, held) in out.installs {
            // Behind the entries that were decided before it.
            self.applier.push(vec![Job::Install {
                meta,
                held: Box::new(held),
            }]);
        }
        rounds.propose_changes();
        self.publish(rounds, ticking);
        if self.inbox.lock().set_due(rounds.due()) {
            self.wake.notify_one();
        }
        let leader = rounds.core.leader();
        for proposal in rounds.refused.drain(..) {
            let _ = proposal
                .answer
                .send(Err(ProposeError::NotLeader { leader }));
        }
        if !jobs.is_empty() {
            if self.inline.load(Ordering::Acquire) {
                self.applier.push_inline(jobs, self);
            } else {
                self.applier.push(jobs);
            }
        }
    }

    fn jobs(
        &self,
        rounds: &mut Rounds<S>,
        decided: Vec<Decided>,
        synced: bool,
    ) -> Vec<Job<S::Prepared>> {
        let mut items = Vec::with_capacity(decided.len());
        for Decided {
            position,
            data,
            membership,
        } in decided
        {
            if rounds
                .changing
                .as_ref()
                .is_some_and(|(at, _)| *at == position)
                && let Some((_, answer)) = rounds.changing.take()
            {
                let outcome = membership
                    .clone()
                    .ok_or_else(|| Error::Refused("the group cannot be changed so".into()));
                let _ = answer.send(outcome);
            }
            let mine = rounds
                .pending
                .front()
                .is_some_and(|pending| pending.position == position);
            let pending = if mine {
                rounds.pending.pop_front()
            } else {
                None
            };
            let (prepared, answer, sync) = match pending {
                Some(pending) => (Some(pending.prepared), Some(pending.answer), pending.sync),
                None => (None, None, false),
            };
            items.push(Item {
                committed: Committed {
                    position,
                    data,
                    prepared,
                    membership,
                },
                answer,
                answer_synced: sync && !synced,
            });
        }
        if items.is_empty() {
            Vec::new()
        } else {
            vec![Job::Entries(items)]
        }
    }

    /// Answers the reads whose round is over. True if others began one.
    fn answer_reads(&self, rounds: &mut Rounds<S>, out: &mut Out<'_>, now: Instant) -> bool {
        for state in out.read_states.drain(..) {
            for read in rounds.reads.answered(&state.request_ctx, self.options.id) {
                self.applier.wait_for(state.index, read.answer);
            }
        }
        self.begin_reads(rounds, now)
    }

    fn begin_reads(&self, rounds: &mut Rounds<S>, now: Instant) -> bool {
        if rounds.reads.is_under_way() {
            return false;
        }
        let reads = self.asked.lock().take();
        if reads.is_empty() {
            return false;
        }
        let own = self.options.id;
        rounds.reads.begin(&mut rounds.core, own, now, reads);
        true
    }

    fn answer_forced(&self, outcome: Result<Membership, ForceError>, answer: ChangeAnswer) {
        let outcome = match outcome {
            Ok(membership) => Ok(membership),
            Err(ForceError::Refused(reason)) => Err(Error::Refused(reason)),
            Err(ForceError::Log(error)) => {
                self.fatal(&error.to_string());
                return;
            }
        };
        // Whoever asked may have left.
        let _ = answer.send(outcome);
    }

    /// Hands over what was held back, is due by now and has room. What waits longer waits in the
    /// log, not in memory.
    fn release(&self, rounds: &mut Rounds<S>, out: &mut Out<'_>) -> Result<(), LogError> {
        let delay_ms = self.apply_delay_ms.load(Ordering::Relaxed);
        rounds.core.set_delayed(delay_ms > 0);
        if !rounds.core.is_holding_back() {
            return Ok(());
        }
        let until = surroundings::wall_ms().saturating_sub_unsigned(delay_ms);
        let due = |data: &[u8]| self.machine.written_ms(data).is_none_or(|ms| ms <= until);
        rounds.core.release(due, out)?;
        if delay_ms == 0 && rounds.core.is_holding_back() {
            self.holding_back.store(true, Ordering::Release);
            self.go_on_handing_over();
        }
        Ok(())
    }

    /// Makes known what changed, before what it changes is applied.
    fn publish(&self, rounds: &mut Rounds<S>, ticking: bool) {
        let core = &rounds.core;
        let (term, commit) = (core.term(), core.commit());
        let leading_term = if core.serves() { term } else { 0 };
        self.commit.store(commit, Ordering::Release);
        self.last_index.store(core.last_index(), Ordering::Release);
        let alone = core.is_alone();
        let inline =
            alone && leading_term != 0 && matches!(self.options.sync, SyncMode::Interval(_));
        if commit > rounds.commit_seen {
            rounds.commit_seen = commit;
            if leading_term != 0 && !alone && rounds.commit_due.is_none() {
                rounds.commit_due = Some(surroundings::now() + COMMIT_DELAY);
            }
        }
        let changed = core.role() != rounds.role
            || core.leader() != rounds.leader
            || core.membership().index != rounds.membership_index
            || leading_term != rounds.leading_term;
        let lost = rounds.leading_term != 0 && leading_term != rounds.leading_term;
        if changed {
            self.tell_of_lead(rounds);
        }
        rounds.leading_term = leading_term;
        self.inline.store(inline, Ordering::Release);
        self.sole
            .store(rounds.core.is_sole_voter(), Ordering::Release);
        // Whoever waits for more than a majority looks at the progress of the others.
        if changed || ticking || !alone {
            rounds.role = rounds.core.role();
            rounds.leader = rounds.core.leader();
            rounds.membership_index = rounds.core.membership().index;
            *self.published.lock() = rounds.status(self.options.id);
        }
        if changed {
            self.refresh_leadership(Some(leading_term));
            self.notify();
        }
        // An answer must not be ahead of what is known about this member.
        if lost {
            rounds.lose_leadership();
        }
    }
}

/// What a round brings out.
struct Out<'a> {
    transport: &'a dyn Transport,
    outgoing: Vec<(PeerId, String, Vec<Bytes>)>,
    decided: Vec<Decided>,
    read_states: Vec<ReadState>,
    installs: Vec<(SnapshotMeta, Message)>,
    /// How much more may wait to be applied.
    room: usize,
}

impl<'a> Out<'a> {
    fn new(transport: &'a dyn Transport, room: usize) -> Out<'a> {
        Out {
            transport,
            room,
            outgoing: Vec::new(),
            decided: Vec::new(),
            read_states: Vec::new(),
            installs: Vec::new(),
        }
    }
}

impl Outlet for Out<'_> {
    fn send(&mut self, to: PeerId, address: &str, frame: Bytes) {
        match self.outgoing.iter_mut().find(|(id, ..)| *id == to) {
            Some((.., frames)) => frames.push(frame),
            None => self.outgoing.push((to, address.to_owned(), vec![frame])),
        }
    }

    fn flush(&mut self) {
        for (to, address, frames) in self.outgoing.drain(..) {
            self.transport.send(to, &address, frames);
        }
    }

    fn has_room(&self) -> bool {
        self.room > 0
    }

    fn decided(&mut self, decided: Decided) {
        self.room = self.room.saturating_sub(decided.data.len());
        self.decided.push(decided);
    }

    fn read_state(&mut self, state: ReadState) {
        self.read_states.push(state);
    }

    fn install(&mut self, meta: SnapshotMeta, held: Message) {
        self.installs.push((meta, held));
    }
}
