//! A sum that is read lies between what was acknowledged before the question and what anybody may
//! have added before the answer.

use super::{Verdict, at, by_key};
use crate::history::{Counter, End, Operation};

pub fn check(history: &[Operation<Counter>]) -> Verdict {
    let mut verdict = Verdict::default();
    let key = |action: &Counter| match action {
        Counter::Add { key, .. } | Counter::Read { key, .. } => *key,
    };
    for (key, operations) in by_key(history, key) {
        let mut reads = Vec::new();
        for operation in &operations {
            if let Counter::Read { found, .. } = operation.action
                && operation.is_ok()
            {
                reads.push((*operation, found));
                let (least, most) = bounds(&operations, operation);
                if !(least..=most).contains(&found) {
                    let read = at(operation);
                    verdict.problem(format!("counter {key}: not in {least}..={most}: {read}"));
                }
            }
        }
        reads.sort_by_key(|(read, _)| read.ended_ns);
        for (place, (earlier, seen)) in reads.iter().enumerate() {
            let less = |&&(later, found): &&(&Operation<Counter>, i64)| {
                earlier.precedes(later) && found < *seen
            };
            if let Some((later, _)) = reads[place + 1..].iter().find(less) {
                verdict.problem(format!(
                    "counter {key}: {} after {}",
                    at(later),
                    at(earlier)
                ));
                break;
            }
        }
    }
    verdict
}

fn bounds(operations: &[&Operation<Counter>], read: &Operation<Counter>) -> (i64, i64) {
    let (mut least, mut most) = (0, 0);
    for operation in operations {
        let Counter::Add { amount, .. } = operation.action else {
            continue;
        };
        if operation.precedes(read) {
            least += amount;
        }
        if operation.end != End::Failed && operation.invoked_ns <= read.ended_ns {
            most += amount;
        }
    }
    (least, most)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{failed, op, unknown};
    use super::*;

    fn add(amount: i64) -> Counter {
        Counter::Add { key: 1, amount }
    }

    fn read(found: i64) -> Counter {
        Counter::Read { key: 1, found }
    }

    fn with(reads: &[((u64, u64), i64)]) -> bool {
        let mut history = vec![
            op(1, (0, 1), add(1)),
            unknown(1, (2, 3), add(10)),
            failed(1, (4, 5), add(100)),
            op(1, (20, 30), add(1000)),
        ];
        history.extend(
            reads
                .iter()
                .map(|&(times, found)| op(2, times, read(found))),
        );
        check(&history).problems.is_empty()
    }

    #[test]
    fn sums_lie_between_what_was_acknowledged_and_what_was_asked_for() {
        assert!(with(&[
            ((6, 7), 1),
            ((8, 9), 11),
            ((22, 23), 1011),
            ((40, 41), 1011)
        ]));
        assert!(with(&[((40, 41), 1001)]));
    }

    #[test]
    fn planted_anomalies_are_found() {
        assert!(!with(&[((40, 41), 1)]), "lost");
        assert!(!with(&[((40, 41), 2001)]), "doubled");
        assert!(!with(&[((6, 7), 101)]), "failed, and there");
        assert!(!with(&[((6, 7), 0)]), "stale");
        assert!(!with(&[((6, 7), 11), ((8, 9), 1)]), "backwards");
    }
}
