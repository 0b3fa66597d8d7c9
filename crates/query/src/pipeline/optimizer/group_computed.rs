//! Has a `$group` compute what an `$addFields` or `$project` before it does: no document is written
//! to be read once.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::pipeline::group::Group;
use crate::pipeline::member::Member;
use crate::pipeline::project::Projector;
use crate::pipeline::stage::{Reads, Stage};

pub(super) fn run(members: &mut Vec<Member>) -> bool {
    let mut changed = false;
    for at in (1..members.len()).rev() {
        let (before, behind) = (&members[at - 1], &members[at]);
        let both = match (before.stage.get(), behind.stage.get()) {
            (Some(projector), Some(group)) => together(projector, group),
            _ => None,
        };
        if let Some(group) = both {
            members[at].slots = behind.slots.union(before.slots);
            members[at].stage = Arc::new(group);
            members.remove(at - 1);
            changed = true;
        }
    }
    changed
}

/// A group that does what both do. Every field has to be computed as often as before: what fails
/// then still does.
fn together(projector: &Projector, group: &Group) -> Option<Group> {
    let mut paths = BTreeSet::new();
    let knows_paths = group.reads(&mut paths) == Reads::Only;
    if !knows_paths || !paths.iter().all(|path| projector.leaves(path)) {
        return None;
    }
    let mut computed = projector.computed()?;
    let group = group.with_computed(&mut computed)?;
    computed.are_each_placed_once().then_some(group)
}
