//! COLLSCAN: the records of a collection in the order of their ids, or the opposite one.
//! CLUSTERED_IXSCAN: those of a clustered collection within bounds on `_id`.

use std::any::Any;
use std::ops::Bound;
use std::sync::Arc;

use banyan_query::QueryError;
use banyan_query::filter::Filter;
use banyan_query::javascript::ahead;
use banyan_storage::{Collection, CollectionId, Record, RecordId, RecordScan, Snapshot};
use bson::{RawDocument, RawDocumentBuf, cstr};

use super::explain::direction;
use super::{
    Counts, Explainer, Member, MemberRef, Operator, Progress, Run, Stage, Visitor, visit_all,
};
use crate::error;
use crate::plan::explain::clamp;
use crate::plan::{IndexBounds, ScanRange};
use crate::row::Row;
use crate::shares::{Share, Shares};

/// A collection of so many documents or bytes is worth the while of a second thread: one reads it
/// in a few milliseconds.
const DIVIDED_DOCUMENTS: u64 = 10_000;
const DIVIDED_BYTES: u64 = 8 * 1024 * 1024;
/// Records of so many bytes are read before their scripts are run.
const SCRIPTED_BYTES_MAX: usize = 1024 * 1024;

pub struct CollectionScan {
    collection: CollectionId,
    reverse: bool,
    /// `None`: everything matches.
    filter: Option<Arc<Filter>>,
    /// Whether the filter says no more than the bounds: it is shown then, and not run.
    exact: bool,
    /// Whether the filter calls scripts.
    calls_script: bool,
    /// Of a clustered index; `None`: all records.
    bounds: Option<Arc<IndexBounds>>,
    /// How many ranges are done with.
    done: usize,
    /// The scan of the present range; `None` before it begins and while its snapshot is gone.
    scan: Option<RecordScan>,
    /// The record that it had come to in its range when its snapshot went.
    last: Option<RecordId>,
    /// It goes on only if that is still there: what came behind may be gone with it.
    needs_last: bool,
    /// The collection, if it is a capped one: what is known of its beginning spares the way there.
    capped: Option<Arc<Collection>>,
    examined: u64,
    /// Whether a second thread is worth its while.
    is_large: bool,
    /// What it reads of the collection; `None`: all of it.
    share: Option<Share>,
    /// The first record of its share that others may still take.
    claimed: u64,
}

/// Where a record is that it has come to.
enum Come {
    /// Where the scan of the present range is.
    InScan,
    ByItself(RecordId, Record),
}

/// A document that matches.
enum Found<'s> {
    InScan(&'s RecordScan, &'s RawDocument),
    ByItself(Record),
}

/// What is read next.
enum Part {
    /// At most one record.
    Point(RecordId),
    Range(Bound<RecordId>, Bound<RecordId>),
}

impl CollectionScan {
    pub fn new(collection: CollectionId, reverse: bool, filter: Option<Arc<Filter>>) -> Self {
        CollectionScan {
            collection,
            reverse,
            calls_script: filter.as_ref().is_some_and(|filter| filter.calls_script()),
            filter,
            exact: false,
            bounds: None,
            done: 0,
            scan: None,
            last: None,
            needs_last: false,
            capped: None,
            examined: 0,
            is_large: false,
            share: None,
            claimed: 0,
        }
    }

    /// Several may read what there is of a collection with so many documents and bytes.
    pub fn of_size(self, documents: u64, bytes: u64) -> Self {
        CollectionScan {
            is_large: documents >= DIVIDED_DOCUMENTS || bytes >= DIVIDED_BYTES,
            ..self
        }
    }

    /// Of a collection that may be a capped one.
    pub fn of_capped(self, collection: &Arc<Collection>) -> Self {
        let capped = collection.is_capped.then(|| collection.clone());
        CollectionScan { capped, ..self }
    }

    /// Where the records begin.
    fn beginning(&self, snapshot: &Snapshot) -> Bound<RecordId> {
        let capped = self.capped.as_ref();
        let oldest = capped.and_then(|capped| snapshot.oldest_known(capped));
        oldest.map_or(Bound::Unbounded, Bound::Included)
    }

    pub fn has_filter(&self) -> bool {
        self.filter.is_some()
    }

    /// Within the bounds of the collection's clustered index.
    pub fn within(self, bounds: Arc<IndexBounds>, exact: bool) -> Self {
        CollectionScan {
            bounds: Some(bounds),
            exact,
            ..self
        }
    }

    /// The range that is being read.
    fn present(&self, snapshot: &Snapshot) -> Option<Part> {
        let Some(bounds) = &self.bounds else {
            let all = match &self.share {
                Some(share) => Part::Range(
                    Bound::Included(RecordId::number(share.start)),
                    Bound::Excluded(RecordId::number(share.end)),
                ),
                None => Part::Range(self.beginning(snapshot), Bound::Unbounded),
            };
            return (self.done == 0).then_some(all);
        };
        let ranges = &bounds.ranges;
        let ScanRange { range, point } = match self.reverse {
            false => ranges.get(self.done),
            true => ranges.iter().rev().nth(self.done),
        }?;
        if let Some(key) = point {
            return Some(Part::Point(RecordId::bytes(key)));
        }
        let end = |end: &Bound<Vec<u8>>| end.as_ref().map(|key| RecordId::bytes(key));
        Some(Part::Range(end(&range.lower), end(&range.upper)))
    }

    fn next_part(&mut self) {
        self.done += 1;
        self.scan = None;
        self.last = None;
    }

    /// Goes on to the next record. `None`: the ranges have ended.
    fn step(&mut self, run: &Run<'_>) -> Result<Option<Come>, QueryError> {
        loop {
            if let Some(scan) = &mut self.scan {
                if scan.advance().map_err(error::storage)? {
                    return Ok(Some(Come::InScan));
                }
                self.next_part();
            }
            let (lower, upper) = match self.present(run.snapshot) {
                None => return Ok(None),
                Some(Part::Point(id)) => {
                    let found = run.snapshot.record(self.collection, &id);
                    let found = found.map_err(error::storage)?;
                    self.next_part();
                    match found {
                        Some(record) => return Ok(Some(Come::ByItself(id, record))),
                        None => continue,
                    }
                }
                Some(Part::Range(lower, upper)) => match (self.last.clone(), self.reverse) {
                    (None, _) => (lower, upper),
                    (Some(last), false) => (Bound::Excluded(last), upper),
                    (Some(last), true) => (lower, Bound::Excluded(last)),
                },
            };
            if let Some(last) = self.last.as_ref().filter(|_| self.needs_last) {
                let found = run.snapshot.record(self.collection, last);
                if found.map_err(error::storage)?.is_none() {
                    return Err(error::capped_position_lost(last));
                }
            }
            let scan = (lower, upper);
            let scan = run.snapshot.records(self.collection, scan, self.reverse);
            self.scan = Some(scan);
        }
    }

    /// The record that it has come to in its range.
    fn position(&self) -> Option<RecordId> {
        let scan = self.scan.as_ref();
        scan.and_then(RecordScan::id).or_else(|| self.last.clone())
    }

    /// Goes on to the next record that is its to read, and has it taken if its document matches.
    /// False: there is none.
    #[inline]
    fn examine(
        &mut self,
        filter: Option<&Filter>,
        run: &mut Run<'_>,
        take: impl FnOnce(RecordId, Found<'_>) -> Result<(), QueryError>,
    ) -> Result<bool, QueryError> {
        let matches = |document: &RawDocument| match filter {
            Some(filter) => filter.try_matches(document),
            None => Ok(true),
        };
        match self.step(run)? {
            Some(Come::ByItself(id, record)) => {
                self.examined += 1;
                run.examine_document(record.as_bytes().len())?;
                if matches(&record)? {
                    take(id, Found::ByItself(record))?;
                }
                return Ok(true);
            }
            Some(Come::InScan) => {}
            None => {
                if let Some(share) = &self.share {
                    share.close();
                }
                return Ok(false);
            }
        }
        let Some(scan) = &self.scan else {
            return Ok(false);
        };
        let Some(id) = scan.id() else {
            return Err(error::storage(scan.without_id()));
        };
        if let (Some(share), Some(number)) = (&self.share, id.as_number())
            && number >= self.claimed
        {
            match share.claim(number) {
                Some(end) => self.claimed = end,
                None => return Ok(false),
            }
        }
        // What does not match is looked at where it lies.
        let document = scan.document().map_err(error::storage)?;
        self.examined += 1;
        run.examine_document(document.as_bytes().len())?;
        if matches(document)? {
            take(id, Found::InScan(scan, document))?;
        }
        Ok(true)
    }

    /// The same, into a list.
    #[inline]
    fn examine_into(
        &mut self,
        filter: Option<&Filter>,
        run: &mut Run<'_>,
        out: &mut Vec<Member>,
    ) -> Result<bool, QueryError> {
        self.examine(filter, run, |id, found| {
            let record = match found {
                Found::InScan(scan, _) => scan.record().map_err(error::storage)?,
                Found::ByItself(record) => record,
            };
            out.push(Member::new(id, Some(Row::Record(record))));
            Ok(())
        })
    }

    /// The scripts of several records are run together. Of all that are read there is room for every
    /// one, so none is read that would not be read one by one.
    fn scan_with_scripts(
        &mut self,
        filter: &Filter,
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<Progress, QueryError> {
        let (mut progress, mut bytes) = (Progress::More, 0);
        let mut read: Vec<Member> = Vec::new();
        while out.len() + read.len() < most && bytes < SCRIPTED_BYTES_MAX {
            if !run.work() {
                break;
            }
            if !self.examine_into(None, run, &mut read)? {
                progress = Progress::End;
                break;
            }
            bytes += read.last().map_or(0, Member::bytes);
        }
        let documents: Vec<&RawDocument> = read
            .iter()
            .filter_map(|member| member.row.as_deref())
            .collect();
        let matches = ahead::for_all(&documents, |document| filter.try_matches(document))?;
        let read = read.into_iter().zip(matches);
        let matching = read.filter(|(_, matches)| *matches);
        out.extend(matching.map(|(member, _)| member));
        Ok(progress)
    }

    fn scan(
        &mut self,
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<Progress, QueryError> {
        let filter = self.filter.clone();
        if let Some(filter) = filter.as_ref().filter(|_| self.calls_script) {
            return self.scan_with_scripts(filter, run, most, out);
        }
        let filter = filter.as_deref().filter(|_| !self.exact);
        while out.len() < most {
            if !run.work() {
                break;
            }
            if !self.examine_into(filter, run, out)? {
                return Ok(Progress::End);
            }
        }
        Ok(Progress::More)
    }
}

impl Operator for CollectionScan {
    fn name(&self) -> &'static str {
        match &self.bounds {
            Some(bounds) if !bounds.is_whole_collection() => "CLUSTERED_IXSCAN",
            _ => "COLLSCAN",
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

    fn visit(
        &mut self,
        inputs: &mut [Stage],
        run: &mut Run<'_>,
        most: usize,
        visitor: Visitor<'_>,
    ) -> Result<(u64, u64, Progress), QueryError> {
        let examined = self.examined;
        if self.calls_script {
            let mut members = Vec::with_capacity(most);
            let (works, progress) = self.next(inputs, run, most, &mut members)?;
            visit_all(&members, visitor)?;
            return Ok((works, members.len() as u64, progress));
        }
        let filter = self.filter.clone();
        let filter = filter.as_deref().filter(|_| !self.exact);
        let (mut visited, mut progress) = (0, Progress::More);
        while visited < most && run.work() {
            let is_there = self.examine(filter, run, |id, found| {
                visited += 1;
                let document: &RawDocument = match &found {
                    Found::InScan(_, document) => document,
                    Found::ByItself(record) => record,
                };
                visitor(MemberRef {
                    record: &id,
                    document,
                    key: None,
                })
            })?;
            if !is_there {
                progress = Progress::End;
                break;
            }
        }
        Ok((self.examined - examined, visited as u64, progress))
    }

    fn calls_script(&self) -> bool {
        self.calls_script
    }

    fn save(&mut self) {
        self.last = self.position();
        self.scan = None;
    }

    fn restore(&mut self, collection: &Collection) -> Result<(), QueryError> {
        self.needs_last = collection.is_capped;
        Ok(())
    }

    fn shares(
        &mut self,
        _: &mut [Stage],
        snapshot: &Snapshot,
    ) -> Result<Option<Arc<Shares>>, QueryError> {
        if !self.is_large || self.reverse || self.share.is_some() {
            return Ok(None);
        }
        let last = snapshot.last_record_id(self.collection);
        let last = last.map_err(error::storage)?.and_then(|id| id.as_number());
        let first = match self.position() {
            Some(read) => read.as_number().map(|read| read.saturating_add(1)),
            None => {
                let all = (self.beginning(snapshot), Bound::Unbounded);
                let first = snapshot.records(self.collection, all, false).next();
                let first = first.transpose().map_err(error::storage)?;
                first.and_then(|(id, _)| id.as_number())
            }
        };
        let ends = first.zip(last);
        Ok(ends.map(|(first, last)| Shares::new(first, last.saturating_add(1))))
    }

    /// Backwards it is read by one alone.
    fn part(&self, share: &Share) -> Option<Box<dyn Operator>> {
        if self.reverse || self.bounds.is_some() {
            return None;
        }
        let filter = self.filter.clone();
        Some(Box::new(CollectionScan {
            share: Some(share.clone()),
            ..CollectionScan::new(self.collection, false, filter)
        }))
    }

    fn absorb(&mut self, part: &dyn Operator) {
        let part: &dyn Any = part;
        if let Some(part) = part.downcast_ref::<CollectionScan>() {
            self.examined += part.examined;
        }
    }

    fn filter(&self) -> Option<&Filter> {
        self.filter.as_deref()
    }

    fn describe(&self, stage: &mut RawDocumentBuf, _: &Counts, explainer: Explainer) {
        stage.append(cstr!("direction"), direction(self.reverse));
        if let Some(bounds) = &self.bounds {
            let ends = &bounds.ends;
            if let Some(min) = &ends.min {
                stage.append(cstr!("minRecord"), min.clone());
            }
            if let Some(max) = &ends.max {
                stage.append(cstr!("maxRecord"), max.clone());
            }
        }
        if explainer.ran() {
            stage.append(cstr!("docsExamined"), clamp(self.examined));
        }
    }
}
