//! SORT_MERGE: inputs that are each in order, as one that is.

use std::collections::{HashSet, VecDeque};

use banyan_query::QueryError;
use banyan_query::sort::SortPattern;
use banyan_storage::{Collection, RecordId};
use bson::{RawDocumentBuf, cstr};

use super::{Counts, Explainer, Member, Operator, Progress, Run};
use crate::plan::explain::clamp;

/// So many members of an input are read at once.
const READ_AHEAD: usize = 16;

pub struct SortMerge {
    inputs: Vec<Input>,
    pattern: SortPattern,
    seen: HashSet<RecordId>,
    counts: Counts,
    dropped: u64,
}

struct Input {
    operator: Box<dyn Operator>,
    ended: bool,
    /// What was read and not handed on, each with its sort key.
    ahead: VecDeque<(Vec<u8>, Member)>,
}

impl Input {
    /// The sort key of what comes next.
    fn head(&self) -> Option<&[u8]> {
        self.ahead.front().map(|(key, _)| key.as_slice())
    }
}

impl SortMerge {
    /// The inputs hand on documents in the pattern's order.
    pub fn new(inputs: Vec<Box<dyn Operator>>, pattern: SortPattern) -> SortMerge {
        let inputs = inputs.into_iter().map(|operator| Input {
            operator,
            ended: false,
            ahead: VecDeque::new(),
        });
        SortMerge {
            inputs: inputs.collect(),
            pattern,
            seen: HashSet::new(),
            counts: Counts::default(),
            dropped: 0,
        }
    }

    /// Reads ahead where nothing is; false when the work that is allowed is used up.
    fn fill(&mut self, run: &mut Run<'_>) -> Result<bool, QueryError> {
        let mut pulled = Vec::new();
        for input in &mut self.inputs {
            while input.ahead.is_empty() && !input.ended {
                let progress = input.operator.next(run, READ_AHEAD, &mut pulled)?;
                input.ended = progress == Progress::End;
                for member in pulled.drain(..) {
                    let Some(row) = &member.row else { continue };
                    input.ahead.push_back((self.pattern.key(row)?, member));
                }
                if input.ahead.is_empty() && run.is_exhausted() {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn merge(
        &mut self,
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<Progress, QueryError> {
        while out.len() < most {
            if !self.fill(run)? {
                return Ok(Progress::More);
            }
            let heads = self.inputs.iter_mut().filter(|i| !i.ahead.is_empty());
            let lowest = heads.min_by(|a, b| a.head().cmp(&b.head()));
            let Some((_, member)) = lowest.and_then(|input| input.ahead.pop_front()) else {
                return Ok(Progress::End);
            };
            match self.seen.insert(member.record) {
                true => out.push(member),
                false => self.dropped += 1,
            }
        }
        Ok(Progress::More)
    }
}

impl Operator for SortMerge {
    fn next(
        &mut self,
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<Progress, QueryError> {
        let (before, dropped) = (out.len(), self.dropped);
        let progress = self.merge(run, most, out)?;
        let advanced = out.len() - before;
        let works = advanced as u64 + self.dropped - dropped;
        self.counts.note(works, advanced, progress);
        Ok(progress)
    }

    fn save(&mut self) {
        for input in &mut self.inputs {
            input.operator.save();
            for (_, member) in &mut input.ahead {
                // It would keep a block of the engine.
                if let Some(row) = &mut member.row {
                    row.detach();
                }
            }
        }
        self.counts.saves += 1;
    }

    fn restore(&mut self, collection: &Collection) -> Result<(), QueryError> {
        self.counts.restores += 1;
        let mut inputs = self.inputs.iter_mut();
        inputs.try_for_each(|input| input.operator.restore(collection))
    }

    fn produced(&self) -> u64 {
        self.counts.advanced
    }

    fn explain(&self, explainer: &Explainer) -> RawDocumentBuf {
        let mut stage = explainer.stage("SORT_MERGE", None, &self.counts);
        let pattern = super::explain::pattern(&self.pattern);
        stage.append(cstr!("sortPattern"), pattern);
        if explainer.ran() {
            stage.append(cstr!("dupsTested"), clamp(self.counts.works));
            stage.append(cstr!("dupsDropped"), clamp(self.dropped));
        }
        explainer.over_all(stage, self.inputs.iter().map(|input| &*input.operator))
    }
}
