//! How a member stands in its group.

use std::time::Instant;

use crate::machine::{Membership, PeerId, Position};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Leader,
    Candidate,
    Follower,
    Learner,
    /// Not a member of any group (yet).
    Outsider,
}

#[derive(Clone, Debug)]
pub struct PeerProgress {
    pub id: PeerId,
    pub address: String,
    pub voter: bool,
    /// The last index known to be in its log (leader only).
    pub matched: u64,
    /// Heard from within an election timeout (leader only).
    pub recent_active: bool,
    /// It fetches a snapshot (leader only).
    pub in_snapshot: bool,
    pub last_contact: Option<Instant>,
}

#[derive(Clone, Debug)]
pub struct Status {
    pub id: PeerId,
    pub role: Role,
    pub term: u64,
    pub leader: Option<PeerId>,
    /// Leader, and an entry of its own term is applied: it may serve.
    pub leader_ready: bool,
    pub commit: u64,
    pub applied: Position,
    pub last_index: u64,
    /// The term of the last entry.
    pub last_term: u64,
    pub first_index: u64,
    /// About how many bytes of entries the log holds.
    pub log_bytes: u64,
    /// When the first entry was written (see [`crate::StateMachine::written_ms`]), if it says so.
    pub oldest_ms: Option<i64>,
    /// What was found to be damaged in the log; members that need it fetch a snapshot instead.
    pub damage: Option<String>,
    pub membership: Membership,
    pub peers: Vec<PeerProgress>,
    /// This member fetches a snapshot, or waits to.
    pub installing_snapshot: bool,
}

/// Called when the role, the leader, its readiness or the membership changes. It runs on the
/// group's threads: it must not block or call back into the group beyond `status`.
pub type LeaderWatch = Box<dyn Fn(&Status) + Send + Sync>;
