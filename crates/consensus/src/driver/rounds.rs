//! What waits between two rounds of the core.

use std::collections::VecDeque;
use std::time::Instant;

use futures::channel::oneshot;

use super::inbox::Proposal;
use super::lead::Lead;
use super::reads::Reads;
use crate::apply::Answer;
use crate::core::{ChangeOutcome, Core};
use crate::error::{Error, ProposeError};
use crate::log::disk::EngineDisk;
use crate::machine::{Change, Membership, PeerId, Position, StateMachine};
use crate::status::{Role, Status};
use crate::surroundings;

pub(super) type ChangeAnswer = oneshot::Sender<Result<Membership, Error>>;

/// A proposal that is in the log and not yet known to be committed.
pub(super) struct Pending<P> {
    pub position: Position,
    pub prepared: P,
    pub answer: Answer,
    pub sync: bool,
}

pub(crate) struct Rounds<S: StateMachine> {
    pub core: Core<EngineDisk>,
    pub(super) pending: VecDeque<Pending<S::Prepared>>,
    /// Proposals that wait until it is known whether another member takes the lead.
    pub(super) held: Vec<Proposal<S::Prepared>>,
    /// Proposals that came to the wrong member. They are answered once everybody can see that.
    pub(super) refused: Vec<Proposal<S::Prepared>>,
    pub(super) changes: VecDeque<(Change, ChangeAnswer)>,
    /// The change that is in the log and not yet committed.
    pub(super) changing: Option<(Position, ChangeAnswer)>,
    pub(super) reads: Reads,
    /// Followers have not heard of the newest commit index; they will by then.
    pub(super) commit_due: Option<Instant>,
    pub(super) commit_seen: u64,
    pub(super) role: Role,
    pub(super) leader: Option<PeerId>,
    pub(super) lead: Lead,
    pub(super) membership_index: u64,
    pub(super) leading_term: u64,
}

impl<S: StateMachine> Rounds<S> {
    pub fn new(core: Core<EngineDisk>) -> Rounds<S> {
        Rounds {
            commit_seen: core.commit(),
            core,
            pending: VecDeque::new(),
            held: Vec::new(),
            refused: Vec::new(),
            changes: VecDeque::new(),
            changing: None,
            reads: Reads::new(surroundings::random()),
            commit_due: None,
            role: Role::Outsider,
            leader: None,
            lead: Lead::default(),
            membership_index: 0,
            leading_term: 0,
        }
    }

    pub fn status(&self, id: PeerId) -> Status {
        let core = &self.core;
        Status {
            id,
            role: core.role(),
            term: core.term(),
            leader: core.leader(),
            leader_ready: false,
            commit: core.commit(),
            applied: core.log().applied(),
            last_index: core.last_index(),
            last_term: core.last_term(),
            first_index: core.log().base().index + 1,
            log_bytes: core.log().bytes(),
            oldest_ms: None,
            damage: None,
            membership: core.membership().clone(),
            peers: core.progress(),
            installing_snapshot: core.installing(),
        }
    }

    /// When there is something to do even if nothing comes in.
    pub fn due(&self) -> Option<Instant> {
        self.commit_due.into_iter().chain(self.reads.due()).min()
    }

    /// Nobody will answer any more.
    pub fn fail_all(&mut self) {
        for pending in self.pending.drain(..) {
            let _ = pending.answer.send(Err(ProposeError::Unknown));
        }
        for proposal in self.held.drain(..).chain(self.refused.drain(..)) {
            let _ = proposal.answer.send(Err(ProposeError::Stopped));
        }
        self.changing = None;
        self.changes.clear();
        self.reads.fail_all();
    }

    pub fn lose_leadership(&mut self) {
        let leader = self.core.leader();
        for pending in self.pending.drain(..) {
            let _ = pending.answer.send(Err(ProposeError::Unknown));
        }
        self.refused.append(&mut self.held);
        let changing = self.changing.take().map(|(_, answer)| answer);
        let waiting = self.changes.drain(..).map(|(_, answer)| answer);
        for answer in changing.into_iter().chain(waiting) {
            let _ = answer.send(Err(Error::NotLeader { leader }));
        }
    }

    /// Proposes the changes of the membership that wait, one at a time.
    pub fn propose_changes(&mut self) {
        while self.changing.is_none() {
            let Some((change, answer)) = self.changes.pop_front() else {
                return;
            };
            match self.core.propose_change(&change) {
                ChangeOutcome::Proposed(position) => self.changing = Some((position, answer)),
                ChangeOutcome::Unchanged => {
                    let _ = answer.send(Ok(self.core.membership().clone()));
                }
                ChangeOutcome::Later => {
                    self.changes.push_front((change, answer));
                    return;
                }
                ChangeOutcome::NotLeader => {
                    let leader = self.core.leader();
                    let _ = answer.send(Err(Error::NotLeader { leader }));
                }
                ChangeOutcome::Refused(reason) => {
                    let _ = answer.send(Err(Error::Refused(reason)));
                }
            }
        }
    }
}
