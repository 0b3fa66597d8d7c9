//! Lists only grow: nothing acknowledged is missing, nothing is there twice, every read has seen a
//! beginning of the list as it is in the end, and a fresh one everything that was acknowledged
//! before.

use std::collections::HashMap;

use super::{Verdict, at, by_key};
use crate::history::{End, List, Operation};

/// The last fresh read of each list comes after all appends.
pub fn check(history: &[Operation<List>]) -> Verdict {
    let mut verdict = Verdict::default();
    let key = |action: &List| match action {
        List::Append { key, .. } | List::Read { key, .. } => *key,
    };
    for (key, operations) in by_key(history, key) {
        one(key, &operations, &mut verdict);
    }
    verdict
}

fn fresh<'a>(operation: &&'a Operation<List>) -> Option<(&'a Operation<List>, &'a [i64])> {
    match &operation.action {
        List::Read {
            found, fresh: true, ..
        } if operation.is_ok() => Some((operation, found)),
        _ => None,
    }
}

fn one(key: u32, operations: &[&Operation<List>], verdict: &mut Verdict) {
    let Some((_, list)) = operations.iter().filter_map(fresh).next_back() else {
        verdict
            .undecided
            .push(format!("list {key}: nobody has read it in the end"));
        return;
    };
    let mut appends = HashMap::new();
    for operation in operations {
        if let List::Append { element, .. } = operation.action {
            appends.insert(element, *operation);
        }
    }
    let mut places = HashMap::new();
    for (place, element) in list.iter().enumerate() {
        if places.insert(*element, place).is_some() {
            verdict.problem(format!("list {key}: {element} is there twice"));
        }
        match appends.get(element) {
            None => verdict.problem(format!("list {key}: nobody appended {element}")),
            Some(append) if append.end == End::Failed => {
                verdict.problem(format!(
                    "list {key}: it failed, and is there: {}",
                    at(append)
                ));
            }
            Some(_) => {}
        }
    }
    for append in appends.values() {
        if let List::Append { element, .. } = append.action
            && append.is_ok()
            && !places.contains_key(&element)
        {
            verdict.problem(format!("list {key}: lost: {}", at(append)));
        }
    }
    order(key, list, &appends, verdict);
    for operation in operations {
        if let List::Read { found, fresh, .. } = &operation.action
            && operation.is_ok()
        {
            read(
                key,
                list,
                (*operation, found, *fresh),
                (&appends, &places),
                verdict,
            );
        }
    }
    let mut fresh: Vec<_> = operations.iter().filter_map(fresh).collect();
    fresh.sort_by_key(|(operation, _)| operation.ended_ns);
    backwards(key, &fresh, verdict);
}

/// An append that was over before another began comes before it.
fn order(key: u32, list: &[i64], appends: &HashMap<i64, &Operation<List>>, verdict: &mut Verdict) {
    let mut latest: Option<&Operation<List>> = None;
    for append in list.iter().filter_map(|element| appends.get(element)) {
        if let Some(before) = latest
            && append.precedes(before)
        {
            verdict.problem(format!(
                "list {key}: {} stands before {}",
                at(before),
                at(append)
            ));
        }
        if latest.is_none_or(|latest| latest.invoked_ns < append.invoked_ns) {
            latest = Some(append);
        }
    }
}

fn read(
    key: u32,
    list: &[i64],
    (operation, found, fresh): (&Operation<List>, &[i64], bool),
    (appends, places): (&HashMap<i64, &Operation<List>>, &HashMap<i64, usize>),
    verdict: &mut Verdict,
) {
    if !list.starts_with(found) {
        verdict.problem(format!(
            "list {key} is in the end {list:?}, not what began as {}",
            at(operation)
        ));
        return;
    }
    for element in found {
        if let Some(append) = appends.get(element)
            && append.invoked_ns > operation.ended_ns
        {
            verdict.problem(format!(
                "list {key}: {} before {}",
                at(operation),
                at(append)
            ));
        }
    }
    if !fresh {
        return;
    }
    for (element, append) in appends {
        let missing = places
            .get(element)
            .is_some_and(|&place| place >= found.len());
        if missing && append.precedes(operation) {
            verdict.problem(format!(
                "list {key}: stale: {} misses {}",
                at(operation),
                at(append)
            ));
        }
    }
}

/// A fresh read sees no less than one that was over before it began.
fn backwards(key: u32, fresh: &[(&Operation<List>, &[i64])], verdict: &mut Verdict) {
    for (place, (earlier, seen)) in fresh.iter().enumerate() {
        let later = fresh[place + 1..]
            .iter()
            .find(|(later, found)| earlier.precedes(later) && found.len() < seen.len());
        if let Some((later, _)) = later {
            verdict.problem(format!(
                "list {key}: stale: {} after {}",
                at(later),
                at(earlier)
            ));
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{failed, op, unknown};
    use super::*;

    fn append(element: i64) -> List {
        List::Append { key: 1, element }
    }

    fn read(found: &[i64], fresh: bool) -> List {
        List::Read {
            key: 1,
            found: found.to_vec(),
            fresh,
        }
    }

    fn problems(history: &[Operation<List>]) -> String {
        let verdict = check(history);
        assert!(verdict.undecided.is_empty());
        verdict.problems.join("\n")
    }

    #[test]
    fn a_good_history_holds() {
        let good = [
            op(1, (0, 2), append(1)),
            unknown(2, (0, 2), append(2)),
            unknown(2, (3, 4), append(3)),
            failed(2, (5, 6), append(4)),
            op(3, (7, 8), read(&[], false)),
            op(3, (9, 10), read(&[1], true)),
            op(1, (11, 12), append(5)),
            op(3, (13, 14), read(&[1, 2, 5], true)),
        ];
        assert_eq!(problems(&good), "");
    }

    #[test]
    fn planted_anomalies_are_found() {
        let lost = [op(1, (0, 1), append(1)), op(1, (2, 3), read(&[], true))];
        assert!(problems(&lost).contains("lost"));
        let twice = [op(1, (0, 1), append(1)), op(1, (2, 3), read(&[1, 1], true))];
        assert!(problems(&twice).contains("twice"));
        let refused = [
            failed(1, (0, 1), append(1)),
            op(1, (2, 3), read(&[1], true)),
        ];
        assert!(problems(&refused).contains("it failed, and is there"));
        let alien = [op(1, (2, 3), read(&[8], true))];
        assert!(problems(&alien).contains("nobody appended 8"));
        let swapped = [
            op(1, (0, 1), append(1)),
            op(1, (2, 3), append(2)),
            op(1, (4, 5), read(&[2, 1], true)),
        ];
        assert!(problems(&swapped).contains("stands before"));
        let fork = [
            op(1, (0, 9), append(1)),
            op(2, (0, 9), append(2)),
            op(3, (1, 2), read(&[2], false)),
            op(3, (10, 11), read(&[1, 2], true)),
        ];
        assert!(problems(&fork).contains("not what began as"));
        let stale = [
            op(1, (0, 1), append(1)),
            op(3, (2, 3), read(&[], true)),
            op(3, (4, 5), read(&[1], true)),
        ];
        assert!(problems(&stale).contains("stale"));
        let backwards = [
            op(1, (0, 9), append(1)),
            op(3, (2, 3), read(&[1], true)),
            op(3, (4, 5), read(&[], true)),
            op(3, (10, 11), read(&[1], true)),
        ];
        assert!(problems(&backwards).contains("stale"));
        let foreseen = [
            op(3, (0, 1), read(&[1], false)),
            op(1, (2, 3), append(1)),
            op(3, (4, 5), read(&[1], true)),
        ];
        assert!(problems(&foreseen).contains("before"));
    }
}
