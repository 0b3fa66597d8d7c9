//! The handle on a running group.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::channel::oneshot;

use crate::driver::{Control, LogHold, Proposal, Shared, Threads};
use crate::error::{Error, ProposeError};
use crate::machine::{Change, Member, Membership, PeerId, Position, StateMachine, Transport};
use crate::options::{Options, ProposeOptions};
use crate::status::{LeaderWatch, Status};

/// The largest entry that is taken: it must fit into one message between members.
pub const ENTRY_BYTES_MAX: usize = 40 << 20;

pub type Proposed = futures::future::BoxFuture<'static, Result<Position, ProposeError>>;

/// A member of a Raft group. Clones share it; when the last one is dropped the threads end.
pub struct Group<S: StateMachine> {
    shared: Arc<Shared<S>>,
    threads: Arc<Threads<S>>,
}

impl<S: StateMachine> Clone for Group<S> {
    fn clone(&self) -> Self {
        Group {
            shared: self.shared.clone(),
            threads: self.threads.clone(),
        }
    }
}

impl<S: StateMachine> Group<S> {
    pub fn open(
        dir: &Path,
        options: Options,
        machine: Arc<S>,
        transport: Arc<dyn Transport>,
    ) -> Result<Group<S>, Error> {
        let shared = Arc::new(Shared::open(dir, options, machine, transport)?);
        shared.keep_state_behind();
        let threads = Arc::new(Threads::start(&shared)?);
        Ok(Group { shared, threads })
    }

    /// A group without threads.
    #[cfg(feature = "simulation")]
    pub(crate) fn open_idle(
        dir: &Path,
        options: Options,
        machine: Arc<S>,
        transport: Arc<dyn Transport>,
    ) -> Result<Group<S>, Error> {
        let shared = Arc::new(Shared::open(dir, options, machine, transport)?);
        shared.keep_state_behind();
        let threads = Arc::new(Threads::none(&shared));
        Ok(Group { shared, threads })
    }

    #[cfg(feature = "simulation")]
    pub(crate) fn shared_for_simulation(&self) -> Arc<Shared<S>> {
        self.shared.clone()
    }

    /// Makes a group of one out of a member with an empty log. It leads once its first entry is
    /// applied (see [`Group::leader_term`]): at once, unless the disk is slow.
    pub fn bootstrap(&self, address: &str) -> Result<(), Error> {
        self.shared.bootstrap(address)
    }

    /// It belongs to a group, or did.
    pub fn is_bootstrapped(&self) -> bool {
        !self.shared.status().membership.members.is_empty() || self.shared.status().last_index > 0
    }

    /// Proposes an entry; the future resolves after it is applied on this member. The proposal is
    /// made by the call, not by polling the future. The machine seals it before it is appended.
    pub fn propose(
        &self,
        data: Vec<u8>,
        prepared: S::Prepared,
        options: ProposeOptions,
    ) -> Proposed {
        self.propose_then(data, prepared, options, || ())
    }

    /// The same; `placed` is called once all that is proposed afterwards comes behind it in the log. If
    /// this proposal is refused, later ones may still be taken.
    pub fn propose_then(
        &self,
        data: Vec<u8>,
        prepared: S::Prepared,
        options: ProposeOptions,
        placed: impl FnOnce(),
    ) -> Proposed {
        if data.len() > ENTRY_BYTES_MAX {
            return futures::future::ready(Err(ProposeError::TooLarge)).boxed();
        }
        let (answer, outcome) = oneshot::channel();
        let proposal = Proposal {
            data,
            prepared,
            options,
            answer,
        };
        self.shared.propose(proposal, placed);
        outcome
            .map(|outcome| outcome.unwrap_or(Err(ProposeError::Stopped)))
            .boxed()
    }

    /// The term in which this member is the leader and may serve; 0 if it is not. Cheap.
    pub fn leader_term(&self) -> u64 {
        self.shared.leader_term.load(Ordering::Acquire)
    }

    /// Waits until the watchers were told of everything that `leader_term` has shown. Cheap.
    pub fn settle(&self) {
        self.shared.settle();
    }

    /// Looks at role, leader, members and snapshots without copying them; positions and
    /// `leader_ready` may be older than in [`Group::status`]. Cheap; `look` must not wait.
    pub fn look<R>(&self, look: impl FnOnce(&Status) -> R) -> R {
        self.shared.look(look)
    }

    /// The last applied index. Cheap.
    pub fn applied_index(&self) -> u64 {
        self.shared.applier.applied_index()
    }

    /// Resolves once this member has applied `index`.
    pub fn wait_applied(
        &self,
        index: u64,
    ) -> impl Future<Output = Result<u64, Error>> + Send + 'static {
        let (answer, outcome) = oneshot::channel();
        self.shared.applier.wait_for(index, answer);
        outcome.map(|outcome| outcome.map_err(|_| Error::Stopped))
    }

    /// Takes a message from another member. One that cannot be one is dropped.
    pub fn step(&self, message: Bytes) {
        self.shared.receive(&message);
    }

    /// An index such that a state at it shows everything acknowledged before the call. Resolves
    /// once this member has applied it.
    pub fn read_index(&self) -> impl Future<Output = Result<u64, Error>> + Send + 'static {
        let (answer, outcome) = oneshot::channel();
        self.shared.read_index(answer);
        outcome.map(|outcome| outcome.map_err(|_| Error::Timeout))
    }

    /// Changes one member; resolves with the membership once the change is committed.
    pub fn change_membership(
        &self,
        change: Change,
    ) -> impl Future<Output = Result<Membership, Error>> + Send + 'static {
        let (answer, outcome) = oneshot::channel();
        self.shared.control(Control::Change(change, answer));
        outcome.map(|outcome| outcome.unwrap_or(Err(Error::Stopped)))
    }

    pub fn transfer_leadership(&self, to: PeerId) {
        self.hand_over(to, "told to hand the lead over");
    }

    /// Gives the lead to another member once that has everything; `why` is for the log.
    pub fn hand_over(&self, to: PeerId, why: &'static str) {
        self.shared.control(Control::Transfer(to, why));
    }

    /// Tells the followers what is committed at once, for somebody who waits until they have applied
    /// it. Otherwise they hear of it with the next entries, or a few milliseconds later.
    pub fn announce_commit(&self) {
        self.shared.control(Control::AnnounceCommit);
    }

    /// Gives leadership up at once, without naming a successor.
    pub fn step_down(&self) {
        self.give_up("told to step down");
    }

    /// Steps down; `why` is for the log.
    pub fn give_up(&self, why: &'static str) {
        self.shared.control(Control::StepDown(why));
    }

    /// Asks for the lead now, unless there is a leader.
    pub fn campaign(&self) {
        self.shared.control(Control::Campaign);
    }

    /// There is reason to think that the leader has ended (its host refuses connections): this
    /// member campaigns soon, unless it hears of the leader.
    pub fn suspect_leader(&self, leader: PeerId) {
        self.shared.control(Control::Suspect(leader));
    }

    /// A member that is not electable never campaigns.
    pub fn set_electable(&self, electable: bool) {
        self.shared.control(Control::Electable(electable));
    }

    /// From now on. Heartbeats keep their pace, as far as it goes with the timeout.
    pub fn set_election_timeout(&self, timeout: Duration) {
        self.shared.set_timing(None, timeout);
    }

    /// From now on. There are at least four heartbeats to an election timeout, and one is at least
    /// a fortieth of it.
    pub fn set_timing(&self, heartbeat: Duration, election_timeout: Duration) {
        self.shared.set_timing(Some(heartbeat), election_timeout);
    }

    /// For a group that has lost its majority: makes this member the only voter, on its own word,
    /// with the others of `members` as learners (whatever their `voter` says), whom [`Change`]s can
    /// promote again. It is on disk when this resolves; then this member leads (see
    /// [`Group::leader_term`]), unless it is not electable. What the others have decided without it
    /// is lost: whoever of them is reached follows this member, and fetches its state if its own is
    /// another. Refused if the state of this member is incomplete.
    ///
    /// Among those that survived, the member with the newest log (by term, then index, of the last
    /// entry) should do it: then nothing is lost that any of them knows.
    pub fn force_membership(
        &self,
        members: Vec<Member>,
    ) -> impl Future<Output = Result<Membership, Error>> + Send + 'static {
        let (answer, outcome) = oneshot::channel();
        self.shared.control(Control::Force(members, answer));
        outcome.map(|outcome| outcome.unwrap_or(Err(Error::Stopped)))
    }

    /// For a group of two voters that has lost one of them for good: this member goes on without
    /// it, with `newcomer` as a learner. Nothing that was committed is lost: both voters have it.
    /// Refused unless this member and `lost` are the only voters, there is no leader, and no change
    /// of members is under way. What follows is as after [`Group::force_membership`].
    pub fn replace_lost_voter(
        &self,
        lost: PeerId,
        newcomer: Member,
    ) -> impl Future<Output = Result<Membership, Error>> + Send + 'static {
        let (answer, outcome) = oneshot::channel();
        self.shared
            .control(Control::Replace(lost, newcomer, answer));
        outcome.map(|outcome| outcome.unwrap_or(Err(Error::Stopped)))
    }

    /// A witness votes and keeps the log, and its state machine keeps no data. It takes the lead
    /// only if nobody with data can be elected without what is in its log, brings one of them up to
    /// it and gives the lead away; `leader_term` stays 0 meanwhile. It offers no snapshots.
    pub fn set_witness(&self, witness: bool) {
        self.shared.control(Control::Witness(witness));
    }

    /// Which members are witnesses (this one's own part is set by [`Group::set_witness`]): they are
    /// not given the lead. Every member should be told, as any may lead.
    pub fn set_witnesses(&self, witnesses: Vec<PeerId>) {
        self.shared.control(Control::Witnesses(witnesses));
    }

    /// Committed entries are applied only once [`StateMachine::written_ms`] was so long ago; until
    /// then they stay in the log. Zero ends it. A delayed member never leads.
    pub fn set_apply_delay(&self, delay: Duration) {
        self.shared.set_apply_delay(delay);
    }

    /// How much of the log is kept: entries are cut off when there are more than `bytes_max` and
    /// they were written longer than `min_age` ago (see [`StateMachine::written_ms`]). Entries that
    /// a live member or a [`LogHold`] needs are kept up to four times `bytes_max`. What the state
    /// has not made durable is never cut.
    pub fn set_log_limits(&self, bytes_max: u64, min_age: Duration) {
        self.shared.keeping.set_limits(bytes_max, min_age);
    }

    /// Keeps the log from `from_index` on, as far as it is still there, while the hold lives.
    pub fn hold_log(&self, from_index: u64) -> LogHold {
        self.shared.keeping.hold(from_index)
    }

    /// The first index of the log. Cheap.
    pub fn first_index(&self) -> u64 {
        self.shared.reader.first_index()
    }

    pub fn status(&self) -> Status {
        self.shared.status()
    }

    pub fn watch(&self, callback: LeaderWatch) {
        callback(&self.shared.status());
        self.shared.watchers.lock().push(callback);
    }

    /// Committed entries from an index on (or from the first that there is), at least one if there
    /// is any, and then no more than `bytes_max` (64 MB at the most); for those who read the log.
    /// Entries that carry no data are included. Waits for no append and no sync.
    pub fn entries(&self, from: u64, bytes_max: u64) -> Result<Vec<(Position, Bytes)>, Error> {
        self.shared.entries(from, bytes_max)
    }

    /// Syncs the log and ends the threads. Waiting proposals answer `Stopped`.
    pub fn stop(&self) {
        self.threads.stop(&self.shared);
    }
}
