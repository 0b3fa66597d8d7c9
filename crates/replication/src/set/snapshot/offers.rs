//! The giving side: snapshots that others are fetching from this member.

use std::any::Any;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use banyan_consensus::Position;
use banyan_storage::{Part, Snapshot};
use banyan_wire::{CommandError, ErrorCode};
use bson::spec::BinarySubtype;
use bson::{RawArrayBuf, RawBinaryRef, RawDocumentBuf, cstr, rawdoc};
use parking_lot::Mutex;

/// About how much one reply carries.
const CHUNK_BYTES: usize = 4 << 20;
/// About how much lies in a slice: a part is cut into some tens, unless that makes them too small
/// to be worth a table of their own, or so large that much is lost with one.
const SLICES: u64 = 32;
const SLICE_BYTES_MIN: u64 = 2 << 20;
const SLICE_BYTES_MAX: u64 = 128 << 20;
/// An offer that nobody asked for is withdrawn after this long: it holds old versions of
/// everything, and the log.
pub const OFFER_TIMEOUT: Duration = Duration::from_secs(120);
const OFFERS_MAX: usize = 16;
/// The log is kept for so much longer, until whoever fetched the snapshot follows it.
const LINGER: Duration = Duration::from_secs(10);

struct Offer {
    snapshot: Snapshot,
    position: Position,
    used: Instant,
    /// Keeps the log from the position on.
    hold: Option<Hold>,
}

type Hold = Box<dyn Any + Send>;

#[derive(Default)]
pub struct Offers {
    open: Mutex<HashMap<i64, Offer>>,
    lingering: Mutex<Vec<(Instant, Hold)>>,
}

impl Offers {
    /// `position` was applied before the snapshot was taken. `hold` lives as long as the offer.
    pub fn open(
        &self,
        position: Position,
        snapshot: Snapshot,
        hold: Option<Hold>,
    ) -> Result<i64, CommandError> {
        let mut open = self.open.lock();
        open.retain(|_, offer| offer.used.elapsed() < OFFER_TIMEOUT);
        if open.len() >= OFFERS_MAX {
            return Err(CommandError::new(
                ErrorCode::ConflictingOperationInProgress,
                "too many members fetch snapshots from this one",
            ));
        }
        let token = (rand::random::<u64>() >> 1) as i64;
        open.insert(
            token,
            Offer {
                snapshot,
                position,
                used: Instant::now(),
                hold,
            },
        );
        Ok(token)
    }

    fn get(&self, token: i64) -> Result<(Snapshot, Position), CommandError> {
        let mut open = self.open.lock();
        let offer = open.get_mut(&token).ok_or_else(|| {
            CommandError::new(ErrorCode::NoSuchKey, "the snapshot is no longer offered")
        })?;
        offer.used = Instant::now();
        Ok((offer.snapshot.clone(), offer.position))
    }

    pub fn close(&self, token: i64) {
        let closed = self.open.lock().remove(&token);
        if let Some(hold) = closed.and_then(|closed| closed.hold) {
            self.lingering.lock().push((Instant::now(), hold));
        }
    }

    /// Withdraws what nobody has asked for in a while.
    pub fn expire(&self) {
        let mut lingering = self.lingering.lock();
        lingering.retain(|(closed, _)| closed.elapsed() < LINGER);
        drop(lingering);
        let mut open = self.open.lock();
        let late = open.extract_if(|_, offer| offer.used.elapsed() >= OFFER_TIMEOUT);
        let late: Vec<_> = late.collect();
        drop(open);
        for (token, _) in late {
            tracing::warn!(token, "nobody asked for the rest of a snapshot: withdrawn");
        }
    }

    /// What is offered: at which position, and where it can be cut.
    pub fn plan(&self, token: i64) -> Result<RawDocumentBuf, CommandError> {
        let (snapshot, position) = self.get(token)?;
        let mut out = rawdoc! {
            "token": token,
            "term": position.term as i64,
            "index": position.index as i64,
        };
        for part in Part::SLICED {
            let mut cuts = RawArrayBuf::new();
            let bytes = snapshot.export_bytes(part) / SLICES;
            let bytes = bytes.clamp(SLICE_BYTES_MIN, SLICE_BYTES_MAX);
            for cut in snapshot.cuts(part, bytes).map_err(unreadable)? {
                cuts.push(binary(&cut));
            }
            match part {
                Part::Records => out.append(cstr!("recordsCuts"), cuts),
                Part::Indexes | Part::Meta => out.append(cstr!("indexesCuts"), cuts),
            }
        }
        let bytes = |part| snapshot.export_bytes(part) as i64;
        out.append(cstr!("recordsBytes"), bytes(Part::Records));
        out.append(cstr!("indexesBytes"), bytes(Part::Indexes));
        out.append(cstr!("metaBytes"), bytes(Part::Meta));
        out.append(cstr!("ok"), 1.0);
        Ok(out)
    }

    /// One chunk. Reads the disk.
    pub fn chunk(
        &self,
        token: i64,
        part: Part,
        after: Option<&[u8]>,
        until: Option<&[u8]>,
    ) -> Result<RawDocumentBuf, CommandError> {
        let (snapshot, _) = self.get(token)?;
        // The reply is laid out around the pairs, so that they are copied once: length of the
        // document, tag and name of the element, length and kind of the bytes.
        let mut out = Vec::with_capacity(CHUNK_BYTES + CHUNK_BYTES / 16);
        out.extend_from_slice(&[0; 4]);
        out.push(5);
        out.extend_from_slice(b"pairs\0");
        let length_at = out.len();
        out.extend_from_slice(&[0; 5]);
        let start = out.len();
        let chunk = snapshot
            .export(part, after, until, CHUNK_BYTES, &mut out)
            .map_err(unreadable)?;
        let length = (out.len() - start) as u32;
        out[length_at..length_at + 4].copy_from_slice(&length.to_le_bytes());
        let mut rest = RawDocumentBuf::new();
        if let Some(next) = &chunk.next {
            rest.append(cstr!("next"), binary(next));
        }
        rest.append(cstr!("keys"), chunk.keys as i64);
        rest.append(cstr!("checksum"), i64::from(chunk.checksum));
        rest.append(cstr!("ok"), 1.0);
        out.extend_from_slice(&rest.as_bytes()[4..]);
        let length = out.len() as u32;
        out[..4].copy_from_slice(&length.to_le_bytes());
        RawDocumentBuf::from_bytes(out)
            .map_err(|error| CommandError::new(ErrorCode::InternalError, error.to_string()))
    }

    /// Counts what lies under a collection or index. Reads all of it.
    pub fn count(&self, token: i64, part: Part, id: u32) -> Result<RawDocumentBuf, CommandError> {
        let (snapshot, _) = self.get(token)?;
        let totals = snapshot.count(part, id).map_err(unreadable)?;
        Ok(rawdoc! {
            "entries": totals.entries as i64,
            "bytes": totals.bytes as i64,
            "ok": 1.0,
        })
    }
}

fn unreadable(error: banyan_storage::StorageError) -> CommandError {
    CommandError::new(ErrorCode::InternalError, format!("cannot read: {error}"))
}

fn binary(bytes: &[u8]) -> RawBinaryRef<'_> {
    RawBinaryRef {
        subtype: BinarySubtype::Generic,
        bytes,
    }
}
