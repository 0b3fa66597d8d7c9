//! IXSCAN and COUNT_SCAN: the records that the keys inside an index's bounds name, or what the keys
//! hold of their documents.

use std::any::Any;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use banyan_document::FieldOrder;
use banyan_document::key::KeyReader;
use banyan_document::path::Path;
use banyan_geo::leaf::Verdict;
use banyan_query::QueryError;
use banyan_query::filter::Filter;
use banyan_storage::{Collection, Index, RecordId, Snapshot};
use bson::{RawDocumentBuf, cstr};

use super::cell_test::CellTest;
use super::explain::{append_bounds, append_range};
use super::index_pieces::{KEYS_MIN, Piece, cut};
use super::key_document::{KeyDocument, unreadable};
use super::stepping::Stepping;
use super::{Counts, Explainer, KeyFields, Member, Operator, Progress, Run, Stage};
use crate::error::{self, became_multikey};
use crate::plan::bounds_checker::{BoundsChecker, Checked, NextInside};
use crate::plan::explain::clamp;
use crate::plan::{IndexBounds, ScanRange};
use crate::row::Row;
use crate::shares::{Share, Shares};

/// So many keys are counted until somebody looks whether to go on.
const COUNTED_AT_ONCE: u64 = 1024;

pub struct IndexScan {
    bounds: Arc<IndexBounds>,
    reverse: bool,
    /// Whether only the number of records is asked for.
    counts_only: bool,
    reading: Reading,
    /// Whether nothing looks at the documents again: bounds say too little of arrays in an index
    /// that had none when the plan was made.
    exact: bool,
    checker: BoundsChecker,
    stepping: Stepping,
    /// `None` before it begins, between two ranges and while its snapshot is gone.
    scan: Option<banyan_storage::IndexScan>,
    /// That of the range before, to go on with.
    passed: Option<banyan_storage::IndexScan>,
    /// Whether it ends with the present range. One that goes on behind may have to pass many keys
    /// that were removed.
    is_of_range: bool,
    /// The entry that it has come to, where `scan` does not tell.
    last: Option<(Vec<u8>, RecordId)>,
    examined: u64,
    /// What several read of it, once it is divided; their numbers begin at 1.
    pieces: Option<Arc<[Piece]>>,
}

/// What is made of a key.
#[derive(Default)]
struct Reading {
    /// What is read from it.
    document: Option<KeyDocument>,
    /// What has to match of that.
    filter: Option<Arc<Filter>>,
    /// Whether it is handed on, and nothing fetched.
    covers: bool,
    /// What it tells of a shape that is asked for.
    cells: Option<CellTest>,
    /// What of it is handed on beside the document.
    returned: Option<KeyFields>,
    /// What of it is handed on to be merged by.
    rest: Option<RestOfKey>,
    /// The records that were handed on, where one may come again.
    seen: Option<HashSet<RecordId>>,
    /// Whether one may, and nobody minds.
    repeats: bool,
}

/// Says something of the keys and their type bits.
pub type Measure<'m> = dyn Fn(&[u8], &[u8]) -> Result<f64, QueryError> + 'm;

/// Where records go, and how many are wanted there.
enum Taken<'o> {
    Members(&'o mut Vec<Member>, usize),
    Count(u64, u64),
    Measured(&'o mut Vec<(f64, RecordId)>, usize, &'o Measure<'o>),
}

impl Taken<'_> {
    fn is_full(&self) -> bool {
        match self {
            Taken::Members(out, most) => out.len() >= *most,
            Taken::Count(count, most) => count >= most,
            Taken::Measured(out, most, _) => out.len() >= *most,
        }
    }
}

impl Reading {
    /// Takes a record, if its key matches and it was not taken before.
    #[inline]
    fn take(
        &mut self,
        key: &[u8],
        types: &[u8],
        record: &RecordId,
        taken: &mut Taken<'_>,
    ) -> Result<(), QueryError> {
        if let (Some(filter), Some(document)) = (&self.filter, &mut self.document)
            && !filter.try_matches(document.read(key, types)?)?
        {
            return Ok(());
        }
        let mut is_settled = false;
        if let Some(cells) = &self.cells {
            match cells.check(key, types)? {
                Verdict::Holds => is_settled = true,
                Verdict::Fails => return Ok(()),
                Verdict::Unsure => {}
            }
        }
        if let Some(seen) = &mut self.seen
            && !seen.insert(record.clone())
        {
            return Ok(());
        }
        match taken {
            Taken::Count(count, _) => *count += 1,
            Taken::Measured(out, _, measure) => {
                out.push((measure(key, types)?, record.clone()));
            }
            Taken::Members(out, _) => {
                let row = match (self.covers, &mut self.document) {
                    (false, _) => None,
                    (true, None) => Some(Row::Owned(RawDocumentBuf::new())),
                    (true, Some(document)) => {
                        Some(Row::Owned(document.read(key, types)?.to_owned()))
                    }
                };
                let record = record.clone();
                let returned = match &self.returned {
                    None => None,
                    Some(fields) => Some(Box::new(fields.read(key, types)?)),
                };
                let order = self.rest.as_ref().map(|rest| rest.read(key, types));
                let order = order.transpose()?;
                out.push(Member {
                    record,
                    row,
                    key: returned,
                    is_settled,
                    order,
                });
            }
        }
        Ok(())
    }
}

/// What keys hold behind their leading fields.
#[derive(Clone)]
struct RestOfKey {
    index: Arc<Index>,
    behind: Vec<FieldOrder>,
}

impl RestOfKey {
    fn read(&self, key: &[u8], types: &[u8]) -> Result<Box<[u8]>, QueryError> {
        let mut reader = KeyReader::new(key, types);
        let mut leading = self.behind.iter();
        let passed = leading.try_for_each(|order| reader.skip(*order));
        passed.map_err(|_| unreadable(&self.index.name))?;
        Ok(key.get(reader.position()..).unwrap_or_default().into())
    }
}

impl IndexScan {
    pub fn new(bounds: Arc<IndexBounds>, reverse: bool, exact: bool) -> IndexScan {
        IndexScan {
            reading: Reading {
                seen: bounds.may_repeat().then(HashSet::new),
                ..Reading::default()
            },
            checker: BoundsChecker::new(bounds.clone(), reverse),
            bounds,
            reverse,
            counts_only: false,
            exact,
            stepping: Stepping::default(),
            scan: None,
            passed: None,
            is_of_range: true,
            last: None,
            examined: 0,
            pieces: None,
        }
    }

    /// Nothing of the documents is asked for: they are counted, or handed on without fields.
    pub fn counting(mut self, hands_on: bool) -> IndexScan {
        self.reading.covers = hands_on;
        self.counts_only = self.reading.returned.is_none()
            && self.bounds.ranges.len() == 1
            && self.bounds.later.fields.is_empty();
        self
    }

    /// Matches the keys, which hold all that the filter looks at.
    pub fn filtering(mut self, filter: Arc<Filter>, paths: &BTreeSet<String>) -> IndexScan {
        self.reading.document = Some(KeyDocument::new(&self.bounds, paths));
        self.reading.filter = Some(filter);
        self
    }

    /// Hands on documents with what is at the paths, and at those that are filtered by.
    pub fn covering(mut self, paths: &BTreeSet<String>) -> IndexScan {
        self.reading.document = Some(KeyDocument::new(&self.bounds, paths));
        self.reading.covers = true;
        self
    }

    /// Hands on each key with what is found by it.
    pub fn returning_keys(mut self) -> IndexScan {
        self.reading.returned = Some(KeyFields::new(&self.bounds.index, &self.bounds.layout));
        self
    }

    /// Hands on what of each key is behind the leading fields that the range confines to points.
    pub fn merged_by_rest(mut self) -> IndexScan {
        let confined = self.bounds.layout.fields.iter().take(self.bounds.points);
        self.reading.rest = Some(RestOfKey {
            index: self.bounds.index.clone(),
            behind: confined.map(|(_, order)| *order).collect(),
        });
        self
    }

    /// Asks the cells in the keys about the shape that is asked for.
    pub fn testing_cells(mut self) -> IndexScan {
        self.reading.cells = CellTest::new(&self.bounds);
        self
    }

    /// Hands on a record for each of its keys.
    pub fn repeating(mut self) -> IndexScan {
        self.reading.seen = None;
        self.reading.repeats = true;
        self
    }

    /// Appends the records that come next with what is said of their keys, up to `most` in all.
    pub fn measure(
        &mut self,
        run: &mut Run<'_>,
        most: usize,
        measure: &Measure<'_>,
        out: &mut Vec<(f64, RecordId)>,
    ) -> Result<Progress, QueryError> {
        self.scan(run, &mut Taken::Measured(out, most, measure))
    }

    pub fn bounds(&self) -> &Arc<IndexBounds> {
        &self.bounds
    }

    /// How many keys it has looked at.
    pub fn examined(&self) -> u64 {
        self.examined
    }

    fn scan(&mut self, run: &mut Run<'_>, taken: &mut Taken<'_>) -> Result<Progress, QueryError> {
        while !taken.is_full() {
            if let Taken::Count(count, most) = taken
                && let Some(counted) = self.count(run, *most - *count)?
                && counted > 0
            {
                *count += counted;
                continue;
            }
            if !run.work() {
                break;
            }
            if self.step(run, taken)? == Progress::End {
                return Ok(Progress::End);
            }
        }
        Ok(Progress::More)
    }

    /// Whether it is MongoDB's COUNT_SCAN.
    fn counts_one_range(&self) -> bool {
        self.counts_only && self.bounds.are_one_range()
    }

    /// Counts the next keys, each of which is a record that is wanted. `None`: they have to be looked at.
    fn count(&mut self, run: &mut Run<'_>, most: u64) -> Result<Option<u64>, QueryError> {
        let looks_at_keys = self.reading.filter.is_some() || self.reading.seen.is_some();
        let Some(scan) = self
            .scan
            .as_mut()
            .filter(|_| self.counts_only && !looks_at_keys)
        else {
            return Ok(None);
        };
        let most = run.allow(most.min(COUNTED_AT_ONCE));
        let counted = scan.pass(most).map_err(error::storage)?;
        if let Some(counted) = counted {
            self.examined += counted;
            run.examine_keys(counted)?;
        }
        Ok(counted)
    }

    /// Looks at the next key, or begins the next range.
    fn step(&mut self, run: &mut Run<'_>, taken: &mut Taken<'_>) -> Result<Progress, QueryError> {
        let Some(scan) = &mut self.scan else {
            return self.begin(run, taken);
        };
        let Some((key, record)) = scan.advance().map_err(error::storage)? else {
            return self.end_scan(run);
        };
        self.examined += 1;
        run.examine_key()?;
        let index = &self.bounds.index;
        let checked = self.checker.check(key);
        match checked.map_err(|_| unreadable(&index.name))? {
            Checked::Inside => {
                self.stepping.arrive();
                self.reading.take(key, key.types(), record, taken)?;
            }
            Checked::Outside(next) if self.stepping.should_seek() => {
                if next == NextInside::Range {
                    (self.passed, self.last) = (self.scan.take(), None);
                    return Ok(Progress::More);
                }
                let Some(rest) = self.checker.rest_from(key, next) else {
                    return Ok(Progress::End);
                };
                self.last = Some((key.to_vec(), record.clone()));
                self.is_of_range = false;
                if !run.snapshot.scan_on(scan, index, &rest) {
                    self.scan = Some(run.snapshot.scan_index(index, rest, self.reverse));
                }
            }
            Checked::Outside(_) => {}
            Checked::Behind => return Ok(Progress::End),
        }
        Ok(Progress::More)
    }

    /// Begins with the present range, or goes on in it.
    fn begin(&mut self, run: &mut Run<'_>, taken: &mut Taken<'_>) -> Result<Progress, QueryError> {
        let index = &self.bounds.index;
        let Some(ScanRange { range, point }) = self.checker.present() else {
            return Ok(Progress::End);
        };
        if let Some(key) = point.as_ref().filter(|_| index.unique) {
            // Several are looked up on one way.
            if self.bounds.ranges.len() > 1 && run.snapshot.goes_on(index) {
                let snapshot = run.snapshot;
                let mut passed = self.passed.take();
                let scan = match passed.take_if(|scan| snapshot.scan_on(scan, index, range)) {
                    Some(scan) => self.passed.insert(scan),
                    None => {
                        self.passed
                            .insert(snapshot.scan_index(index, range.clone(), self.reverse))
                    }
                };
                match scan.advance().map_err(error::storage)? {
                    None => run.tick()?,
                    Some((key, record)) => {
                        self.examined += 1;
                        run.examine_key()?;
                        self.reading.take(key, key.types(), record, taken)?;
                    }
                }
                self.checker.pass_range();
                return Ok(Progress::More);
            }
            let found = run.snapshot.unique_entry(index, key);
            match found.map_err(error::storage)? {
                None => run.tick()?,
                Some((record, types)) => {
                    self.examined += 1;
                    run.examine_key()?;
                    self.reading.take(key, &types, &record, taken)?;
                }
            }
            self.checker.pass_range();
            return Ok(Progress::More);
        }
        if self.last.is_none() {
            self.is_of_range = !self.stepping.expects_near();
        }
        let rest = match self.is_of_range {
            true => Some(range.clone()),
            false => self.checker.rest(),
        };
        let Some(rest) = rest else {
            return Ok(Progress::End);
        };
        let (snapshot, reverse) = (run.snapshot, self.reverse);
        let mut passed = self.passed.take();
        let goes_on = |scan: &mut banyan_storage::IndexScan| snapshot.scan_on(scan, index, &rest);
        self.scan = Some(match &self.last {
            Some((key, record)) => {
                let last = (key.as_slice(), record);
                snapshot.scan_index_after(index, &rest, reverse, last)
            }
            None => match passed.take_if(goes_on) {
                Some(scan) => scan,
                None => snapshot.scan_index(index, rest, reverse),
            },
        });
        Ok(Progress::More)
    }

    fn end_scan(&mut self, run: &mut Run<'_>) -> Result<Progress, QueryError> {
        run.tick()?;
        if !self.is_of_range {
            return Ok(Progress::End);
        }
        self.checker.pass_range();
        self.stepping.seek();
        (self.passed, self.last) = (self.scan.take(), None);
        Ok(match self.checker.present() {
            Some(_) => Progress::More,
            None => Progress::End,
        })
    }
}

impl Operator for IndexScan {
    fn name(&self) -> &'static str {
        match self.counts_one_range() {
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
        let progress = self.scan(run, &mut Taken::Members(out, most))?;
        Ok((self.examined - examined, progress))
    }

    fn pass(
        &mut self,
        _: &mut [Stage],
        run: &mut Run<'_>,
        most: u64,
    ) -> Result<(u64, u64, Progress), QueryError> {
        let (examined, mut taken) = (self.examined, Taken::Count(0, most));
        let progress = self.scan(run, &mut taken)?;
        let passed = match taken {
            Taken::Count(passed, _) => passed,
            Taken::Members(..) | Taken::Measured(..) => 0,
        };
        Ok((self.examined - examined, passed, progress))
    }

    fn save(&mut self) {
        // A key of the engine keeps a whole block of the index.
        if let Some((key, record)) = self.scan.as_ref().and_then(|scan| scan.current()) {
            self.last = Some((key.to_vec(), record.clone()));
        }
        (self.scan, self.passed) = (None, None);
    }

    fn restore(&mut self, collection: &Collection) -> Result<(), QueryError> {
        let bounds = &self.bounds;
        let arrays = bounds.index_in(collection)?.arrays();
        let is_new =
            |(path, _): &(Path, FieldOrder)| arrays.are_on(path) && !bounds.arrays.are_on(path);
        if arrays != bounds.arrays && !bounds.reads_same_paths(&arrays) {
            return Err(became_multikey());
        }
        if arrays != bounds.arrays && bounds.layout.fields.iter().any(is_new) {
            let mut fields = bounds.layout.fields.iter().zip(&bounds.confines);
            let mut is_confined_anew =
                || fields.any(|(field, confines)| *confines && is_new(field));
            // An array's items are in keys of their own, which say nothing of the whole.
            if self.reading.document.is_some() || self.exact && is_confined_anew() {
                return Err(became_multikey());
            }
            // Only what was written meanwhile has several keys.
            if !self.reading.repeats {
                self.reading.seen.get_or_insert_default();
            }
            if let Some(cells) = &mut self.reading.cells {
                cells.become_multikey();
            }
        }
        Ok(())
    }

    /// Backwards it is read by one alone, and so is one that may meet a record again.
    fn may_be_divided(&self, _: &[Stage]) -> bool {
        let is_range = matches!(&self.bounds.ranges[..], [only] if only.point.is_none());
        is_range && !self.reverse && self.reading.seen.is_none() && self.pieces.is_none()
    }

    fn shares(
        &mut self,
        _: &mut [Stage],
        snapshot: &Snapshot,
    ) -> Result<Option<Arc<Shares>>, QueryError> {
        let current = self.scan.as_ref().and_then(|scan| scan.current());
        let current = current.map(|(key, record)| (&**key, record));
        let saved = self.last.as_ref().map(|(key, record)| (&**key, record));
        let (Some(last), [only]) = (current.or(saved), &self.bounds.ranges[..]) else {
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
            reading: Reading {
                document: self.reading.document.clone(),
                filter: self.reading.filter.clone(),
                covers: self.reading.covers,
                returned: self.reading.returned.clone(),
                cells: self.reading.cells.clone(),
                rest: self.reading.rest.clone(),
                seen: None,
                repeats: self.reading.repeats,
            },
            last: behind,
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
        self.reading.filter.as_deref()
    }

    fn describe(&self, stage: &mut RawDocumentBuf, _: &Counts, explainer: Explainer) {
        match self.counts_one_range() {
            true => append_range(stage, &self.bounds),
            false => append_bounds(stage, &self.bounds, self.reverse),
        }
        if explainer.ran() {
            stage.append(cstr!("keysExamined"), clamp(self.examined));
        }
    }
}
