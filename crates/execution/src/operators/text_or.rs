//! TEXT_OR: the records that have any of the terms of a search, each once, with their scores.

use banyan_query::spill::{ScoreOrder, Scored, Scores, Spilled};
use banyan_query::{Budget, QueryError};
use banyan_storage::RecordId;
use banyan_text::WEIGHT_FIELD;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::{Counts, Explainer, Member, Operator, Progress, Run, Stage};
use crate::plan::explain::clamp;

/// The field of a member's key that has the score.
pub(super) const SCORE: &str = "score";
/// So many members of an input are read at once.
const READ_AHEAD: usize = 64;

/// Reads all of its inputs before it hands anything on. What does not fit into memory goes to disk.
pub struct TextOr {
    order: ScoreOrder,
    /// How many inputs have ended.
    done: usize,
    state: State,
    /// Records that were found, once nothing more will be.
    found: u64,
    pulled: Vec<Member>,
}

enum State {
    Reading(Scores<Found>),
    HandingOn {
        scored: Scored<Found>,
        /// The one that comes next.
        first: Option<(Found, f64)>,
    },
    Ended,
}

/// A record by its id.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Found(RecordId);

impl Spilled for Found {
    fn write(&self, out: &mut Vec<u8>) {
        self.0.append_to_key(out);
    }

    fn read(bytes: &[u8]) -> Option<Found> {
        RecordId::from_key(bytes).map(Found)
    }
}

impl TextOr {
    pub fn new(order: ScoreOrder, budget: &Budget) -> TextOr {
        TextOr {
            order,
            done: 0,
            state: State::Reading(Scores::new(budget)),
            found: 0,
            pulled: Vec::new(),
        }
    }

    fn take(&mut self, member: Member) -> Result<(), QueryError> {
        let score = member.key.as_deref().map_or(0.0, |key| score_in(key));
        match &mut self.state {
            State::Reading(scores) => scores.add(Found(member.record), score),
            State::HandingOn { .. } | State::Ended => Ok(()),
        }
    }

    /// Nothing more will be found.
    fn complete(&mut self) -> Result<(), QueryError> {
        if let State::Reading(scores) = std::mem::replace(&mut self.state, State::Ended) {
            self.found = scores.count();
            let mut scored = scores.finish(self.order)?;
            let first = scored.next().transpose()?;
            self.state = State::HandingOn { scored, first };
        }
        Ok(())
    }
}

/// The score in a key of a text index.
fn score_in(key: &RawDocument) -> f64 {
    match key.get(WEIGHT_FIELD) {
        Ok(Some(RawBsonRef::Double(score))) => score,
        _ => 0.0,
    }
}

impl Operator for TextOr {
    fn name(&self) -> &'static str {
        "TEXT_OR"
    }

    fn next(
        &mut self,
        inputs: &mut [Stage],
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<(u64, Progress), QueryError> {
        let mut works = 0;
        while let Some(input) = inputs.get_mut(self.done) {
            let mut pulled = std::mem::take(&mut self.pulled);
            let progress = input.next(run, READ_AHEAD, &mut pulled)?;
            works += pulled.len() as u64;
            for member in pulled.drain(..) {
                self.take(member)?;
            }
            self.pulled = pulled;
            self.done += usize::from(progress == Progress::End);
            if self.done == inputs.len() {
                self.complete()?;
            }
            if run.is_exhausted() && self.done < inputs.len() {
                return Ok((works, Progress::More));
            }
        }
        let before = out.len();
        if let State::HandingOn { scored, first } = &mut self.state {
            while out.len() < most
                && let Some((Found(record), score)) = first.take()
            {
                out.push(Member {
                    key: Some(Box::new(rawdoc! { "score": score })),
                    ..Member::new(record, None)
                });
                *first = scored.next().transpose()?;
            }
            if first.is_none() {
                self.state = State::Ended;
            }
        }
        let progress = match self.state {
            State::Ended => Progress::End,
            State::Reading(_) | State::HandingOn { .. } => Progress::More,
        };
        Ok((works + (out.len() - before) as u64, progress))
    }

    fn held_back(&self) -> Option<u64> {
        Some(match &self.state {
            State::Reading(scores) => scores.count(),
            State::HandingOn { .. } | State::Ended => self.found,
        })
    }

    fn merges(&self) -> bool {
        true
    }

    fn describe(&self, stage: &mut RawDocumentBuf, _: &Counts, explainer: Explainer) {
        if explainer.ran() {
            stage.append(cstr!("docsExamined"), clamp(0));
        }
    }
}
