//! Could it have happened on one machine that never fails? One checker for each workload: histories
//! in, problems out.

mod causal;
mod counter;
mod insert;
mod list;
mod register;

pub use causal::check as causal;
pub use counter::check as counters;
pub use insert::check as inserts;
pub use list::check as lists;
pub use register::check as registers;

use std::collections::BTreeMap;

use crate::history::Operation;

/// What one workload's history shows.
#[derive(Debug, Default)]
pub struct Verdict {
    /// What cannot have happened, each in a sentence.
    pub problems: Vec<String>,
    /// What was too long to judge.
    pub undecided: Vec<String>,
}

impl Verdict {
    fn problem(&mut self, text: String) {
        self.problems.push(text);
    }
}

/// Histories of different documents don't depend on each other.
fn by_key<A>(
    history: &[Operation<A>],
    key: impl Fn(&A) -> u32,
) -> BTreeMap<u32, Vec<&Operation<A>>> {
    let mut keys = BTreeMap::<u32, Vec<_>>::new();
    for operation in history {
        keys.entry(key(&operation.action))
            .or_default()
            .push(operation);
    }
    keys
}

/// Where an operation stands, in a sentence.
fn at<A: std::fmt::Debug>(operation: &Operation<A>) -> String {
    let seconds = |ns: u64| ns as f64 / 1e9;
    format!(
        "{:?} by client {} via {} at {:.4}-{:.4} s",
        operation.action,
        operation.client,
        operation.via,
        seconds(operation.invoked_ns),
        seconds(operation.ended_ns)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::End;

    /// An operation between two moments.
    pub fn op<A>(client: u32, (from, to): (u64, u64), action: A) -> Operation<A> {
        Operation {
            client,
            via: "set".to_owned(),
            invoked_ns: from,
            ended_ns: to,
            end: End::Ok,
            action,
            error: None,
        }
    }

    pub fn unknown<A>(client: u32, times: (u64, u64), action: A) -> Operation<A> {
        let end = End::Unknown;
        Operation {
            end,
            ..op(client, times, action)
        }
    }

    pub fn failed<A>(client: u32, times: (u64, u64), action: A) -> Operation<A> {
        let end = End::Failed;
        Operation {
            end,
            ..op(client, times, action)
        }
    }
}
