//! The choice among several plans: all of them run for a short while, in turns.
//!
//! As MongoDB does it, the plan that has found the most for its work wins, and one that has come
//! to its end. Unlike there, work is weighed: to look a key up and to read its record costs more
//! than to read the next record of a scan.

use banyan_query::{ErrorKind, QueryError};

use crate::executor::Executor;

/// A trial ends when one of the plans has found so many.
const FOUND_ENOUGH: usize = 101;
/// Each plan does so many units of work in a trial at most.
const WORKS_MAX: u64 = 10_000;
/// Units of work in a turn.
const TURN: u64 = 32;
/// A cached plan is given up when it takes so many times the work that it took in its trial.
const EVICTION_RATIO: u64 = 10;

/// What a trial has come to.
pub struct Decision {
    pub chosen: usize,
    /// In the order of the plans.
    pub scores: Vec<f64>,
}

/// How many documents show enough of a plan, where so many are wanted.
fn enough(wanted: Option<u64>) -> usize {
    let wanted = wanted.and_then(|wanted| usize::try_from(wanted).ok());
    wanted.map_or(FOUND_ENOUGH, |wanted| wanted.min(FOUND_ENOUGH))
}

/// Runs the plans until one of them stands out. One that has no memory left is out of it, unless
/// all of them are.
pub fn choose(
    plans: &mut [Executor],
    costs: &[f64],
    wanted: Option<u64>,
) -> Result<Decision, QueryError> {
    let enough = enough(wanted);
    let mut failures: Vec<Option<QueryError>> = plans.iter().map(|_| None).collect();
    let mut working = true;
    while working {
        working = false;
        for (plan, failure) in plans.iter_mut().zip(&mut failures) {
            if failure.is_some() {
                continue;
            }
            if plan.works() < WORKS_MAX {
                working = true;
                match plan.advance(enough.saturating_sub(plan.found()), TURN) {
                    Ok(()) => {}
                    Err(error) if is_out_of_memory(&error) => *failure = Some(error),
                    Err(error) => return Err(error),
                }
            }
            if failure.is_none() && (plan.has_ended() || plan.found() >= enough) {
                // The others need not even begin where the first comes to its end at once.
                working = false;
                break;
            }
        }
    }
    if let Some(error) = failures.iter().flatten().next()
        && failures.iter().all(Option::is_some)
    {
        return Err(error.clone());
    }
    let mut scores = Vec::with_capacity(plans.len());
    let mut best = (0, (f64::NEG_INFINITY, f64::NEG_INFINITY));
    for (number, plan) in plans.iter().enumerate() {
        let failed = failures.get(number).is_some_and(Option::is_some);
        let cost = costs.get(number).copied().unwrap_or(1.0);
        let score = match failed {
            true => (0.0, 0.0),
            false => score(plan, cost),
        };
        // Of equal ones the first: the planner names the likelier ones first.
        if score > best.1 {
            best = (number, score);
        }
        scores.push(score.0);
    }
    Ok(Decision {
        chosen: best.0,
        scores,
    })
}

/// What a plan has found for its work; and what it has read, which counts among equal ones.
fn score(plan: &Executor, cost: f64) -> (f64, f64) {
    let work = (plan.works().max(1) as f64) * cost;
    let ended = if plan.has_ended() { 1.0 } else { 0.0 };
    let productivity = plan.found() as f64 / work;
    (1.0 + ended + productivity, plan.produced() as f64 / work)
}

fn is_out_of_memory(error: &QueryError) -> bool {
    error.kind == ErrorKind::QueryExceededMemoryLimitNoDiskUseAllowed
}

/// Runs a plan that won a trial before, until it has found enough or done much more work than it
/// took then: why it should be given up, if it should.
pub fn run_cached(
    plan: &mut Executor,
    wanted: Option<u64>,
    works: u64,
) -> Result<Option<String>, QueryError> {
    let enough = enough(wanted);
    let works_max = works.saturating_mul(EVICTION_RATIO);
    while !plan.has_ended() && plan.found() < enough {
        let left = works_max.saturating_sub(plan.works());
        if left == 0 {
            return Ok(Some(format!(
                "cached plan was less efficient than expected: expected trial execution to take \
                 {works} works but it took at least {works_max} works"
            )));
        }
        match plan.advance(enough - plan.found(), left) {
            Ok(()) => {}
            Err(error) if is_out_of_memory(&error) => {
                return Ok(Some(format!("cached plan returned: {}", error.message)));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}
