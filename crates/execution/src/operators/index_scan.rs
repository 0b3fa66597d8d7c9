//! IXSCAN and COUNT_SCAN: the records that the keys inside an index's bounds name.

use std::collections::HashSet;
use std::sync::Arc;

use banyan_document::FieldOrder;
use banyan_document::path::Path;
use banyan_query::QueryError;
use banyan_storage::{Collection, IndexKey, RecordId, StorageError};
use bson::{RawDocumentBuf, cstr};

use super::explain::append_bounds;
use super::{Counts, Explainer, Member, Operator, Progress, Run, Stage};
use crate::error::{self, plan_killed};
use crate::plan::explain::clamp;
use crate::plan::{IndexBounds, ScanRange};

pub struct IndexScan {
    bounds: Arc<IndexBounds>,
    reverse: bool,
    /// Whether only the number of records is asked for.
    counts_only: bool,
    /// Whether nothing looks at the documents again: bounds say too little of arrays in an index
    /// that had none when the plan was made.
    exact: bool,
    /// How many ranges are done with.
    done: usize,
    /// The scan of the present range; `None` before it begins and while its snapshot is gone.
    scan: Option<banyan_storage::IndexScan>,
    last: Position,
    /// The records that were handed on, where one may come again.
    seen: Option<HashSet<RecordId>>,
    examined: u64,
}

/// The entry that a scan has come to in its range.
enum Position {
    Start,
    Entry(IndexKey, RecordId),
    /// The same without a snapshot: a key of the engine keeps a whole block of the index.
    Saved(Vec<u8>, RecordId),
}

impl Position {
    fn entry(&self) -> Option<(&[u8], &RecordId)> {
        match self {
            Position::Start => None,
            Position::Entry(key, record) => Some((&**key, record)),
            Position::Saved(key, record) => Some((key.as_slice(), record)),
        }
    }
}

impl IndexScan {
    pub fn new(bounds: Arc<IndexBounds>, reverse: bool, exact: bool) -> IndexScan {
        IndexScan {
            seen: bounds.multikey.then(HashSet::new),
            bounds,
            reverse,
            counts_only: false,
            exact,
            done: 0,
            scan: None,
            last: Position::Start,
            examined: 0,
        }
    }

    /// Without a fetch above it, for a count.
    pub fn counting(mut self) -> IndexScan {
        self.counts_only = true;
        self
    }

    /// The range that is being scanned.
    fn range(&self) -> Option<&ScanRange> {
        let ranges = &self.bounds.ranges;
        match self.reverse {
            false => ranges.get(self.done),
            true => ranges.iter().rev().nth(self.done),
        }
    }

    fn next_range(&mut self) {
        self.done += 1;
        self.scan = None;
        self.last = Position::Start;
    }

    /// The next key's record. `None`: the ranges have ended.
    fn step(&mut self, run: &Run<'_>) -> Result<Option<RecordId>, StorageError> {
        loop {
            if let Some(scan) = &mut self.scan {
                if let Some((key, record)) = scan.next().transpose()? {
                    self.last = Position::Entry(key, record.clone());
                    return Ok(Some(record));
                }
                self.next_range();
            }
            let index = &self.bounds.index;
            let Some(ScanRange { range, point }) = self.range() else {
                return Ok(None);
            };
            if let Some(key) = point.as_ref().filter(|_| index.unique) {
                let found = run.snapshot.unique_lookup(index, key)?;
                self.next_range();
                if found.is_some() {
                    return Ok(found);
                }
                continue;
            }
            let scan = match self.last.entry() {
                None => run.snapshot.scan_index(index, range.clone(), self.reverse),
                Some(last) => run
                    .snapshot
                    .scan_index_after(index, range, self.reverse, last),
            };
            self.scan = Some(scan);
        }
    }

    fn scan(
        &mut self,
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<Progress, QueryError> {
        while out.len() < most {
            if !run.work() {
                break;
            }
            let Some(record) = self.step(run).map_err(error::storage)? else {
                return Ok(Progress::End);
            };
            self.examined += 1;
            run.examine_key()?;
            let seen = self.seen.as_mut();
            if seen.is_none_or(|seen| seen.insert(record.clone())) {
                out.push(Member { record, row: None });
            }
        }
        Ok(Progress::More)
    }
}

impl Operator for IndexScan {
    fn name(&self) -> &'static str {
        match self.counts_only {
            true => "COUNT_SCAN",
            false => "IXSCAN",
        }
    }

    fn next(
        &mut self,
        _: &mut [Stage],
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<(u64, Progress), QueryError> {
        let examined = self.examined;
        let progress = self.scan(run, most, out)?;
        Ok((self.examined - examined, progress))
    }

    fn save(&mut self) {
        self.scan = None;
        if let Position::Entry(key, record) = &self.last {
            self.last = Position::Saved(key.to_vec(), record.clone());
        }
    }

    fn restore(&mut self, collection: &Collection) -> Result<(), QueryError> {
        let bounds = &self.bounds;
        let Some(index) = collection.index_by_id(bounds.index.id) else {
            let name = &bounds.index.name;
            return Err(plan_killed(&format!("index '{name}' dropped")));
        };
        let arrays = index.arrays();
        let is_new =
            |(path, _): &(Path, FieldOrder)| arrays.are_on(path) && !bounds.arrays.are_on(path);
        if arrays != bounds.arrays && bounds.layout.fields.iter().any(is_new) {
            let mut confined = bounds.layout.fields[..bounds.confined].iter();
            if self.exact && confined.any(is_new) {
                return Err(plan_killed(
                    "an index became multikey between getMore calls",
                ));
            }
            // Only what was written meanwhile has several keys.
            self.seen.get_or_insert_default();
        }
        Ok(())
    }

    fn describe(&self, stage: &mut RawDocumentBuf, _: &Counts, explainer: Explainer) {
        append_bounds(stage, &self.bounds, self.reverse);
        if explainer.ran() {
            stage.append(cstr!("keysExamined"), clamp(self.examined));
        }
    }
}
