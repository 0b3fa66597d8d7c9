//! Moves a `$sort` before joins that leave alone what it looks at: an index may give its order, and
//! what a limit behind it leaves out is not joined.

use std::collections::BTreeSet;

use crate::pipeline::lookup::Lookup;
use crate::pipeline::member::Member;
use crate::pipeline::sort::Sort;
use crate::pipeline::stage::Stage;

pub(super) fn run(members: &mut [Member]) -> bool {
    let mut changed = false;
    for start in 1..members.len() {
        let Some(sort) = members[start].stage.get::<Sort>() else {
            continue;
        };
        let mut paths = BTreeSet::new();
        sort.reads(&mut paths);
        let mut at = start;
        while at > 0 && lets_through(&*members[at - 1].stage, &paths) {
            members.swap(at - 1, at);
            at -= 1;
            changed = true;
        }
    }
    changed
}

fn lets_through(before: &dyn Stage, paths: &BTreeSet<String>) -> bool {
    if !before.is::<Lookup>() || !before.is_one_to_one() {
        return false;
    }
    let changes = before.changes();
    paths
        .iter()
        .all(|path| changes.origin(path).as_ref() == Some(path))
}
