//! A whole snapshot carried to another member, in chunks of plain keys and values.
//!
//! The giving side keeps a [`Snapshot`](crate::Snapshot) and answers questions about it
//! ([`export`]): where the parts can be cut into slices of about equal size, what lies in a slice
//! after some key. It remembers nothing between two.
//!
//! The taking side ([`import`]) empties itself and writes slices straight into tables of the
//! engine, past its journal and its memory. Several slices are written at once and end in key
//! order, so that how far an import has come is one key for each part. That, the source and what
//! was counted lie in a mark in meta (the ledger): an import goes on where it was interrupted, by
//! a lost connection or by a crash, for as long as its source still has the same snapshot.
//!
//! Meta, which says what the rest means, comes last, with the mark's end in one batch. Until then
//! nobody sees anything.

pub mod export;
pub mod import;
mod ledger;

pub use export::Chunk;
pub use import::{Divergence, ImportScope, Importer, SliceEnd};
pub use ledger::Totals;
pub(crate) use ledger::can_go_on;

use crate::StorageError;

/// The parts of a store that travel separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Records,
    Indexes,
    Meta,
}

impl Part {
    pub const ALL: [Part; 3] = [Part::Records, Part::Indexes, Part::Meta];
    /// Those that are cut into slices.
    pub const SLICED: [Part; 2] = [Part::Records, Part::Indexes];

    pub fn tag(self) -> u8 {
        match self {
            Part::Records => 0,
            Part::Indexes => 1,
            Part::Meta => 2,
        }
    }

    pub fn from_tag(tag: u8) -> Option<Part> {
        Part::ALL.into_iter().find(|part| part.tag() == tag)
    }

    pub fn name(self) -> &'static str {
        match self {
            Part::Records => "records",
            Part::Indexes => "indexes",
            Part::Meta => "meta",
        }
    }
}

/// The checksum that travels with a chunk's pairs.
pub fn checksum(pairs: &[u8]) -> u32 {
    crc32c::crc32c(pairs)
}

fn push(pairs: &mut Vec<u8>, bytes: &[u8]) {
    // The engine's keys and values are shorter than 4 GiB.
    pairs.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    pairs.extend_from_slice(bytes);
}

/// Takes a key and its value off the head of `pairs`.
fn take_pair<'a>(pairs: &mut &'a [u8]) -> Result<(&'a [u8], &'a [u8]), StorageError> {
    let key = take(pairs)?;
    let value = take(pairs)?;
    if key.is_empty() || key.len() > usize::from(u16::MAX) {
        return Err(broken(format!("a key of {} bytes", key.len())));
    }
    Ok((key, value))
}

fn take<'a>(pairs: &mut &'a [u8]) -> Result<&'a [u8], StorageError> {
    let cut = || broken("a chunk that ends in the middle of a pair");
    let (length, rest) = pairs.split_first_chunk::<4>().ok_or_else(cut)?;
    let (bytes, rest) = rest
        .split_at_checked(u32::from_le_bytes(*length) as usize)
        .ok_or_else(cut)?;
    *pairs = rest;
    Ok(bytes)
}

fn broken(what: impl Into<String>) -> StorageError {
    StorageError::Transfer(what.into())
}
