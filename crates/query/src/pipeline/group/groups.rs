//! The groups that there are, and what they hold.
//!
//! There may be as many groups as documents: what they have lies in a few long vectors, so that a new
//! group allocates nothing of its own and the groups of two workers are brought together in one pass.

use std::hash::BuildHasher;
use std::sync::LazyLock;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};
use foldhash::fast::RandomState;
use hashbrown::HashTable;

use banyan_document::{DocumentWriter, elements};

use super::specification::{Group, Mode};
use crate::budget::Budget;
use crate::error::QueryError;
use crate::expression::byte_len;
use crate::expression::value::{check_depth, error};
use crate::pipeline::accumulator::State;

/// One for all, so that the hash of a key need not be worked out again where groups are merged.
static HASHES: LazyLock<RandomState> = LazyLock::new(RandomState::default);

/// By the order-preserving encoding of `_id`: equal values share it whatever their type. The groups have
/// places, in the order in which they came.
#[derive(Default)]
pub(super) struct Groups {
    /// The places, by the hashes of their keys.
    table: HashTable<u32>,
    heads: Vec<Head>,
    /// Of each group the key, and a document with its `_id`.
    bytes: Vec<u8>,
    /// `width` of each group.
    states: Vec<State>,
    width: usize,
}

#[derive(Clone, Copy)]
struct Head {
    hash: u64,
    /// Where its key begins.
    key: usize,
    /// Where its `_id` begins; it ends where the next group's key begins.
    id: usize,
}

impl Groups {
    /// Groups with so many states each.
    pub fn of_width(width: usize) -> Groups {
        Groups {
            width,
            ..Groups::default()
        }
    }

    pub fn hash(key: &[u8]) -> u64 {
        HASHES.hash_one(key)
    }

    pub fn len(&self) -> usize {
        self.heads.len()
    }

    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// Forgets them. What they took stays for those that come.
    pub fn clear(&mut self) {
        self.table.clear();
        self.heads.clear();
        self.bytes.clear();
        self.states.clear();
    }

    /// The place of a key's group.
    pub fn find(&self, hash: u64, key: &[u8]) -> Option<usize> {
        let is_it = |at: &u32| {
            let at = *at as usize;
            self.heads[at].hash == hash && self.key(at) == key
        };
        self.table.find(hash, is_it).map(|at| *at as usize)
    }

    /// Adds a group whose key is not there yet, and says where. `id` holds its `_id` alone.
    pub fn add(
        &mut self,
        (hash, key): (u64, &[u8]),
        id: &RawDocument,
        states: impl IntoIterator<Item = State>,
    ) -> usize {
        let at = self.heads.len();
        let start = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(id.as_bytes());
        self.heads.push(Head {
            hash,
            key: start,
            id: start + key.len(),
        });
        self.states.extend(states);
        debug_assert_eq!(self.states.len(), self.heads.len() * self.width);
        let heads = &self.heads;
        // More groups than `u32` counts have no room in memory: each takes a hundred bytes.
        let place = |at: &u32| heads[*at as usize].hash;
        self.table.insert_unique(hash, at as u32, place);
        at
    }

    pub fn key(&self, at: usize) -> &[u8] {
        let Head { key, id, .. } = self.heads[at];
        &self.bytes[key..id]
    }

    pub fn states_mut(&mut self, at: usize) -> &mut [State] {
        &mut self.states[at * self.width..(at + 1) * self.width]
    }

    /// A document with its `_id` alone, and its states.
    pub fn parts_mut(&mut self, at: usize) -> (&RawDocument, &mut [State]) {
        (
            id_document(&self.heads, &self.bytes, at),
            &mut self.states[at * self.width..(at + 1) * self.width],
        )
    }

    /// Takes a group's states out.
    pub fn take(&mut self, at: usize) -> Entry {
        let (id, states) = self.parts_mut(at);
        Entry {
            id: id.to_owned(),
            states: states.iter_mut().map(std::mem::take).collect(),
        }
    }

    /// Hands on each group in the order of the places: hash, key, `_id` and states.
    pub fn each_group<E>(
        self,
        mut take: impl FnMut(u64, &[u8], &RawDocument, &mut dyn Iterator<Item = State>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut states = self.states.into_iter();
        for (at, head) in self.heads.iter().enumerate() {
            let key = &self.bytes[head.key..head.id];
            let id = id_document(&self.heads, &self.bytes, at);
            let mut of_group = states.by_ref().take(self.width);
            take(head.hash, key, id, &mut of_group)?;
            of_group.for_each(drop);
        }
        Ok(())
    }
}

fn id_document<'a>(heads: &[Head], bytes: &'a [u8], at: usize) -> &'a RawDocument {
    let end = heads.get(at + 1).map_or(bytes.len(), |next| next.key);
    let id = bytes.get(heads[at].id..end).unwrap_or_default();
    RawDocument::from_bytes(id).expect("a document was added, all of which is there")
}

/// A group by itself.
pub(super) struct Entry {
    /// With its `_id` alone.
    pub id: RawDocumentBuf,
    pub states: Box<[State]>,
}

impl Entry {
    pub fn parts_mut(&mut self) -> (&RawDocument, &mut [State]) {
        (&self.id, &mut self.states)
    }
}

/// The document that holds a group's `_id`, written over what is in a buffer.
pub(super) fn id_document_of(id: RawBsonRef<'_>, buffer: Vec<u8>) -> RawDocumentBuf {
    let mut writer = DocumentWriter::over(buffer);
    writer.append("_id", id);
    writer.finish()
}

impl Group {
    /// What a group has come to, as documents that come out in this mode are, written over what is in a
    /// buffer.
    pub(super) fn result(
        &self,
        (id, states): (&RawDocument, &mut [State]),
        mode: Mode,
        buffer: Vec<u8>,
        budget: &Budget,
    ) -> Result<RawDocumentBuf, QueryError> {
        let mut writer = DocumentWriter::over(buffer);
        writer.append_all(id);
        for (accumulator, state) in self.accumulators.iter().zip(states) {
            let value = match mode {
                Mode::Partial => state.partial(&accumulator.kind, budget)?,
                Mode::Complete | Mode::Merge => state.finish(&accumulator.kind, budget)?,
            };
            budget.spend_bytes(byte_len(value.as_raw_bson_ref()))?;
            check_depth(value.as_raw_bson_ref())?;
            writer.append(&accumulator.field, value.as_raw_bson_ref());
        }
        Ok(writer.finish())
    }

    /// Adds a partial result to the states; how much they have grown.
    pub(super) fn merge(
        &self,
        states: &mut [State],
        partial: &RawDocument,
        budget: &Budget,
    ) -> Result<isize, QueryError> {
        let mut grown = 0;
        let mut values = elements(partial).skip(1);
        for (accumulator, state) in self.accumulators.iter().zip(states) {
            let value = values.next().filter(|v| v.name() == &*accumulator.field);
            let Some(value) = value else {
                let field = &accumulator.field;
                return error(9961601, format!("there is no partial result for '{field}'"));
            };
            let before = state.memory_bytes();
            state.merge(&accumulator.kind, value.value(), budget)?;
            let after = state.memory_bytes();
            accumulator.check(after, budget.memory())?;
            grown += after as isize - before as isize;
        }
        Ok(grown)
    }
}
