//! Asks of buckets what the `$match` behind says of their measurements.

use std::sync::Arc;

use crate::budget::Budget;
use crate::error::QueryError;
use crate::pipeline::matching::Match;
use crate::pipeline::member::Member;
use crate::pipeline::unpack_bucket::UnpackBucket;

pub(super) fn run(members: &mut Vec<Member>, budget: &Budget) -> Result<bool, QueryError> {
    let (mut changed, mut at) = (false, 1);
    while at < members.len() {
        let (before, behind) = (&members[at - 1], &members[at]);
        let unpacks = before.stage.get::<UnpackBucket>();
        let unpack = unpacks.filter(|unpack| !unpack.is_bounded());
        let matching: Option<&Match> = behind.stage.get();
        let (Some(unpack), Some(matching)) = (unpack, matching) else {
            at += 1;
            continue;
        };
        let slots = behind.slots;
        let conditions = unpack.conditions(&matching.filter, budget)?;
        let bounded = unpack.bounded();
        members[at - 1].stage = Arc::new(bounded);
        at += 1;
        let Some(conditions) = conditions else {
            continue;
        };
        let source = conditions.to_document();
        let stage = Arc::new(Match::new(&source, conditions));
        members.insert(at - 2, Member { stage, slots });
        changed = true;
        at += 1;
    }
    Ok(changed)
}
