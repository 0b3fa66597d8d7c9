//! The rows of a tailable cursor: a capped collection in insertion order, and what is added later.

use std::sync::Arc;

use banyan_query::QueryError;
use banyan_query::filter::Filter;
use banyan_query::projection::Projection;
use banyan_storage::{Collection, RecordId, RecordScan, Store};

use crate::error;
use crate::interrupt::{InterruptSlot, Ticker};
use crate::row::Row;

/// Says `None` when there is nothing now; asked again, it looks again.
pub struct Tailing {
    store: Store,
    collection: Arc<Collection>,
    filter: Arc<Filter>,
    projection: Option<Arc<Projection>>,
    scan: Option<RecordScan>,
    last: RecordId,
    ticker: Ticker,
}

impl Tailing {
    pub fn new(
        store: Store,
        collection: Arc<Collection>,
        filter: Arc<Filter>,
        projection: Option<Arc<Projection>>,
        slot: Arc<InterruptSlot>,
    ) -> Tailing {
        let ticker = Ticker::new(slot);
        Tailing {
            store,
            collection,
            filter,
            projection,
            scan: None,
            last: 0,
            ticker,
        }
    }

    fn step(&mut self) -> Result<Option<Row>, QueryError> {
        let scan = match &mut self.scan {
            Some(scan) => scan,
            None => {
                if self.store.catalog().by_id(self.collection.id).is_none() {
                    return Err(error::plan_killed(
                        "collection dropped between getMore calls",
                    ));
                }
                let snapshot = self.store.snapshot();
                let after = self.last + 1;
                self.scan
                    .insert(snapshot.records(self.collection.id, after.., false))
            }
        };
        for found in scan {
            let (id, record) = found.map_err(error::storage)?;
            self.last = id;
            self.ticker.tick()?;
            if !self.filter.try_matches(&record)? {
                continue;
            }
            let row = match &self.projection {
                None => Row::Record(record),
                Some(projection) => Row::Owned(projection.apply(&record, None)?),
            };
            return Ok(Some(row));
        }
        // The next look takes a fresh snapshot.
        self.scan = None;
        Ok(None)
    }
}

impl Iterator for Tailing {
    type Item = Result<Row, QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step().transpose()
    }
}
