//! A whole snapshot carried to another member, in chunks of plain keys and values.
//!
//! The giving side keeps a [`Snapshot`] and answers [`Snapshot::export`]; where a chunk ended, the
//! next one starts, so the giver remembers nothing between two. The parts (and ranges within a
//! part) can travel over several streams at once and arrive in any order.
//!
//! The taking side empties itself, writes what arrives and is complete with
//! [`Importer::finish`]. A crash before that leaves an empty store, see
//! [`crate::Store::import_was_interrupted`].

use std::ops::Bound;

use fjall::Readable;

use crate::batch::{Keyspace, Operation};
use crate::{Snapshot, StorageError, Store, keys};

/// The parts of a store that travel separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Records,
    Indexes,
    Meta,
}

impl Part {
    pub const ALL: [Part; 3] = [Part::Records, Part::Indexes, Part::Meta];

    fn keyspace(self) -> Keyspace {
        match self {
            Part::Records => Keyspace::Records,
            Part::Indexes => Keyspace::Indexes,
            Part::Meta => Keyspace::Meta,
        }
    }

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
}

/// Some keys and values of one part, as bytes for the wire:
/// repeated key length (u32), key, value length (u32), value; little-endian.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    pub part: Part,
    pub pairs: Vec<u8>,
    /// Where the next chunk starts; `None` after the last one of the part.
    pub next: Option<Vec<u8>>,
}

impl Snapshot {
    /// The keys of `part` after `after` (all for `None`), in key order, until the chunk holds
    /// about `bytes` or the key `until` is reached.
    pub fn export(
        &self,
        part: Part,
        after: Option<&[u8]>,
        until: Option<&[u8]>,
        bytes: usize,
    ) -> Result<Chunk, StorageError> {
        let keyspace = match part {
            Part::Records => &self.engine.records,
            Part::Indexes => &self.engine.indexes,
            Part::Meta => &self.engine.meta,
        };
        let lower = after.map_or(Bound::Unbounded, |key| Bound::Excluded(key.to_vec()));
        let upper = until.map_or(Bound::Unbounded, |key| Bound::Excluded(key.to_vec()));
        let mut chunk = Chunk {
            part,
            pairs: Vec::new(),
            next: None,
        };
        if let (Some(after), Some(until)) = (after, until)
            && after >= until
        {
            return Ok(chunk);
        }
        for guard in self.view.range::<Vec<u8>, _>(keyspace, (lower, upper)) {
            let (key, value) = guard.into_inner()?;
            push(&mut chunk.pairs, &key);
            push(&mut chunk.pairs, &value);
            if chunk.pairs.len() >= bytes {
                chunk.next = Some(key.to_vec());
                break;
            }
        }
        Ok(chunk)
    }
}

fn push(pairs: &mut Vec<u8>, bytes: &[u8]) {
    // The engine's keys and values are shorter than 4 GiB.
    pairs.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    pairs.extend_from_slice(bytes);
}

fn take<'a>(pairs: &mut &'a [u8]) -> Result<&'a [u8], StorageError> {
    let cut = || StorageError::Transfer("a chunk that ends in the middle of a pair".to_owned());
    let (length, rest) = pairs.split_first_chunk::<4>().ok_or_else(cut)?;
    let (bytes, rest) = rest
        .split_at_checked(u32::from_le_bytes(*length) as usize)
        .ok_or_else(cut)?;
    *pairs = rest;
    Ok(bytes)
}

/// Replaces everything in a store by what a snapshot elsewhere held.
///
/// Nothing else may write to the store meanwhile; what readers see is unspecified.
pub struct Importer {
    store: Store,
}

impl Importer {
    pub fn begin(store: &Store) -> Result<Importer, StorageError> {
        let engine = store.engine();
        // Marked on both sides of the emptying, which takes the first mark with it: at any
        // moment the store is marked, untouched or empty.
        mark(store, true)?;
        store.persist()?;
        engine.clear()?;
        mark(store, true)?;
        store.persist()?;
        engine.load()?;
        Ok(Importer {
            store: store.clone(),
        })
    }

    pub fn write(&self, part: Part, mut pairs: &[u8]) -> Result<(), StorageError> {
        let keyspace = part.keyspace();
        let mut operations = Vec::new();
        while !pairs.is_empty() {
            let key = take(&mut pairs)?;
            let value = take(&mut pairs)?;
            if key.is_empty() {
                return Err(StorageError::Transfer("an empty key".to_owned()));
            }
            if part == Part::Meta && key == keys::IMPORTING {
                continue;
            }
            operations.push(Operation {
                keyspace,
                key: key.into(),
                value: Some(value.into()),
            });
        }
        self.store.engine().write(operations)
    }

    /// Everything has arrived: takes the new catalog into use and makes it durable.
    pub fn finish(self) -> Result<(), StorageError> {
        mark(&self.store, false)?;
        self.store.persist()?;
        let dropped = self.store.engine().load()?;
        self.store.clean(dropped);
        Ok(())
    }
}

fn mark(store: &Store, importing: bool) -> Result<(), StorageError> {
    store.engine().write(vec![Operation {
        keyspace: Keyspace::Meta,
        key: keys::IMPORTING.into(),
        value: importing.then(|| [].into()),
    }])
}
