//! IXSCAN and COUNT_SCAN: the records that the keys inside an index's bounds name, or what the keys
//! hold of their documents.

use std::any::Any;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use banyan_document::FieldOrder;
use banyan_document::path::Path;
use banyan_query::QueryError;
use banyan_query::filter::Filter;
use banyan_storage::{Collection, IndexKey, RecordId, Snapshot};
use bson::{RawDocumentBuf, cstr};

use super::explain::append_bounds;
use super::index_pieces::{KEYS_MIN, Piece, cut};
use super::key_document::KeyDocument;
use super::{Counts, Explainer, Member, Operator, Progress, Run, Stage};
use crate::error::{self, plan_killed};
use crate::plan::explain::clamp;
use crate::plan::{IndexBounds, ScanRange};
use crate::row::Row;
use crate::shares::{Share, Shares};

/// A record that a key names, and what was read from the key.
type Found = (RecordId, Option<RawDocumentBuf>);

pub struct IndexScan {
    bounds: Arc<IndexBounds>,
    reverse: bool,
    /// Whether only the number of records is asked for.
    counts_only: bool,
    /// What is read from the keys.
    document: Option<KeyDocument>,
    /// What has to match of it.
    filter: Option<Arc<Filter>>,
    /// Whether it is handed on, and nothing fetched.
    covers: bool,
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
    /// What several read of it, once it is divided; their numbers begin at 1.
    pieces: Option<Arc<[Piece]>>,
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
            seen: bounds.may_repeat().then(HashSet::new),
            bounds,
            reverse,
            counts_only: false,
            document: None,
            filter: None,
            covers: false,
            exact,
            done: 0,
            scan: None,
            last: Position::Start,
            examined: 0,
            pieces: None,
        }
    }

    /// Nothing of the documents is asked for: they are counted, or handed on without fields.
    pub fn counting(mut self, hands_on: bool) -> IndexScan {
        self.covers = hands_on;
        self.counts_only = self.bounds.ranges.len() == 1;
        self
    }

    /// Matches the keys, which hold all that the filter looks at.
    pub fn filtering(mut self, filter: Arc<Filter>, paths: &BTreeSet<String>) -> IndexScan {
        self.document = Some(KeyDocument::new(&self.bounds, paths));
        self.filter = Some(filter);
        self
    }

    /// Hands on documents with what is at the paths, and at those that are filtered by.
    pub fn covering(mut self, paths: &BTreeSet<String>) -> IndexScan {
        self.document = Some(KeyDocument::new(&self.bounds, paths));
        self.covers = true;
        self
    }

    fn next_range(&mut self) {
        self.done += 1;
        self.scan = None;
        self.last = Position::Start;
    }

    /// The next key's record, and what is read from the key. `None`: the ranges have ended.
    fn step(&mut self, run: &Run<'_>) -> Result<Option<Found>, QueryError> {
        loop {
            if let Some(scan) = &mut self.scan {
                if let Some((key, record)) = scan.next().transpose().map_err(error::storage)? {
                    let document = self.document.as_mut();
                    let document = document.map(|d| d.read(&key, key.types())).transpose()?;
                    self.last = Position::Entry(key, record.clone());
                    return Ok(Some((record, document)));
                }
                self.next_range();
            }
            let bounds = self.bounds.clone();
            let (index, ranges) = (&bounds.index, &bounds.ranges);
            let range = match self.reverse {
                false => ranges.get(self.done),
                true => ranges.iter().rev().nth(self.done),
            };
            let Some(ScanRange { range, point }) = range else {
                return Ok(None);
            };
            if let Some(key) = point.as_ref().filter(|_| index.unique) {
                let found = run.snapshot.unique_entry(index, key);
                let document = self.document.as_mut();
                let found = match found.map_err(error::storage)? {
                    Some((record, types)) => {
                        let document = document.map(|d| d.read(key, &types)).transpose()?;
                        Some((record, document))
                    }
                    None => None,
                };
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
            let Some((record, document)) = self.step(run)? else {
                return Ok(Progress::End);
            };
            self.examined += 1;
            run.examine_key()?;
            if let (Some(filter), Some(document)) = (&self.filter, &document)
                && !filter.try_matches(document)?
            {
                continue;
            }
            let seen = self.seen.as_mut();
            if seen.is_none_or(|seen| seen.insert(record.clone())) {
                let row = self
                    .covers
                    .then(|| Row::Owned(document.unwrap_or_default()));
                out.push(Member { record, row });
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
            // An array's items are in keys of their own, which say nothing of the whole.
            if self.document.is_some() || self.exact && confined.any(is_new) {
                return Err(plan_killed(
                    "an index became multikey between getMore calls",
                ));
            }
            // Only what was written meanwhile has several keys.
            self.seen.get_or_insert_default();
        }
        Ok(())
    }

    /// Backwards it is read by one alone, and so is one that may meet a record again.
    fn may_be_divided(&self, _: &[Stage]) -> bool {
        let is_range = matches!(&self.bounds.ranges[..], [only] if only.point.is_none());
        is_range && !self.reverse && self.seen.is_none() && self.pieces.is_none()
    }

    fn shares(
        &mut self,
        _: &mut [Stage],
        snapshot: &Snapshot,
    ) -> Result<Option<Arc<Shares>>, QueryError> {
        let (Some(last), [only]) = (self.last.entry(), &self.bounds.ranges[..]) else {
            return Ok(None);
        };
        if !self.may_be_divided(&[]) || self.examined < KEYS_MIN {
            return Ok(None);
        }
        let pieces = cut(&self.bounds, &only.range, last, snapshot)?;
        self.pieces = pieces.map(Arc::from);
        let pieces = self.pieces.as_ref();
        Ok(pieces.map(|pieces| Shares::of_pieces(pieces.len())))
    }

    fn part(&self, share: &Share) -> Option<Box<dyn Operator>> {
        let pieces = self.pieces.clone()?;
        let number = usize::try_from(share.start).ok()?.checked_sub(1)?;
        let piece = pieces.get(number)?;
        let (bounds, behind) = (piece.bounds.clone(), piece.behind.clone());
        Some(Box::new(IndexScan {
            counts_only: self.counts_only,
            document: self.document.clone(),
            filter: self.filter.clone(),
            covers: self.covers,
            last: behind.map_or(Position::Start, |(key, id)| Position::Saved(key, id)),
            pieces: Some(pieces.clone()),
            ..IndexScan::new(bounds, false, self.exact)
        }))
    }

    fn absorb(&mut self, part: &dyn Operator) {
        let part: &dyn Any = part;
        if let Some(part) = part.downcast_ref::<IndexScan>() {
            self.examined += part.examined;
        }
    }

    fn filter(&self) -> Option<&Filter> {
        self.filter.as_deref()
    }

    fn describe(&self, stage: &mut RawDocumentBuf, _: &Counts, explainer: Explainer) {
        append_bounds(stage, &self.bounds, self.reverse);
        if explainer.ran() {
            stage.append(cstr!("keysExamined"), clamp(self.examined));
        }
    }
}
