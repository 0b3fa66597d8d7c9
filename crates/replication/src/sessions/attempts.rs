//! Which try of a numbered write may change something.
//!
//! A write that does not say on which shard its document is ([`crate::write::without_shard_key`])
//! is carried out wherever a document was found. Two tries of it that are under way together (the
//! client sends again what it has no answer to) could each find another document. So tries are in
//! an order. Each begins with all shards on which there may be a document, before it changes one; a
//! shard lets none begin behind a later one, and carries out none but the last that has begun. Of
//! two tries that have begun everywhere the earlier one was first on every shard: what it has
//! changed the later one is told when it begins, and from then on it changes nothing.
//!
//! This is kept by the primary for as long as it is one. What a try has changed its successor knows
//! from the log; of those that have only begun it knows none, and lets none begin that is older
//! than its own time, so that no try begins behind one that is forgotten.

use std::collections::HashMap;

use banyan_wire::SessionId;
use bson::oid::ObjectId;
use parking_lot::Mutex;

use super::Retryable;

/// Sessions whose last try is remembered. Where there are more, tries begin anew.
const ATTEMPTS_MAX: usize = 1 << 16;

/// How far other clocks are believed to be ahead, in microseconds.
const AHEAD_MAX: i64 = 60_000_000;

/// A try, in the order of all tries of a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attempt {
    /// The microsecond in which it was made, or what was told of a later one.
    pub number: i64,
    pub id: ObjectId,
}

#[derive(Debug, Default)]
struct State {
    /// The term in which this member is the primary that all this is about.
    term: u64,
    /// No try with a lower number begins.
    floor: i64,
    last: HashMap<SessionId, (i64, Attempt)>,
}

/// The last try of each session. Whoever begins or looks holds the session's latch.
#[derive(Debug, Default)]
pub struct Attempts(Mutex<State>);

impl Attempts {
    /// From now on no earlier try of the session's number changes anything. `now`: in microseconds.
    /// The error: a try with this number or a lower one comes too late.
    pub fn begin(&self, of: Retryable, term: u64, attempt: Attempt, now: i64) -> Result<(), i64> {
        let mut state = self.0.lock();
        if state.term != term {
            *state = State {
                term,
                floor: now,
                last: HashMap::new(),
            };
        }
        if attempt.number < state.floor {
            return Err(state.floor);
        }
        match state.last.get(&of.session) {
            Some((number, last)) if *number == of.txn_number && *last > attempt => {
                return Err(last.number);
            }
            Some((number, last)) if *number > of.txn_number => return Err(last.number),
            _ => {}
        }
        if state.last.len() >= ATTEMPTS_MAX {
            let numbers = state.last.values().map(|(_, last)| last.number);
            // Whoever makes numbers up holds up nobody for longer.
            state.floor = numbers
                .fold(now, i64::max)
                .min(now.saturating_add(AHEAD_MAX));
            state.last.clear();
            if attempt.number < state.floor {
                return Err(state.floor);
            }
        }
        state.last.insert(of.session, (of.txn_number, attempt));
        Ok(())
    }

    /// Whether no other try has begun since this one.
    pub fn is_last(&self, of: Retryable, term: u64, attempt: Attempt) -> bool {
        let state = self.0.lock();
        state.term == term && state.last.get(&of.session) == Some(&(of.txn_number, attempt))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(session: u128, txn_number: i64) -> Retryable {
        Retryable {
            session: SessionId::shared(session.to_be_bytes()),
            txn_number,
        }
    }

    fn attempt(number: i64) -> Attempt {
        Attempt {
            number,
            id: ObjectId::from_bytes([1; 12]),
        }
    }

    #[test]
    fn only_the_last_try_counts_and_none_begins_behind_it() {
        let attempts = Attempts::default();
        assert!(!attempts.is_last(of(1, 1), 4, attempt(100)));
        assert_eq!(attempts.begin(of(1, 1), 4, attempt(100), 50), Ok(()));
        assert!(attempts.is_last(of(1, 1), 4, attempt(100)));
        assert!(!attempts.is_last(of(1, 1), 5, attempt(100)), "primary");
        assert!(!attempts.is_last(of(1, 2), 4, attempt(100)), "number");
        assert!(!attempts.is_last(of(2, 1), 4, attempt(100)), "session");
        assert_eq!(attempts.begin(of(1, 1), 4, attempt(120), 50), Ok(()));
        assert!(!attempts.is_last(of(1, 1), 4, attempt(100)));
        assert_eq!(attempts.begin(of(1, 1), 4, attempt(110), 50), Err(120));
        assert!(attempts.is_last(of(1, 1), 4, attempt(120)));
        // The next number of the session is another matter.
        assert_eq!(attempts.begin(of(1, 2), 4, attempt(110), 50), Ok(()));
        assert_eq!(attempts.begin(of(1, 1), 4, attempt(130), 50), Err(110));
    }

    #[test]
    fn a_new_primary_lets_no_old_try_begin() {
        let attempts = Attempts::default();
        assert_eq!(attempts.begin(of(1, 1), 4, attempt(100), 50), Ok(()));
        assert_eq!(attempts.begin(of(1, 1), 6, attempt(90), 200), Err(200));
        assert!(!attempts.is_last(of(1, 1), 6, attempt(100)));
        assert_eq!(attempts.begin(of(1, 1), 6, attempt(201), 210), Ok(()));
    }

    #[test]
    fn they_are_bounded_and_nothing_begins_behind_what_is_forgotten() {
        let attempts = Attempts::default();
        for n in 0..ATTEMPTS_MAX as u128 {
            let number = 1_000 + n as i64;
            assert_eq!(attempts.begin(of(n, 1), 1, attempt(number), 0), Ok(()));
        }
        let last = 1_000 + ATTEMPTS_MAX as i64 - 1;
        assert_eq!(
            attempts.begin(of(u128::MAX, 1), 1, attempt(5_000), 0),
            Err(last)
        );
        assert_eq!(attempts.begin(of(3, 1), 1, attempt(2_000), 0), Err(last));
        assert_eq!(attempts.begin(of(3, 1), 1, attempt(last + 1), 0), Ok(()));
    }
}
