//! Moves a `$match` before stages that leave alone what it looks at.

use std::collections::BTreeSet;

use crate::budget::Budget;
use crate::error::QueryError;
use crate::pipeline::matching::Match;
use crate::pipeline::member::Member;
use crate::pipeline::stage::{Changes, Stage};

pub(super) fn run(members: &mut [Member], budget: &Budget) -> Result<bool, QueryError> {
    let mut changed = false;
    // What each stage says of itself, asked once.
    let mut passable: Vec<_> = members
        .iter()
        .map(|member| changes(&*member.stage))
        .collect();
    for start in 1..members.len() {
        let mut paths = BTreeSet::new();
        let Some(Match { filter, .. }) = members[start].stage.get() else {
            continue;
        };
        if !filter.may_move() || !filter.dependencies(&mut paths) {
            continue;
        }
        let mut at = start;
        budget.spend(paths.len())?;
        while at > 0 && lets_through(passable[at - 1].as_ref(), &paths) {
            members.swap(at - 1, at);
            passable.swap(at - 1, at);
            budget.spend(1 + paths.len())?;
            at -= 1;
            changed = true;
        }
    }
    Ok(changed)
}

/// What a stage changes that a filter may be moved before.
fn changes(stage: &dyn Stage) -> Option<Changes> {
    let passable = stage.is_filter_transparent() && !stage.is::<Match>();
    passable.then(|| stage.changes())
}

fn lets_through(changes: Option<&Changes>, paths: &BTreeSet<String>) -> bool {
    let kept = |changes: &Changes, path: &String| changes.origin(path).as_ref() == Some(path);
    changes.is_some_and(|changes| paths.iter().all(|path| kept(changes, path)))
}
