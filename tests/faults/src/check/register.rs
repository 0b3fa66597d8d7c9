//! Registers are linearizable: there is an order of the operations, each at a moment between its
//! question and its answer, in which every answer is right.
//!
//! The search is Wing and Gong's in Lowe's form: operations are tried in the order in which they
//! could have come first, what has been tried is remembered (the set of operations that are done, and
//! the value that they leave), and a dead end goes back. One that changes nothing takes its place as
//! soon as it can: that never stands in another's way. An operation whose outcome is unknown may
//! come at any moment after its question, or never.

use std::collections::HashSet;

use super::{Verdict, at, by_key};
use crate::history::{End, Operation, Register};

/// What every register holds to begin with.
const INITIAL: i64 = 0;
/// Beyond this many remembered steps a history is given up on.
const STEPS_MAX: usize = 3_000_000;

pub fn check(history: &[Operation<Register>]) -> Verdict {
    let mut verdict = Verdict::default();
    for (key, operations) in by_key(history, Register::key) {
        match Search::new(&operations).run() {
            Found::Order => {}
            Found::None { stuck } => {
                let before = stuck.map_or("its beginning".to_owned(), at);
                verdict.problem(format!(
                    "register {key} is not linearizable: no order explains {before}"
                ));
            }
            Found::TooLong => {
                let count = operations.len();
                verdict
                    .undecided
                    .push(format!("register {key}: {count} operations"));
            }
        }
    }
    verdict
}

enum Found<'a> {
    Order,
    /// The answer that the longest order could not explain.
    None {
        stuck: Option<&'a Operation<Register>>,
    },
    TooLong,
}

#[derive(Clone, Copy)]
enum Entry {
    Question(usize),
    Answer(usize),
}

/// Entries in the order of time, in a list from which operations are taken out and put back.
struct Search<'a> {
    operations: Vec<&'a Operation<Register>>,
    entries: Vec<Entry>,
    /// Where each operation's question and answer stand.
    places: Vec<(usize, usize)>,
    next: Vec<usize>,
    before: Vec<usize>,
    /// Operations that must have a place and don't yet.
    missing: usize,
}

impl<'a> Search<'a> {
    fn new(history: &[&'a Operation<Register>]) -> Self {
        let operations = relevant(history);
        let mut timed: Vec<(u64, bool, Entry)> = Vec::new();
        for (index, operation) in operations.iter().enumerate() {
            let answered = if operation.is_ok() {
                operation.ended_ns
            } else {
                u64::MAX
            };
            timed.push((operation.invoked_ns, false, Entry::Question(index)));
            timed.push((answered, true, Entry::Answer(index)));
        }
        // At the same moment questions come first: whatever is possible is allowed.
        timed.sort_by_key(|&(time, is_answer, _)| (time, is_answer));
        // Place 0 is the head of the list.
        let mut entries = vec![Entry::Answer(usize::MAX)];
        entries.extend(timed.into_iter().map(|(.., entry)| entry));
        let mut places = vec![(0, 0); operations.len()];
        for (place, entry) in entries.iter().enumerate().skip(1) {
            match entry {
                Entry::Question(index) => places[*index].0 = place,
                Entry::Answer(index) => places[*index].1 = place,
            }
        }
        let length = entries.len();
        Self {
            missing: operations
                .iter()
                .filter(|operation| operation.is_ok())
                .count(),
            operations,
            entries,
            places,
            next: (1..=length).map(|place| place % length).collect(),
            before: (0..length)
                .map(|place| (place + length - 1) % length)
                .collect(),
        }
    }

    fn unlink(&mut self, place: usize) {
        let (before, next) = (self.before[place], self.next[place]);
        self.next[before] = next;
        self.before[next] = before;
    }

    fn relink(&mut self, place: usize) {
        let (before, next) = (self.before[place], self.next[place]);
        self.next[before] = place;
        self.before[next] = place;
    }

    fn take(&mut self, index: usize) {
        let (question, answer) = self.places[index];
        self.unlink(question);
        self.unlink(answer);
        self.missing -= usize::from(self.operations[index].is_ok());
    }

    fn put_back(&mut self, index: usize) {
        let (question, answer) = self.places[index];
        self.relink(answer);
        self.relink(question);
        self.missing += usize::from(self.operations[index].is_ok());
    }

    /// Gives a place to everything that changes nothing and can come now.
    fn settle(&mut self, path: &mut Vec<Step>, done: &mut [u64], value: i64) {
        let mut place = self.next[0];
        while let Entry::Question(index) = self.entries[place] {
            place = self.next[place];
            let operation = self.operations[index];
            if is_look(operation) && apply(operation, value).is_some() {
                done[index / 64] |= 1 << (index % 64);
                path.push(Step::Settled(index));
                self.take(index);
                // Its answer may have stood right behind it.
                place = self.next[0];
            }
        }
    }

    /// Back to the last choice, and the next place after it.
    fn back(&mut self, path: &mut Vec<Step>, done: &mut [u64], value: &mut i64) -> Option<usize> {
        while let Some(step) = path.pop() {
            let (Step::Settled(index) | Step::Chosen(index, _)) = step;
            done[index / 64] &= !(1 << (index % 64));
            self.put_back(index);
            if let Step::Chosen(index, earlier) = step {
                *value = earlier;
                return Some(self.next[self.places[index].0]);
            }
        }
        None
    }

    fn run(mut self) -> Found<'a> {
        let mut done = vec![0_u64; self.operations.len().div_ceil(64)];
        let mut value = INITIAL;
        let mut tried = HashSet::new();
        let mut path = Vec::new();
        let (mut longest, mut stuck) = (0, None);
        self.settle(&mut path, &mut done, value);
        let mut place = self.next[0];
        while self.missing > 0 {
            match self.entries[place] {
                Entry::Question(index) => {
                    place = self.next[place];
                    let Some(after) = apply(self.operations[index], value) else {
                        continue;
                    };
                    done[index / 64] |= 1 << (index % 64);
                    if tried.insert((done.clone(), after)) {
                        if tried.len() > STEPS_MAX {
                            return Found::TooLong;
                        }
                        path.push(Step::Chosen(index, value));
                        value = after;
                        self.take(index);
                        self.settle(&mut path, &mut done, value);
                        place = self.next[0];
                    } else {
                        done[index / 64] &= !(1 << (index % 64));
                    }
                }
                Entry::Answer(index) => {
                    if path.len() >= longest {
                        longest = path.len();
                        stuck = self.operations.get(index).copied();
                    }
                    match self.back(&mut path, &mut done, &mut value) {
                        Some(next) => place = next,
                        None => return Found::None { stuck },
                    }
                }
            }
        }
        Found::Order
    }
}

/// An operation on the path, and what the value was before a choice.
enum Step {
    Settled(usize),
    Chosen(usize, i64),
}

/// It is answered, and it changed nothing.
fn is_look(operation: &Operation<Register>) -> bool {
    match operation.action {
        Register::Read { .. } => true,
        Register::CompareAndSet { done, .. } => operation.is_ok() && !done,
        Register::Write { .. } => false,
    }
}

/// What can matter: answered operations, and unanswered ones whose value somebody has met, or which may
/// have taken away the value that an exchange missed. The others can come after everything.
fn relevant<'a>(history: &[&'a Operation<Register>]) -> Vec<&'a Operation<Register>> {
    let mut met = HashSet::new();
    let mut last_miss_ns = 0;
    for operation in history {
        match operation.action {
            Register::Read { found, .. } if operation.is_ok() => {
                met.insert(found);
            }
            Register::CompareAndSet { expected, done, .. } => {
                // Its success means that the value was there; if it's unknown, it may mean that.
                met.insert(expected);
                if operation.is_ok() && !done {
                    last_miss_ns = last_miss_ns.max(operation.ended_ns);
                }
            }
            _ => {}
        }
    }
    let matters = |operation: &&Operation<Register>| match (&operation.action, operation.end) {
        (_, End::Ok) => true,
        (_, End::Failed) | (Register::Read { .. }, _) => false,
        (Register::Write { value, .. } | Register::CompareAndSet { value, .. }, End::Unknown) => {
            met.contains(value) || operation.invoked_ns <= last_miss_ns
        }
    };
    history
        .iter()
        .copied()
        .filter(|operation| matters(operation))
        .collect()
}

/// The value afterwards; none if the operation cannot come here.
fn apply(operation: &Operation<Register>, value: i64) -> Option<i64> {
    match operation.action {
        Register::Read { found, .. } => (found == value).then_some(value),
        Register::Write { value: new, .. } => Some(new),
        Register::CompareAndSet {
            expected,
            value: new,
            done,
            ..
        } => {
            if done || !operation.is_ok() {
                // An unanswered one that changes nothing needs no place.
                (expected == value).then_some(new)
            } else {
                (expected != value).then_some(value)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::super::tests::{failed, op, unknown};
    use super::*;

    const KEY: u32 = 1;

    fn read(found: i64) -> Register {
        Register::Read { key: KEY, found }
    }

    fn write(value: i64) -> Register {
        Register::Write { key: KEY, value }
    }

    fn set(expected: i64, value: i64, done: bool) -> Register {
        Register::CompareAndSet {
            key: KEY,
            expected,
            value,
            done,
        }
    }

    fn holds(history: &[Operation<Register>]) -> bool {
        let verdict = check(history);
        assert!(verdict.undecided.is_empty());
        verdict.problems.is_empty()
    }

    #[test]
    fn concurrent_operations_have_any_order() {
        assert!(holds(&[
            op(1, (0, 10), write(1)),
            op(2, (0, 10), write(2)),
            op(3, (1, 4), read(2)),
            op(4, (5, 12), read(1)),
        ]));
        assert!(holds(&[
            op(1, (0, 10), write(1)),
            op(2, (2, 3), read(0)),
            op(2, (4, 5), read(1))
        ]));
    }

    #[test]
    fn a_stale_read_is_found() {
        assert!(!holds(&[op(1, (0, 1), write(1)), op(2, (2, 3), read(0))]));
        // Back in time, although both are concurrent with the write.
        assert!(!holds(&[
            op(1, (0, 10), write(1)),
            op(2, (2, 3), read(1)),
            op(2, (4, 5), read(0))
        ]));
    }

    #[test]
    fn a_lost_write_and_a_value_from_nowhere_are_found() {
        let lost = [
            op(1, (0, 1), write(1)),
            op(1, (2, 3), write(2)),
            op(2, (4, 5), read(1)),
        ];
        assert!(!holds(&lost));
        assert!(!holds(&[op(1, (0, 1), read(7))]));
    }

    #[test]
    fn what_failed_did_not_happen_and_what_is_unknown_may_have() {
        assert!(!holds(&[
            failed(1, (0, 1), write(1)),
            op(2, (2, 3), read(1))
        ]));
        assert!(holds(&[
            unknown(1, (0, 1), write(1)),
            op(2, (2, 3), read(1))
        ]));
        assert!(holds(&[
            unknown(1, (0, 1), write(1)),
            op(2, (2, 3), read(0))
        ]));
        // Long after, too, but once it's seen it has happened.
        let late = [
            unknown(1, (0, 1), write(1)),
            op(2, (2, 3), read(0)),
            op(2, (4, 5), read(1)),
        ];
        assert!(holds(&late));
        let undone = [
            unknown(1, (0, 1), write(1)),
            op(2, (2, 3), read(1)),
            op(2, (4, 5), read(0)),
        ];
        assert!(!holds(&undone));
    }

    #[test]
    fn only_one_of_two_exchanges_succeeds() {
        let one = [
            op(1, (0, 5), set(0, 1, true)),
            op(2, (0, 5), set(0, 2, false)),
        ];
        assert!(holds(&one));
        let both = [
            op(1, (0, 5), set(0, 1, true)),
            op(2, (0, 5), set(0, 2, true)),
        ];
        assert!(!holds(&both));
        assert!(
            !holds(&[op(1, (0, 1), set(0, 1, false))]),
            "it was what it expected"
        );
        let missed = set(0, 2, false);
        assert!(holds(&[
            unknown(1, (0, 1), write(1)),
            op(2, (2, 3), missed.clone())
        ]));
        assert!(!holds(&[
            op(2, (2, 3), missed),
            unknown(1, (4, 5), write(1))
        ]));
        let unanswered = [
            unknown(1, (0, 1), set(0, 1, false)),
            op(2, (2, 3), set(1, 2, true)),
            op(2, (4, 5), read(2)),
        ];
        assert!(holds(&unanswered));
    }

    /// Runs clients against one register, with random moments at which things happen.
    fn simulate(seed: u64, length: usize) -> Vec<Operation<Register>> {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut clock = [0_u64; 5];
        let mut history = Vec::new();
        let (mut value, mut now) = (INITIAL, 0);
        for number in 0..length {
            let client = rng.random_range(0..clock.len());
            now = (now + rng.random_range(1..5)).max(clock[client] + 1);
            // It happens now; its question came before, its answer comes later.
            let from = rng.random_range(clock[client]..now);
            let to = now + rng.random_range(1..30);
            let new = number as i64 + 1;
            let action = match rng.random_range(0..3) {
                0 => read(value),
                1 => write(new),
                _ => {
                    let old = rng.random_range(0..new);
                    let expected = if rng.random_bool(0.5) { value } else { old };
                    set(expected, new, expected == value)
                }
            };
            let happens = rng.random_bool(0.95);
            if happens && !matches!(action, Register::Read { .. }) {
                value = match action {
                    Register::CompareAndSet { done: false, .. } => value,
                    _ => new,
                };
            }
            let times = (from, to);
            let client_number = client as u32;
            if happens && rng.random_bool(0.9) {
                history.push(op(client_number, times, action));
            } else {
                history.push(unknown(client_number, times, action));
            }
            clock[client] = to;
        }
        history
    }

    #[test]
    fn many_reads_at_once_are_judged() {
        // Sixty open reads, half of them from before each of several writes.
        let mut history: Vec<_> = (0..8)
            .map(|n| op(1, (n * 10, n * 10 + 500), write(n as i64 + 1)))
            .collect();
        for client in 0..60 {
            let found = i64::from(client % 9);
            history.push(op(client + 10, (0, 1000), read(found)));
        }
        assert!(holds(&history));
        history.push(op(99, (2000, 2001), read(77)));
        assert!(!holds(&history));
    }

    #[test]
    fn histories_of_a_real_register_hold_and_planted_anomalies_are_found() {
        for seed in 0..60 {
            let mut history = simulate(seed, 120);
            assert!(holds(&history), "seed {seed}");
            // The last read shows what a write before the one that it saw had written.
            let end = history
                .iter()
                .map(|operation| operation.ended_ns)
                .max()
                .unwrap_or(0);
            history.push(op(9, (end + 1, end + 2), write(1_000_001)));
            history.push(op(9, (end + 3, end + 4), write(1_000_002)));
            history.push(op(8, (end + 5, end + 6), read(1_000_001)));
            assert!(!holds(&history), "seed {seed}");
        }
    }
}
