//! What is left of a scan, read on all cores: window after window, each somewhat ahead of what is
//! asked for. What was found comes in the order of the collection. Nothing runs between two windows.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use banyan_query::{ErrorKind, QueryError};
use banyan_storage::Snapshot;

use crate::interrupt::InterruptSlot;
use crate::operators::{Examined, Stage};
use crate::parallel::{self, Sink, Workers};
use crate::shares::{MORSEL, Shares};
use crate::tickets;

/// So many records are in a window at most.
const RECORDS_MAX: u64 = 256 * MORSEL;
/// So many are in the first one, unless more were looked at before.
const RECORDS_FIRST: u64 = 4 * MORSEL;
/// A window is read in so many morsels at least, but for the smallest.
const MORSELS_MIN: u64 = 8;
/// So many where somebody waits for a ticket: small windows are soon over.
const RECORDS_ALONE: u64 = MORSEL;
/// What is found in one window takes up no more than about so many bytes.
const BYTES: usize = 4 * 1024 * 1024;
/// A window is no smaller than what this much is found in, however little is asked for at once.
const BYTES_MIN: usize = 256 * 1024;
/// So much of that is read by a worker until it looks at what there is.
const BYTES_AT_ONCE: usize = 256 * 1024;

/// `T`: what was found in a share.
pub struct Windows<T> {
    /// In order.
    segments: VecDeque<Segment<T>>,
    /// How many records the next window has.
    records: u64,
    /// Something fails further on.
    has_failed: bool,
    /// So many bytes are expected of what is found.
    expected: usize,
    /// So many bytes are asked for at once.
    asked: usize,
    /// How many records were looked at, and how many bytes were found in them.
    looked_at: u64,
    found_bytes: u64,
}

enum Segment<T> {
    Found(T),
    /// From one record up to another.
    Unread(u64, u64),
}

/// How much has been found in a window: by one sink, and by all of them.
#[derive(Clone)]
pub struct Room {
    all: Arc<AtomicUsize>,
    own: usize,
    /// So much of that the others have been told.
    told: usize,
    count: usize,
    /// So many bytes are expected of the first.
    expected: usize,
    /// So many bytes are all that has room.
    bytes: usize,
}

impl Room {
    fn new(expected: usize, bytes: usize) -> Room {
        Room {
            all: Arc::default(),
            own: 0,
            told: 0,
            count: 0,
            expected,
            bytes,
        }
    }

    /// Something of so many bytes was found.
    pub fn take(&mut self, bytes: usize) {
        self.count += 1;
        self.own += bytes;
    }

    /// By all sinks, as of when each was asked last.
    pub fn is_used_up(&mut self) -> bool {
        let new = self.own - self.told;
        self.told = self.own;
        self.all.fetch_add(new, Ordering::Relaxed) + new >= self.bytes
    }

    /// How many more are to be read at once, of so many at most, going by those that have come.
    pub fn wanted(&self, most: usize) -> usize {
        let each = match self.count {
            0 => self.expected,
            count => self.own / count,
        };
        (BYTES_AT_ONCE / each.max(1)).clamp(1, most)
    }
}

/// A plan while it is read in windows.
pub struct Reader<'r> {
    pub plan: &'r mut Stage,
    pub snapshot: &'r Snapshot,
    pub slot: &'r Arc<InterruptSlot>,
    pub examined: &'r mut Examined,
    pub workers: &'r mut Workers,
}

impl<T> Windows<T> {
    /// Over what is left of a plan that has looked at so many records, and found so many bytes in them.
    /// So many are expected of each that is found. `None`: it is not much, or it cannot be divided.
    pub fn over(
        plan: &mut Stage,
        snapshot: &Snapshot,
        (looked_at, found_bytes): (u64, u64),
        expected: usize,
    ) -> Result<Option<Windows<T>>, QueryError> {
        if parallel::workers() < 2 {
            return Ok(None);
        }
        let Some(shares) = plan.shares(snapshot)? else {
            return Ok(None);
        };
        let &[(start, end)] = &shares.unread()[..] else {
            return Ok(None);
        };
        let is_divisible = shares.take().is_some_and(|own| plan.part(&own).is_some());
        Ok(is_divisible.then(|| Windows {
            segments: VecDeque::from([Segment::Unread(start, end)]),
            records: looked_at.max(RECORDS_FIRST),
            has_failed: false,
            expected,
            asked: BYTES,
            looked_at,
            found_bytes,
        }))
    }

    /// About so many bytes of what is found are asked for at once. Where more is read, whoever asks
    /// waits for what it has not asked for; where less is, nobody reads while it looks at what it got.
    pub fn ask_for(&mut self, bytes: usize) {
        self.asked = bytes.clamp(BYTES_MIN, BYTES);
    }

    /// How many records are read for as much as is asked for, going by those before.
    fn records_asked(&self) -> u64 {
        let wanted = self.asked as u64 * self.looked_at;
        match wanted.checked_div(self.found_bytes) {
            Some(records) => records.max(MORSEL),
            None => u64::MAX,
        }
    }

    /// For sinks that together take in what is found. A part left unread by a worker that fell
    /// behind is read while what others found further on is kept. Each such part has half the room of
    /// the one around it, so that all of it stays below twice the bytes.
    pub fn room(&self) -> Room {
        let is_unread = |segment: &&Segment<T>| matches!(segment, Segment::Unread(..));
        let unread = self.segments.iter().filter(is_unread).count();
        let halvings = unread.saturating_sub(1) as u32;
        let bytes = BYTES.checked_shr(halvings).unwrap_or(0);
        Room::new(self.expected, bytes.max(BYTES_AT_ONCE))
    }

    /// What was found next. `None`: something has to be read before, or there is no more.
    pub fn found(&mut self) -> Option<&mut T> {
        match self.segments.front_mut() {
            Some(Segment::Found(found)) => Some(found),
            Some(Segment::Unread(..)) | None => None,
        }
    }

    /// Goes on behind what was found.
    pub fn pass_found(&mut self) {
        if self.found().is_some() {
            self.segments.pop_front();
        }
    }

    pub fn has_ended(&self) -> bool {
        self.segments.is_empty()
    }

    /// What was found before all that is unread.
    pub fn put_first(&mut self, found: T) {
        self.segments.push_front(Segment::Found(found));
    }

    /// Whether nothing has to be read any more.
    pub fn has_read_all(&self) -> bool {
        let is_found = |segment| matches!(segment, &Segment::Found(_));
        self.segments.iter().all(is_found)
    }

    /// All that was found and not passed.
    pub fn all_found(&mut self) -> impl Iterator<Item = &mut T> {
        self.segments
            .iter_mut()
            .filter_map(|segment| match segment {
                Segment::Found(found) => Some(found),
                Segment::Unread(..) => None,
            })
    }

    /// Reads the next window of what is unread, if that comes next. `make` makes the sinks, all of
    /// which take from the room that it is given, and `found` says what is in one, if there is
    /// anything.
    pub fn read<S: Sink>(
        &mut self,
        reader: Reader<'_>,
        make: impl Fn(Room) -> Result<S, QueryError> + Send + Sync + 'static,
        found: impl Fn(S) -> Option<T>,
    ) -> Result<(), QueryError> {
        let Some(&Segment::Unread(start, end)) = self.segments.front() else {
            return Ok(());
        };
        let most = match tickets::is_waited_for() {
            true => RECORDS_ALONE,
            false => RECORDS_MAX,
        };
        let records = self.records.min(self.records_asked()).clamp(1, most);
        let middle = end.min(start.saturating_add(records));
        let morsel = ((middle - start) / MORSELS_MIN).min(MORSEL);
        let shares = Shares::in_morsels(start, middle, morsel);
        let room = self.room();
        let Reader {
            plan,
            snapshot,
            slot,
            examined,
            workers,
        } = reader;
        let before = examined.documents;
        let found_bytes = room.all.clone();
        let make = move || make(room.clone());
        let parts = match parallel::read(plan, &shares, snapshot, slot, examined, workers, make) {
            Err(_) if records > 1 => {
                // What was found before comes first: it is read again in smaller windows.
                self.records = records / MORSELS_MIN;
                self.has_failed = true;
                return Ok(());
            }
            parts => parts?,
        };
        let looked_at = examined.documents - before;
        self.looked_at += looked_at;
        self.found_bytes += found_bytes.load(Ordering::Relaxed) as u64;
        let parts = parts.ok_or_else(undivided)?.into_iter();
        let found = parts.filter_map(|(start, sink)| Some((start, Segment::Found(found(sink)?))));
        let mut read: Vec<(u64, Segment<T>)> = found.collect();
        let unread = shares.unread();
        let was_full = !unread.is_empty();
        let rest = unread.into_iter().chain([(middle, end)]);
        let rest = rest.filter(|(start, end)| start < end);
        read.extend(rest.map(|(start, end)| (start, Segment::Unread(start, end))));
        read.sort_by_key(|(start, _)| *start);
        self.segments.pop_front();
        for (_, segment) in read.into_iter().rev() {
            self.segments.push_front(segment);
        }
        self.records = match was_full {
            true => looked_at,
            false if self.has_failed => records,
            false => self.records.saturating_add(looked_at),
        };
        Ok(())
    }
}

fn undivided() -> QueryError {
    QueryError::new(ErrorKind::InternalError, "a scan is not divided that was")
}

#[cfg(test)]
mod tests;
