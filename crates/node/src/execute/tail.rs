//! The rows of a tailable cursor: a capped collection in insertion order, and what is added later.

use std::sync::Arc;

use banyan_query::filter::Filter;
use banyan_query::projection::Projection;
use banyan_storage::{Collection, RecordId, RecordScan};
use banyan_wire::{CommandError, ErrorCode};

use super::{InterruptSlot, Row, Ticker};
use crate::errors;
use crate::node::Node;

/// Says `None` when there is nothing now; asked again, it looks again.
pub struct Tailing {
    node: Arc<Node>,
    collection: Arc<Collection>,
    filter: Arc<Filter>,
    projection: Option<Arc<Projection>>,
    scan: Option<RecordScan>,
    last: RecordId,
    ticker: Ticker,
}

impl Tailing {
    pub fn new(
        node: Arc<Node>,
        collection: Arc<Collection>,
        filter: Arc<Filter>,
        projection: Option<Arc<Projection>>,
        slot: Arc<InterruptSlot>,
    ) -> Tailing {
        let ticker = Ticker::new(slot);
        Tailing {
            node,
            collection,
            filter,
            projection,
            scan: None,
            last: 0,
            ticker,
        }
    }

    fn step(&mut self) -> Result<Option<Row>, CommandError> {
        let scan = match &mut self.scan {
            Some(scan) => scan,
            None => {
                let (catalog, snapshot) = self.node.view();
                if catalog.by_id(self.collection.id).is_none() {
                    return Err(CommandError::new(
                        ErrorCode::QueryPlanKilled,
                        "collection dropped between getMore calls",
                    ));
                }
                let after = self.last + 1;
                self.scan
                    .insert(snapshot.records(self.collection.id, after.., false))
            }
        };
        for found in scan {
            let (id, record) = found.map_err(errors::storage)?;
            self.last = id;
            self.ticker.tick()?;
            if !self.filter.try_matches(&record).map_err(errors::query)? {
                continue;
            }
            let row = match &self.projection {
                None => Row::Record(record),
                Some(projection) => {
                    Row::Owned(projection.apply(&record, None).map_err(errors::query)?)
                }
            };
            return Ok(Some(row));
        }
        // The next look takes a fresh snapshot.
        self.scan = None;
        Ok(None)
    }
}

impl Iterator for Tailing {
    type Item = Result<Row, CommandError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step().transpose()
    }
}
