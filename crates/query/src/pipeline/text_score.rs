//! `$_internalDropTextScore`: behind the last stage that may ask for the score of a search, its
//! field leaves the documents. No client writes it; a router sends it to shards.

use std::collections::BTreeSet;
use std::sync::Arc;

use banyan_document::DocumentWriter;
use bson::{RawBsonRef, RawDocument};

use super::limit::{Limit, Skip};
use super::matching::Match;
use super::member::Member;
use super::stage::{Changes, Division, Reads, Stage};
use super::stage_run::{Flow, Next, StageRun, Start};
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::text::{INDEX_MISSING, SearchedIndex, TextContext, score_missing, without_score};
use crate::variables::Slots;

pub(super) const NAME: &str = "$_internalDropTextScore";

#[derive(Clone, Copy, Debug)]
pub struct DropTextScore;

pub(super) fn parse(
    _: RawBsonRef<'_>,
    _: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    out.push(Arc::new(DropTextScore));
    Ok(())
}

/// Only the first stage of a pipeline may search.
pub(super) fn check_places(stages: &[Arc<dyn Stage>], index: usize) -> Result<(), QueryError> {
    match index > 0 && stages.iter().any(|stage| searches(&**stage)) {
        true => Err(not_first()),
        false => Ok(()),
    }
}

/// The error of a stage at this place: a search that is not the first stage is wrong before it lacks
/// an index.
pub(super) fn misplaced(error: QueryError, index: usize) -> QueryError {
    match index > 0 && error.kind == INDEX_MISSING {
        true => not_first(),
        false => error,
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
) -> Result<(), QueryError> {
    if !members.first().is_some_and(|first| searches(&*first.stage)) {
        return last.map_or(Ok(()), |_| Err(score_missing()));
    }
    let drops = |member: &Member| member.stage.is::<DropTextScore>();
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
    let mut at = last.unwrap_or(0) + 1;
    // A limit goes with the sort in front of it.
    let is_passing = |member: &Member| member.stage.is::<Limit>() || member.stage.is::<Skip>();
    while members.get(at).is_some_and(is_passing) {
        at += 1;
    }
    let stage: Arc<dyn Stage> = Arc::new(DropTextScore);
    let slots = Slots::default();
    members.insert(at.min(members.len()), Member { stage, slots });
    Ok(())
}

impl Stage for DropTextScore {
    fn name(&self) -> &'static str {
        NAME
    }

    fn serialize(&self, out: &mut DocumentWriter) {
        out.begin_document(NAME);
        out.end();
    }

    fn reads(&self, _: &mut BTreeSet<String>) -> Reads {
        Reads::AndPasses
    }

    fn changes(&self) -> Changes {
        Changes::nothing()
    }

    fn split(&self) -> Division {
        Division::Shards
    }

    fn run(self: Arc<Self>, _: &Start<'_>) -> Result<Box<dyn StageRun>, QueryError> {
        Ok(Box::new(DropRun))
    }
}

struct DropRun;

impl StageRun for DropRun {
    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        match without_score(document) {
            Some(dropped) => next.push(&dropped),
            None => next.push(document),
        }
    }
}
