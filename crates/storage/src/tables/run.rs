//! A run of tables.

use std::ops::Bound;

use banyan_document::prefetch::prefetch;
use lsm_tree::table::DataBlock;
use lsm_tree::table::block::BlockType;
use lsm_tree::{InternalValue, SeqNo, Table};

use super::chunk::Chunk;
use super::direction::Direction;
use super::entries::{Entries, Rest};
use super::handles::{Handle, Handles};
use super::state::{Run, State};

/// How far ahead of the entry at hand a block is fetched from memory: a few entries of ordinary size. Where
/// one begins is known only when the one before it is decoded.
const AHEAD_BYTES: usize = 2048;
/// Fewer entries than this are not worth fetching anything for.
const AHEAD_WANTED: usize = 8;

pub(super) struct RunReader {
    run: Run,
    /// Where to go first.
    wanted: Option<Vec<u8>>,
    /// The table that is being read, or will be next.
    at: usize,
    open: Option<OpenTable>,
}

struct OpenTable {
    table: Table,
    handles: Handles,
    block: Option<OpenBlock>,
}

struct OpenBlock {
    block: DataBlock,
    end: Vec<u8>,
    /// A key behind this one, up to the end, lies in this block if it is anywhere. `None`: so does every
    /// key up to the end.
    fence: Option<Vec<u8>>,
    rest: RestOfBlock,
}

/// From where a block is decoded further.
enum RestOfBlock {
    /// From the entry that begins here. It has its whole key.
    From(usize),
    /// From a key on.
    Key(Vec<u8>),
    /// Behind the key that was decoded last.
    Last,
    Nothing,
}

impl RunReader {
    pub(super) fn new(run: Run) -> RunReader {
        RunReader {
            run,
            wanted: None,
            at: 0,
            open: None,
        }
    }

    fn go_to(&mut self, state: &State, key: &[u8]) -> Result<(), lsm_tree::Error> {
        if let Some(open) = &mut self.open
            && open.spans(key)
        {
            return open.seek(state, key);
        }
        self.open = None;
        let tables: &[Table] = &self.run;
        self.at = tables.partition_point(|table| **table.metadata.key_range.max() < *key);
        if let Some(table) = tables.get(self.at)
            && **table.metadata.key_range.min() <= *key
        {
            let mut open = OpenTable::new(state, table)?;
            open.seek(state, key)?;
            self.open = Some(open);
        }
        Ok(())
    }

    /// The newest version of a key in this run.
    pub(super) fn get(
        &mut self,
        state: &State,
        key: &[u8],
        hash: u64,
        seqno: SeqNo,
    ) -> Result<Option<InternalValue>, lsm_tree::Error> {
        let is_open = self.open.as_ref().is_some_and(|open| open.spans(key));
        if !is_open {
            let tables: &[Table] = &self.run;
            let at = tables.partition_point(|table| **table.metadata.key_range.max() < *key);
            let Some(table) = tables.get(at) else {
                return Ok(None);
            };
            if **table.metadata.key_range.min() > *key {
                return Ok(None);
            }
            self.open = Some(OpenTable::new(state, table)?);
        }
        let Some(open) = &mut self.open else {
            return Ok(None);
        };
        if let Some(filter) = &open.table.pinned_filter_block
            && !filter.maybe_contains_hash(hash)?
        {
            return Ok(None);
        }
        open.get(state, key, seqno)
    }
}

impl Entries for RunReader {
    fn seek(&mut self, key: Option<&[u8]>) {
        self.wanted = Some(key.unwrap_or_default().to_vec());
    }

    /// It reads no block behind the range.
    fn fill(
        &mut self,
        state: &State,
        chunk: &mut Chunk,
        seqno: SeqNo,
        upper: &Bound<Vec<u8>>,
        wanted: usize,
    ) -> Result<Rest, lsm_tree::Error> {
        if let Some(key) = self.wanted.take() {
            self.go_to(state, &key)?;
        }
        chunk.begin();
        loop {
            let Some(open) = &mut self.open else {
                let tables: &[Table] = &self.run;
                let Some(table) = tables.get(self.at) else {
                    return Ok(Rest::Ended);
                };
                if !Direction::Forward.is_before(table.metadata.key_range.min(), upper) {
                    return Ok(Rest::Behind);
                }
                let mut open = OpenTable::new(state, table)?;
                open.handles.seek(state, table, None)?;
                self.open = Some(open);
                continue;
            };
            if let Some(block) = &mut open.block {
                block.decode(chunk, seqno, open.table.global_seqno(), upper, wanted);
                if chunk.len() > 0 {
                    return Ok(Rest::More);
                }
                if !Direction::Forward.is_before(&block.end, upper) {
                    return Ok(Rest::Behind);
                }
            }
            if !open.next_block(state)? {
                self.open = None;
                self.at += 1;
            }
        }
    }
}

impl OpenTable {
    fn new(state: &State, table: &Table) -> Result<OpenTable, lsm_tree::Error> {
        Ok(OpenTable {
            table: table.clone(),
            handles: Handles::of(state, table, Direction::Forward)?,
            block: None,
        })
    }

    /// Whether the key lies between its first and its last one.
    fn spans(&self, key: &[u8]) -> bool {
        let range = &self.table.metadata.key_range;
        **range.min() <= *key && *key <= **range.max()
    }

    fn seek(&mut self, state: &State, key: &[u8]) -> Result<(), lsm_tree::Error> {
        self.open_block_of(state, key)?;
        if let Some(block) = &mut self.block {
            block.rest = RestOfBlock::Key(key.to_vec());
        }
        Ok(())
    }

    /// Opens the first block that may hold the key.
    fn open_block_of(&mut self, state: &State, key: &[u8]) -> Result<(), lsm_tree::Error> {
        if self.block.as_ref().is_some_and(|block| block.covers(key)) {
            return Ok(());
        }
        let before = self.block.take();
        let is_ahead = before.is_some_and(|block| key > block.end.as_slice());
        if !(is_ahead && self.handles.skip_to(key)) {
            self.handles.seek(state, &self.table, Some(key))?;
        }
        if self.next_block(state)?
            && let Some(block) = &mut self.block
        {
            block.fence = Some(key.to_vec());
        }
        Ok(())
    }

    fn get(
        &mut self,
        state: &State,
        key: &[u8],
        seqno: SeqNo,
    ) -> Result<Option<InternalValue>, lsm_tree::Error> {
        let base = self.table.global_seqno();
        self.open_block_of(state, key)?;
        while let Some(block) = &self.block {
            if let Some(mut found) = block.block.point_read(key, seqno.saturating_sub(base)) {
                found.key.seqno += base;
                return Ok(Some(found));
            }
            // Older versions may lie in the next one.
            if block.end.as_slice() > key {
                break;
            }
            self.next_block(state)?;
        }
        Ok(None)
    }

    fn next_block(&mut self, state: &State) -> Result<bool, lsm_tree::Error> {
        let next = self.handles.next(state, &self.table)?;
        let Some(Handle { place, end }) = next else {
            self.block = None;
            return Ok(false);
        };
        let block = state.block(&self.table, &place, BlockType::Data)?;
        let fence = self.block.take().map(|block| block.end);
        self.block = Some(OpenBlock {
            block: DataBlock::new(block),
            end,
            fence,
            rest: RestOfBlock::From(0),
        });
        Ok(true)
    }
}

impl OpenBlock {
    fn covers(&self, key: &[u8]) -> bool {
        let is_behind_fence = self
            .fence
            .as_ref()
            .is_none_or(|fence| key > fence.as_slice());
        is_behind_fence && key <= self.end.as_slice()
    }

    fn decode(
        &mut self,
        chunk: &mut Chunk,
        seqno: SeqNo,
        base: SeqNo,
        upper: &Bound<Vec<u8>>,
        wanted: usize,
    ) {
        let mut items = self.block.iter();
        let bytes = self.block.as_slice();
        let is_long = wanted >= AHEAD_WANTED;
        match &self.rest {
            RestOfBlock::From(start) => {
                if is_long {
                    prefetch(bytes, *start..*start + AHEAD_BYTES);
                }
                items.seek_to_offset(*start);
            }
            RestOfBlock::Key(key) => {
                items.seek(key);
            }
            RestOfBlock::Last => {
                if let Some(last) = chunk.last_key() {
                    items.seek_exclusive(last);
                }
            }
            RestOfBlock::Nothing => return,
        }
        chunk.set_block(bytes);
        let is_whole = Direction::Forward.is_before(&self.end, upper);
        let mut end = 0;
        self.rest = RestOfBlock::Nothing;
        for item in items {
            if item.prefix.is_none() && chunk.len() >= wanted {
                self.rest = RestOfBlock::From(end);
                break;
            }
            let value = item.value.as_ref().map(|value| (value.0, value.1));
            end = value.map_or(item.key.1, |(_, end)| end);
            if is_long {
                prefetch(bytes, item.key.0 + AHEAD_BYTES..end + AHEAD_BYTES);
            }
            let item_seqno = item.seqno + base;
            if item_seqno >= seqno {
                continue;
            }
            let prefix = item.prefix.as_ref();
            let prefix = prefix.map_or(&[][..], |prefix| &bytes[prefix.0..prefix.1]);
            let key = (prefix, &bytes[item.key.0..item.key.1]);
            let is_removed = item.value_type.is_tombstone();
            chunk.push(key, value.unwrap_or_default(), item_seqno, is_removed);
            if !is_whole
                && chunk
                    .last_key()
                    .is_some_and(|last| !Direction::Forward.is_before(last, upper))
            {
                self.rest = RestOfBlock::Last;
                break;
            }
        }
        match is_whole {
            true => chunk.all_inside(),
            false => chunk.bound(upper),
        }
    }
}
