//! What is remembered until the lead changes, to say why it did.

use std::time::{Duration, Instant};

use crate::machine::PeerId;
use crate::surroundings;

/// What was seen that may be why the lead changes.
#[derive(Default)]
pub(super) struct Lead {
    /// What this member was told to do about it.
    pub told: Option<(String, Instant)>,
    /// Who sent the message that brought this member its term.
    pub newer: Option<(PeerId, u64)>,
    /// Why this member asks for the lead.
    pub campaign: Option<String>,
    /// What held this member up the last time, for how long, and when that was over.
    pub held_up: Option<(&'static str, Duration, Instant)>,
}

impl Lead {
    pub fn note_told(&mut self, what: impl Into<String>) {
        self.told = Some((what.into(), surroundings::now()));
    }

    /// What this member was told lately: older words came to nothing.
    pub fn take_told(&mut self, timeout: Duration) -> Option<String> {
        let (told, at) = self.told.take()?;
        (surroundings::now().duration_since(at) < 3 * timeout).then_some(told)
    }

    pub fn note_newer_term(&mut self, from: PeerId, term: u64) {
        self.newer = Some((from, term));
    }
}
