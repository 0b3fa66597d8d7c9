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

/// What is asked of a collection that is tailed.
pub struct Tailed {
    pub collection: Arc<Collection>,
    pub filter: Arc<Filter>,
    pub output: Output,
    /// So many of those that match are passed over.
    pub skip: u64,
    /// Towards the oldest: it has seen everything once it is there.
    pub reverse: bool,
}

/// Says `None` when there is nothing now; asked again, it looks again.
pub struct Tailing {
    store: Store,
    tailed: Tailed,
    scan: Option<RecordScan>,
    last: Option<RecordId>,
    ticker: Ticker,
}

impl Tailing {
    pub fn new(store: Store, tailed: Tailed, slot: Arc<InterruptSlot>) -> Tailing {
        Tailing {
            store,
            tailed,
            scan: None,
            last: None,
            ticker: Ticker::new(slot),
        }
    }

    /// Goes on behind the last record, in the state of now. `None`: there is nothing.
    fn open(&self) -> Result<Option<RecordScan>, QueryError> {
        let collection = &self.tailed.collection;
        let catalog = self.store.catalog();
        let Some(current) = catalog.by_id(collection.id) else {
            return Err(error::plan_killed("collection dropped"));
        };
        if current.namespace != collection.namespace {
            let (from, to) = (&collection.namespace, &current.namespace);
            let why = format!("collection renamed from '{from}' to '{to}'");
            return Err(error::plan_killed(&why));
        }
        let snapshot = self.store.snapshot();
        let rest = match &self.last {
            None => {
                let oldest = snapshot.oldest_known(current);
                let oldest = oldest.map_or(Bound::Unbounded, Bound::Included);
                (oldest, Bound::Unbounded)
            }
            Some(last) => {
                let found = snapshot.record(current.id, last);
                if found.map_err(error::storage)?.is_none() {
                    return Err(error::capped_position_lost(last));
                }
                // Numbers are given out before their records can be seen.
                if !self.tailed.reverse && !current.may_have_grown_since(last) {
                    return Ok(None);
                }
                match self.tailed.reverse {
                    false => (Bound::Excluded(last.clone()), Bound::Unbounded),
                    true => (Bound::Unbounded, Bound::Excluded(last.clone())),
                }
            }
        };
        let scan = snapshot.records(current.id, rest, self.tailed.reverse);
        Ok(Some(scan))
    }

    fn step(&mut self) -> Result<Option<Row>, QueryError> {
        let mut scan = match self.scan.take() {
            Some(scan) => scan,
            None => match self.open()? {
                Some(scan) => scan,
                None => return Ok(None),
            },
        };
        let tailed = &mut self.tailed;
        for found in &mut scan {
            let (id, record) = found.map_err(error::storage)?;
            let id = self.last.insert(id);
            self.ticker.tick()?;
            if !tailed.filter.try_matches(&record)? {
                continue;
            }
            if tailed.skip > 0 {
                tailed.skip -= 1;
                continue;
            }
            let row = tailed.output.apply(Row::Record(record), id)?;
            self.scan = Some(scan);
            return Ok(Some(row));
        }
        // The next look takes a fresh snapshot.
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
        // What is removed meanwhile has to be noticed.
        self.scan = None;
        Ok(())
    }

    fn may_have_more(&self) -> bool {
        let collection = &self.tailed.collection;
        let grown = |last: &RecordId| collection.may_have_grown_since(last);
        let catalog = self.store.catalog();
        let current = catalog.by_id(collection.id);
        self.last.as_ref().is_none_or(grown)
            || current.is_none_or(|current| current.namespace != collection.namespace)
    }
}
