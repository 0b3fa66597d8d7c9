//! FETCH: the documents of the records that its input names.

use std::any::Any;
use std::ops::Bound;
use std::sync::Arc;

use banyan_query::QueryError;
use banyan_query::filter::Filter;
use banyan_storage::{Collection, Record, RecordId, RecordScan, StorageError};
use bson::{RawDocumentBuf, cstr};

use super::{Counts, Explainer, Member, Operator, Progress, Run, Stage, pull};
use crate::error;
use crate::plan::explain::clamp;
use crate::row::Row;
use crate::shares::Share;

/// Ids that are no farther apart than this are near: a record is reached in steps of a scan sooner
/// than it is found by itself.
const NEAR: u64 = 8;
/// A scan is opened once so many ids in a row were near: that costs as much as several lookups.
const NEAR_IN_A_ROW: u32 = 8;

pub struct Fetch {
    collection: Arc<Collection>,
    /// `None`: the input names matching documents only.
    filter: Option<Arc<Filter>>,
    nearby: Nearby,
    pulled: Vec<Member>,
    examined: u64,
}

impl Fetch {
    pub fn new(collection: Arc<Collection>, filter: Option<Arc<Filter>>) -> Fetch {
        Fetch {
            collection,
            filter,
            nearby: Nearby::default(),
            pulled: Vec::new(),
            examined: 0,
        }
    }
}

/// Reads records whose ids follow closely on one another by one scan, as those do that were inserted
/// in the order of the index.
#[derive(Default)]
struct Nearby {
    /// The id that was read last.
    last: Option<u64>,
    reverse: bool,
    /// How many ids in a row were near in this direction.
    in_a_row: u32,
    scan: Option<RecordScan>,
}

impl Nearby {
    fn read(
        &mut self,
        run: &mut Run<'_>,
        collection: &Collection,
        record: &RecordId,
    ) -> Result<Record, QueryError> {
        if !self.follows(record) {
            return document_of(run, collection, record);
        }
        let (snapshot, reverse) = (run.snapshot, self.reverse);
        let scan = self.scan.get_or_insert_with(|| {
            let from = Bound::Included(record.clone());
            match reverse {
                false => snapshot.records(collection.id, (from, Bound::Unbounded), false),
                true => snapshot.records(collection.id, (Bound::Unbounded, from), true),
            }
        });
        for found in scan {
            let (id, document) = found.map_err(error::storage)?;
            if id == *record {
                return Ok(document);
            }
            if (id > *record) != reverse {
                break;
            }
        }
        Err(missing(collection, record))
    }

    /// Whether the scan leads to the record.
    fn follows(&mut self, record: &RecordId) -> bool {
        let number = record.as_number();
        let last = std::mem::replace(&mut self.last, number);
        let Some((number, last)) = number.zip(last) else {
            return false;
        };
        let reverse = number < last;
        let is_near = number != last && number.abs_diff(last) <= NEAR;
        if !is_near || reverse != self.reverse {
            self.scan = None;
            self.in_a_row = 0;
        }
        self.reverse = reverse;
        self.in_a_row = self.in_a_row.saturating_add(u32::from(is_near));
        self.in_a_row >= NEAR_IN_A_ROW
    }
}

/// The document that a key of an index of the same snapshot names: without one, the index lies.
pub(super) fn document_of(
    run: &mut Run<'_>,
    collection: &Collection,
    record: &RecordId,
) -> Result<banyan_storage::Record, QueryError> {
    let found = run.snapshot.record(collection.id, record);
    let found = found.map_err(error::storage)?;
    found.ok_or_else(|| missing(collection, record))
}

fn missing(collection: &Collection, record: &RecordId) -> QueryError {
    error::storage(StorageError::Damaged {
        place: format!("index of {}", collection.namespace),
        reason: format!("a key names record {record}, which does not exist"),
    })
}

impl Operator for Fetch {
    fn name(&self) -> &'static str {
        "FETCH"
    }

    fn next(
        &mut self,
        inputs: &mut [Stage],
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<(u64, Progress), QueryError> {
        let (collection, filter) = (&self.collection, &self.filter);
        let (nearby, examined) = (&mut self.nearby, &mut self.examined);
        let fetch = |run: &mut Run<'_>, from: &mut Vec<Member>, out: &mut Vec<Member>| {
            for Member { record, row, key } in from.drain(..) {
                let row = match row {
                    // A clustered scan has read it.
                    Some(row) => row,
                    None => {
                        let found = nearby.read(run, collection, &record)?;
                        *examined += 1;
                        run.examine_document(found.as_bytes().len())?;
                        Row::Record(found)
                    }
                };
                let matches = match filter {
                    Some(filter) => filter.try_matches(&row)?,
                    None => true,
                };
                if matches {
                    let row = Some(row);
                    out.push(Member { record, row, key });
                }
            }
            Ok(())
        };
        pull(inputs, run, most, out, &mut self.pulled, fetch)
    }

    fn part(&self, _: &Share) -> Option<Box<dyn Operator>> {
        let fetch = Fetch::new(self.collection.clone(), self.filter.clone());
        Some(Box::new(fetch))
    }

    fn absorb(&mut self, part: &dyn Operator) {
        let part: &dyn Any = part;
        if let Some(part) = part.downcast_ref::<Fetch>() {
            self.examined += part.examined;
        }
    }

    fn save(&mut self) {
        self.nearby = Nearby::default();
    }

    fn passes_on(&self) -> bool {
        self.filter.is_none()
    }

    fn filter(&self) -> Option<&Filter> {
        self.filter.as_deref()
    }

    fn describe(&self, stage: &mut RawDocumentBuf, _: &Counts, explainer: Explainer) {
        if explainer.ran() {
            stage.append(cstr!("docsExamined"), clamp(self.examined));
        }
    }
}
