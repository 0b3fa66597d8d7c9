//! Whose a session is; what belongs to one ends with it.

use banyan_execution::Cause;
use banyan_replication::clock;
use banyan_replication::sessions::session_id::{self, SessionId};
use banyan_wire::CommandError;

use crate::access::identity::{Owner, UserDigest};
use crate::node::Node;

/// Whose the sessions of a client are.
enum SessionOwner {
    /// There are no users, or they do not count.
    Shared,
    User(UserDigest),
    Nobody,
}

fn session_owner(owner: Option<&Owner>) -> SessionOwner {
    match owner {
        None => SessionOwner::Shared,
        Some(owner) if owner.is_nobody() => SessionOwner::Nobody,
        Some(owner) => SessionOwner::User(owner.digest()),
    }
}

impl Node {
    /// A session is in use. Whoever uses it first owns it; who has not logged in has none.
    pub fn use_session(
        &self,
        owner: Option<&Owner>,
        session: SessionId,
    ) -> Result<(), CommandError> {
        let sessions_max = self.parameters.value("maxSessions");
        let sessions_max = usize::try_from(sessions_max).unwrap_or(usize::MAX);
        let owner = match session_owner(owner) {
            SessionOwner::Nobody => return Ok(()),
            SessionOwner::Shared => None,
            SessionOwner::User(user) => Some(user),
        };
        self.sessions.touch(session, owner, sessions_max)
    }

    /// Ends a session for its owner; somebody else's stays.
    pub fn end_own_session(&self, owner: Option<&Owner>, session: &SessionId, kill_running: bool) {
        let is_own = match session_owner(owner) {
            SessionOwner::Nobody => false,
            SessionOwner::Shared => true,
            SessionOwner::User(user) => self.sessions.is_owned(session, &user),
        };
        if is_own {
            self.end_session(session, kill_running);
        }
    }

    /// Ends the sessions of the client's user.
    pub fn kill_own_sessions(&self, owner: Option<&Owner>, asking_connection: u64) {
        match session_owner(owner) {
            SessionOwner::Nobody => {}
            SessionOwner::Shared => self.kill_all_sessions(asking_connection),
            SessionOwner::User(user) => {
                for session in self.sessions.of(&user) {
                    self.end_session(&session, true);
                }
            }
        }
    }

    /// Ends what belongs to a session: its cursors and, if told so, what it runs now.
    pub fn end_session(&self, session: &SessionId, kill_running: bool) {
        self.cursors.kill_session(*session);
        self.sessions.end(session);
        if !kill_running {
            return;
        }
        for operation in self.operations.all() {
            let lsid = operation.body.get_document("lsid").ok();
            if lsid.and_then(|lsid| session_id::parse(lsid).ok()).as_ref() == Some(session) {
                operation.interrupt.raise(Cause::Killed);
            }
        }
    }

    /// Ends every session's cursors and commands but those of the connection that asks.
    pub fn kill_all_sessions(&self, asking_connection: u64) {
        for listed in self.sessions.all() {
            self.cursors.kill_session(listed.session);
        }
        for operation in self.operations.all() {
            let named = operation.body.get_document("lsid").is_ok();
            let asks = operation.connection.as_ref();
            let asks = asks.is_some_and(|connection| connection.id == asking_connection);
            if named && !asks {
                operation.interrupt.raise(Cause::Killed);
            }
        }
    }

    /// Ends sessions that nobody has named for the time-out, and their cursors.
    pub fn expire_sessions(&self) -> usize {
        let minutes = self.parameters.value("localLogicalSessionTimeoutMinutes");
        let before = clock::wall_ms().saturating_sub(minutes.saturating_mul(60_000));
        let expired = self.sessions.expire(before);
        for session in &expired {
            self.cursors.kill_session(*session);
        }
        expired.len()
    }
}
