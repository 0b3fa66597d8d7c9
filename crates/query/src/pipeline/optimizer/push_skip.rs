//! Moves a `$skip` or a `$sample` before stages that make one document of each: what they leave out
//! is not worked out, nor is its error met.

use crate::pipeline::limit::Skip;
use crate::pipeline::lookup::{GraphLookup, Lookup};
use crate::pipeline::member::Member;
use crate::pipeline::sample::Sample;
use crate::pipeline::stage::Stage;

pub(super) fn run(members: &mut [Member]) -> bool {
    let mut changed = false;
    for start in 1..members.len() {
        let mut at = start;
        while at > 0 && goes_before(&*members[at].stage, &*members[at - 1].stage) {
            members.swap(at - 1, at);
            at -= 1;
            changed = true;
        }
    }
    changed
}

/// Joins and searches of graphs are made for each document that is skipped, as MongoDB has it; a
/// sample comes before joins as well.
fn goes_before(behind: &dyn Stage, before: &dyn Stage) -> bool {
    let is_search = before.is::<GraphLookup>();
    let is_join = before.is::<Lookup>();
    before.is_one_to_one()
        && !is_search
        && (behind.is::<Sample>() || behind.is::<Skip>() && !is_join)
}
