//! The rows of a tailable cursor: a capped collection in insertion order, and what is added later.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use crate::operators::Output;
use banyan_query::QueryError;
use banyan_query::filter::Filter;
use banyan_storage::{Collection, RecordId, RecordScan, Store};

use crate::error;
use crate::interrupt::{InterruptSlot, Ticker};
use crate::row::{Row, RowStream};

/// Says `None` when there is nothing now; asked again, it looks again.
pub struct Tailing {
    store: Store,
    collection: Arc<Collection>,
    filter: Arc<Filter>,
    output: Output,
    scan: Option<RecordScan>,
    last: Option<RecordId>,
    ticker: Ticker,
}

impl Tailing {
    pub fn new(
        store: Store,
        collection: Arc<Collection>,
        filter: Arc<Filter>,
        output: Output,
        slot: Arc<InterruptSlot>,
    ) -> Tailing {
        let ticker = Ticker::new(slot);
        Tailing {
            store,
            collection,
            filter,
            output,
            scan: None,
            last: None,
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
                let after = self.last.clone().map_or(Bound::Unbounded, Bound::Excluded);
                let rest = (after, Bound::Unbounded);
                self.scan
                    .insert(snapshot.records(self.collection.id, rest, false))
            }
        };
        for found in scan {
            let (id, record) = found.map_err(error::storage)?;
            let id = self.last.insert(id);
            self.ticker.tick()?;
            if !self.filter.try_matches(&record)? {
                continue;
            }
            let row = self.output.apply(Row::Record(record), id)?;
            return Ok(Some(row));
        }
        // The next look takes a fresh snapshot.
        self.scan = None;
        Ok(None)
    }
}

impl RowStream for Tailing {
    fn next_batch(&mut self, most: usize, out: &mut VecDeque<Row>) -> Result<(), QueryError> {
        for _ in 0..most {
            match self.step()? {
                Some(row) => out.push_back(row),
                None => break,
            }
        }
        Ok(())
    }

    fn save(&mut self) {
        self.scan = None;
    }

    fn holds_snapshot(&self) -> bool {
        self.scan.is_some()
    }
}
