//! Divides a `$match`: the conditions that a stage before it leaves alone, or only gives another
//! name, go before that stage, under their old names. What is left stays.

use std::sync::Arc;

use banyan_document::path::Path;

use crate::budget::Budget;
use crate::error::QueryError;
use crate::filter::{Divided, Filter, Part, Predicate};
use crate::pipeline::group::Group;
use crate::pipeline::matching::Match;
use crate::pipeline::member::Member;
use crate::pipeline::stage::{Changes, Stage};

pub(super) fn run(members: &mut Vec<Member>, budget: &Budget) -> Result<bool, QueryError> {
    let (mut changed, mut at) = (false, 1);
    while at < members.len() {
        let (before, behind) = (&members[at - 1], &members[at]);
        let filter = behind.stage.get().map(|stage: &Match| &*stage.filter);
        let parts = match (filter, Passage::through(&*before.stage)) {
            (Some(filter), Some(passage)) => divided(filter, &passage, budget)?,
            _ => None,
        };
        let Some(Divided { moved, left }) = parts else {
            at += 1;
            continue;
        };
        let slots = behind.slots;
        let member = |part: Part| {
            let stage = Arc::new(Match::new(&part.source, part.filter));
            Member { stage, slots }
        };
        members.remove(at);
        if let Some(left) = left {
            members.insert(at, member(left));
        }
        members.insert(at - 1, member(moved));
        changed = true;
        // The stage stands one further now, and what is left was dealt with.
        at += 2;
    }
    Ok(changed)
}

/// What moves, and what is left; `None` if nothing is to be done here.
fn divided(
    filter: &Filter,
    passage: &Passage,
    budget: &Budget,
) -> Result<Option<Divided>, QueryError> {
    let mut renames = false;
    let parts = filter.divide(
        &mut |path, predicate| {
            let before = passage.path_before(path, predicate)?;
            renames |= before != *path;
            Some(before)
        },
        budget,
    )?;
    // A filter that passes as a whole, and as it is, is moved by another pass, though by none
    // before a group.
    let moves = |parts: &Divided| renames || parts.left.is_some() || passage.is_group();
    Ok(parts.filter(moves))
}

/// How conditions get past a stage.
enum Passage {
    Changes(Changes),
    /// A group by this field: conditions on `_id` are conditions on it.
    Key(Path),
    /// Another group, before which only conditions go that look at no document.
    Group,
}

impl Passage {
    fn through(stage: &dyn Stage) -> Option<Passage> {
        if stage.is::<Match>() {
            return None;
        }
        if stage.is_filter_transparent() {
            return Some(Passage::Changes(stage.changes()));
        }
        let key = stage.get::<Group>()?.key_field();
        let key = key.and_then(|key| Path::parse(key).ok());
        Some(key.map_or(Passage::Group, Passage::Key))
    }

    fn is_group(&self) -> bool {
        matches!(self, Passage::Key(_) | Passage::Group)
    }

    fn path_before(&self, path: &Path, predicate: &Predicate) -> Option<Path> {
        match self {
            Passage::Changes(changes) => Path::parse(&changes.origin(&path.to_string())?).ok(),
            Passage::Key(key) => {
                // A group is of values that compare as equal, null and missing ones among them: of
                // anything else than comparisons its `_id` may say less.
                let compares = match predicate {
                    Predicate::Compare(..) => true,
                    Predicate::In { patterns, .. } => patterns.is_empty(),
                    _ => false,
                };
                let is_id = path.parts().len() == 1 && path.head() == "_id";
                (compares && is_id).then(|| key.clone())
            }
            Passage::Group => None,
        }
    }
}
