//! What belongs to a session ends with it.

use banyan_execution::Cause;
use banyan_replication::clock;
use banyan_replication::sessions::session_id::{self, SessionId};

use crate::node::Node;

impl Node {
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
        for (session, _) in self.sessions.all() {
            self.cursors.kill_session(session);
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
