//! Tells each `$sort` how many of its results the limits behind it let through.

use std::sync::Arc;

use crate::pipeline::limit::{Limit, Skip};
use crate::pipeline::member::Member;
use crate::pipeline::sort::Sort;

pub(super) fn run(members: &mut [Member]) -> bool {
    let mut limit: Option<u64> = None;
    for member in members.iter_mut().rev() {
        let stage = &member.stage;
        if let Some(Limit(count)) = stage.get() {
            limit = Some(limit.map_or(*count, |known| known.min(*count)));
        } else if let Some(Skip(count)) = stage.get() {
            limit = limit.map(|known| known.saturating_add(*count));
        } else if let Some(sort) = stage.get::<Sort>() {
            if sort.limit != limit {
                let sort = sort.clone();
                member.stage = Arc::new(Sort { limit, ..sort });
            }
            limit = None;
        } else if !stage.is_one_to_one() {
            limit = None;
        }
    }
    // What it tells changes nothing for the other passes.
    false
}
