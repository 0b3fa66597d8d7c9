//! Has a `$unionWith` filter its own results by the `$match` behind it, which then stands before it:
//! an index may serve on both sides.

use std::sync::Arc;

use super::{match_redact, push_match, split_match};
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
                union.matching(stage, |inner| bring_ahead(inner, budget))?
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

/// Has a `$match` that stands last go before what lets it through, and parts of it before the rest.
fn bring_ahead(members: &mut Vec<Member>, budget: &Budget) -> Result<(), QueryError> {
    push_match::run(members, budget)?;
    match_redact::run(members, budget)?;
    split_match::run(members, budget)?;
    push_match::run(members, budget)?;
    Ok(())
}
