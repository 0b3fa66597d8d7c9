//! What was inserted is there once if it was acknowledged, at most once if that is unknown, and not at
//! all if it was refused. A claim has one owner, who knows it.

use std::collections::HashMap;

use super::{Verdict, at};
use crate::history::{End, Insert, Operation};

/// `own`: all ids that are there in the end; `claims`: all claims and the attempts that have them.
pub fn check(history: &[Operation<Insert>], own: &[i64], claims: &[(i64, i64)]) -> Verdict {
    let mut verdict = Verdict::default();
    own_ids(history, own, &mut verdict);
    owners(history, claims, &mut verdict);
    verdict
}

fn own_ids(history: &[Operation<Insert>], own: &[i64], verdict: &mut Verdict) {
    let mut counts = HashMap::<i64, u32>::new();
    for id in own {
        *counts.entry(*id).or_default() += 1;
    }
    for operation in history {
        let Insert::Own { ids, duplicate } = &operation.action else {
            continue;
        };
        if *duplicate {
            verdict.problem(format!("refused as its own duplicate: {}", at(operation)));
        }
        let found: Vec<u32> = ids
            .iter()
            .map(|id| counts.remove(id).unwrap_or(0))
            .collect();
        let is_right = |count: &u32| match operation.end {
            End::Ok => *count == 1,
            End::Failed => *duplicate || *count == 0,
            End::Unknown => *count <= 1,
        };
        if !found.iter().all(is_right) {
            verdict.problem(format!(
                "there {found:?} times, {:?}: {}",
                operation.end,
                at(operation)
            ));
        }
    }
    if !counts.is_empty() {
        let ids: Vec<i64> = counts.into_keys().take(10).collect();
        verdict.problem(format!("nobody inserted {ids:?}"));
    }
}

fn owners(history: &[Operation<Insert>], claims: &[(i64, i64)], verdict: &mut Verdict) {
    let mut owners = HashMap::new();
    for &(claim, attempt) in claims {
        if let Some(other) = owners.insert(claim, attempt) {
            verdict.problem(format!(
                "claim {claim} is there for {other} and for {attempt}"
            ));
        }
    }
    let mut tried = HashMap::<i64, Vec<&Operation<Insert>>>::new();
    for operation in history {
        let Insert::Claim {
            claim,
            attempt,
            duplicate,
        } = operation.action
        else {
            continue;
        };
        tried.entry(claim).or_default().push(operation);
        let owns = owners.get(&claim) == Some(&attempt);
        match operation.end {
            End::Ok if !owns => verdict.problem(format!("lost: {}", at(operation))),
            End::Failed if owns => {
                verdict.problem(format!("refused, and there: {}", at(operation)));
            }
            End::Failed if duplicate && !owners.contains_key(&claim) => {
                verdict.problem(format!("a duplicate of nothing: {}", at(operation)));
            }
            _ => {}
        }
    }
    for (claim, attempt) in owners {
        let known = |operation: &&Operation<Insert>| matches!(operation.action, Insert::Claim { attempt: tried, .. } if tried == attempt);
        if !tried
            .get(&claim)
            .is_some_and(|tried| tried.iter().any(known))
        {
            verdict.problem(format!("claim {claim}: nobody tried {attempt}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{failed, op, unknown};
    use super::*;

    fn own(ids: &[i64]) -> Insert {
        Insert::Own {
            ids: ids.to_vec(),
            duplicate: false,
        }
    }

    fn claim(attempt: i64, duplicate: bool) -> Insert {
        Insert::Claim {
            claim: 1,
            attempt,
            duplicate,
        }
    }

    fn own_holds(history: &[Operation<Insert>], own: &[i64]) -> bool {
        check(history, own, &[]).problems.is_empty()
    }

    fn claims_hold(history: &[Operation<Insert>], claims: &[(i64, i64)]) -> bool {
        check(history, &[], claims).problems.is_empty()
    }

    #[test]
    fn ids_are_there_as_often_as_they_must() {
        let history = [
            op(1, (0, 1), own(&[1, 2])),
            unknown(1, (2, 3), own(&[3])),
            failed(1, (4, 5), own(&[4])),
        ];
        assert!(own_holds(&history, &[1, 2]));
        assert!(own_holds(&history, &[1, 2, 3]));
        assert!(!own_holds(&history, &[1]), "half lost");
        assert!(!own_holds(&history, &[1, 2, 3, 3]), "doubled");
        assert!(!own_holds(&history, &[1, 2, 4]), "failed, and there");
        assert!(!own_holds(&history, &[1, 2, 9]), "from nowhere");
        let duplicate = Insert::Own {
            ids: vec![1],
            duplicate: true,
        };
        assert!(
            !own_holds(&[failed(1, (0, 1), duplicate)], &[1]),
            "a retry was not known"
        );
    }

    #[test]
    fn a_claim_has_one_owner() {
        let history = [
            op(1, (0, 5), claim(10, false)),
            failed(2, (0, 5), claim(20, true)),
            unknown(3, (0, 5), claim(30, false)),
        ];
        assert!(claims_hold(&history, &[(1, 10)]));
        assert!(!claims_hold(&history, &[(1, 20)]), "refused, and there");
        assert!(!claims_hold(&history, &[(1, 10), (1, 30)]), "two");
        assert!(!claims_hold(&history, &[]), "lost");
        assert!(!claims_hold(&history[1..2], &[]), "a duplicate of nothing");
        assert!(!claims_hold(&[], &[(1, 7)]), "from nowhere");
    }
}
