//! Puts a `$limit` before the `$skip` that it follows: a `$sort` before both then knows how many of
//! its results are needed, and shards send no more.

use std::sync::Arc;

use crate::pipeline::limit::{Limit, Skip};
use crate::pipeline::member::Member;

pub(super) fn run(members: &mut [Member]) -> bool {
    let mut changed = false;
    for at in 1..members.len() {
        let Some(Limit(limit)) = members[at].stage.get() else {
            continue;
        };
        // What stands between them makes one document of each.
        let between = members[..at].iter().rev();
        let between = between.take_while(|member| member.stage.is_one_to_one());
        let Some(before) = at.checked_sub(1 + between.count()) else {
            continue;
        };
        let Some(Skip(skip)) = members[before].stage.get() else {
            continue;
        };
        let Some(both) = sum(*skip, *limit) else {
            continue;
        };
        members[at].stage = Arc::new(Limit(both));
        members[before..=at].rotate_right(1);
        changed = true;
    }
    changed
}

/// As far as a stage can say it.
pub(super) fn sum(a: u64, b: u64) -> Option<u64> {
    a.checked_add(b).filter(|sum| i64::try_from(*sum).is_ok())
}
