//! Logical sessions: which ones are in use, and when each was last heard of.
//!
//! A session exists by being named in a command. What belongs to one are its cursors and running
//! commands, which end with it, and the outcome of its last retryable write, which lies with the
//! data (`banyan_replication::sessions`). One that nobody has named for the time-out ends here; their
//! number is bounded.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use banyan_replication::clock;
use banyan_wire::{CommandError, ErrorCode, SessionId};
use bson::DateTime;
use parking_lot::Mutex;

/// Sessions are spread over this many locks.
const SHARDS: usize = 16;

pub struct LogicalSessions {
    /// When each was last named, in milliseconds of the wall clock.
    shards: Box<[Mutex<HashMap<SessionId, i64>>]>,
    count: AtomicUsize,
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
}

impl LogicalSessions {
    fn shard(&self, session: &SessionId) -> &Mutex<HashMap<SessionId, i64>> {
        &self.shards[usize::from(session.id[15]) % SHARDS]
    }

    /// Its user uses it.
    pub fn touch(&self, session: SessionId, sessions_max: usize) -> Result<(), CommandError> {
        self.touch_at(session, sessions_max, clock::wall_ms())
    }

    fn touch_at(
        &self,
        session: SessionId,
        sessions_max: usize,
        now_ms: i64,
    ) -> Result<(), CommandError> {
        let mut shard = self.shard(&session).lock();
        if let Some(used_ms) = shard.get_mut(&session) {
            *used_ms = now_ms;
            return Ok(());
        }
        if self.count.fetch_add(1, Ordering::Relaxed) >= sessions_max {
            self.count.fetch_sub(1, Ordering::Relaxed);
            return Err(CommandError::new(
                ErrorCode::TooManyLogicalSessions,
                format!(
                    "Unable to add session ID {} into the cache because the number of active \
                     sessions is too high",
                    uuid::Uuid::from_bytes(session.id)
                ),
            ));
        }
        shard.insert(session, now_ms);
        Ok(())
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
            shard.lock().retain(|session, used_ms| {
                let stays = *used_ms >= before_ms;
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
            all.extend(shard.iter().map(|(session, used_ms)| Listed {
                session: *session,
                last_use: DateTime::from_millis(*used_ms),
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

    fn session(number: u8) -> SessionId {
        SessionId::shared([number; 16])
    }

    #[test]
    fn sessions_end_when_nobody_names_them() {
        let sessions = LogicalSessions::default();
        sessions.touch_at(session(1), 2, 10).unwrap();
        sessions.touch_at(session(2), 2, 20).unwrap();
        let error = sessions.touch_at(session(3), 2, 30).unwrap_err();
        assert_eq!(error.code, ErrorCode::TooManyLogicalSessions);
        sessions.touch_at(session(1), 2, 40).unwrap();
        assert_eq!(sessions.expire(30), [session(2)]);
        sessions.touch_at(session(3), 2, 50).unwrap();
        assert!(sessions.end(&session(1)) && !sessions.end(&session(1)));
        assert_eq!(sessions.count(), 1);
        let listed = Listed {
            session: session(3),
            last_use: DateTime::from_millis(50),
        };
        assert_eq!(sessions.all(), [listed]);
    }

    #[test]
    fn what_one_user_calls_its_own_is_not_another_ones() {
        let of = |user| SessionId {
            user: Some(user),
            ..session(1)
        };
        let (mine, theirs) = (of([7; 32]), of([8; 32]));
        let sessions = LogicalSessions::default();
        sessions.touch_at(mine, 9, 10).unwrap();
        sessions.touch_at(theirs, 9, 20).unwrap();
        assert_eq!(sessions.count(), 2);
        assert!(sessions.end(&mine));
        assert_eq!(sessions.expire(30), [theirs]);
    }
}
