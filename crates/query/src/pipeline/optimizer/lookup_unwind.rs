//! Has a `$lookup` do the `$unwind` of its results that follows it: they are then never put into one
//! array, which may be larger than a document can be.

use std::sync::Arc;

use crate::pipeline::lookup::Lookup;
use crate::pipeline::member::Member;
use crate::pipeline::unwind::Unwind;

pub(super) fn run(members: &mut Vec<Member>) -> bool {
    let mut changed = false;
    let mut at = 1;
    while at < members.len() {
        let (before, behind) = (&members[at - 1].stage, &members[at].stage);
        let both = match (before.get::<Lookup>(), behind.get::<Unwind>()) {
            (Some(lookup), Some(unwind)) => lookup.unwinding(unwind),
            _ => None,
        };
        match both {
            Some(lookup) => {
                members[at - 1].stage = Arc::new(lookup);
                members.remove(at);
                changed = true;
            }
            None => at += 1,
        }
    }
    changed
}
