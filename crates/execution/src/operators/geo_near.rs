//! GEO_NEAR_2DSPHERE and GEO_NEAR_2D: what is near a point, the closest first.
//!
//! An index over cells has no order of distances. Rings around the point are searched one after the
//! other, from the inside to the outside. A key says how far away its document is at least, almost to
//! the centimeter if that is a point: the documents of the closest keys are read, and handed on once
//! nothing that is not read can be closer. A ring is made wider where little was found in the one
//! before it, and narrower where much was. How wide the first one is to be, the keys around the
//! point's own tell.

use std::cell::Cell;
use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashSet};
use std::sync::Arc;

use banyan_geo::searched::SearchedCells;
use banyan_query::pipeline::NearFields;
use banyan_query::{Budget, QueryError};
use banyan_storage::{Collection, RecordId};
use bson::{RawDocumentBuf, cstr};

use super::cell_test::CellReader;
use super::{Counts, Explainer, IndexScan, Member, Operator, Progress, Run, Stage};
use crate::error;
use crate::plan::near::{NearSearch, Side};
use crate::row::Row;

/// A ring that holds fewer makes the next one wider, one that holds more makes it narrower.
const FOUND_MIN: usize = 300;
const FOUND_MAX: usize = 600;
/// So many keys of a ring are read at once.
const READ_AT_ONCE: usize = 64;
/// So many keys are looked at on each side of the point's, and so many more at most that are ruled out.
const PROBED: usize = 16;
const PROBED_IN_VAIN: u64 = 64;
/// So many are looked for in the first ring where nobody says how many are wanted, and at most.
const WANTED: u64 = 101;
const WANTED_MAX: u64 = 600;
/// The first ring is to hold so many times as many as are wanted: they are not spread evenly.
const SPARE: f64 = 1.5;
/// So many documents are kept until it is their turn; others are read again.
const KEPT_MAX: usize = 256;

pub struct GeoNear {
    collection: Arc<Collection>,
    search: Arc<NearSearch>,
    wanted: usize,
    has_begun: bool,
    /// All that is closer has been searched.
    reached: f64,
    /// How far the present ring leads, and how wide the next one is to be.
    goal: f64,
    step: f64,
    /// Whether that was found out by looking at keys.
    is_estimated: bool,
    searched: SearchedCells,
    scan: Option<IndexScan>,
    /// How many keys or documents the present ring had that were not found before.
    found: usize,
    waiting: BinaryHeap<Waiting>,
    /// How many of those have their documents with them.
    kept: usize,
    /// The records that were read and are near enough.
    read: HashSet<RecordId>,
    /// What documents are told of their distances.
    fields: Option<Arc<NearFields>>,
    budget: Budget,
}

/// What was found and not handed on.
struct Waiting {
    distance: f64,
    record: RecordId,
    state: State,
}

enum State {
    /// Its key was read, and the distance is the least that it can be.
    Key,
    /// The document was read, and may be kept.
    Read(Option<Row>),
}

impl Waiting {
    fn is_key(&self) -> bool {
        matches!(self.state, State::Key)
    }
}

/// The closest comes out of a heap first; a key before what is as close, which may be that of something
/// as close.
impl Ord for Waiting {
    fn cmp(&self, other: &Waiting) -> Ordering {
        let closer = other.distance.total_cmp(&self.distance);
        closer
            .then_with(|| self.is_key().cmp(&other.is_key()))
            .then_with(|| other.record.cmp(&self.record))
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Waiting) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Waiting) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Waiting {}

impl GeoNear {
    pub fn new(
        collection: Arc<Collection>,
        search: Arc<NearSearch>,
        wanted: Option<u64>,
        budget: &Budget,
    ) -> GeoNear {
        let wanted = wanted.unwrap_or(WANTED).clamp(1, WANTED_MAX);
        GeoNear {
            collection,
            wanted: usize::try_from(wanted).unwrap_or(usize::MAX),
            has_begun: false,
            reached: search.near.min_distance,
            goal: search.near.min_distance,
            step: search.first_step(),
            is_estimated: false,
            searched: SearchedCells::default(),
            scan: None,
            found: 0,
            waiting: BinaryHeap::new(),
            kept: 0,
            read: HashSet::new(),
            fields: None,
            budget: budget.clone(),
            search,
        }
    }

    /// Has documents told their distances.
    pub fn telling(self, fields: Option<Arc<NearFields>>) -> GeoNear {
        GeoNear { fields, ..self }
    }

    /// Whether there is nothing left to search.
    fn is_complete(&self) -> bool {
        let farthest = self.search.farthest();
        self.reached > farthest || self.has_begun && self.scan.is_none() && self.reached == farthest
    }

    /// Whether nothing that was not found yet can come before what comes next.
    fn is_due(&self) -> bool {
        let farthest = self.search.farthest();
        self.waiting.peek().is_some_and(|next| {
            next.distance < self.reached || self.is_complete() && next.distance <= farthest
        })
    }

    /// Begins with the next ring.
    fn begin_ring(&mut self, run: &mut Run<'_>) -> Result<(), QueryError> {
        let has_begun = std::mem::replace(&mut self.has_begun, true);
        if !has_begun && self.search.near.min_distance == 0.0 {
            self.probe(run)?;
        }
        self.goal = (self.reached + self.step).min(self.search.farthest());
        self.found = 0;
        let (from, to) = (self.reached, self.goal);
        match self.search.bounds(from, to, &mut self.searched) {
            Some(bounds) => {
                self.scan = Some(IndexScan::new(Arc::new(bounds), false, false).repeating());
            }
            None => self.finish_ring(),
        }
        Ok(())
    }

    /// Looks at the keys next to the point's own, which says how close together documents are there.
    fn probe(&mut self, run: &mut Run<'_>) -> Result<(), QueryError> {
        let (mut distances, mut range, mut has_ended) = (Vec::new(), None, true);
        for side in [Side::Behind, Side::Before] {
            let Some((center, bounds)) = self.search.beside_center(side) else {
                return Ok(());
            };
            let Some(field) = self.search.field(&bounds) else {
                return Ok(());
            };
            let is_of_cells = field == 0 && bounds.is_one_range();
            let cells = CellReader::new(&bounds, field);
            let last = Cell::new(center);
            let measure = |key: &[u8], types: &[u8]| -> Result<f64, QueryError> {
                let cell = cells.read(key, types)?;
                last.set(cell.unwrap_or(center));
                Ok(cell.map_or(0.0, |cell| self.search.least_distance(cell)))
            };
            let mut keys = Vec::new();
            let reverse = side == Side::Before;
            let mut scan = IndexScan::new(Arc::new(bounds), reverse, false).repeating();
            let mut progress = Progress::More;
            while progress == Progress::More
                && keys.len() < PROBED
                && scan.examined() < PROBED_IN_VAIN
                && !run.is_exhausted()
            {
                progress = scan.measure(run, keys.len() + 1, &measure, &mut keys)?;
            }
            has_ended &= progress == Progress::End && is_of_cells;
            if is_of_cells {
                self.note_probed(side, center, last.get(), progress);
            }
            let (low, high) = range.unwrap_or((center, center));
            range = Some((low.min(last.get()), high.max(last.get())));
            distances.extend(keys.iter().map(|(distance, _)| *distance));
            self.wait_for_keys(keys);
        }
        let Some(range) = range.filter(|_| !distances.is_empty()) else {
            return Ok(());
        };
        self.is_estimated = true;
        if has_ended {
            self.step = self.search.farthest();
            return Ok(());
        }
        let wanted = self.wanted as f64 * SPARE;
        let mut step = self.search.estimate(wanted, distances.len(), range);
        distances.sort_unstable_by(f64::total_cmp);
        if let Some(distance) = distances.get(self.wanted.saturating_sub(1)) {
            step = step.min(*distance);
        }
        // What lies in one place is no measure.
        self.step = step.max(self.search.first_step() / 1000.0);
        Ok(())
    }

    /// The cells between the point's own and the last one that was looked at need not be searched
    /// again. That last one may have more keys.
    fn note_probed(&mut self, side: Side, center: i64, last: i64, progress: Progress) {
        let range = match (side, progress) {
            (Side::Behind, Progress::End) => (center, i64::MAX),
            (Side::Before, Progress::End) => (i64::MIN, center.saturating_sub(1)),
            (Side::Behind, Progress::More) => (center, last.saturating_sub(1)),
            (Side::Before, Progress::More) => (last.saturating_add(1), center.saturating_sub(1)),
        };
        if range.0 <= range.1 {
            self.searched.add(&[range]);
        }
    }

    fn wait_for_keys(&mut self, keys: Vec<(f64, RecordId)>) {
        self.found += keys.len();
        self.waiting
            .extend(keys.into_iter().map(|(distance, record)| Waiting {
                distance,
                record,
                state: State::Key,
            }));
    }

    /// Searches on in the present ring.
    fn search_on(&mut self, run: &mut Run<'_>) -> Result<u64, QueryError> {
        let Some(scan) = &mut self.scan else {
            return Ok(0);
        };
        let (search, examined) = (&self.search, scan.examined());
        let cells = search
            .field(scan.bounds())
            .map(|field| CellReader::new(scan.bounds(), field));
        let tells_distance = cells.is_some();
        let measure = |key: &[u8], types: &[u8]| -> Result<f64, QueryError> {
            let cell = cells.as_ref().map(|cells| cells.read(key, types));
            let cell = cell.transpose()?.flatten();
            Ok(cell.map_or(0.0, |cell| search.least_distance(cell)))
        };
        let mut keys = Vec::new();
        let progress = scan.measure(run, READ_AT_ONCE, &measure, &mut keys)?;
        let works = scan.examined() - examined;
        match tells_distance {
            true => self.wait_for_keys(keys),
            false => {
                for (_, record) in keys {
                    self.found += usize::from(self.read(run, record)?);
                }
            }
        }
        if progress == Progress::End {
            self.scan = None;
            self.finish_ring();
        }
        Ok(works)
    }

    /// The ring was searched.
    fn finish_ring(&mut self) {
        self.reached = self.goal;
        match self.found {
            ..FOUND_MIN if self.is_estimated => self.step = self.step.max(self.reached / 2.0),
            ..FOUND_MIN => self.step *= 2.0,
            FOUND_MAX.. => self.step /= 2.0,
            _ => {}
        }
    }

    /// Reads the document of a key: it waits for its turn, if it matches and is as far away as is asked
    /// for. False if it does not, or was read before.
    fn read(&mut self, run: &mut Run<'_>, record: RecordId) -> Result<bool, QueryError> {
        if self.read.contains(&record) {
            return Ok(false);
        }
        let Some((distance, row)) = self.look_up(run, &record)? else {
            return Ok(false);
        };
        let asked = self.search.near.min_distance..=self.search.farthest();
        if !asked.contains(&distance) {
            return Ok(false);
        }
        self.read.insert(record.clone());
        let is_kept = self.kept < KEPT_MAX;
        self.kept += usize::from(is_kept);
        self.waiting.push(Waiting {
            distance,
            record,
            state: State::Read(is_kept.then_some(row)),
        });
        Ok(true)
    }

    /// A document and how far away it is, if it is there and matches.
    fn look_up(
        &self,
        run: &mut Run<'_>,
        record: &RecordId,
    ) -> Result<Option<(f64, Row)>, QueryError> {
        let found = run.snapshot.record(self.collection.id, record);
        let Some(found) = found.map_err(error::storage)? else {
            return Ok(None);
        };
        run.examine_document(found.as_bytes().len())?;
        if !self.search.filter.try_matches(&found)? {
            return Ok(None);
        }
        let Some(nearest) = self.search.nearest(&found, &self.budget)? else {
            return Ok(None);
        };
        let distance = nearest.distance;
        let told = self.fields.as_ref().map(|fields| {
            let told = fields.write(&found, distance, nearest.place);
            Row::Owned(told)
        });
        Ok(Some((distance, told.unwrap_or(Row::Record(found)))))
    }

    /// Works off what comes next: reads it, or hands it on.
    fn work_off(
        &mut self,
        run: &mut Run<'_>,
        next: Waiting,
        out: &mut Vec<Member>,
    ) -> Result<(), QueryError> {
        let row = match next.state {
            State::Key => return self.read(run, next.record).map(|_| ()),
            State::Read(Some(row)) => {
                self.kept -= 1;
                row
            }
            State::Read(None) => match self.look_up(run, &next.record)? {
                Some((_, row)) => row,
                None => return Ok(()),
            },
        };
        out.push(Member::new(next.record, Some(row)));
        Ok(())
    }
}

impl Operator for GeoNear {
    fn name(&self) -> &'static str {
        match self.search.index.kind.grid() {
            Some(_) => "GEO_NEAR_2D",
            None => "GEO_NEAR_2DSPHERE",
        }
    }

    fn next(
        &mut self,
        _: &mut [Stage],
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<(u64, Progress), QueryError> {
        let mut works = 0;
        while out.len() < most {
            if run.is_exhausted() {
                break;
            }
            if self.scan.is_some() {
                works += self.search_on(run)?;
                continue;
            }
            if !self.is_due() {
                if self.is_complete() {
                    return Ok((works, Progress::End));
                }
                run.tick()?;
                self.begin_ring(run)?;
                continue;
            }
            run.work();
            works += 1;
            if let Some(next) = self.waiting.pop() {
                self.work_off(run, next, out)?;
            }
        }
        Ok((works, Progress::More))
    }

    /// What was read is read again: it may have changed by then.
    fn save(&mut self) {
        if let Some(scan) = &mut self.scan {
            scan.save();
        }
        if self.kept > 0 {
            self.kept = 0;
            let forget = |waiting: Waiting| match waiting.state {
                State::Read(_) => Waiting {
                    state: State::Read(None),
                    ..waiting
                },
                State::Key => waiting,
            };
            let waiting = std::mem::take(&mut self.waiting);
            self.waiting = waiting.into_iter().map(forget).collect();
        }
    }

    fn restore(&mut self, collection: &Collection) -> Result<(), QueryError> {
        if collection.index_by_id(self.search.index.id).is_none() {
            let dropped = format!("index '{}' dropped", self.search.index.name);
            return Err(error::plan_killed(&dropped));
        }
        match &mut self.scan {
            Some(scan) => scan.restore(collection),
            None => Ok(()),
        }
    }

    fn describe(&self, stage: &mut RawDocumentBuf, _: &Counts, _: Explainer) {
        let index = &self.search.index;
        if let Ok(pattern) = index.spec.get_document("key") {
            stage.append(cstr!("keyPattern"), pattern);
        }
        stage.append(cstr!("indexName"), index.name.as_str());
        stage.append(cstr!("indexVersion"), 2);
    }
}
