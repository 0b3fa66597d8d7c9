//! SORT: everything is read before the first is handed on.

use banyan_query::sort::{MEMORY_BYTES_MAX, SortPattern, Sorted, Sorter};
use banyan_query::{Budget, QueryError};
use bson::{RawDocumentBuf, cstr};

use super::{Counts, Explainer, Member, Operator, Progress, Run, Stage};
use crate::plan::explain::clamp;

/// So many members of the input are read at once.
const READ_AHEAD: usize = 64;

/// What a sort may use.
#[derive(Debug, Clone)]
pub struct SortMemory {
    pub bytes_max: usize,
    pub budget: Budget,
}

impl Default for SortMemory {
    fn default() -> SortMemory {
        SortMemory {
            bytes_max: MEMORY_BYTES_MAX,
            budget: Budget::default(),
        }
    }
}

/// Keeps the first `limit`, where there is one.
pub struct Sort {
    pattern: SortPattern,
    limit: Option<u64>,
    memory: SortMemory,
    state: State,
    /// Members that were read.
    sorted: u64,
    bytes_sorted: usize,
}

enum State {
    Reading(Sorter<Member>),
    Sorted(Sorted<Member>),
    Ended,
}

impl Sort {
    pub fn new(pattern: SortPattern, limit: Option<u64>, memory: SortMemory) -> Sort {
        let kept = limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        Sort {
            pattern,
            limit,
            state: State::Reading(Sorter::with_memory(kept, memory.bytes_max)),
            memory,
            sorted: 0,
            bytes_sorted: 0,
        }
    }

    /// Reads the input; false when the work that is allowed is used up before its end.
    fn read(&mut self, inputs: &mut [Stage], run: &mut Run<'_>) -> Result<bool, QueryError> {
        let (State::Reading(sorter), Some(input)) = (&mut self.state, inputs.first_mut()) else {
            return Ok(true);
        };
        let mut pulled = Vec::new();
        loop {
            let progress = input.next(run, READ_AHEAD, &mut pulled)?;
            self.sorted += pulled.len() as u64;
            for Member { record, row } in pulled.drain(..) {
                let Some(mut row) = row else { continue };
                let key = self.pattern.key(&row)?;
                if sorter.wants(&key) {
                    // A copy: the record would keep its whole block alive.
                    row.detach();
                    let bytes = row.as_bytes().len();
                    let row = Some(row);
                    sorter.push(key, Member { record, row }, bytes)?;
                }
            }
            if progress == Progress::End {
                break;
            }
            if run.is_exhausted() {
                return Ok(false);
            }
        }
        self.bytes_sorted = sorter.bytes();
        if let State::Reading(sorter) = std::mem::replace(&mut self.state, State::Ended) {
            self.state = State::Sorted(sorter.finish(&self.memory.budget)?);
        }
        Ok(true)
    }
}

impl Operator for Sort {
    fn name(&self) -> &'static str {
        "SORT"
    }

    fn next(
        &mut self,
        inputs: &mut [Stage],
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<(u64, Progress), QueryError> {
        let (before, read) = (out.len(), self.sorted);
        if !self.read(inputs, run)? {
            return Ok((self.sorted - read, Progress::More));
        }
        let mut progress = Progress::More;
        while out.len() < most {
            let next = match &mut self.state {
                State::Sorted(sorted) => sorted.next(),
                _ => None,
            };
            let Some(member) = next else {
                self.state = State::Ended;
                progress = Progress::End;
                break;
            };
            out.push(member);
        }
        let advanced = (out.len() - before) as u64;
        Ok((self.sorted - read + advanced, progress))
    }

    fn reads_inputs(&self) -> bool {
        matches!(self.state, State::Reading(_))
    }

    fn held_back(&self) -> Option<u64> {
        Some(self.sorted)
    }

    fn describe(&self, stage: &mut RawDocumentBuf, _: &Counts, explainer: Explainer) {
        stage.append(cstr!("sortPattern"), super::explain::pattern(&self.pattern));
        stage.append(cstr!("memLimit"), clamp(self.memory.bytes_max as u64));
        if let Some(limit) = self.limit {
            stage.append(cstr!("limitAmount"), clamp(limit));
        }
        stage.append(cstr!("type"), "simple");
        if explainer.ran() {
            let bytes = i64::try_from(self.bytes_sorted).unwrap_or(i64::MAX);
            stage.append(cstr!("totalDataSizeSorted"), bytes);
            stage.append(cstr!("usedDisk"), false);
        }
    }
}
