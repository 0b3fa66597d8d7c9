//! Logical sessions: which ones are in use, and when each was last heard of.
//!
//! A session exists by being named in a command. What belongs to one are its cursors and running
//! commands, which end with it, and the outcome of its last retryable write, which lies with the
//! data (`banyan_replication::sessions`). One that nobody has named for the time-out ends here; their
//! number is bounded.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use banyan_replication::clock;
use banyan_replication::sessions::session_id::SessionId;
use banyan_wire::{CommandError, ErrorCode};
use bson::DateTime;
use parking_lot::Mutex;

use crate::access::identity::UserDigest;

/// Sessions are spread over this many locks.
const SHARDS: usize = 16;

pub struct LogicalSessions {
    shards: Box<[Mutex<HashMap<SessionId, Known>>]>,
    count: AtomicUsize,
}

#[derive(Clone, Copy)]
struct Known {
    /// When it was last named, in milliseconds of the wall clock.
    used_ms: i64,
    /// Who named it first; `None` while users do not count.
    owner: Option<UserDigest>,
}

impl Default for LogicalSessions {
    fn default() -> LogicalSessions {
        LogicalSessions {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            count: AtomicUsize::new(0),
        }
    }
}

/// A session as lists show it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Listed {
    pub session: SessionId,
    pub last_use: DateTime,
    pub owner: Option<UserDigest>,
}

impl LogicalSessions {
    fn shard(&self, session: &SessionId) -> &Mutex<HashMap<SessionId, Known>> {
        &self.shards[usize::from(session[15]) % SHARDS]
    }

    /// Somebody uses it, the first one for good.
    pub fn touch(
        &self,
        session: SessionId,
        owner: Option<UserDigest>,
        sessions_max: usize,
    ) -> Result<(), CommandError> {
        self.touch_at(session, owner, sessions_max, clock::wall_ms())
    }

    fn touch_at(
        &self,
        session: SessionId,
        owner: Option<UserDigest>,
        sessions_max: usize,
        now_ms: i64,
    ) -> Result<(), CommandError> {
        let mut shard = self.shard(&session).lock();
        if let Some(known) = shard.get_mut(&session) {
            if known.owner != owner && known.owner.is_some() {
                return Err(CommandError::new(
                    ErrorCode::Unauthorized,
                    "the session belongs to another user",
                ));
            }
            known.used_ms = now_ms;
            return Ok(());
        }
        if self.count.fetch_add(1, Ordering::Relaxed) >= sessions_max {
            self.count.fetch_sub(1, Ordering::Relaxed);
            return Err(CommandError::new(
                ErrorCode::TooManyLogicalSessions,
                format!(
                    "Unable to add session ID {} into the cache because the number of active \
                     sessions is too high",
                    uuid::Uuid::from_bytes(session)
                ),
            ));
        }
        let used_ms = now_ms;
        shard.insert(session, Known { used_ms, owner });
        Ok(())
    }

    pub fn is_owned(&self, session: &SessionId, owner: &UserDigest) -> bool {
        let shard = self.shard(session).lock();
        shard
            .get(session)
            .is_some_and(|known| known.owner.as_ref() == Some(owner))
    }

    /// The sessions of a user.
    pub fn of(&self, owner: &UserDigest) -> Vec<SessionId> {
        let mut own = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let known = shard.iter();
            own.extend(
                known
                    .filter(|(_, known)| known.owner.as_ref() == Some(owner))
                    .map(|(session, _)| *session),
            );
        }
        own
    }

    pub fn end(&self, session: &SessionId) -> bool {
        let ended = self.shard(session).lock().remove(session).is_some();
        if ended {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
        ended
    }

    /// Ends all that were last named before that time.
    pub fn expire(&self, before_ms: i64) -> Vec<SessionId> {
        let mut expired = Vec::new();
        for shard in &self.shards {
            shard.lock().retain(|session, known| {
                let stays = known.used_ms >= before_ms;
                if !stays {
                    expired.push(*session);
                }
                stays
            });
        }
        self.count.fetch_sub(expired.len(), Ordering::Relaxed);
        expired
    }

    pub fn all(&self) -> Vec<Listed> {
        let mut all = Vec::with_capacity(self.count());
        for shard in &self.shards {
            let shard = shard.lock();
            all.extend(shard.iter().map(|(session, known)| Listed {
                session: *session,
                last_use: DateTime::from_millis(known.used_ms),
                owner: known.owner,
            }));
        }
        all
    }

    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_end_when_nobody_names_them() {
        let sessions = LogicalSessions::default();
        sessions.touch_at([1; 16], None, 2, 10).unwrap();
        sessions.touch_at([2; 16], None, 2, 20).unwrap();
        let error = sessions.touch_at([3; 16], None, 2, 30).unwrap_err();
        assert_eq!(error.code, ErrorCode::TooManyLogicalSessions);
        sessions.touch_at([1; 16], None, 2, 40).unwrap();
        assert_eq!(sessions.expire(30), [[2; 16]]);
        sessions.touch_at([3; 16], None, 2, 50).unwrap();
        assert!(sessions.end(&[1; 16]) && !sessions.end(&[1; 16]));
        assert_eq!(sessions.count(), 1);
        let listed = Listed {
            session: [3; 16],
            last_use: DateTime::from_millis(50),
            owner: None,
        };
        assert_eq!(sessions.all(), [listed]);
    }

    #[test]
    fn a_session_belongs_to_whom_it_was_first_named_by() {
        let sessions = LogicalSessions::default();
        let (mine, theirs) = ([7; 32], [8; 32]);
        sessions.touch_at([1; 16], Some(mine), 9, 10).unwrap();
        sessions.touch_at([1; 16], Some(mine), 9, 11).unwrap();
        let error = sessions.touch_at([1; 16], Some(theirs), 9, 12).unwrap_err();
        assert_eq!(error.code, ErrorCode::Unauthorized);
        assert!(sessions.is_owned(&[1; 16], &mine) && !sessions.is_owned(&[1; 16], &theirs));
        assert_eq!(sessions.of(&mine), [[1; 16]]);
        assert!(sessions.of(&theirs).is_empty());
    }
}
