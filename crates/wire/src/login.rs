//! How this process proves who it is on the connections that it opens.
//!
//! A process is one member of one cluster, whoever it talks to: it is told once, at its start.

use std::sync::{Arc, OnceLock};

use bson::{RawDocument, RawDocumentBuf};

/// Begins a conversation on a new connection.
pub trait Login: Send + Sync {
    fn begin(&self) -> Box<dyn Conversation>;
}

/// One proof on one connection.
pub trait Conversation: Send {
    /// The next command and its database, after the reply to the one before, whatever that says.
    /// `None`: the proof is made. May take long.
    ///
    /// # Errors
    /// Why the connection must not be used.
    fn next(
        &mut self,
        reply: Option<&RawDocument>,
    ) -> Result<Option<(&'static str, RawDocumentBuf)>, String>;
}

static LOGIN: OnceLock<Arc<dyn Login>> = OnceLock::new();

/// From now on every connection that this process opens begins with such a conversation. Only the
/// first call counts.
pub fn prove_by(login: Arc<dyn Login>) {
    let _ = LOGIN.set(login);
}

pub(crate) fn known() -> Option<Arc<dyn Login>> {
    LOGIN.get().cloned()
}
