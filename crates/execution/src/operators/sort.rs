//! SORT: everything is read before the first is handed on.

use banyan_query::sort::{MEMORY_BYTES_MAX, SortPattern, Sorted, Sorter};
use banyan_query::{Budget, QueryError};
use banyan_storage::Collection;
use bson::{RawDocumentBuf, cstr};

use super::{Counts, Explainer, Member, Operator, Progress, Run};
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
    input: Box<dyn Operator>,
    pattern: SortPattern,
    limit: Option<u64>,
    memory: SortMemory,
    state: State,
    counts: Counts,
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
    pub fn new(
        input: Box<dyn Operator>,
        pattern: SortPattern,
        limit: Option<u64>,
        memory: SortMemory,
    ) -> Sort {
        let kept = limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        Sort {
            input,
            pattern,
            limit,
            state: State::Reading(Sorter::with_memory(kept, memory.bytes_max)),
            memory,
            counts: Counts::default(),
            sorted: 0,
            bytes_sorted: 0,
        }
    }

    /// Reads the input; false when the work that is allowed is used up before its end.
    fn read(&mut self, run: &mut Run<'_>) -> Result<bool, QueryError> {
        let State::Reading(sorter) = &mut self.state else {
            return Ok(true);
        };
        let mut pulled = Vec::new();
        loop {
            let progress = self.input.next(run, READ_AHEAD, &mut pulled)?;
            self.counts.works += pulled.len() as u64;
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
    fn next(
        &mut self,
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<Progress, QueryError> {
        let before = out.len();
        if !self.read(run)? {
            return Ok(Progress::More);
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
        let advanced = out.len() - before;
        self.counts.note(advanced as u64, advanced, progress);
        Ok(progress)
    }

    fn save(&mut self) {
        self.input.save();
        self.counts.saves += 1;
    }

    fn restore(&mut self, collection: &Collection) -> Result<(), QueryError> {
        self.counts.restores += 1;
        match self.state {
            State::Reading(_) => self.input.restore(collection),
            // Nothing more is read.
            State::Sorted(_) | State::Ended => Ok(()),
        }
    }

    fn produced(&self) -> u64 {
        self.sorted
    }

    fn explain(&self, explainer: &Explainer) -> RawDocumentBuf {
        let mut stage = explainer.stage("SORT", None, &self.counts);
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
        explainer.over(stage, &*self.input)
    }
}
