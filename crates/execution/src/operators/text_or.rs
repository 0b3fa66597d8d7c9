//! TEXT_OR: the records that have any of the terms of a search, each once, with their scores.

use std::collections::HashMap;

use banyan_query::memory::Limit;
use banyan_query::{Budget, ErrorKind, QueryError};
use banyan_storage::RecordId;
use banyan_text::WEIGHT_FIELD;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::{Counts, Explainer, Member, Operator, Progress, Run, Stage};
use crate::plan::explain::clamp;

/// The field of a member's key that has the score.
pub(super) const SCORE: &str = "score";
/// So many members of an input are read at once.
const READ_AHEAD: usize = 64;
/// What a record takes while its score is not complete.
const RECORD_BYTES: usize = 2 * (size_of::<RecordId>() + size_of::<usize>() + size_of::<f64>());

/// Reads all of its inputs before it hands anything on.
pub struct TextOr {
    order: Order,
    /// How many inputs have ended.
    done: usize,
    places: HashMap<RecordId, usize>,
    /// In the order in which they were found, and then in that in which they are handed on.
    found: Vec<(RecordId, f64)>,
    handed_on: usize,
    records_max: usize,
    pulled: Vec<Member>,
}

/// In which order records are handed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    AsFound,
    /// Who wants the best few need not read the documents of the others.
    BestFirst,
}

impl TextOr {
    pub fn new(order: Order, budget: &Budget) -> TextOr {
        TextOr {
            order,
            done: 0,
            places: HashMap::new(),
            found: Vec::new(),
            handed_on: 0,
            records_max: budget.memory().limit(Limit::Sort) / RECORD_BYTES,
            pulled: Vec::new(),
        }
    }

    fn take(&mut self, member: Member) -> Result<(), QueryError> {
        let score = member.key.as_deref().map_or(0.0, |key| score_in(key));
        match self.places.get(&member.record) {
            Some(place) => {
                if let Some((_, sum)) = self.found.get_mut(*place) {
                    *sum += score;
                }
            }
            None if self.found.len() >= self.records_max => {
                return Err(QueryError::new(
                    ErrorKind::QueryExceededMemoryLimitNoDiskUseAllowed,
                    "a text search finds more documents than fit into memory",
                ));
            }
            None => {
                self.places.insert(member.record.clone(), self.found.len());
                self.found.push((member.record, score));
            }
        }
        Ok(())
    }

    /// Nothing more will be found.
    fn complete(&mut self) {
        self.places = HashMap::new();
        if self.order == Order::BestFirst {
            self.found
                .sort_by(|(_, one), (_, other)| other.total_cmp(one));
        }
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
                self.complete();
            }
            if run.is_exhausted() && self.done < inputs.len() {
                return Ok((works, Progress::More));
            }
        }
        let rest = self.found.get(self.handed_on..).unwrap_or_default();
        let rest = rest.iter().take(most.saturating_sub(out.len()));
        let before = out.len();
        out.extend(rest.map(|(record, score)| Member {
            key: Some(Box::new(rawdoc! { "score": *score })),
            ..Member::new(record.clone(), None)
        }));
        self.handed_on += out.len() - before;
        let progress = match self.handed_on < self.found.len() {
            true => Progress::More,
            false => Progress::End,
        };
        Ok((works + (out.len() - before) as u64, progress))
    }

    fn held_back(&self) -> Option<u64> {
        Some(self.found.len() as u64)
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
