//! Where a table has its blocks.

use lsm_tree::table::block::BlockType;
use lsm_tree::table::{BlockHandle, BlockOffset, IndexBlock};
use lsm_tree::{SeqNo, Table};

use super::direction::Direction;
use super::state::State;

/// Where a block is, how long it is, and where in the index block the key lies that it ends with.
type Decoded = (BlockOffset, u32, (usize, usize));

/// So many are decoded at first, and the more the longer one goes on.
const DECODED_MIN: usize = 2;
const DECODED_MAX: usize = 64;

/// A block of a table, or of its index.
pub(super) struct Handle {
    pub(super) place: BlockHandle,
    /// The last key in it.
    pub(super) end: Vec<u8>,
}

/// What an index block tells of, from some key on.
struct Listed {
    direction: Direction,
    index: IndexBlock,
    decoded: Vec<Decoded>,
    at: usize,
    wanted: usize,
    has_ended: bool,
}

impl Listed {
    fn new(index: IndexBlock, direction: Direction) -> Listed {
        Listed {
            direction,
            index,
            decoded: Vec::new(),
            at: 0,
            wanted: DECODED_MIN,
            has_ended: false,
        }
    }

    /// Goes to the first block that may hold what is read from `key` on; `None`: to the first.
    fn seek(&mut self, key: Option<&[u8]>) {
        self.wanted = DECODED_MIN;
        self.decode(key, None);
    }

    /// Lists what lies from a key on and behind a block.
    fn decode(&mut self, from: Option<&[u8]>, behind: Option<BlockOffset>) {
        self.decoded.clear();
        self.at = 0;
        self.has_ended = true;
        let mut items = self.index.iter();
        let is_there = from.is_none_or(|from| match self.direction {
            Direction::Forward => items.seek(from, SeqNo::MAX),
            Direction::Backward => items.seek_upper(from, SeqNo::MAX),
        });
        if !is_there {
            return;
        }
        loop {
            let item = match self.direction {
                Direction::Forward => items.next(),
                Direction::Backward => items.next_back(),
            };
            let Some(item) = item else {
                return;
            };
            // Blocks may end with the same key.
            let is_behind = behind.is_none_or(|behind| match self.direction {
                Direction::Forward => *item.offset > *behind,
                Direction::Backward => *item.offset < *behind,
            });
            if !is_behind {
                continue;
            }
            let end = (item.end_key.0, item.end_key.1);
            self.decoded.push((item.offset, item.size, end));
            if self.decoded.len() == self.wanted {
                self.has_ended = false;
                return;
            }
        }
    }

    fn next(&mut self) -> Option<Handle> {
        if self.at == self.decoded.len() {
            if self.has_ended {
                return None;
            }
            let (offset, _, (start, end)) = *self.decoded.last()?;
            let bytes = self.index.as_slice().clone();
            self.wanted = (self.wanted * 2).min(DECODED_MAX);
            self.decode(bytes.get(start..end), Some(offset));
        }
        let (offset, size, (start, end)) = *self.decoded.get(self.at)?;
        self.at += 1;
        Some(Handle {
            place: BlockHandle::new(offset, size),
            end: self.index.as_slice().get(start..end)?.to_vec(),
        })
    }
}

/// The blocks of one table that are still to be read, in the order that they are read in. The index of a
/// large table has parts.
pub(super) struct Handles {
    direction: Direction,
    top: Listed,
    /// The part that is being read.
    part: Option<Listed>,
    has_parts: bool,
}

impl Handles {
    pub(super) fn of(
        state: &State,
        table: &Table,
        direction: Direction,
    ) -> Result<Handles, lsm_tree::Error> {
        let top = state.block(table, &table.regions.tli, BlockType::Index)?;
        Ok(Handles {
            direction,
            top: Listed::new(IndexBlock::new(top), direction),
            part: None,
            has_parts: table.regions.index.is_some(),
        })
    }

    /// Goes to the first block that may hold what is read from `key` on; `None`: to the first.
    pub(super) fn seek(
        &mut self,
        state: &State,
        table: &Table,
        key: Option<&[u8]>,
    ) -> Result<(), lsm_tree::Error> {
        self.top.seek(key);
        self.part = None;
        if self.has_parts {
            self.open_part(state, table, key)?;
        }
        Ok(())
    }

    fn open_part(
        &mut self,
        state: &State,
        table: &Table,
        key: Option<&[u8]>,
    ) -> Result<(), lsm_tree::Error> {
        self.part = match self.top.next() {
            None => None,
            Some(handle) => {
                let block = state.block(table, &handle.place, BlockType::Index)?;
                let mut part = Listed::new(IndexBlock::new(block), self.direction);
                part.seek(key);
                Some(part)
            }
        };
        Ok(())
    }

    pub(super) fn next(
        &mut self,
        state: &State,
        table: &Table,
    ) -> Result<Option<Handle>, lsm_tree::Error> {
        if !self.has_parts {
            return Ok(self.top.next());
        }
        while let Some(part) = &mut self.part {
            if let Some(handle) = part.next() {
                return Ok(Some(handle));
            }
            self.open_part(state, table, None)?;
        }
        Ok(None)
    }
}
