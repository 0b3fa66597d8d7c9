//! `local.oplog.rs`: the log as a collection.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;

use banyan_query::QueryError;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use super::describe;
use super::log::Log;
use super::reader::{self, LogReader, ReadError};
use crate::clock;
use crate::errors;

/// Which entries are read, and how.
#[derive(Debug, Clone, Default)]
pub struct Order {
    /// Times outside of these are of no interest.
    pub times: Option<RangeInclusive<u64>>,
    pub reverse: bool,
    /// The end may be asked again later.
    pub tailable: bool,
}

/// Backwards, the log is read in pieces of this many entries.
const ENTRIES_PER_READ: u64 = 256;

pub enum Oplog {
    Forward(Forward),
    Backward(Backward),
}

impl Oplog {
    pub fn new(log: &Arc<Log>, order: &Order) -> Result<Oplog, CommandError> {
        let (first, last) = order
            .times
            .clone()
            .map_or((0, u64::MAX), RangeInclusive::into_inner);
        if order.reverse {
            let end = match last.checked_add(1) {
                Some(time) => LogReader::from_time(log.clone(), time)
                    .map_err(unreadable)?
                    // The entry at that time may begin before it.
                    .next_index()
                    .saturating_add(1),
                None => u64::MAX,
            };
            return Ok(Oplog::Backward(Backward {
                log: log.clone(),
                end: end.min(log.replica.machine.applied_index() + 1),
                first_time: first,
                ready: Vec::new(),
                told_of_base: false,
            }));
        }
        let log_begins = reader::first_index(log);
        let reader = match first {
            0 => LogReader::from_index(log.clone(), log_begins),
            first => LogReader::from_time(log.clone(), first).map_err(unreadable)?,
        };
        let before = log.replica.machine.before_log(reader.next_index());
        let before = before.filter(|before| before.time >= first && before.time > 0);
        Ok(Oplog::Forward(Forward {
            // What comes later is for those who ask again.
            end: if order.tailable {
                u64::MAX
            } else {
                log.replica.machine.applied_index() + 1
            },
            last_time: last,
            begun: false,
            reader,
            ready: before.iter().map(describe::base).collect(),
        }))
    }
}

pub struct Forward {
    reader: LogReader,
    end: u64,
    last_time: u64,
    /// Something has been read.
    begun: bool,
    ready: VecDeque<RawDocumentBuf>,
}

impl Forward {
    fn step(&mut self) -> Result<Option<RawDocumentBuf>, CommandError> {
        loop {
            if let Some(document) = self.ready.pop_front() {
                if time_of(&document) > self.last_time {
                    self.end = 0;
                    self.ready.clear();
                    return Ok(None);
                }
                return Ok(Some(document));
            }
            if self.reader.next_index() >= self.end {
                return Ok(None);
            }
            let entries = match self.reader.read() {
                Ok(entries) => entries,
                // It was cut since we looked where it begins.
                Err(ReadError::Cut(_) | ReadError::Replaced) if !self.begun => {
                    let log = self.reader.log().clone();
                    let first = reader::first_index(&log);
                    self.reader = LogReader::from_index(log, first);
                    continue;
                }
                Err(ReadError::Cut(_) | ReadError::Replaced) => {
                    return Err(CommandError::new(
                        ErrorCode::CappedPositionLost,
                        "CollectionScan died due to position in capped collection being deleted.",
                    ));
                }
                Err(error) => return Err(unreadable(error)),
            };
            self.begun = true;
            if entries.is_empty() {
                return Ok(None);
            }
            for seen in entries {
                if seen.position.index < self.end && !seen.data.is_empty() {
                    let machine = &self.reader.log().replica.machine;
                    let documents = describe::entry(machine, seen.position, &seen.data);
                    self.ready.extend(documents.map_err(unreadable)?);
                }
            }
        }
    }
}

pub struct Backward {
    log: Arc<Log>,
    /// Entries from here on have been read.
    end: u64,
    first_time: u64,
    /// The last one is the next.
    ready: Vec<RawDocumentBuf>,
    /// What lies before the log has been told of.
    told_of_base: bool,
}

impl Backward {
    fn step(&mut self) -> Result<Option<RawDocumentBuf>, CommandError> {
        loop {
            if let Some(document) = self.ready.pop() {
                if time_of(&document) < self.first_time {
                    self.end = 0;
                    self.ready.clear();
                    return Ok(None);
                }
                return Ok(Some(document));
            }
            let first = reader::first_index(&self.log);
            if self.end <= first {
                if std::mem::replace(&mut self.told_of_base, true) {
                    return Ok(None);
                }
                let before = self.log.replica.machine.before_log(first);
                let before = before.filter(|before| before.time > 0);
                self.ready.extend(before.iter().map(describe::base));
                if self.ready.is_empty() {
                    return Ok(None);
                }
                continue;
            }
            let from = self.end.saturating_sub(ENTRIES_PER_READ).max(first);
            let mut reader = LogReader::from_index(self.log.clone(), from);
            while reader.next_index() < self.end {
                let entries = match reader.read() {
                    Ok(entries) => entries,
                    // Cut meanwhile: the log begins here.
                    Err(ReadError::Cut(_) | ReadError::Replaced) => break,
                    Err(error) => return Err(unreadable(error)),
                };
                if entries.is_empty() {
                    break;
                }
                for seen in entries {
                    if seen.position.index < self.end && !seen.data.is_empty() {
                        let documents =
                            describe::entry(&self.log.replica.machine, seen.position, &seen.data);
                        self.ready.extend(documents.map_err(unreadable)?);
                    }
                }
            }
            self.end = from;
        }
    }
}

impl Iterator for Oplog {
    type Item = Result<RawDocumentBuf, QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = match self {
            Oplog::Forward(forward) => forward.step(),
            Oplog::Backward(backward) => backward.step(),
        };
        step.map_err(errors::within_query).transpose()
    }
}

fn time_of(document: &RawDocument) -> u64 {
    document.get_timestamp("ts").map_or(0, clock::to_bits)
}

fn unreadable(error: impl std::fmt::Display) -> CommandError {
    errors::internal(error.to_string())
}

/// The times that a filter on `ts` leaves open, as far as it says so plainly.
pub fn times(filter: &RawDocument) -> Option<RangeInclusive<u64>> {
    let (mut first, mut last) = (0, u64::MAX);
    narrow(filter, &mut first, &mut last);
    ((first, last) != (0, u64::MAX)).then_some(first..=last)
}

fn narrow(filter: &RawDocument, first: &mut u64, last: &mut u64) {
    for (name, value) in filter.iter().flatten() {
        match (name.as_str(), value) {
            ("ts", RawBsonRef::Timestamp(time)) => {
                let time = clock::to_bits(time);
                (*first, *last) = ((*first).max(time), (*last).min(time));
            }
            ("ts", RawBsonRef::Document(conditions)) => compare(conditions, first, last),
            ("$and", RawBsonRef::Array(filters)) => {
                for filter in filters.into_iter().flatten() {
                    if let RawBsonRef::Document(filter) = filter {
                        narrow(filter, first, last);
                    }
                }
            }
            _ => {}
        }
    }
}

fn compare(conditions: &RawDocument, first: &mut u64, last: &mut u64) {
    for (operator, value) in conditions.iter().flatten() {
        let RawBsonRef::Timestamp(time) = value else {
            continue;
        };
        let time = clock::to_bits(time);
        match operator.as_str() {
            "$gt" => *first = (*first).max(time.saturating_add(1)),
            "$gte" => *first = (*first).max(time),
            "$lt" => *last = (*last).min(time.saturating_sub(1)),
            "$lte" => *last = (*last).min(time),
            "$eq" => (*first, *last) = ((*first).max(time), (*last).min(time)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Timestamp, rawdoc};

    #[test]
    fn a_filter_on_ts_bounds_the_times() {
        let at = |increment| Timestamp { time: 1, increment };
        let bits = |increment| clock::to_bits(at(increment));
        let bounds = |filter: RawDocumentBuf| times(&filter);
        assert_eq!(bounds(rawdoc! { "op": "i" }), None);
        assert_eq!(bounds(rawdoc! { "ts": at(3) }), Some(bits(3)..=bits(3)));
        assert_eq!(
            bounds(rawdoc! { "op": "i", "ts": { "$gt": at(3), "$lte": at(9) } }),
            Some(bits(4)..=bits(9))
        );
        assert_eq!(
            bounds(rawdoc! { "$and": [{ "ts": { "$gte": at(3) } }, { "ts": { "$gte": at(5) } }] }),
            Some(bits(5)..=u64::MAX)
        );
        assert_eq!(
            bounds(rawdoc! { "$or": [{ "ts": at(3) }, { "op": "i" }] }),
            None
        );
    }
}
