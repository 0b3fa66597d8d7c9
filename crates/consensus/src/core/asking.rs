//! Who is asked whether this leader still leads.
//!
//! The `raft` crate asks everybody, but as many as make a majority will do, and each further answer
//! costs two processes a wake-up. So those are asked who answered first the last time. If they do
//! not answer soon, everybody is; and as every heartbeat carries the question as well, somebody who
//! has become faster is noticed.

use crate::machine::PeerId;

#[derive(Default)]
pub(super) struct Asking {
    question: Vec<u8>,
    /// Who answered it first: as many as are needed, or fewer.
    answered: Vec<PeerId>,
    /// Whom to ask; nobody if it is not known who is fast.
    swift: Vec<PeerId>,
    /// The membership that they are of.
    members_since: u64,
}

impl Asking {
    pub fn begin(&mut self, question: &[u8], members_since: u64) {
        if self.members_since != members_since {
            self.members_since = members_since;
            self.swift.clear();
        }
        self.question.clear();
        self.question.extend_from_slice(question);
        self.answered.clear();
    }

    pub fn note(&mut self, from: PeerId, question: &[u8], needed: usize) {
        if question != self.question
            || self.answered.len() >= needed
            || self.answered.contains(&from)
        {
            return;
        }
        self.answered.push(from);
        if self.answered.len() == needed {
            self.swift.clone_from(&self.answered);
        }
    }

    pub fn everybody(&mut self) {
        self.swift.clear();
    }

    pub fn spares(&self, member: PeerId) -> bool {
        !self.swift.is_empty() && !self.swift.contains(&member)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_those_who_answered_first() {
        let mut asking = Asking::default();
        asking.begin(b"1", 7);
        assert!(!asking.spares(2) && !asking.spares(3));
        asking.note(3, b"0", 1);
        assert!(!asking.spares(2), "an answer to an earlier question");
        asking.note(3, b"1", 1);
        asking.note(2, b"1", 1);
        asking.begin(b"2", 7);
        assert!(asking.spares(2) && !asking.spares(3));
        // Everybody is asked after a while, and the other one is faster.
        asking.note(2, b"2", 1);
        asking.begin(b"3", 7);
        assert!(!asking.spares(2) && asking.spares(3));
        asking.begin(b"4", 8);
        assert!(!asking.spares(2) && !asking.spares(3), "other members");
    }

    #[test]
    fn of_five_two_others_are_asked() {
        let mut asking = Asking::default();
        asking.begin(b"1", 7);
        asking.note(3, b"1", 2);
        asking.note(3, b"1", 2);
        asking.begin(b"2", 7);
        assert!(!asking.spares(5), "two are needed and one has answered");
        for from in [4, 3, 2] {
            asking.note(from, b"2", 2);
        }
        asking.begin(b"3", 7);
        let spared: Vec<PeerId> = (2..=5).filter(|&id| asking.spares(id)).collect();
        assert_eq!(spared, [2, 5]);
    }
}
