//! What the readers of the log share.

use std::sync::Arc;

use super::recent::Recent;
use crate::replica::Replica;

/// A member's log, as those who follow it read it.
pub struct Log {
    pub replica: Arc<Replica>,
    pub(super) recent: Recent,
}

impl Log {
    pub fn new(replica: Arc<Replica>) -> Log {
        Log {
            replica,
            recent: Recent::default(),
        }
    }
}
