//! A sorted run of records, each a key and a value, in blocks of a file.

use super::file::{SpillFile, damaged};
use crate::error::QueryError;

/// A block ends with the record that makes it so large.
const BLOCK_BYTES: usize = 32 * 1024;
/// What stands before a record: the lengths of its key and its value.
const HEAD_BYTES: usize = 8;

/// Where a run lies in its file.
pub(super) struct Run {
    first: u64,
    blocks: u64,
    pub records: u64,
    pub bytes: u64,
}

pub(crate) struct RunWriter<'f> {
    file: &'f mut dyn SpillFile,
    block: Vec<u8>,
    run: Run,
    /// Where the last block that was written lies.
    place: u64,
}

impl<'f> RunWriter<'f> {
    pub(super) fn new(file: &'f mut dyn SpillFile) -> RunWriter<'f> {
        RunWriter {
            file,
            block: Vec::with_capacity(BLOCK_BYTES + BLOCK_BYTES / 8),
            run: Run {
                first: 0,
                blocks: 0,
                records: 0,
                bytes: 0,
            },
            place: 0,
        }
    }

    /// How many blocks were written, and where the last of them lies.
    pub(super) fn blocks(&self) -> (u64, u64) {
        (self.run.blocks, self.place)
    }

    pub fn records(&self) -> u64 {
        self.run.records
    }

    /// `write` appends the record's value.
    pub fn push(&mut self, key: &[u8], write: impl FnOnce(&mut Vec<u8>)) -> Result<(), QueryError> {
        let start = self.block.len();
        self.block.extend_from_slice(&[0; HEAD_BYTES]);
        self.block.extend_from_slice(key);
        write(&mut self.block);
        let value_bytes = self.block.len() - start - HEAD_BYTES - key.len();
        let length = |bytes: usize| u32::try_from(bytes).map_err(|_| damaged());
        let (key_bytes, value_bytes) = (length(key.len())?, length(value_bytes)?);
        if let Some(head) = self.block.get_mut(start..start + HEAD_BYTES) {
            head[..4].copy_from_slice(&key_bytes.to_le_bytes());
            head[4..].copy_from_slice(&value_bytes.to_le_bytes());
        }
        self.run.records += 1;
        if self.block.len() >= BLOCK_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    pub(super) fn flush(&mut self) -> Result<(), QueryError> {
        let place = self.file.append(&self.block)?;
        self.place = place;
        if self.run.blocks == 0 {
            self.run.first = place;
        }
        self.run.blocks += 1;
        self.run.bytes += self.block.len() as u64;
        self.block.clear();
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<Run, QueryError> {
        if !self.block.is_empty() {
            self.flush()?;
        }
        Ok(self.run)
    }
}

/// Reads a run from its first record to its last.
pub(super) struct RunReader {
    /// Of those that are merged together.
    pub file: usize,
    next: u64,
    blocks: u64,
    block: Vec<u8>,
    /// Where in the block the record begins, its value, and the next record.
    start: usize,
    value: usize,
    end: usize,
}

impl RunReader {
    pub fn new(file: usize, run: &Run) -> RunReader {
        RunReader::of_blocks(file, run.first, run.blocks)
    }

    /// Of so many blocks from one on.
    pub fn of_blocks(file: usize, first: u64, blocks: u64) -> RunReader {
        RunReader {
            file,
            next: first,
            blocks,
            block: Vec::new(),
            start: 0,
            value: 0,
            end: 0,
        }
    }

    /// Goes to the next record; false if there is none.
    pub fn advance(&mut self, file: &dyn SpillFile) -> Result<bool, QueryError> {
        if self.end >= self.block.len() {
            if self.blocks == 0 {
                self.block = Vec::new();
                (self.start, self.value, self.end) = (0, 0, 0);
                return Ok(false);
            }
            self.next = file.read(self.next, &mut self.block)?;
            self.blocks -= 1;
            self.end = 0;
        }
        let rest = self.block.get(self.end..).unwrap_or_default();
        let Some((head, record)) = rest.split_first_chunk::<HEAD_BYTES>() else {
            return Err(damaged());
        };
        let [a, b, c, d, e, f, g, h] = *head;
        let key_bytes = u32::from_le_bytes([a, b, c, d]) as usize;
        let value_bytes = u32::from_le_bytes([e, f, g, h]) as usize;
        if record.len() < key_bytes.saturating_add(value_bytes) {
            return Err(damaged());
        }
        self.start = self.end + HEAD_BYTES;
        self.value = self.start + key_bytes;
        self.end = self.value + value_bytes;
        Ok(true)
    }

    pub fn key(&self) -> &[u8] {
        self.block.get(self.start..self.value).unwrap_or_default()
    }

    pub fn value(&self) -> &[u8] {
        self.block.get(self.value..self.end).unwrap_or_default()
    }
}
