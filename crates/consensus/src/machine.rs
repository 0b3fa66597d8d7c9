//! What a user of a group implements, and the values that pass between the two.

use std::io;

use bytes::Bytes;

/// The identity of a member: drawn at random once for each data directory, never reused.
/// Zero is never a member.
pub type PeerId = u64;

/// A place in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    pub term: u64,
    pub index: u64,
}

/// One member of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub id: PeerId,
    /// Where the transport reaches it; opaque here.
    pub address: String,
    /// A member without a vote is a learner: it follows the log and decides nothing.
    pub voter: bool,
}

/// Who belongs to the group, as of one index of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// The index of the entry that made the group what it is.
    pub index: u64,
    /// The term of that entry.
    pub term: u64,
    /// Sorted by id.
    pub members: Vec<Member>,
}

impl Membership {
    pub fn get(&self, id: PeerId) -> Option<&Member> {
        self.members.iter().find(|member| member.id == id)
    }

    pub fn by_address(&self, address: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.address == address)
    }

    pub fn voters(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.voter)
    }
}

/// A change of one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    AddLearner {
        id: PeerId,
        address: String,
    },
    /// Makes a learner a voter.
    Promote(PeerId),
    /// Makes a voter a learner.
    Demote(PeerId),
    Remove(PeerId),
    UpdateAddress {
        id: PeerId,
        address: String,
    },
}

/// A committed entry on its way into the state machine.
#[derive(Debug)]
pub struct Committed<P> {
    pub position: Position,
    /// Empty for the entry a new leader starts its term with, and for a change of members: such
    /// an entry moves the applied position and nothing else.
    pub data: Bytes,
    /// What the proposer handed in, when this member proposed the entry itself.
    pub prepared: Option<P>,
    /// The members as this entry leaves them, if it changed them.
    pub membership: Option<Membership>,
}

/// What a far-behind follower is told before it fetches the state from the leader.
#[derive(Clone, Debug)]
pub struct SnapshotMeta {
    /// The state that is fetched must be at this position or later.
    pub position: Position,
    pub members: Vec<Member>,
    pub leader: PeerId,
    pub leader_address: String,
}

/// The state machine could not take an entry. The group stops: a member that skipped an entry
/// would serve wrong data.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ApplyError(pub String);

/// Syncs the log, with the note that the state on the disk may hold what its entries up to an index did.
pub type LogBarrier = Box<dyn Fn(u64) -> io::Result<()> + Send + Sync>;

/// The state that the log builds.
pub trait StateMachine: Send + Sync + 'static {
    /// What a proposer computed beforehand; handed back when its own entry is applied.
    type Prepared: Send + 'static;

    /// The position of the last applied entry (zero for an empty state). Read when the group
    /// opens and after a snapshot was installed.
    fn applied(&self) -> Position;

    /// Whether an entry that another member sent can be one at all: what is appended is applied one
    /// day, and what cannot be applied ends this member for good. Called on the thread on which the
    /// entry arrives, without a lock. `Err` says what is wrong with it.
    fn check(&self, data: &[u8]) -> Result<(), String> {
        let _ = data;
        Ok(())
    }

    /// Completes an entry right before the leader appends it, in the order of the log: what depends
    /// on that order (a time) is settled here. Called under the driver's lock: must be quick. A
    /// sealed entry that could not be appended is sealed again later.
    fn seal(&self, data: &mut [u8]) {
        let _ = data;
    }

    /// When an entry was written, in milliseconds since 1970 by the clock of the leader that wrote
    /// it; none if the entry does not say. A delayed member waits for it to be long enough ago, and
    /// the log is kept by it.
    fn written_ms(&self, data: &[u8]) -> Option<i64> {
        let _ = data;
        None
    }

    /// Applies entries in order, all of them in one atomic batch.
    fn apply(&self, entries: Vec<Committed<Self::Prepared>>) -> Result<(), ApplyError>;

    /// Called once, before anything is applied that the barrier was not called for. Parts of a state may
    /// come to the disk before others: before any does that holds effects of entries up to an index,
    /// the barrier has to be called with it. When the group opens again, entries up to there are applied
    /// before anything else, so that all parts are level.
    fn keep_behind_log(&self, barrier: LogBarrier) {
        drop(barrier);
    }

    /// The highest index whose effects survive a power cut. The log is never cut past it.
    fn durable(&self) -> u64;

    /// Makes what is applied survive a power cut; called in the background now and then.
    fn make_durable(&self) -> io::Result<u64>;

    /// Replaces the state by the leader's, at `meta.position` or later; that may be before what is
    /// applied here, after a forced change of the members. Blocks as long as it takes; runs on a
    /// thread of its own. After an error the state may be empty, but `applied`
    /// must tell the truth about it (zero while it is incomplete).
    fn install_snapshot(&self, meta: SnapshotMeta) -> Result<(), ApplyError>;
}

/// Carries messages to other members.
pub trait Transport: Send + Sync + 'static {
    /// Sends messages in order, or drops them: never blocks.
    fn send(&self, to: PeerId, address: &str, messages: Vec<Bytes>);
}
