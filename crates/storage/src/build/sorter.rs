//! Sorting index entries in bounded memory: what does not fit goes to disk in sorted runs, which
//! are merged in the end.
//!
//! An entry is an encoded key with the record id behind it, then the type bits and their length. Keys
//! of one index are never a prefix of one another, so the order of the bytes is the order of the
//! index.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use banyan_document::key::Key;

use crate::record_id::{RecordId, RecordIdFormat};

/// How the length of type bits is written: of a key of 60,000 bytes they may have more.
const LENGTH_BYTES: usize = 4;
/// Beyond this many runs, merging them reads too little of each at once.
const RUN_BUFFER_BYTES: usize = 64 * 1024;

pub(super) struct Sorter {
    directory: PathBuf,
    record_ids: RecordIdFormat,
    memory_bytes: usize,
    bytes: Vec<u8>,
    /// Where each entry in `bytes` ends.
    ends: Vec<usize>,
    runs: Vec<File>,
    count: u64,
}

impl Sorter {
    /// Spills into `directory`, which is made when it is needed.
    pub(super) fn new(directory: &Path, memory_bytes: usize, record_ids: RecordIdFormat) -> Sorter {
        Sorter {
            directory: directory.to_owned(),
            record_ids,
            memory_bytes,
            bytes: Vec::new(),
            ends: Vec::new(),
            runs: Vec::new(),
            count: 0,
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn push(&mut self, key: &Key, record: &RecordId) -> io::Result<()> {
        let taken = self.bytes.len() + self.ends.len() * size_of::<usize>() * 3;
        let suffix_bytes = record.suffix_bytes();
        let length = key.len() + suffix_bytes + key.types.len() + LENGTH_BYTES;
        if taken + length > self.memory_bytes && !self.ends.is_empty() {
            self.spill()?;
        }
        self.bytes.extend_from_slice(key);
        let end = self.bytes.len();
        self.bytes.resize(end + suffix_bytes, 0);
        record.write_suffix(&mut self.bytes[end..]);
        self.bytes.extend_from_slice(&key.types);
        let types = u32::try_from(key.types.len()).map_err(io::Error::other)?;
        self.bytes.extend_from_slice(&types.to_be_bytes());
        self.ends.push(self.bytes.len());
        self.count += 1;
        Ok(())
    }

    fn sorted(&self) -> Vec<(usize, usize)> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let mut ranges: Vec<(usize, usize)> = starts.zip(self.ends.iter().copied()).collect();
        ranges.sort_unstable_by(|a, b| self.bytes[a.0..a.1].cmp(&self.bytes[b.0..b.1]));
        ranges
    }

    fn spill(&mut self) -> io::Result<()> {
        let mut writer = BufWriter::with_capacity(RUN_BUFFER_BYTES, scratch_file(&self.directory)?);
        for (start, end) in self.sorted() {
            let length = u32::try_from(end - start).map_err(io::Error::other)?;
            writer.write_all(&length.to_le_bytes())?;
            writer.write_all(&self.bytes[start..end])?;
        }
        let mut file = writer
            .into_inner()
            .map_err(io::IntoInnerError::into_error)?;
        file.rewind()?;
        self.runs.push(file);
        self.bytes.clear();
        self.ends.clear();
        Ok(())
    }

    /// All entries in order.
    pub(super) fn finish(mut self) -> io::Result<Sorted> {
        let record_ids = self.record_ids;
        if !self.runs.is_empty() && !self.ends.is_empty() {
            self.spill()?;
        }
        if self.runs.is_empty() {
            let ranges = self.sorted().into_iter();
            let bytes = self.bytes;
            let source = Source::Memory { bytes, ranges };
            return Ok(Sorted { source, record_ids });
        }
        let mut runs = Vec::with_capacity(self.runs.len());
        let mut heads = BinaryHeap::with_capacity(self.runs.len());
        for (number, file) in self.runs.into_iter().enumerate() {
            let mut run = Run(BufReader::with_capacity(RUN_BUFFER_BYTES, file));
            if let Some(first) = run.next()? {
                heads.push(Reverse((first, number)));
            }
            runs.push(run);
        }
        let source = Source::Runs { runs, heads };
        Ok(Sorted { source, record_ids })
    }
}

/// A file that is gone once it is closed.
fn scratch_file(directory: &Path) -> io::Result<File> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    fs::create_dir_all(directory)?;
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = directory.join(format!("index-{}-{number}.run", std::process::id()));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

struct Run(BufReader<File>);

impl Run {
    fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut length = [0; 4];
        match self.0.read_exact(&mut length) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        let mut entry = vec![0; u32::from_le_bytes(length) as usize];
        self.0.read_exact(&mut entry)?;
        Ok(Some(entry))
    }
}

pub(super) struct Sorted {
    source: Source,
    record_ids: RecordIdFormat,
}

enum Source {
    Memory {
        bytes: Vec<u8>,
        ranges: std::vec::IntoIter<(usize, usize)>,
    },
    Runs {
        runs: Vec<Run>,
        /// The next entry of each run.
        heads: BinaryHeap<Reverse<(Vec<u8>, usize)>>,
    },
}

/// A key and its record.
pub(super) type Entry = (Key, RecordId);

impl Sorted {
    fn next_bytes(&mut self) -> io::Result<Option<Vec<u8>>> {
        match &mut self.source {
            Source::Memory { bytes, ranges } => {
                Ok(ranges.next().map(|(start, end)| bytes[start..end].to_vec()))
            }
            Source::Runs { runs, heads } => {
                let Some(Reverse((entry, number))) = heads.pop() else {
                    return Ok(None);
                };
                if let Some(next) = runs[number].next()? {
                    heads.push(Reverse((next, number)));
                }
                Ok(Some(entry))
            }
        }
    }

    pub(super) fn next(&mut self) -> io::Result<Option<Entry>> {
        let Some(entry) = self.next_bytes()? else {
            return Ok(None);
        };
        let taken_apart = take_apart(entry, self.record_ids);
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "a run is damaged");
        taken_apart.ok_or_else(damaged).map(Some)
    }
}

fn take_apart(mut bytes: Vec<u8>, record_ids: RecordIdFormat) -> Option<Entry> {
    let length = u32::from_be_bytes(*bytes.last_chunk::<LENGTH_BYTES>()?);
    bytes.truncate(bytes.len() - LENGTH_BYTES);
    let types = bytes.split_off(bytes.len().checked_sub(length as usize)?);
    let (end, record) = record_ids.split(&bytes)?;
    bytes.truncate(end);
    let types = types.into_boxed_slice();
    Some((Key { bytes, types }, record))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted_with(
        memory_bytes: usize,
        record_ids: RecordIdFormat,
        id: fn(u64) -> RecordId,
    ) -> (Vec<Entry>, usize) {
        let directory = tempfile::tempdir().unwrap();
        let scratch = directory.path().join("scratch");
        let mut sorter = Sorter::new(&scratch, memory_bytes, record_ids);
        let mut seed = 7_u64;
        for record in 0..5000 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
            let key = Key {
                bytes: (seed >> 52).to_be_bytes().to_vec(),
                types: vec![7; (seed >> 40) as usize % 3].into(),
            };
            sorter.push(&key, &id(record)).unwrap();
        }
        assert_eq!(sorter.count(), 5000);
        let runs = sorter.runs.len();
        let mut sorted = sorter.finish().unwrap();
        let mut entries = Vec::new();
        while let Some(entry) = sorted.next().unwrap() {
            entries.push(entry);
        }
        (entries, runs)
    }

    #[test]
    fn runs_on_disk_come_to_the_same_as_memory() {
        for (record_ids, id) in [
            (RecordIdFormat::Number, RecordId::number as fn(u64) -> _),
            (RecordIdFormat::Bytes, |n| RecordId::bytes(&n.to_le_bytes())),
        ] {
            let (in_memory, no_runs) = sorted_with(1 << 20, record_ids, id);
            let (spilled, runs) = sorted_with(10_000, record_ids, id);
            assert_eq!(no_runs, 0);
            assert!(runs > 3, "{runs} runs");
            assert!(in_memory.is_sorted_by_key(|(key, record)| (&key.bytes, record)));
            assert_eq!(in_memory.len(), 5000);
            assert_eq!(in_memory, spilled);
        }
    }
}
