//! Records that a fetch reads before they are asked for.
//!
//! The records that an index names lie anywhere. A window of them is read in the order in which they
//! lie, so that what leads to one leads to the next, on as many cores as are free, and handed on in the
//! order of the index. Windows grow with what was handed on before, and are bounded in records and
//! bytes: what a window has no room for is read when its turn comes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use banyan_query::QueryError;
use banyan_query::filter::Filter;
use banyan_storage::{Collection, Record, RecordId};

use super::document_filters::DocumentFilters;
use super::nearby::Nearby;
use super::{Member, MemberRef, Operator, Progress, Run, Stage};
use crate::parallel::{self, Sink, Workers};
use crate::row::Row;
use crate::shares::{Share, Shares};

/// So many records are read one by one: for fewer a window is not worth while.
const PLAIN: u64 = 256;
const WINDOW_MIN: u64 = 256;
const WINDOW_MAX: u64 = 2048;
/// The documents of a window take up no more than about so many bytes.
const WINDOW_BYTES: u64 = 4 * 1024 * 1024;
/// So many records are read by a worker at once.
const PIECE: usize = 128;

/// How many records the next window has, where so many with so many bytes were read. `None`: it is not
/// worth one.
pub fn size(read: u64, bytes: u64) -> Option<usize> {
    if read < PLAIN {
        return None;
    }
    let fit = WINDOW_BYTES / (bytes / read).max(1);
    let size = read.min(fit).min(WINDOW_MAX);
    (size >= WINDOW_MIN).then_some(size as usize)
}

/// What was read ahead, in the order of the input.
#[derive(Default)]
pub struct Window(VecDeque<Slot>);

pub enum Slot {
    Read(Member),
    /// There was no room. `is_later`: it will be read in a later state than its key.
    Unread {
        member: Member,
        is_later: bool,
    },
}

/// What reading a window has come to.
pub struct Found {
    pub window: Window,
    pub examined: u64,
    pub bytes: u64,
}

impl Window {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn pop(&mut self) -> Option<Slot> {
        self.0.pop_front()
    }

    /// The state in which it was read is let go.
    pub fn outlive_state(&mut self) {
        for slot in &mut self.0 {
            if let Slot::Unread { is_later, .. } = slot {
                *is_later = true;
            }
        }
    }

    /// Reads the documents of these members, none of which has its own yet, and keeps those that
    /// match.
    pub fn read(
        members: &mut Vec<Member>,
        collection: &Arc<Collection>,
        filters: &DocumentFilters,
        run: &mut Run<'_>,
        workers: &mut Workers,
    ) -> Result<Found, QueryError> {
        let numbered = members.iter().zip(0..);
        let mut records: Vec<(RecordId, usize)> = numbered
            .map(|(member, number)| (member.record.clone(), number))
            .collect();
        records.sort_unstable();
        let records = Arc::new(Records {
            collection: collection.clone(),
            filters: filters.clone(),
            is_settled: members.iter().map(|member| member.is_settled).collect(),
            records,
            bytes: AtomicU64::new(0),
        });
        let count = records.records.len();
        let shares = Shares::of_pieces(count.div_ceil(PIECE));
        let mut scan = Stage::new(PieceScan::new(records.clone(), 0));
        let slot = run.slot();
        let examined = &mut *run.examined;
        let before = examined.documents;
        let make = || Ok(Rows::default());
        let parts = parallel::read(
            &mut scan,
            &shares,
            run.snapshot,
            &slot,
            examined,
            workers,
            make,
        )?;
        let examined = examined.documents - before;
        let mut rows: Vec<Option<Option<Row>>> = Vec::new();
        rows.resize_with(count, || None);
        for (piece, Rows(read)) in parts.into_iter().flatten() {
            let places = records.piece(piece).iter().map(|(_, number)| *number);
            for (number, row) in places.zip(read) {
                rows[number] = Some(row);
            }
        }
        let slots = members
            .drain(..)
            .zip(rows)
            .filter_map(|(member, row)| match row {
                Some(Some(row)) => Some(Slot::Read(Member {
                    row: Some(row),
                    ..member
                })),
                Some(None) => None,
                None => Some(Slot::Unread {
                    member,
                    is_later: false,
                }),
            });
        Ok(Found {
            window: Window(slots.collect()),
            examined,
            bytes: records.bytes.load(Ordering::Relaxed),
        })
    }
}

/// The member with its document, if that matches.
pub fn matching(
    member: Member,
    document: Record,
    filter: Option<&Arc<Filter>>,
) -> Result<Option<Member>, QueryError> {
    let row = Row::Record(document);
    let matches = match filter {
        Some(filter) => filter.try_matches(&row)?,
        None => true,
    };
    let row = Some(row);
    Ok(matches.then_some(Member { row, ..member }))
}

/// What a window is to read.
struct Records {
    collection: Arc<Collection>,
    filters: DocumentFilters,
    /// Of each place in the window, whether its key has settled what is asked of its shape.
    is_settled: Vec<bool>,
    /// In the order in which they lie, each with its place in the window.
    records: Vec<(RecordId, usize)>,
    /// Of the documents that were read so far.
    bytes: AtomicU64,
}

impl Records {
    /// What belongs to a piece; they are numbered from 1 on.
    fn piece(&self, number: u64) -> &[(RecordId, usize)] {
        let mut pieces = self.records.chunks(PIECE);
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        let piece = number.checked_sub(1).and_then(|number| pieces.nth(number));
        piece.unwrap_or_default()
    }
}

/// Reads the records of one piece, until the window has no more room. It hands on a member for each,
/// without a document where that does not match.
struct PieceScan {
    records: Arc<Records>,
    piece: u64,
    /// How many of the piece were read.
    read: usize,
    nearby: Nearby,
}

impl PieceScan {
    fn new(records: Arc<Records>, piece: u64) -> PieceScan {
        PieceScan {
            records,
            piece,
            read: 0,
            nearby: Nearby::default(),
        }
    }
}

impl Operator for PieceScan {
    fn name(&self) -> &'static str {
        "WINDOW"
    }

    fn next(
        &mut self,
        _: &mut [Stage],
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<(u64, Progress), QueryError> {
        let Records {
            collection,
            filters,
            is_settled,
            bytes,
            ..
        } = &*self.records;
        let before = out.len();
        let piece = self.records.piece(self.piece);
        for (record, place) in piece.iter().skip(self.read) {
            if out.len() >= most {
                return Ok(((out.len() - before) as u64, Progress::More));
            }
            if bytes.load(Ordering::Relaxed) >= WINDOW_BYTES {
                break;
            }
            let found = self.nearby.read(run, collection, record)?;
            let length = found.as_bytes().len();
            bytes.fetch_add(length as u64, Ordering::Relaxed);
            run.examine_document(length)?;
            let matches = match filters.for_one(is_settled[*place]) {
                Some(filter) => filter.try_matches(&found)?,
                None => true,
            };
            // The blocks of so many documents may be many times as large as they are.
            let row = matches.then(|| Row::Owned(bson::RawDocument::to_owned(&found)));
            out.push(Member::new(record.clone(), row));
            self.read += 1;
        }
        Ok(((out.len() - before) as u64, Progress::End))
    }

    fn part(&self, share: &Share) -> Option<Box<dyn Operator>> {
        let scan = PieceScan::new(self.records.clone(), share.start);
        Some(Box::new(scan))
    }
}

/// What was read of a piece.
#[derive(Default)]
struct Rows(Vec<Option<Row>>);

impl Sink for Rows {
    fn take(&mut self, member: MemberRef<'_>) -> Result<(), QueryError> {
        self.0.push(Some(Row::Owned(member.document.to_owned())));
        Ok(())
    }

    /// Those without a document have their place, too.
    fn keeps_members(&self) -> bool {
        true
    }

    fn keep(&mut self, member: Member) -> Result<(), QueryError> {
        self.0.push(member.row);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_grow_with_what_was_read_and_shrink_with_its_size() {
        assert_eq!(size(255, 255 * 250), None);
        assert_eq!(size(256, 256 * 250), Some(256));
        assert_eq!(size(700, 700 * 250), Some(700));
        assert_eq!(size(100_000, 100_000 * 250), Some(2048));
        assert_eq!(size(100_000, 100_000 * 8192), Some(512));
        assert_eq!(size(1000, 1000 * 1_000_000), None);
        assert_eq!(size(300, 0), Some(300));
    }
}
