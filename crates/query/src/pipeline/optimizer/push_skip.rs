//! Moves a `$skip` or a `$sample` before stages that make one document of each: what they leave out
//! is not worked out, nor is its error met.

use crate::pipeline::limit::Skip;
use crate::pipeline::lookup::{GraphLookup, Lookup};
use crate::pipeline::matching::Match;
use crate::pipeline::member::Member;
use crate::pipeline::sample::Sample;
use crate::pipeline::sort::Sort;
use crate::pipeline::stage::Stage;

pub(super) fn run(members: &mut [Member]) -> bool {
    let mut changed = false;
    let found = found_through(members);
    for start in 1..members.len() {
        let mut at = start;
        while at > 0 && goes_before(&*members[at].stage, &*members[at - 1].stage, start <= found) {
            members.swap(at - 1, at);
            at -= 1;
            changed = true;
        }
    }
    changed
}

/// How many stages a `$skip` behind them passes so that it is done where the documents are found.
fn found_through(members: &[Member]) -> usize {
    let mut stages = members.iter().map(|member| &*member.stage).peekable();
    let mut count = 0;
    while stages
        .next_if(|stage| stage.is::<Match>() || stage.is::<Sort>())
        .is_some()
    {
        count += 1;
    }
    while stages.next_if(|stage| makes_one(*stage)).is_some() {
        count += 1;
    }
    count
}

/// A search of a graph is made for each document, also for one that is left out.
fn makes_one(stage: &dyn Stage) -> bool {
    stage.is_one_to_one() && !stage.is::<GraphLookup>()
}

/// A join is made for each document that is skipped, unless that is done where they are found, as
/// MongoDB has it; a sample comes before joins as well.
fn goes_before(behind: &dyn Stage, before: &dyn Stage, where_found: bool) -> bool {
    let passes_joins = behind.is::<Sample>() || where_found;
    makes_one(before)
        && (behind.is::<Sample>() || behind.is::<Skip>())
        && (passes_joins || !before.is::<Lookup>())
}
