//! GEO_NEAR_2DSPHERE and GEO_NEAR_2D: what is near a point, the closest first.
//!
//! An index over cells has no order of distances. Rings around the point are searched one after the
//! other, from the inside to the outside, and what is found in one is sorted. A ring is made wider
//! where little was found in the one before it, and narrower where much was.

use std::cmp::Ordering;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use banyan_query::pipeline::NearFields;
use banyan_query::{Budget, QueryError};
use banyan_storage::{Collection, RecordId};
use bson::{RawDocumentBuf, cstr};

use super::{Counts, Explainer, Fetch, IndexScan, Member, Operator, Progress, Run, Stage};
use crate::error;
use crate::plan::near::NearSearch;
use crate::row::Row;

/// A ring that holds fewer makes the next one wider, one that holds more makes it narrower.
const FOUND_MIN: usize = 300;
const FOUND_MAX: usize = 600;
/// So many members of a ring are read at once.
const READ_AT_ONCE: usize = 64;

pub struct GeoNear {
    collection: Arc<Collection>,
    search: Arc<NearSearch>,
    /// The ring that is searched: its distances, and how wide the next one may be.
    least: f64,
    greatest: f64,
    step: f64,
    scan: Option<Stage>,
    /// What was found in the ring: distances and records, which are read again when they are handed
    /// on.
    found: Vec<(f64, RecordId)>,
    ready: VecDeque<RecordId>,
    /// What was found in any ring.
    seen: HashSet<RecordId>,
    ended: bool,
    /// What documents are told of their distances.
    fields: Option<Arc<NearFields>>,
    budget: Budget,
}

impl GeoNear {
    pub fn new(collection: Arc<Collection>, search: Arc<NearSearch>, budget: &Budget) -> GeoNear {
        let least = search.near.min_distance;
        let step = search.first_step();
        GeoNear {
            greatest: (least + step).min(search.farthest()),
            ended: least > search.farthest(),
            collection,
            search,
            least,
            step,
            scan: None,
            found: Vec::new(),
            ready: VecDeque::new(),
            seen: HashSet::new(),
            fields: None,
            budget: budget.clone(),
        }
    }

    /// Has documents told their distances.
    pub fn telling(self, fields: Option<Arc<NearFields>>) -> GeoNear {
        GeoNear { fields, ..self }
    }

    fn is_last(&self) -> bool {
        self.greatest >= self.search.farthest()
    }

    /// What finds the documents of the ring.
    fn scan(&self) -> Option<Stage> {
        let bounds = self.search.bounds(self.least, self.greatest)?;
        let scan = Stage::new(IndexScan::new(Arc::new(bounds), false, false));
        let filter = Some(self.search.filter.clone());
        Some(Stage::over(
            scan,
            Fetch::new(self.collection.clone(), filter),
        ))
    }

    fn take(&mut self, members: &mut Vec<Member>) -> Result<(), QueryError> {
        for member in members.drain(..) {
            let Some(row) = member.row else { continue };
            let nearest = self.search.nearest(&row, &self.budget)?;
            let distance = nearest.map(|nearest| nearest.distance);
            let is_inside = |distance: &f64| {
                *distance >= self.least
                    && (*distance < self.greatest || self.is_last() && *distance <= self.greatest)
            };
            if let Some(distance) = distance.filter(is_inside)
                && self.seen.insert(member.record.clone())
            {
                self.found.push((distance, member.record));
            }
        }
        Ok(())
    }

    /// The ring was searched: what was found is in order, and the next one begins.
    fn finish_ring(&mut self) {
        let order = |a: &(f64, RecordId), b: &(f64, RecordId)| {
            a.0.partial_cmp(&b.0)
                .unwrap_or(Ordering::Equal)
                .then_with(|| a.1.cmp(&b.1))
        };
        self.found.sort_unstable_by(order);
        match self.found.len() {
            ..FOUND_MIN => self.step *= 2.0,
            FOUND_MAX.. => self.step /= 2.0,
            _ => {}
        }
        self.ended = self.is_last();
        self.ready
            .extend(self.found.drain(..).map(|(_, record)| record));
        self.least = self.greatest;
        self.greatest = (self.least + self.step).min(self.search.farthest());
    }

    /// Hands on the next one, if it is still there and still matches.
    fn hand_on(
        &mut self,
        run: &mut Run<'_>,
        record: RecordId,
        out: &mut Vec<Member>,
    ) -> Result<(), QueryError> {
        let found = run.snapshot.record(self.collection.id, &record);
        let Some(found) = found.map_err(error::storage)? else {
            return Ok(());
        };
        run.examine_document(found.as_bytes().len())?;
        if !self.search.filter.try_matches(&found)? {
            return Ok(());
        }
        let row = match &self.fields {
            None => Row::Record(found),
            Some(fields) => match self.search.nearest(&found, &self.budget)? {
                Some(near) => Row::Owned(fields.write(&found, near.distance, near.place)),
                None => return Ok(()),
            },
        };
        out.push(Member::new(record, Some(row)));
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
        let mut members = Vec::new();
        loop {
            while out.len() < most {
                let Some(record) = self.ready.pop_front() else {
                    break;
                };
                works += 1;
                self.hand_on(run, record, out)?;
            }
            if out.len() >= most {
                return Ok((works, Progress::More));
            }
            if self.ended {
                return Ok((works, Progress::End));
            }
            if !run.work() {
                return Ok((works, Progress::More));
            }
            run.tick()?;
            works += 1;
            if self.scan.is_none() {
                self.scan = self.scan();
            }
            let progress = match &mut self.scan {
                Some(scan) => scan.next(run, READ_AT_ONCE, &mut members)?,
                None => Progress::End,
            };
            works += members.len() as u64;
            self.take(&mut members)?;
            if progress == Progress::End {
                self.scan = None;
                self.finish_ring();
            }
        }
    }

    fn save(&mut self) {
        if let Some(scan) = &mut self.scan {
            scan.save();
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
