//! A run of tables, from its end.
//!
//! The versions of a key come from the oldest to the newest: one is the newest visible one only when
//! another key has followed. They may lie in several blocks, so a chunk takes in of them all what
//! belongs to its last key.

use std::ops::Bound;

use fjall::Slice;
use lsm_tree::table::DataBlock;
use lsm_tree::table::block::BlockType;
use lsm_tree::table::block::decoder::ParsedItem;
use lsm_tree::{SeqNo, Table};

use super::chunk::{Chunk, kept_value};
use super::direction::Direction;
use super::entries::{Entries, Rest};
use super::handles::{Handle, Handles};
use super::state::{Run, State};

pub(super) struct BackwardRun {
    run: Run,
    /// Where to go first: before this key, or to the end.
    wanted: Option<Option<Vec<u8>>>,
    /// So many tables are still to be read, without the one that is open.
    left: usize,
    open: Option<OpenTable>,
}

struct OpenTable {
    table: Table,
    handles: Handles,
    block: Option<DataBlock>,
    /// The one that is read after that.
    next: Option<Handle>,
    /// What is not before this key was read, or is not wanted. `None`: everything in the block is.
    before: Option<Vec<u8>>,
}

/// Why a block is left.
enum Left {
    Whole,
    /// There is more in it.
    Full,
}

impl BackwardRun {
    pub(super) fn new(run: Run) -> BackwardRun {
        BackwardRun {
            run,
            wanted: None,
            left: 0,
            open: None,
        }
    }

    fn go_to(&mut self, state: &State, before: Option<&[u8]>) -> Result<(), lsm_tree::Error> {
        let tables: &[Table] = &self.run;
        self.open = None;
        self.left = match before {
            None => tables.len(),
            Some(key) => tables.partition_point(|table| **table.metadata.key_range.min() < *key),
        };
        let last = self.left.checked_sub(1).and_then(|last| tables.get(last));
        if let (Some(table), Some(key)) = (last, before)
            && **table.metadata.key_range.max() >= *key
        {
            self.left -= 1;
            self.open = Some(OpenTable::new(state, table, Some(key))?);
        }
        Ok(())
    }
}

impl Entries for BackwardRun {
    fn seek(&mut self, before: Option<&[u8]>) {
        self.wanted = Some(before.map(<[u8]>::to_vec));
    }

    /// It reads no table, and no block of which the end is known, beyond the range.
    fn fill(
        &mut self,
        state: &State,
        chunk: &mut Chunk,
        seqno: SeqNo,
        lower: &Bound<Vec<u8>>,
        wanted: usize,
    ) -> Result<Rest, lsm_tree::Error> {
        if let Some(before) = self.wanted.take() {
            self.go_to(state, before.as_deref())?;
        }
        chunk.begin();
        loop {
            let Some(open) = &mut self.open else {
                let tables: &[Table] = &self.run;
                let last = self.left.checked_sub(1).and_then(|last| tables.get(last));
                let Some(table) = last else {
                    return Ok(Rest::Ended);
                };
                if !Direction::Backward.is_before(table.metadata.key_range.max(), lower) {
                    return Ok(Rest::Behind);
                }
                self.left -= 1;
                self.open = Some(OpenTable::new(state, table, None)?);
                continue;
            };
            if let (None, Some(next)) = (&open.block, &open.next)
                && !Direction::Backward.is_before(&next.end, lower)
            {
                return Ok(Rest::Behind);
            }
            let has_more = open.read(state, chunk, seqno, lower, wanted)?;
            if !has_more {
                self.open = None;
            }
            if chunk.len() > 0 {
                chunk.bound(lower);
                return Ok(Rest::More);
            }
        }
    }
}

impl OpenTable {
    fn new(
        state: &State,
        table: &Table,
        before: Option<&[u8]>,
    ) -> Result<OpenTable, lsm_tree::Error> {
        let mut handles = Handles::of(state, table, Direction::Backward)?;
        handles.seek(state, table, before)?;
        let mut open = OpenTable {
            table: table.clone(),
            next: handles.next(state, table)?,
            handles,
            block: None,
            before: before.map(<[u8]>::to_vec),
        };
        open.open_block(state)?;
        Ok(open)
    }

    /// Opens the block that is next. False: none is.
    fn open_block(&mut self, state: &State) -> Result<bool, lsm_tree::Error> {
        self.block = None;
        let Some(Handle { place, end }) = self.next.take() else {
            return Ok(false);
        };
        let block = state.block(&self.table, &place, BlockType::Data)?;
        self.block = Some(DataBlock::new(block));
        self.next = self.handles.next(state, &self.table)?;
        if self.before.as_ref().is_some_and(|before| end < *before) {
            self.before = None;
        }
        Ok(true)
    }

    /// Reads until the chunk is full, or a block has ended that has given something. False: the table
    /// has nothing more.
    fn read(
        &mut self,
        state: &State,
        chunk: &mut Chunk,
        seqno: SeqNo,
        lower: &Bound<Vec<u8>>,
        wanted: usize,
    ) -> Result<bool, lsm_tree::Error> {
        let base = self.table.global_seqno();
        loop {
            let Some(block) = &mut self.block else {
                if !self.open_block(state)? {
                    return Ok(false);
                }
                continue;
            };
            let before = self.before.as_deref();
            if let Left::Full = decode(block, before, chunk, seqno, base, lower, wanted) {
                self.before = chunk.last_key().map(<[u8]>::to_vec);
                return Ok(true);
            }
            self.block = None;
            let Some(next) = &self.next else {
                return Ok(false);
            };
            // Newer versions of a key lie before the older ones.
            let is_going_on = chunk.len() == 0 || chunk.last_key() == Some(next.end.as_slice());
            if !is_going_on {
                return Ok(true);
            }
        }
    }
}

fn decode(
    block: &DataBlock,
    before: Option<&[u8]>,
    chunk: &mut Chunk,
    seqno: SeqNo,
    base: SeqNo,
    lower: &Bound<Vec<u8>>,
    wanted: usize,
) -> Left {
    let mut items = block.iter();
    let bytes = block.as_slice();
    if let Some(before) = before {
        items.seek_upper_exclusive(before);
    }
    while let Some(item) = items.next_back() {
        let item_seqno = item.seqno + base;
        if item_seqno >= seqno {
            continue;
        }
        let is_removed = item.value_type.is_tombstone();
        let value = item.value.as_ref();
        let value = value.map_or_else(Slice::empty, |value| {
            // Blocks are far smaller than 4 GB.
            kept_value(bytes, (value.0 as u32, value.1 as u32))
        });
        if let Some(last) = chunk.last_key().filter(|_| chunk.len() > 0) {
            if item.compare_key(last, bytes).is_eq() {
                chunk.replace(value, item_seqno, is_removed);
                continue;
            }
            if chunk.len() >= wanted || !Direction::Backward.is_before(last, lower) {
                return Left::Full;
            }
        }
        let prefix = item.prefix.as_ref();
        let prefix = prefix.map_or(&[][..], |prefix| &bytes[prefix.0..prefix.1]);
        let key = (prefix, &bytes[item.key.0..item.key.1]);
        chunk.push_value(key, value, item_seqno, is_removed);
    }
    Left::Whole
}
