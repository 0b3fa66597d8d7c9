//! Which session a client means; what belongs to one ends with it.

use banyan_execution::Cause;
use banyan_replication::clock;
use banyan_wire::session_id::{self, Lsid};
use banyan_wire::{CommandError, SessionId};

use crate::context::CommandContext;
use crate::node::Node;
use crate::operations::Operation;
use banyan_access::identity::{self, Owner};
use banyan_access::sessions::{self, Naming, Pattern};

impl CommandContext<'_> {
    /// The session that the client means: of its own user, unless it may name another one.
    pub fn own_session(&self, lsid: Lsid, naming: Naming) -> Result<SessionId, CommandError> {
        let owner = self.owner.as_deref();
        if lsid.uid.is_none() {
            return Ok(sessions::own(lsid.id, owner));
        }
        let identity = identity::known(self.conn);
        sessions::resolve(lsid, owner, &identity, naming)
    }
}

/// The session that an operation is a part of. When it began it was found to be the client's.
fn session_of(operation: &Operation) -> Option<SessionId> {
    let lsid = operation.body.get_document("lsid").ok()?;
    let lsid = session_id::parse(lsid).ok()?;
    let own = || sessions::user_of(operation.owner.as_deref());
    Some(SessionId {
        id: lsid.id,
        user: lsid.uid.unwrap_or_else(own),
    })
}

impl Node {
    /// A session is in use. Who has not logged in has none.
    pub fn use_session(
        &self,
        owner: Option<&Owner>,
        session: SessionId,
    ) -> Result<(), CommandError> {
        if owner.is_some_and(Owner::is_nobody) {
            return Ok(());
        }
        let sessions_max = self.parameters.value("maxSessions");
        let sessions_max = usize::try_from(sessions_max).unwrap_or(usize::MAX);
        self.sessions.touch(session, sessions_max)
    }

    /// Ends a session and its cursors; what it runs goes on.
    pub fn end_session(&self, session: &SessionId) {
        self.cursors.kill_sessions(|other| other == session);
        self.sessions.end(session);
    }

    /// Ends the cursors of all sessions that are meant, and what they run, but for what the asking
    /// connection does.
    pub fn kill_sessions(&self, patterns: &[Pattern], asking_connection: u64) {
        let is_meant =
            |session: &SessionId| patterns.iter().any(|pattern| pattern.matches(session));
        self.cursors.kill_sessions(is_meant);
        for operation in self.operations.all() {
            let asks = operation.connection.as_ref();
            let asks = asks.is_some_and(|connection| connection.id == asking_connection);
            if !asks && session_of(&operation).is_some_and(|session| is_meant(&session)) {
                operation.interrupt.raise(Cause::Killed);
            }
        }
    }

    /// Ends sessions that nobody has named for the time-out, and their cursors.
    pub fn expire_sessions(&self) -> usize {
        let minutes = self.parameters.value("localLogicalSessionTimeoutMinutes");
        let before = clock::wall_ms().saturating_sub(minutes.saturating_mul(60_000));
        let expired = self.sessions.expire(before);
        for expired in &expired {
            self.cursors.kill_sessions(|session| session == expired);
        }
        expired.len()
    }
}
