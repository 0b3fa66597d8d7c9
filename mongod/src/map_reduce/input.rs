//! Documents on their way into a job.
//!
//! A plain scan is cut into ranges of record ids, and every lane has a thread of its own that
//! takes the next range, reads, matches and feeds. Where an index, a sort or a limit is in play,
//! one thread reads and hands its batches to the lanes in turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use banyan_execution::{
    CreatedFrom, Executor, Interrupt, InterruptSlot, Planned, ReadView, Request, Row,
};
use banyan_node::context::CommandContext;
use banyan_node::errors;
use banyan_node::reads::{OwnedView, owned_view, query_context};
use banyan_node::views;
use banyan_query::QueryError;
use banyan_query::canonical::{CanonicalQuery, Order, Written};
use banyan_query::pipeline::names_where;
use banyan_script::hosts::{Feeder, MapReduceJob, Mapped, Run, SortedDocuments};
use banyan_storage::{Collection, CollectionId, RecordId, RecordIdFormat, Snapshot};
use banyan_wire::{CommandError, ErrorCode};

use super::error::Failure;
use super::parameters::Input;

/// A scan is cut into so many ranges for each lane, so that none waits long for the others.
const RANGES_PER_LANE: u64 = 16;
/// A range of fewer records costs more to begin than to read.
const RANGE_RECORDS_MIN: u64 = 512;
/// How many records pass between two looks at the interruption.
const RECORDS_PER_LOOK: usize = 1024;

/// What to read.
pub struct Prepared<'a> {
    collection: Option<Arc<Collection>>,
    snapshot: Snapshot,
    request: Request<'a>,
}

impl<'a> Prepared<'a> {
    pub fn new(ctx: &CommandContext<'_>, input: &Input<'a>) -> Result<Prepared<'a>, CommandError> {
        if views::refuse_named(ctx).is_err() {
            return Err(CommandError::new(
                ErrorCode::CommandNotSupportedOnView,
                "mapReduce on a view is not supported",
            ));
        }
        if input.query.is_some_and(names_where) {
            return Err(CommandError::new(
                ErrorCode::BadValue,
                "$where is not allowed in this context",
            ));
        }
        let context = query_context(ctx, input.collection, None, input.collator(ctx))?;
        let written = Written {
            filter: input.query,
            sort: input.sort,
            limit: input.limit,
            ..Written::default()
        };
        let query = CanonicalQuery::parse(&written, &context).map_err(errors::query)?;
        if query.filter.near().is_some() {
            return Err(CommandError::new(
                ErrorCode::Location(5626500),
                "MapReduce internal error :: caused by :: $geoNear, $near, and $nearSphere are not \
                 allowed in this context",
            ));
        }
        let OwnedView {
            ownership,
            catalog,
            snapshot,
        } = owned_view(ctx, input.collection)?;
        let collection = catalog.get(ctx.database(), input.collection);
        if collection.is_some_and(|collection| collection.options.get_str("viewOn").is_ok()) {
            return Err(CommandError::new(
                ErrorCode::CommandNotSupportedOnView,
                "mapReduce on a view is not supported",
            ));
        }
        Ok(Prepared {
            collection: collection.cloned(),
            snapshot,
            request: Request {
                query: Arc::new(query),
                created_from: CreatedFrom {
                    filter: input.query,
                    ..CreatedFrom::default()
                },
                budget: ctx.budget(),
                shard_filter: ownership,
                ..Request::default()
            },
        })
    }

    /// The search for what is mapped.
    pub fn request(&self) -> Request<'a> {
        self.request.clone()
    }

    /// Maps everything; blocks until the lanes are done.
    pub fn map(self, job: &mut MapReduceJob, interrupt: &Interrupt) -> Result<Mapped, Failure> {
        let feeders = job.start_mapping()?;
        let fed = self.feed(feeders, interrupt);
        // What ended the lanes comes first; what ended the reading, if the lanes are well.
        let mapped = match &fed {
            Err(Failure::Command(_)) => Err(()),
            _ => Ok(job.finish_mapping()),
        };
        match (mapped, fed) {
            (Ok(Err(job)), _) => Err(job.into()),
            (_, Err(failure)) => Err(failure),
            (Ok(Ok(mapped)), Ok(())) => Ok(mapped),
            // Not reading is the only reason for not having mapped.
            (Err(()), Ok(())) => Err(banyan_script::JobError::Protocol.into()),
        }
    }

    fn feed(&self, feeders: Vec<Feeder>, interrupt: &Interrupt) -> Result<(), Failure> {
        let slot = Arc::new(InterruptSlot::default());
        slot.set(Some(interrupt.clone()));
        let view = ReadView {
            collection: self.collection.clone(),
            snapshot: self.snapshot.clone(),
            later: None,
        };
        let executor = Planned::new(view, self.request.clone())?.open(&slot)?;
        let query = &self.request.query;
        let whole = query.order == Order::Any && query.limit.is_none();
        match &self.collection {
            // The order is nobody's concern, so that the lanes can share the scan.
            Some(collection) if whole && can_share(collection, &executor) => {
                self.feed_in_parallel(collection.id, feeders, interrupt)
            }
            _ => feed_in_turn(executor, feeders),
        }
    }

    fn feed_in_parallel(
        &self,
        collection: CollectionId,
        feeders: Vec<Feeder>,
        interrupt: &Interrupt,
    ) -> Result<(), Failure> {
        let last = self
            .snapshot
            .last_record_id(collection)
            .map_err(errors::storage)?;
        let last = last.and_then(|last| last.as_number());
        let ranges = Ranges::new(last, feeders.len());
        std::thread::scope(|scope| {
            let work = |feeder: Feeder| {
                let scan = RangeScan {
                    input: self,
                    collection,
                    ranges: &ranges,
                    interrupt,
                };
                scope.spawn(move || scan.feed(feeder))
            };
            let threads: Vec<_> = feeders.into_iter().map(work).collect();
            let mut outcome = Ok(());
            for thread in threads {
                let result = thread
                    .join()
                    .unwrap_or_else(|_| Err(banyan_script::JobError::Protocol.into()));
                if outcome.is_ok() {
                    outcome = result;
                }
            }
            outcome
        })
    }
}

/// Whether the scan can be cut into ranges of numbers.
fn can_share(collection: &Collection, executor: &Executor) -> bool {
    executor.scans_collection() && collection.record_ids() == RecordIdFormat::Number
}

/// The sorted runs that mapping has left, to be merged.
pub fn sorted(runs: Vec<Run>) -> Vec<Box<dyn SortedDocuments<Failure>>> {
    let documents = |run: Run| Box::new(run.documents()) as Box<dyn SortedDocuments<Failure>>;
    runs.into_iter().map(documents).collect()
}

/// One reader; each lane gets every nth batch.
pub fn feed_in_turn(
    rows: impl Iterator<Item = Result<Row, QueryError>>,
    mut feeders: Vec<Feeder>,
) -> Result<(), Failure> {
    let mut next = 0;
    for row in rows {
        let Some(feeder) = feeders.get_mut(next) else {
            break;
        };
        if feeder.push(&row?)? {
            next = (next + 1) % feeders.len();
        }
    }
    for feeder in feeders {
        feeder.finish()?;
    }
    Ok(())
}

/// The record ids of a collection in pieces, handed out in order.
struct Ranges {
    next: AtomicU64,
    /// One past the last record.
    end: u64,
    step: u64,
}

impl Ranges {
    fn new(last: Option<u64>, lanes: usize) -> Ranges {
        let end = last.map_or(0, |last| last.saturating_add(1));
        let pieces = (lanes as u64).max(1) * RANGES_PER_LANE;
        Ranges {
            next: AtomicU64::new(0),
            end,
            step: end.div_ceil(pieces).max(RANGE_RECORDS_MIN),
        }
    }

    fn take(&self) -> Option<std::ops::Range<u64>> {
        let start = self.next.fetch_add(self.step, Ordering::Relaxed);
        (start < self.end).then(|| start..start.saturating_add(self.step).min(self.end))
    }
}

/// One lane's reader.
struct RangeScan<'a> {
    input: &'a Prepared<'a>,
    collection: CollectionId,
    ranges: &'a Ranges,
    interrupt: &'a Interrupt,
}

impl RangeScan<'_> {
    fn feed(self, mut feeder: Feeder) -> Result<(), Failure> {
        let mut seen = 0;
        let Prepared {
            snapshot, request, ..
        } = self.input;
        let filter = Some(&request.query.filter).filter(|filter| !filter.is_empty());
        let ownership = &request.shard_filter;
        while let Some(range) = self.ranges.take() {
            let range = RecordId::number(range.start)..RecordId::number(range.end);
            let mut scan = snapshot.records(self.collection, range, false);
            while scan.advance().map_err(errors::storage)? {
                let document = scan.document().map_err(errors::storage)?;
                seen += 1;
                if seen % RECORDS_PER_LOOK == 0 {
                    self.interrupt.check()?;
                }
                let matches = match filter {
                    Some(filter) => filter.try_matches(document).map_err(errors::query)?,
                    None => true,
                };
                if matches && ownership.as_ref().is_none_or(|own| own.owns(document)) {
                    feeder.push(document)?;
                }
            }
        }
        feeder.finish()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_every_record_once() {
        for last in [
            None,
            Some(0),
            Some(511),
            Some(512),
            Some(100_000),
            Some(1 << 62),
        ] {
            let ranges = Ranges::new(last, 2);
            let mut expected = 0;
            for _ in 0..100 {
                let Some(range) = ranges.take() else { break };
                assert_eq!(range.start, expected);
                expected = range.end;
            }
            assert_eq!(expected, last.map_or(0, |last| last.saturating_add(1)));
        }
    }
}
