//! Where a pipeline may search for words, and where the scores of that are dropped.

use std::sync::Arc;

use super::drop_fields::DropFields;
use super::matching::Match;
use super::member::Member;
use super::stage::Stage;
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::text::{INDEX_MISSING, SearchedIndex, TextContext, score_missing};

/// Only the first stage of a pipeline may search.
pub(super) fn check_places(stages: &[Arc<dyn Stage>], index: usize) -> Result<(), QueryError> {
    match index > 0 && stages.iter().any(|stage| searches(&**stage)) {
        true => Err(not_first()),
        false => Ok(()),
    }
}

/// The error of a stage at this place: a search that is not the first stage is wrong before it lacks
/// an index, and one that is the first of a `$facet` lacks the scores of a search around it.
pub(super) fn misplaced(error: QueryError, index: usize, in_facet: bool) -> QueryError {
    match error.kind == INDEX_MISSING {
        true if index > 0 => not_first(),
        true if in_facet => score_missing(),
        _ => error,
    }
}

pub(super) fn not_first() -> QueryError {
    QueryError::new(
        ErrorKind::Location(17313),
        "$match with $text is only allowed as the first pipeline stage",
    )
}

fn searches(stage: &dyn Stage) -> bool {
    let stage = stage.get::<Match>();
    stage.is_some_and(|stage| stage.filter.searches())
}

/// Has scores dropped behind the stage that is the last to ask for them: the one with the number
/// `last`, if there is one. A router tells its shards where; if it does not, it needs the scores.
pub(super) fn drop_scores(
    members: &mut Vec<Member>,
    last: Option<usize>,
    text: &TextContext,
    context: &Context,
) -> Result<(), QueryError> {
    if !members.first().is_some_and(|first| searches(&*first.stage)) {
        return match last {
            Some(_) if !context.metadata_may_be_missing => Err(score_missing()),
            _ => Ok(()),
        };
    }
    let drops = |member: &Member| DropFields::TextScore.is(&*member.stage);
    let dropped = members.iter().position(drops);
    if text.is_for_router {
        match (dropped, last) {
            (None, _) => text.ask(),
            (Some(at), None) => {
                members.remove(at);
            }
            (Some(_), Some(_)) => text.ask(),
        }
        return Ok(());
    }
    if last.is_some() {
        text.ask();
    } else if !matches!(text.index, SearchedIndex::Elsewhere) {
        return Ok(());
    }
    DropFields::TextScore.insert_behind(last.unwrap_or(0), members);
    Ok(())
}
