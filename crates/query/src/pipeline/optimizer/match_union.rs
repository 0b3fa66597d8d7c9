//! Has a `$unionWith` filter its own results by the `$match` behind it, which then stands before it:
//! an index may serve on both sides.

use std::sync::Arc;

use crate::budget::Budget;
use crate::error::QueryError;
use crate::pipeline::matching::Match;
use crate::pipeline::member::Member;
use crate::pipeline::union::UnionWith;

pub(super) fn run(members: &mut [Member], budget: &Budget) -> Result<bool, QueryError> {
    let mut changed = false;
    for at in (1..members.len()).rev() {
        let (before, behind) = (&members[at - 1].stage, &members[at]);
        let both = match (before.get::<UnionWith>(), behind.stage.get::<Match>()) {
            // Only the pipeline around knows its variables.
            (Some(union), Some(stage)) if behind.slots.is_empty() && stage.filter.may_move() => {
                union.matching(stage, |inner| super::optimize(inner, budget))?
            }
            _ => None,
        };
        if let Some(union) = both {
            members[at - 1].stage = Arc::new(union);
            members.swap(at - 1, at);
            changed = true;
        }
    }
    Ok(changed)
}
