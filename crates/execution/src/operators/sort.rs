//! SORT: everything is read before the first is handed on, on all cores if it is much. What does not
//! fit into memory goes to disk.

use std::sync::Arc;

use banyan_query::memory::Limit;
use banyan_query::sort::{Piece, SortPattern, SortStats, Sorted, Sorter, Sorters};
use banyan_query::spill::Spilled;
use banyan_query::text::TEXT_SCORE_FIELD;
use banyan_query::{Budget, ErrorKind, QueryError};
use banyan_storage::RecordId;
use bson::{RawDocument, RawDocumentBuf, cstr};

use super::{Counts, Explainer, Member, MemberRef, Operator, Progress, Run, Stage};
use crate::parallel::{self, Sink, Workers};
use crate::plan::explain::clamp;
use crate::row::{Row, SlabDocument};

/// So many members of the input are read at once.
const READ_AHEAD: usize = 64;
/// And so many of one of which the first few may do.
const READ_FEW: usize = 8;
/// So many keys are read until an input is asked again whether others may read what is left.
const LOOK_AGAIN: u64 = 4096;

/// Keeps the first `limit`, where there is one.
pub struct Sort {
    pattern: Arc<SortPattern>,
    limit: Option<u64>,
    bytes_max: usize,
    best_first: Option<BestFirst>,
    sorters: Sorters,
    state: State,
    /// Members that were read.
    read: u64,
    stats: SortStats,
    workers: Workers,
}

/// Of an input that comes in the order of its scores, by which it is sorted first: when the rest of it
/// need not be read.
struct BestFirst {
    /// So many are kept.
    wanted: u64,
    /// The score of the last of them.
    least: Option<f64>,
}

impl BestFirst {
    /// Whether the document and all behind it come behind those that are kept. `taken`: how many came
    /// before it.
    fn ends_before(&mut self, row: &RawDocument, taken: u64) -> bool {
        let score = row.get_f64(TEXT_SCORE_FIELD).unwrap_or_default();
        match self.least {
            Some(least) => score < least,
            None => {
                if taken + 1 >= self.wanted {
                    self.least = Some(score);
                }
                false
            }
        }
    }
}

enum State {
    Reading(Box<Taking>),
    Sorted(Sorted<Member>),
    Ended,
}

/// Takes in what is to be sorted: all of it, or what one of several workers reads.
struct Taking {
    pattern: Arc<SortPattern>,
    sorter: Sorter<Member>,
    key: Vec<u8>,
    read: u64,
}

impl Taking {
    fn new(pattern: &Arc<SortPattern>, sorters: &Sorters) -> Taking {
        Taking {
            pattern: pattern.clone(),
            sorter: sorters.make(),
            key: Vec::new(),
            read: 0,
        }
    }
}

impl Sink for Taking {
    fn take(&mut self, member: MemberRef<'_>) -> Result<(), QueryError> {
        self.read += 1;
        self.key.clear();
        self.pattern.write_key(member.document, &mut self.key)?;
        let bytes = member.bytes() + size_of::<RecordId>();
        let put = |out: &mut Vec<u8>| put(member, out);
        self.sorter.push_with(&self.key, bytes, put)
    }

    fn begin(&mut self, start: u64) -> bool {
        self.sorter.begin(start);
        true
    }

    fn seal(&mut self) -> Result<(), QueryError> {
        self.sorter.seal()
    }
}

impl Sort {
    pub fn new(pattern: SortPattern, limit: Option<u64>, budget: &Budget) -> Sort {
        let kept = limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let sorters = Sorters::new(kept, budget);
        let pattern = Arc::new(pattern);
        Sort {
            state: State::Reading(Box::new(Taking::new(&pattern, &sorters))),
            pattern,
            limit,
            best_first: None,
            bytes_max: budget.memory().limit(Limit::Sort),
            sorters,
            read: 0,
            stats: SortStats::default(),
            workers: Workers::default(),
        }
    }

    /// The input comes in the order of the scores of a search, by which it is sorted first.
    pub fn of_best_first(self) -> Sort {
        let wanted = self.limit.filter(|limit| *limit > 0);
        let best_first = wanted.map(|wanted| BestFirst {
            wanted,
            least: None,
        });
        Sort { best_first, ..self }
    }

    /// Reads the input; false when the work that is allowed is used up before its end.
    fn read(&mut self, inputs: &mut [Stage], run: &mut Run<'_>) -> Result<bool, QueryError> {
        let (State::Reading(taking), Some(input)) = (&mut self.state, inputs.first_mut()) else {
            return Ok(true);
        };
        let mut parts = Vec::new();
        let mut pulled = Vec::new();
        // What is read ahead is not divided.
        run.reads_ahead = false;
        // It is asked when it begins, and when the scan has turned out to be large.
        let mut asks_at = 0;
        loop {
            if run.is_unbounded && run.examined.keys >= asks_at {
                asks_at = match input.may_be_divided() {
                    true => run.examined.keys + LOOK_AGAIN,
                    false => u64::MAX,
                };
                let like = (&self.pattern, &self.sorters);
                if let Some(divided) = divide(like, input, run, &mut self.workers)? {
                    parts = divided;
                    break;
                }
            }
            let most = match self.best_first {
                Some(_) => READ_FEW,
                None => READ_AHEAD,
            };
            let mut progress = input.next(run, most, &mut pulled)?;
            for member in pulled.drain(..) {
                if let (Some(best_first), Some(row)) = (&mut self.best_first, &member.row)
                    && best_first.ends_before(row, taking.read)
                {
                    progress = Progress::End;
                    break;
                }
                taking.keep(member)?;
            }
            self.read = taking.read;
            if progress == Progress::End {
                break;
            }
            if run.is_exhausted() {
                return Ok(false);
            }
        }
        if let State::Reading(own) = std::mem::replace(&mut self.state, State::Ended) {
            parts.push(*own);
        }
        self.read = parts.iter().map(|part| part.read).sum();
        let sorters = parts.into_iter().map(|part| part.sorter);
        let sorted = Sorter::merge(sorters)?;
        self.stats = sorted.stats();
        self.state = State::Sorted(sorted);
        Ok(true)
    }
}

/// Has what is left of the input taken in on all cores, if it is much.
fn divide(
    (pattern, sorters): (&Arc<SortPattern>, &Sorters),
    input: &mut Stage,
    run: &mut Run<'_>,
    workers: &mut Workers,
) -> Result<Option<Vec<Taking>>, QueryError> {
    let shares = match parallel::workers() {
        0..=1 => None,
        _ => input.shares(run.snapshot)?,
    };
    let Some(shares) = shares else {
        return Ok(None);
    };
    let (pattern, sorters) = (pattern.clone(), sorters.clone());
    let make = move || Ok(Taking::new(&pattern, &sorters));
    let (snapshot, slot) = (run.snapshot, run.slot());
    let parts = parallel::read(input, &shares, snapshot, &slot, run.examined, workers, make)?;
    Ok(parts.map(|parts| parts.into_iter().map(|(_, taking)| taking).collect()))
}

/// Appends whether there is a key, a record's id, the key that it was found by where that is asked
/// for, and its document.
fn put(member: MemberRef<'_>, out: &mut Vec<u8>) {
    out.push(u8::from(member.key.is_some()));
    let length_at = out.len();
    out.extend_from_slice(&[0; 2]);
    member.record.append_to_key(out);
    // An id is no longer than 4 KB.
    let length = u16::try_from(out.len() - length_at - 2).unwrap_or_default();
    out[length_at..length_at + 2].copy_from_slice(&length.to_be_bytes());
    if let Some(key) = member.key {
        out.extend_from_slice(key.as_bytes());
    }
    out.extend_from_slice(member.document.as_bytes());
}

/// What was put in front of a document, without it, and how many bytes that took.
fn head_of(bytes: &[u8]) -> Option<(Member, usize)> {
    let ([is_keyed, high, low], rest) = bytes.split_first_chunk()?;
    let length = usize::from(u16::from_be_bytes([*high, *low]));
    let (id, rest) = rest.split_at_checked(length)?;
    let record = RecordId::from_key(id)?;
    let mut head = (Member::new(record, None), 3 + length);
    if *is_keyed != 0 {
        let length = u32::from_le_bytes(*rest.first_chunk()?) as usize;
        let key = RawDocument::from_bytes(rest.get(..length)?).ok()?;
        head.0.key = Some(Box::new(key.to_owned()));
        head.1 += length;
    }
    Some(head)
}

fn member_of(bytes: Piece) -> Option<Member> {
    let (mut member, length) = head_of(&bytes)?;
    let document = SlabDocument::new(bytes.behind(length))?;
    member.row = Some(Row::InSlab(document));
    Some(member)
}

impl Spilled for Member {
    fn write(&self, out: &mut Vec<u8>) {
        if let Some(member) = self.by_ref() {
            put(member, out);
        }
    }

    fn read(bytes: &[u8]) -> Option<Member> {
        let (mut member, length) = head_of(bytes)?;
        let document = RawDocumentBuf::read(bytes.get(length..)?)?;
        member.row = Some(Row::Owned(document));
        Some(member)
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
                State::Sorted(sorted) => sorted.next_piece()?,
                _ => None,
            };
            let Some(piece) = next else {
                self.state = State::Ended;
                progress = Progress::End;
                break;
            };
            out.push(member_of(piece).ok_or_else(broken)?);
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
        let mut fields = self.pattern.fields().iter();
        let is_by_score = fields.any(|(path, _)| path.head() == TEXT_SCORE_FIELD);
        stage.append(
            cstr!("type"),
            if is_by_score { "default" } else { "simple" },
        );
        if explainer.ran() {
            let long = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
            stage.append(cstr!("totalDataSizeSorted"), long(self.stats.bytes));
            stage.append(cstr!("usedDisk"), self.stats.spills > 0);
            stage.append(cstr!("spills"), long(self.stats.spills));
            self.workers.describe(stage);
        }
    }
}

fn broken() -> QueryError {
    QueryError::new(ErrorKind::InternalError, "what was sorted is no record")
}
