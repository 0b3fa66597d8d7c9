//! What is remembered of an election.

use crate::machine::PeerId;

/// What is said of the election of a term.
#[derive(Default)]
pub(super) struct Election {
    term: u64,
    /// Those who gave their vote to this member.
    voted: Vec<PeerId>,
    /// The leader that asked this member to campaign.
    asked_by: Option<PeerId>,
}

impl Election {
    pub fn asked(&mut self, term: u64, by: PeerId) {
        *self = Election {
            term,
            voted: Vec::new(),
            asked_by: Some(by),
        };
    }

    pub fn voted(&mut self, term: u64, from: PeerId) {
        if self.term != term {
            *self = Election {
                term,
                ..Election::default()
            };
        }
        if !self.voted.contains(&from) {
            self.voted.push(from);
        }
    }

    /// How many others have voted for this member in a term.
    pub fn votes(&self, term: u64) -> usize {
        match self.term == term {
            true => self.voted.len(),
            false => 0,
        }
    }

    pub fn asked_by(&self, term: u64) -> Option<PeerId> {
        self.asked_by.filter(|_| self.term == term)
    }
}
