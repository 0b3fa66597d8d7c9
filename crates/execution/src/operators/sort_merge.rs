//! SORT_MERGE: inputs that are each in order, as one that is.

use std::collections::{HashSet, VecDeque};

use banyan_query::QueryError;
use banyan_query::sort::SortPattern;
use banyan_storage::RecordId;
use bson::{RawDocumentBuf, cstr};

use super::{Counts, Explainer, Member, Operator, Progress, Run, Stage};
use crate::plan::explain::clamp;

/// So many documents of an input are read at once, in the end: at first one, as few may be wanted of many
/// inputs.
const READ_AHEAD_MAX: usize = 16;
/// Keys cost less.
const KEYS_AHEAD_MIN: usize = 4;

pub struct SortMerge {
    /// Of each input.
    heads: Vec<Head>,
    pattern: SortPattern,
    by: By,
    seen: HashSet<RecordId>,
    dropped: u64,
}

/// What members are compared by.
#[derive(Clone, Copy)]
enum By {
    /// The sort key of their documents.
    Documents,
    /// What their index keys hold behind fields that each input confines to points: of the inputs none
    /// needs a document.
    Keys { reverse: bool },
}

#[derive(Default)]
struct Head {
    ended: bool,
    /// So many were read at once the last time.
    read_ahead: usize,
    /// What was read and not handed on, each with its sort key.
    ahead: VecDeque<(Vec<u8>, Member)>,
}

impl Head {
    fn key(&self) -> Option<&[u8]> {
        self.ahead.front().map(|(key, _)| key.as_slice())
    }
}

impl SortMerge {
    /// The inputs hand on documents in the pattern's order.
    pub fn new(pattern: SortPattern) -> SortMerge {
        SortMerge {
            heads: Vec::new(),
            pattern,
            by: By::Documents,
            seen: HashSet::new(),
            dropped: 0,
        }
    }

    /// The inputs are scans of one index, in this direction, that hand on what to merge by.
    pub fn by_keys(self, reverse: bool) -> SortMerge {
        let by = By::Keys { reverse };
        SortMerge { by, ..self }
    }

    /// Reads ahead where nothing is; false when the work that is allowed is used up.
    fn fill(&mut self, inputs: &mut [Stage], run: &mut Run<'_>) -> Result<bool, QueryError> {
        self.heads.resize_with(inputs.len(), Head::default);
        let mut pulled = Vec::new();
        let least = match self.by {
            By::Documents => 1,
            By::Keys { .. } => KEYS_AHEAD_MIN,
        };
        for (head, input) in self.heads.iter_mut().zip(inputs) {
            while head.ahead.is_empty() && !head.ended {
                head.read_ahead = (2 * head.read_ahead).clamp(least, READ_AHEAD_MAX);
                let progress = input.next(run, head.read_ahead, &mut pulled)?;
                head.ended = progress == Progress::End;
                for mut member in pulled.drain(..) {
                    let key = match (self.by, &member.row, member.order.take()) {
                        (By::Documents, Some(row), _) => self.pattern.key(row)?,
                        (By::Keys { .. }, _, Some(order)) => order.into_vec(),
                        _ => continue,
                    };
                    head.ahead.push_back((key, member));
                }
                if head.ahead.is_empty() && run.is_exhausted() {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn merge(
        &mut self,
        inputs: &mut [Stage],
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<Progress, QueryError> {
        while out.len() < most {
            if !self.fill(inputs, run)? {
                return Ok(Progress::More);
            }
            let heads = self.heads.iter_mut().filter(|head| !head.ahead.is_empty());
            let reverse = matches!(self.by, By::Keys { reverse: true });
            let next = heads.min_by(|a, b| match reverse {
                false => a.key().cmp(&b.key()),
                true => b.key().cmp(&a.key()),
            });
            let Some((_, member)) = next.and_then(|head| head.ahead.pop_front()) else {
                return Ok(Progress::End);
            };
            match self.seen.insert(member.record.clone()) {
                true => out.push(member),
                false => self.dropped += 1,
            }
        }
        Ok(Progress::More)
    }
}

impl Operator for SortMerge {
    fn name(&self) -> &'static str {
        "SORT_MERGE"
    }

    fn next(
        &mut self,
        inputs: &mut [Stage],
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<(u64, Progress), QueryError> {
        let (before, dropped) = (out.len(), self.dropped);
        let progress = self.merge(inputs, run, most, out)?;
        let works = (out.len() - before) as u64 + self.dropped - dropped;
        Ok((works, progress))
    }

    fn save(&mut self) {
        for (_, member) in self.heads.iter_mut().flat_map(|head| &mut head.ahead) {
            // It would keep a block of the engine.
            if let Some(row) = &mut member.row {
                row.detach();
            }
        }
    }

    fn merges(&self) -> bool {
        true
    }

    fn describe(&self, stage: &mut RawDocumentBuf, counts: &Counts, explainer: Explainer) {
        stage.append(cstr!("sortPattern"), super::explain::pattern(&self.pattern));
        if explainer.ran() {
            stage.append(cstr!("dupsTested"), clamp(counts.works));
            stage.append(cstr!("dupsDropped"), clamp(self.dropped));
        }
    }
}
