//! The choice among several plans: all of them run for a short while, in turns.
//!
//! As MongoDB does it, the plan that has found the most for its work wins, and one that has come
//! to its end. Unlike there, work is weighed: to look a key up and to read its record costs more
//! than to read the next record of a scan.

use banyan_query::QueryError;

use crate::executor::{Executor, Request};

/// A trial ends when one of the plans has found so many.
const FOUND_ENOUGH: usize = 101;
/// Each plan does so many units of work in a trial at most.
const WORKS_MAX: u64 = 10_000;
/// Units of work in a turn.
const TURN: u64 = 32;

/// Runs the plans until one of them stands out; its number.
pub fn choose(
    plans: &mut [Executor],
    costs: &[f64],
    request: &Request<'_>,
) -> Result<usize, QueryError> {
    let wanted = request.query.wanted.unwrap_or(u64::MAX);
    let enough = usize::try_from(wanted).map_or(FOUND_ENOUGH, |wanted| wanted.min(FOUND_ENOUGH));
    loop {
        let mut working = false;
        for plan in plans.iter_mut() {
            if plan.works() < WORKS_MAX {
                working = true;
                plan.advance(enough.saturating_sub(plan.found()), TURN)?;
            }
            if plan.has_ended() || plan.found() >= enough {
                // The others need not even begin where the first comes to its end at once.
                working = false;
                break;
            }
        }
        if !working {
            break;
        }
    }
    let score = |number: usize| -> (f64, f64) {
        let Some((plan, cost)) = plans.get(number).zip(costs.get(number)) else {
            return (0.0, 0.0);
        };
        let work = (plan.works().max(1) as f64) * cost;
        let ended = if plan.has_ended() { 1.0 } else { 0.0 };
        (
            ended + plan.found() as f64 / work,
            plan.produced() as f64 / work,
        )
    };
    // Of equal ones the first: the planner names the likelier ones first.
    let mut best = 0;
    for number in 1..plans.len() {
        let (new, old) = (score(number), score(best));
        if new.0 > old.0 || (new.0 == old.0 && new.1 > old.1) {
            best = number;
        }
    }
    Ok(best)
}
