//! A member that is too far behind for the log fetches the whole state from the primary.
//!
//! The primary keeps a storage snapshot open under a token ([`Offers`]) and hands it out in chunks
//! (`_fetchSnapshot`); the parts of the store travel side by side. The taker ([`fetch`]) empties
//! its own store first: until the last chunk is in, it holds nothing that anybody may read.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use banyan_consensus::{Position, SnapshotMeta};
use banyan_storage::{Importer, Part, Snapshot, Store};
use banyan_wire::{CommandError, ErrorCode, Pool};
use bson::spec::BinarySubtype;
use bson::{RawBinaryRef, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};
use parking_lot::Mutex;

use super::transport::Peers;
use crate::params;

const CHUNK_BYTES: usize = 4 << 20;
const CHUNK_TIMEOUT: Duration = Duration::from_secs(60);
/// An offer that nobody asked for is withdrawn: it holds old versions of everything.
const OFFER_PATIENCE: Duration = Duration::from_secs(60);
const OFFERS_MAX: usize = 16;

struct Offer {
    snapshot: Snapshot,
    position: Position,
    used: Instant,
}

/// The snapshots that others are fetching from this member.
#[derive(Default)]
pub struct Offers {
    open: Mutex<HashMap<i64, Offer>>,
}

impl Offers {
    /// `position` was applied before the snapshot was taken.
    pub fn open(&self, position: Position, snapshot: Snapshot) -> Result<i64, CommandError> {
        let mut open = self.open.lock();
        open.retain(|_, offer| offer.used.elapsed() < OFFER_PATIENCE);
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
        self.open.lock().remove(&token);
    }

    pub fn expire(&self) {
        self.open
            .lock()
            .retain(|_, offer| offer.used.elapsed() < OFFER_PATIENCE);
    }

    /// One chunk, as the reply to `_fetchSnapshot`. Reads the disk.
    pub fn chunk(
        &self,
        token: i64,
        part: Part,
        after: Option<&[u8]>,
    ) -> Result<RawDocumentBuf, CommandError> {
        let (snapshot, _) = self.get(token)?;
        let chunk = snapshot
            .export(part, after, None, CHUNK_BYTES)
            .map_err(|error| {
                CommandError::new(ErrorCode::InternalError, format!("cannot read: {error}"))
            })?;
        let bytes = |bytes| RawBinaryRef {
            subtype: BinarySubtype::Generic,
            bytes,
        };
        let mut out = RawDocumentBuf::new();
        out.append(cstr!("pairs"), bytes(&chunk.pairs));
        if let Some(next) = &chunk.next {
            out.append(cstr!("next"), bytes(next));
        }
        out.append(cstr!("ok"), 1.0);
        Ok(out)
    }
}

/// Replaces the state of `store` by the leader's. Blocks; not to be called on a runtime's thread.
pub fn fetch(peers: &Peers, store: &Store, meta: &SnapshotMeta) -> Result<(), String> {
    let runtime = peers.runtime().ok_or("there is no runtime to fetch with")?;
    let pool = peers
        .pool(&meta.leader_address)
        .ok_or("there is no connection to fetch over")?;
    runtime.block_on(fetch_over(&pool, store, meta))
}

async fn fetch_over(pool: &Pool, store: &Store, meta: &SnapshotMeta) -> Result<(), String> {
    let opened = ask(pool, &rawdoc! { "_fetchSnapshot": 1 }).await?;
    let integer = |name: &str| opened.get(name).ok().flatten().and_then(params::number);
    let token = integer("token").ok_or("the answer names no snapshot")?;
    let index = integer("index").unwrap_or(0);
    if index < meta.position.index as i64 {
        return Err(format!(
            "{} offers its state at {index}, but {} is needed",
            meta.leader_address, meta.position.index
        ));
    }
    tracing::info!(from = meta.leader_address, index, "fetching a snapshot");
    let importer = Importer::begin(store).map_err(|error| error.to_string())?;
    // The parts side by side: one is written while another is under way.
    let parts = Part::ALL.map(|part| fetch_part(pool, &importer, token, part));
    let fetched = futures::future::try_join_all(parts).await;
    let close = rawdoc! { "_fetchSnapshot": 1, "token": token, "close": true };
    // If this is lost the offer ends by itself.
    let _ = ask(pool, &close).await;
    let bytes: usize = fetched?.into_iter().sum();
    importer.finish().map_err(|error| error.to_string())?;
    tracing::info!(
        from = meta.leader_address,
        index,
        bytes,
        "fetched a snapshot"
    );
    Ok(())
}

async fn fetch_part(
    pool: &Pool,
    importer: &Importer,
    token: i64,
    part: Part,
) -> Result<usize, String> {
    let mut after: Option<Vec<u8>> = None;
    let mut bytes = 0;
    loop {
        let mut request =
            rawdoc! { "_fetchSnapshot": 1, "token": token, "part": i32::from(part.tag()) };
        if let Some(after) = &after {
            let after = RawBinaryRef {
                subtype: BinarySubtype::Generic,
                bytes: after,
            };
            request.append(cstr!("after"), after);
        }
        let reply = ask(pool, &request).await?;
        let pairs = binary(&reply, "pairs").ok_or("a chunk without content")?;
        bytes += pairs.len();
        importer
            .write(part, pairs)
            .map_err(|error| error.to_string())?;
        match binary(&reply, "next") {
            Some(next) => after = Some(next.to_vec()),
            None => return Ok(bytes),
        }
    }
}

async fn ask(pool: &Pool, request: &RawDocument) -> Result<RawDocumentBuf, String> {
    let reply = pool.command("admin", request, Some(CHUNK_TIMEOUT)).await;
    reply.map_err(|error| error.to_string())
}

fn binary<'a>(document: &'a RawDocument, name: &str) -> Option<&'a [u8]> {
    match document.get(name).ok().flatten() {
        Some(RawBsonRef::Binary(binary)) => Some(binary.bytes),
        _ => None,
    }
}
