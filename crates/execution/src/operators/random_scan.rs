//! MULTI_ITERATOR: records drawn at random, each once.
//!
//! Ids are drawn out of the range that the collection's ids lie in; those of no record are passed
//! over, so that each record is as likely as any other. They are numbers: those of a clustered
//! collection cannot be drawn.

use std::collections::HashSet;
use std::ops::RangeInclusive;

use banyan_query::QueryError;
use banyan_storage::{CollectionId, RecordId};
use rand::Rng;

use super::{Member, Operator, Progress, Run, Stage};
use crate::error;
use crate::row::Row;

pub struct RandomScan {
    collection: CollectionId,
    ids: RangeInclusive<u64>,
    drawn: HashSet<u64>,
}

impl RandomScan {
    pub fn new(collection: CollectionId, ids: RangeInclusive<u64>) -> RandomScan {
        RandomScan {
            collection,
            ids,
            drawn: HashSet::new(),
        }
    }

    /// Whether every id has been drawn.
    fn is_exhausted(&self) -> bool {
        let span = self.ids.end().saturating_sub(*self.ids.start());
        self.ids.is_empty() || self.drawn.len() as u64 > span
    }
}

impl Operator for RandomScan {
    fn name(&self) -> &'static str {
        "MULTI_ITERATOR"
    }

    fn next(
        &mut self,
        _: &mut [Stage],
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<(u64, Progress), QueryError> {
        let mut draws = 0;
        while out.len() < most {
            if self.is_exhausted() {
                return Ok((draws, Progress::End));
            }
            if !run.work() {
                break;
            }
            draws += 1;
            let number = rand::rng().random_range(self.ids.clone());
            run.examine_key()?;
            if !self.drawn.insert(number) {
                continue;
            }
            let record = RecordId::number(number);
            let found = run.snapshot.record(self.collection, &record);
            let Some(found) = found.map_err(error::storage)? else {
                continue;
            };
            run.examine_document(found.as_bytes().len())?;
            let row = Some(Row::Record(found));
            out.push(Member::new(record, row));
        }
        Ok((draws, Progress::More))
    }
}
