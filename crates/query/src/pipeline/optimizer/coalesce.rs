//! Makes one stage of neighbours: `$match` and `$match`, `$limit` and `$limit`, `$skip` and `$skip`.
//! Of several `$sort` the last one counts: in which order equal documents come is not said.

use std::sync::Arc;

use super::skip_limit::sum;
use crate::budget::Budget;
use crate::error::QueryError;
use crate::pipeline::limit::{Limit, Skip};
use crate::pipeline::matching::Match;
use crate::pipeline::member::Member;
use crate::pipeline::sort::Sort;
use crate::pipeline::stage::Stage;

pub(super) fn run(members: &mut Vec<Member>, budget: &Budget) -> Result<bool, QueryError> {
    let before = members.len();
    let mut kept: Vec<Member> = Vec::with_capacity(before);
    let mut rest = members.drain(..).peekable();
    while let Some(member) = rest.next() {
        let mut slots = member.slots;
        // Many filters are joined at once.
        let mut filters = Vec::new();
        if member.stage.is::<Match>() {
            while let Some(next) = rest.next_if(|next| next.stage.is::<Match>()) {
                slots = slots.union(next.slots);
                filters.push(next.stage);
            }
        }
        if !filters.is_empty() {
            filters.insert(0, member.stage);
            let filters: Vec<&Match> = filters.iter().filter_map(|stage| stage.get()).collect();
            let stage = Arc::new(Match::all(&filters, budget)?);
            kept.push(Member { stage, slots });
            continue;
        }
        if member.stage.is::<Sort>() {
            kept.pop_if(|last| {
                last.stage
                    .get()
                    .is_some_and(|sort: &Sort| sort.limit.is_none())
            });
        }
        match kept
            .last_mut()
            .and_then(|last| counted(&*last.stage, &*member.stage))
        {
            Some(stage) => {
                if let Some(last) = kept.last_mut() {
                    last.stage = stage;
                }
            }
            None => kept.push(member),
        }
    }
    drop(rest);
    *members = kept;
    Ok(members.len() != before)
}

/// One `$limit` or `$skip` for two.
fn counted(first: &dyn Stage, second: &dyn Stage) -> Option<Arc<dyn Stage>> {
    if let (Some(Limit(a)), Some(Limit(b))) = (first.get(), second.get()) {
        return Some(Arc::new(Limit(*a.min(b))));
    }
    let (Some(Skip(a)), Some(Skip(b))) = (first.get(), second.get()) else {
        return None;
    };
    Some(Arc::new(Skip(sum(*a, *b)?)))
}
