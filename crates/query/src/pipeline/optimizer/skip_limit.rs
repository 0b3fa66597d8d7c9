//! Puts a `$limit` before the `$skip` that it follows: a `$sort` before both then knows how many of
//! its results are needed, and shards send no more.

use std::sync::Arc;

use crate::pipeline::limit::{Limit, Skip};
use crate::pipeline::member::Member;

pub(super) fn run(members: &mut [Member]) -> bool {
    let mut changed = false;
    for at in 1..members.len() {
        let (before, behind) = (&members[at - 1].stage, &members[at].stage);
        let (Some(Skip(skip)), Some(Limit(limit))) = (before.get(), behind.get()) else {
            continue;
        };
        let Some(both) = sum(*skip, *limit) else {
            continue;
        };
        members[at].stage = Arc::new(Limit(both));
        members.swap(at - 1, at);
        changed = true;
    }
    changed
}

/// As far as a stage can say it.
pub(super) fn sum(a: u64, b: u64) -> Option<u64> {
    a.checked_add(b).filter(|sum| i64::try_from(*sum).is_ok())
}
