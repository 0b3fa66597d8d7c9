//! COLLSCAN: the records of a collection in the order of their ids, or the opposite one.

use std::any::Any;
use std::ops::Bound;
use std::sync::Arc;

use banyan_query::QueryError;
use banyan_query::filter::Filter;
use banyan_storage::{CollectionId, RecordId, RecordScan};
use bson::{RawDocument, RawDocumentBuf, cstr};

use super::explain::direction;
use super::{Counts, Explainer, Member, Operator, Progress, Run, Stage};
use crate::error;
use crate::plan::explain::clamp;
use crate::row::Row;
use crate::shares::Share;

pub struct CollectionScan {
    collection: CollectionId,
    reverse: bool,
    /// `None`: everything matches.
    filter: Option<Arc<Filter>>,
    /// `None` before it begins and while its snapshot is gone.
    scan: Option<RecordScan>,
    /// The record that it has come to.
    last: Option<RecordId>,
    examined: u64,
    /// What it reads of the collection; `None`: all of it.
    share: Option<Share>,
    /// The first record of its share that others may still take.
    claimed: RecordId,
}

impl CollectionScan {
    pub fn new(collection: CollectionId, reverse: bool, filter: Option<Arc<Filter>>) -> Self {
        CollectionScan {
            collection,
            reverse,
            filter,
            scan: None,
            last: None,
            examined: 0,
            share: None,
            claimed: 0,
        }
    }

    /// The records that are still to come.
    fn rest(&self) -> (Bound<RecordId>, Bound<RecordId>) {
        if let Some(share) = &self.share {
            return (Bound::Included(share.start), Bound::Excluded(share.end));
        }
        match (self.last, self.reverse) {
            (None, _) => (Bound::Unbounded, Bound::Unbounded),
            (Some(last), false) => (Bound::Excluded(last), Bound::Unbounded),
            (Some(last), true) => (Bound::Unbounded, Bound::Excluded(last)),
        }
    }

    /// Whether a record is its to read.
    #[inline]
    fn claims(&mut self, record: RecordId) -> bool {
        let Some(share) = &self.share else {
            return true;
        };
        while record >= self.claimed {
            match share.claim() {
                Some(end) => self.claimed = end,
                None => return false,
            }
        }
        true
    }

    fn scan(
        &mut self,
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<Progress, QueryError> {
        let mut scan = match self.scan.take() {
            Some(scan) => scan,
            None => run
                .snapshot
                .records(self.collection, self.rest(), self.reverse),
        };
        while out.len() < most {
            if !run.work() {
                break;
            }
            let Some((id, record)) = scan.next().transpose().map_err(error::storage)? else {
                if let Some(share) = &self.share {
                    share.close();
                }
                self.scan = Some(scan);
                return Ok(Progress::End);
            };
            if !self.claims(id) {
                return Ok(Progress::End);
            }
            self.last = Some(id);
            self.examined += 1;
            let document: &RawDocument = &record;
            run.examine_document(document.as_bytes().len())?;
            let matches = match &self.filter {
                Some(filter) => filter.try_matches(document)?,
                None => true,
            };
            if matches {
                out.push(Member {
                    record: id,
                    row: Some(Row::Record(record)),
                });
            }
        }
        self.scan = Some(scan);
        Ok(Progress::More)
    }
}

impl Operator for CollectionScan {
    fn name(&self) -> &'static str {
        "COLLSCAN"
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
    }

    /// Backwards it is read by one alone.
    fn part(&self, share: &Share) -> Option<Box<dyn Operator>> {
        if self.reverse {
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
        if explainer.ran() {
            stage.append(cstr!("docsExamined"), clamp(self.examined));
        }
    }
}
