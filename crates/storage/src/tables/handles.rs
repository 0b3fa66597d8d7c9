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
/// So often more blocks are listed in vain for keys that lie far apart, until each is searched for at once.
const TRIES: u8 = 4;

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

    /// Lists the blocks behind those that are listed. False: there are none.
    fn list_more(&mut self) -> bool {
        let Some((offset, _, (start, end))) = self.decoded.last().copied() else {
            return false;
        };
        if self.has_ended {
            return false;
        }
        let bytes = self.index.as_slice().clone();
        self.wanted = (self.wanted * 2).min(DECODED_MAX);
        self.decode(bytes.get(start..end), Some(offset));
        true
    }

    /// Goes on, forward, to the first block that may hold a key behind the block that was handed out
    /// last. False: it is not near, and has to be searched for.
    fn skip_to(&mut self, key: &[u8], tries: &mut u8) -> bool {
        let mut found = self.skip_listed(key);
        if !found && *tries > 0 && self.list_more() {
            found = self.skip_listed(key);
            *tries -= 1;
        }
        if found {
            *tries = TRIES;
        }
        found
    }

    /// The same among those that are listed.
    fn skip_listed(&mut self, key: &[u8]) -> bool {
        let bytes = self.index.as_slice();
        let ends_before =
            |(_, _, (start, end)): &Decoded| bytes.get(*start..*end).is_some_and(|end| end < key);
        let listed = self.decoded.get(self.at..).unwrap_or_default();
        if listed.last().is_none_or(ends_before) {
            return false;
        }
        self.at += listed.partition_point(ends_before);
        true
    }

    fn next(&mut self) -> Option<Handle> {
        if self.at == self.decoded.len() && !self.list_more() {
            return None;
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
    /// How often more blocks may be listed in vain.
    tries: u8,
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
            tries: TRIES,
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

    /// Goes on, forward, to the first block that may hold a key behind the block that was handed out
    /// last. False: it is not near, and nothing but a seek finds it.
    pub(super) fn skip_to(&mut self, key: &[u8]) -> bool {
        let tries = &mut self.tries;
        match (&mut self.part, self.has_parts) {
            (Some(part), true) => part.skip_to(key, tries),
            (None, true) => false,
            (_, false) => self.top.skip_to(key, tries),
        }
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
