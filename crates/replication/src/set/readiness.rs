//! Whether a member's state is recent enough to be read.
//!
//! After a restart a member's state stands where the engine had it, which may be before what it
//! served and acknowledged until then; after a snapshot, or in a new member, it may be any old
//! state. It answers reads only once
//!
//! - it has applied everything that it knows to be committed, and
//! - it is level with what the primary said was committed when that was first heard of. When
//!   nobody leads for a while, there is nobody to be level with, and its own knowledge has to do:
//!   a set that has lost its majority still answers reads.

use std::time::{Duration, Instant};

use banyan_consensus::{Role, Status};
use parking_lot::Mutex;

/// So many election timeouts without a leader are taken to mean that there is none.
const TIMEOUTS_WITHOUT_LEADER: u32 = 2;

pub struct Readiness {
    state: Mutex<State>,
}

struct State {
    /// Since when it is behind: its start, or the last snapshot.
    since: Instant,
    /// What was known to be committed then.
    known: Option<u64>,
    /// What the primary had committed when it was first heard of after that.
    heard: Option<u64>,
}

impl Readiness {
    pub fn new() -> Readiness {
        Readiness {
            state: Mutex::new(State::new()),
        }
    }

    /// The state is being replaced.
    pub fn begin_anew(&self) {
        *self.state.lock() = State::new();
    }

    /// `primary_commit`: what the leader says is committed, as soon as it has said so.
    pub fn is_level(
        &self,
        status: &Status,
        primary_commit: Option<u64>,
        election_timeout: Duration,
    ) -> bool {
        let mut state = self.state.lock();
        let known = *state.known.get_or_insert(status.commit);
        if status.leader_ready {
            return true;
        }
        if let Some(commit) = primary_commit {
            state.heard.get_or_insert(commit);
        }
        let applied = status.applied.index;
        if applied < known {
            return false;
        }
        match state.heard {
            Some(commit) => applied >= commit,
            None => {
                let votes = matches!(status.role, Role::Leader | Role::Follower | Role::Candidate);
                let timeout = election_timeout * TIMEOUTS_WITHOUT_LEADER;
                votes && status.leader.is_none() && state.since.elapsed() >= timeout
            }
        }
    }
}

impl Default for Readiness {
    fn default() -> Readiness {
        Readiness::new()
    }
}

impl State {
    fn new() -> State {
        State {
            since: Instant::now(),
            known: None,
            heard: None,
        }
    }
}

/// The log begins where the state ends, or before. If it does not, the state has lost something
/// that it once had (the log is cut only past what the state has kept for good): others can give it
/// again, but a member that decides alone has to say so and stop.
pub fn check_reach(status: &Status, import_was_interrupted: bool) -> Result<(), String> {
    let applied = status.applied.index;
    if applied + 1 >= status.first_index {
        return Ok(());
    }
    let others = status
        .membership
        .voters()
        .any(|voter| voter.id != status.id);
    if others {
        if !import_was_interrupted {
            tracing::warn!(
                state_ends = applied,
                log_begins = status.first_index,
                "a part of the state is missing: it is fetched from another member"
            );
        }
        return Ok(());
    }
    Err(format!(
        "the state ends at entry {applied} but the log begins at entry {}: what the state once had \
         after that was damaged or removed, and there is no other member to fetch it from; restore \
         the directory from a backup",
        status.first_index
    ))
}

#[cfg(test)]
mod tests {
    use banyan_consensus::{Member, Membership, Position};

    use super::*;

    const SOON: Duration = Duration::from_secs(3600);

    fn status(applied: u64, commit: u64, leader: Option<u64>) -> Status {
        let applied = Position {
            term: 1,
            index: applied,
        };
        Status {
            id: 1,
            role: Role::Follower,
            term: 1,
            leader,
            leader_ready: false,
            commit,
            applied,
            last_index: commit,
            last_term: 1,
            first_index: 1,
            log_bytes: 0,
            oldest_ms: None,
            damage: None,
            membership: Membership::default(),
            peers: Vec::new(),
            installing_snapshot: false,
        }
    }

    #[test]
    fn a_restarted_member_reaches_what_it_knew_and_what_the_primary_says() {
        let readiness = Readiness::new();
        let leader = Some(7);
        assert!(!readiness.is_level(&status(5, 9, leader), None, SOON));
        assert!(
            !readiness.is_level(&status(9, 9, leader), None, SOON),
            "the primary is silent"
        );
        assert!(!readiness.is_level(&status(9, 9, leader), Some(20), SOON));
        // It need not run after what is written meanwhile.
        assert!(!readiness.is_level(&status(19, 30, leader), Some(40), SOON));
        assert!(readiness.is_level(&status(20, 40, leader), Some(50), SOON));
        readiness.begin_anew();
        assert!(!readiness.is_level(&status(20, 40, leader), Some(50), SOON));
    }

    #[test]
    fn a_state_that_ends_before_the_log_begins_is_not_served_alone() {
        let member = |id| Member {
            id,
            address: String::new(),
            voter: true,
        };
        let mut status = status(5, 9, None);
        status.membership.members = vec![member(1)];
        status.first_index = 6;
        assert_eq!(check_reach(&status, false), Ok(()));
        status.first_index = 7;
        let error = check_reach(&status, false).unwrap_err();
        assert!(
            error.contains("ends at entry 5") && error.contains("entry 7"),
            "{error}"
        );
        status.membership.members.push(member(2));
        assert_eq!(check_reach(&status, false), Ok(()));
    }

    #[test]
    fn without_a_leader_its_own_knowledge_has_to_do() {
        let readiness = Readiness::new();
        assert!(!readiness.is_level(&status(5, 9, None), None, Duration::ZERO));
        assert!(
            !readiness.is_level(&status(9, 9, None), None, SOON),
            "one may yet be heard of"
        );
        assert!(readiness.is_level(&status(9, 9, None), None, Duration::ZERO));
    }
}
