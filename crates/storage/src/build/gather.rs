//! Index entries gathered in memory and sorted; what does not fit goes to disk in sorted runs.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use banyan_document::key::Key;

use super::runs::{LENGTH_BYTES, Run, SAMPLE_ENTRIES, Span, key_of};
use crate::keys::{ID_BYTES, IndexId};
use crate::record_id::RecordId;

const WRITE_BUFFER_BYTES: usize = 64 * 1024;

/// What one thread finds for one index.
pub(super) struct Gather {
    directory: PathBuf,
    index: IndexId,
    memory_bytes: usize,
    bytes: Vec<u8>,
    spans: Vec<Span>,
    runs: Vec<Run>,
}

impl Gather {
    /// Spills into `directory`, which is made when it is needed.
    pub(super) fn new(directory: &Path, memory_bytes: usize, index: IndexId) -> Gather {
        Gather {
            directory: directory.to_owned(),
            index,
            // Spans count in 32 bits.
            memory_bytes: memory_bytes.min(1 << 30),
            bytes: Vec::new(),
            spans: Vec::new(),
            runs: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, key: &Key, record: &RecordId) -> io::Result<()> {
        let suffix_bytes = record.suffix_bytes();
        let length = ID_BYTES + key.len() + suffix_bytes + key.types.len() + LENGTH_BYTES;
        let taken = self.bytes.len() + self.spans.len() * size_of::<Span>();
        if taken + length > self.memory_bytes && !self.spans.is_empty() {
            self.spill()?;
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&self.index.to_be_bytes());
        self.bytes.extend_from_slice(key);
        let end = self.bytes.len();
        self.bytes.resize(end + suffix_bytes, 0);
        record.write_suffix(&mut self.bytes[end..]);
        self.bytes.extend_from_slice(&key.types);
        let types = u32::try_from(key.types.len()).map_err(io::Error::other)?;
        self.bytes.extend_from_slice(&types.to_be_bytes());
        let span = Span::new(&self.bytes, start).ok_or_else(|| io::Error::other("too many"))?;
        self.spans.push(span);
        Ok(())
    }

    fn sort(&mut self) {
        let bytes = &self.bytes;
        self.spans.sort_unstable_by(|a, b| {
            let prefixes = a.prefix.cmp(&b.prefix);
            prefixes.then_with(|| a.of(bytes).cmp(b.of(bytes)))
        });
    }

    fn spill(&mut self) -> io::Result<()> {
        self.sort();
        let file = scratch_file(&self.directory)?;
        let mut writer = BufWriter::with_capacity(WRITE_BUFFER_BYTES, &file);
        let mut marks = Vec::new();
        let mut offset = 0;
        for (number, span) in self.spans.iter().enumerate() {
            let entry = span.of(&self.bytes);
            if number % SAMPLE_ENTRIES == 0 {
                marks.push((key_of(entry).to_vec(), offset));
            }
            let length = u32::try_from(entry.len()).map_err(io::Error::other)?;
            writer.write_all(&length.to_le_bytes())?;
            writer.write_all(entry)?;
            offset += (size_of::<u32>() + entry.len()) as u64;
        }
        writer.flush()?;
        drop(writer);
        self.runs.push(Run::File {
            file,
            marks,
            entries: self.spans.len() as u64,
        });
        self.bytes.clear();
        self.spans.clear();
        Ok(())
    }

    /// Everything, in sorted runs.
    pub(super) fn finish(mut self) -> Vec<Run> {
        self.sort();
        if !self.spans.is_empty() {
            self.runs.push(Run::Memory {
                bytes: self.bytes,
                spans: self.spans,
            });
        }
        self.runs
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::runs::{Merge, cuts};

    fn gathered(memory_bytes: usize, id: fn(u64) -> RecordId) -> Vec<Run> {
        let directory = tempfile::tempdir().unwrap();
        let scratch = directory.path().join("scratch");
        let mut runs = Vec::new();
        let mut seed = 7_u64;
        // As two threads would have it.
        for half in 0..2 {
            let mut gather = Gather::new(&scratch, memory_bytes, 3);
            for record in 0..5000 {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
                let key = Key {
                    bytes: (seed >> 52).to_be_bytes().to_vec(),
                    types: vec![7; (seed >> 40) as usize % 3].into(),
                };
                gather.push(&key, &id(half * 5000 + record)).unwrap();
            }
            runs.extend(gather.finish());
        }
        runs
    }

    fn merged(runs: &[Run], from: Option<&[u8]>, until: Option<&[u8]>) -> Vec<Vec<u8>> {
        let mut merge = Merge::new(runs, from, until).unwrap();
        let mut entries = Vec::new();
        while let Some(entry) = merge.next().unwrap() {
            entries.push(entry.to_vec());
        }
        entries
    }

    #[test]
    fn runs_on_disk_come_to_the_same_as_memory_whole_and_in_parts() {
        for id in [RecordId::number as fn(u64) -> RecordId, |n| {
            RecordId::bytes(&n.to_le_bytes())
        }] {
            let (memory, disk) = (gathered(1 << 20, id), gathered(30_000, id));
            assert_eq!(memory.len(), 2);
            assert!(disk.len() > 6, "{} runs", disk.len());
            let whole = merged(&memory, None, None);
            assert_eq!(whole.len(), 10_000);
            assert!(whole.is_sorted_by_key(|entry| key_of(entry)));
            assert_eq!(whole, merged(&disk, None, None));
            for runs in [&memory, &disk] {
                let cuts = cuts(runs, None, 2500);
                assert!(cuts.len() >= 2, "{} cuts", cuts.len());
                let mut parts = Vec::new();
                let mut from: Option<&[u8]> = None;
                for cut in &cuts {
                    parts.extend(merged(runs, from, Some(cut)));
                    from = Some(cut);
                }
                parts.extend(merged(runs, from, None));
                assert_eq!(whole, parts);
            }
        }
    }
}
