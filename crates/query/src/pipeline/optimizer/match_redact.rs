//! Asks before a `$redact` what the `$match` behind it says of values that have to be there: an index
//! may serve. The `$match` stays as well, as a `$redact` may take such a value away.

use std::sync::Arc;

use crate::budget::Budget;
use crate::error::QueryError;
use crate::pipeline::matching::Match;
use crate::pipeline::member::Member;
use crate::pipeline::redact::Redact;

pub(super) fn run(members: &mut Vec<Member>, budget: &Budget) -> Result<bool, QueryError> {
    let (mut changed, mut at) = (false, 1);
    while at < members.len() {
        let (before, behind) = (&members[at - 1].stage, &members[at]);
        let both = before.get::<Redact>().zip(behind.stage.get::<Match>());
        let Some((filtered, stage)) = both.and_then(|(redact, stage)| {
            let filtered = redact.filtered()?;
            Some((filtered, stage))
        }) else {
            at += 1;
            continue;
        };
        let (part, slots) = (stage.filter.of_present_values(budget)?, behind.slots);
        members[at - 1].stage = Arc::new(filtered);
        if let Some(part) = part {
            let stage = Arc::new(Match::new(&part.source, part.filter));
            members.insert(at - 1, Member { stage, slots });
            changed = true;
            at += 1;
        }
        at += 1;
    }
    Ok(changed)
}
