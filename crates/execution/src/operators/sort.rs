//! SORT: everything is read before the first is handed on. What does not fit into memory goes to
//! disk.

use banyan_query::memory::Limit;
use banyan_query::sort::{SortPattern, SortStats, Sorted, Sorter};
use banyan_query::spill::Spilled;
use banyan_query::{Budget, QueryError};
use banyan_storage::{RecordId, RecordIdRef};
use bson::{RawDocumentBuf, cstr};

use super::{Counts, Explainer, Member, Operator, Progress, Run, Stage};
use crate::plan::explain::clamp;
use crate::row::Row;

/// So many members of the input are read at once.
const READ_AHEAD: usize = 64;

/// Keeps the first `limit`, where there is one.
pub struct Sort {
    pattern: SortPattern,
    limit: Option<u64>,
    bytes_max: usize,
    state: State,
    /// Members that were read.
    read: u64,
    stats: SortStats,
}

enum State {
    Reading(Sorter<Member>),
    Sorted(Sorted<Member>),
    Ended,
}

impl Sort {
    pub fn new(pattern: SortPattern, limit: Option<u64>, budget: &Budget) -> Sort {
        let kept = limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        Sort {
            pattern,
            limit,
            bytes_max: budget.memory().limit(Limit::Sort),
            state: State::Reading(Sorter::new(kept, budget)),
            read: 0,
            stats: SortStats::default(),
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
            self.read += pulled.len() as u64;
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
        self.stats = sorter.stats();
        if let State::Reading(sorter) = std::mem::replace(&mut self.state, State::Ended) {
            self.state = State::Sorted(sorter.finish()?);
        }
        Ok(true)
    }
}

/// What a record id is, in front of its length.
const NUMBER: u8 = 0;
const BYTES: u8 = 1;

impl Spilled for Member {
    fn write(&self, out: &mut Vec<u8>) {
        let (kind, id) = match self.record.as_ref() {
            RecordIdRef::Number(number) => (NUMBER, &number.to_be_bytes()[..]),
            RecordIdRef::Bytes(bytes) => (BYTES, bytes),
        };
        // An id is no longer than 4 KB.
        let length = u16::try_from(id.len()).unwrap_or_default();
        out.push(kind);
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(id);
        if let Some(row) = &self.row {
            out.extend_from_slice(row.as_bytes());
        }
    }

    fn read(bytes: &[u8]) -> Option<Member> {
        let ([kind, high, low], bytes) = bytes.split_first_chunk()?;
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        let (id, document) = bytes.split_at_checked(length)?;
        let record = match *kind {
            NUMBER => RecordId::number(u64::from_be_bytes(id.try_into().ok()?)),
            _ => RecordId::bytes(id),
        };
        Some(Member {
            record,
            row: Some(Row::Owned(RawDocumentBuf::read(document)?)),
        })
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
        let (before, read) = (out.len(), self.read);
        if !self.read(inputs, run)? {
            return Ok((self.read - read, Progress::More));
        }
        let mut progress = Progress::More;
        while out.len() < most {
            let next = match &mut self.state {
                State::Sorted(sorted) => sorted.next_item()?,
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
        Ok((self.read - read + advanced, progress))
    }

    fn reads_inputs(&self) -> bool {
        matches!(self.state, State::Reading(_))
    }

    fn held_back(&self) -> Option<u64> {
        Some(self.read)
    }

    fn describe(&self, stage: &mut RawDocumentBuf, _: &Counts, explainer: Explainer) {
        stage.append(cstr!("sortPattern"), super::explain::pattern(&self.pattern));
        stage.append(cstr!("memLimit"), clamp(self.bytes_max as u64));
        if let Some(limit) = self.limit {
            stage.append(cstr!("limitAmount"), clamp(limit));
        }
        stage.append(cstr!("type"), "simple");
        if explainer.ran() {
            let long = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
            stage.append(cstr!("totalDataSizeSorted"), long(self.stats.bytes));
            stage.append(cstr!("usedDisk"), self.stats.spills > 0);
            stage.append(cstr!("spills"), long(self.stats.spills));
        }
    }
}
