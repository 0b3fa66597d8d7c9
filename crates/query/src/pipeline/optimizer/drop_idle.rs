//! Drops stages that do nothing: a `$match` of everything, a `$skip` of none.

use crate::pipeline::limit::Skip;
use crate::pipeline::matching::Match;
use crate::pipeline::member::Member;
use crate::pipeline::stage::Stage;

pub(super) fn run(members: &mut Vec<Member>) -> bool {
    let before = members.len();
    members.retain(|member| !is_idle(&*member.stage));
    members.len() != before
}

fn is_idle(stage: &dyn Stage) -> bool {
    let all = stage
        .get()
        .is_some_and(|stage: &Match| stage.filter.is_empty());
    all || stage.get().is_some_and(|Skip(count)| *count == 0)
}
