//! Sorted runs of index entries, in memory or on disk, and what they come to together.
//!
//! An entry is the engine's key of an index entry (index id, encoded fields, record id), then the
//! type bits and their length. In an index that is unique it is the same, although its key ends
//! before the record id. Encoded fields of one index are never a prefix of one another, so the order
//! of the bytes is the order of the index.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;

use banyan_document::key::Key;

use crate::keys::ID_BYTES;
use crate::record_id::{RecordId, RecordIdFormat};

/// How the length of type bits is written: of a key of 60,000 bytes they may have more.
pub(super) const LENGTH_BYTES: usize = 4;
/// A run is known at every so many entries.
pub(super) const SAMPLE_ENTRIES: usize = 256;
const READ_BUFFER_BYTES: usize = 64 * 1024;
const PREFIX_BYTES: usize = 8;

/// Where an entry lies, and what its fields begin with.
pub(super) struct Span {
    pub(super) prefix: u64,
    start: u32,
    length: u32,
}

impl Span {
    /// Of the entry from `start` on to the end of `bytes`.
    pub(super) fn new(bytes: &[u8], start: usize) -> Option<Span> {
        let entry = bytes.get(start..)?;
        Some(Span {
            prefix: prefix_of(entry),
            start: u32::try_from(start).ok()?,
            length: u32::try_from(entry.len()).ok()?,
        })
    }

    pub(super) fn of<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let start = self.start as usize;
        &bytes[start..start + self.length as usize]
    }
}

/// The first bytes behind the index's id, which all entries have in common.
fn prefix_of(entry: &[u8]) -> u64 {
    let fields = entry.get(ID_BYTES..).unwrap_or_default();
    match fields.first_chunk::<PREFIX_BYTES>() {
        Some(prefix) => u64::from_be_bytes(*prefix),
        None => {
            let mut prefix = [0; PREFIX_BYTES];
            prefix[..fields.len()].copy_from_slice(fields);
            u64::from_be_bytes(prefix)
        }
    }
}

/// An entry without its type bits.
pub(super) fn key_of(entry: &[u8]) -> &[u8] {
    split(entry).map_or(entry, |(key, _)| key)
}

/// The engine's key, and the type bits.
pub(super) fn split(entry: &[u8]) -> Option<(&[u8], &[u8])> {
    let (rest, length) = entry.split_last_chunk::<LENGTH_BYTES>()?;
    let types = u32::from_be_bytes(*length) as usize;
    Some(rest.split_at(rest.len().checked_sub(types)?))
}

pub(super) fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a run is damaged")
}

/// The key of the index, and its record.
pub(super) fn take_apart(entry: &[u8], record_ids: RecordIdFormat) -> Option<(Key, RecordId)> {
    let (key, types) = split(entry)?;
    let (end, record) = record_ids.split(key)?;
    let bytes = key.get(ID_BYTES..end)?.to_vec();
    let types = types.into();
    Some((Key { bytes, types }, record))
}

pub(super) enum Run {
    Memory {
        bytes: Vec<u8>,
        spans: Vec<Span>,
    },
    File {
        file: File,
        /// Every so many entries: the key, and where it lies.
        marks: Vec<(Vec<u8>, u64)>,
        entries: u64,
    },
}

impl Run {
    pub(super) fn entries(&self) -> u64 {
        match self {
            Run::Memory { spans, .. } => spans.len() as u64,
            Run::File { entries, .. } => *entries,
        }
    }

    /// The keys of every so many entries.
    fn samples(&self) -> Vec<&[u8]> {
        match self {
            Run::Memory { bytes, spans } => {
                let sampled = spans.iter().step_by(SAMPLE_ENTRIES);
                sampled.map(|span| key_of(span.of(bytes))).collect()
            }
            Run::File { marks, .. } => marks.iter().map(|(key, _)| &key[..]).collect(),
        }
    }

    /// What follows `from`. `None`: nothing does.
    fn read(&self, from: Option<&[u8]>) -> io::Result<Option<Head<'_>>> {
        let from = from.unwrap_or_default();
        match self {
            Run::Memory { bytes, spans } => {
                let first = spans.partition_point(|span| span.of(bytes) < from);
                let mut spans = spans[first..].iter();
                Ok(spans.next().map(|span| Head {
                    prefix: span.prefix,
                    source: Source::Memory {
                        entry: span.of(bytes),
                        bytes,
                        spans,
                    },
                }))
            }
            Run::File { file, marks, .. } => {
                let behind = marks.partition_point(|(key, _)| &key[..] <= from);
                let offset = behind.checked_sub(1).map_or(0, |at| marks[at].1);
                let reader = BufReader::with_capacity(READ_BUFFER_BYTES, At { file, offset });
                let mut head = Head {
                    prefix: 0,
                    source: Source::File {
                        entry: Vec::new(),
                        reader,
                    },
                };
                while head.advance()? {
                    if head.entry() >= from {
                        return Ok(Some(head));
                    }
                }
                Ok(None)
            }
        }
    }
}

/// A file as several may read it at once.
struct At<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for At<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

/// How far a run has been read.
struct Head<'a> {
    prefix: u64,
    source: Source<'a>,
}

enum Source<'a> {
    Memory {
        entry: &'a [u8],
        bytes: &'a [u8],
        spans: std::slice::Iter<'a, Span>,
    },
    File {
        entry: Vec<u8>,
        reader: BufReader<At<'a>>,
    },
}

impl Head<'_> {
    fn entry(&self) -> &[u8] {
        match &self.source {
            Source::Memory { entry, .. } => entry,
            Source::File { entry, .. } => entry,
        }
    }

    /// False: that was the last one.
    fn advance(&mut self) -> io::Result<bool> {
        match &mut self.source {
            Source::Memory {
                entry,
                bytes,
                spans,
            } => {
                let Some(span) = spans.next() else {
                    return Ok(false);
                };
                *entry = span.of(bytes);
                self.prefix = span.prefix;
            }
            Source::File { entry, reader } => {
                let mut length = [0; 4];
                match reader.read_exact(&mut length) {
                    Ok(()) => {}
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
                    Err(error) => return Err(error),
                }
                entry.resize(u32::from_le_bytes(length) as usize, 0);
                reader.read_exact(entry)?;
                self.prefix = prefix_of(entry);
            }
        }
        Ok(true)
    }
}

/// The least first: the heap hands out the greatest.
impl Ord for Head<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let prefixes = other.prefix.cmp(&self.prefix);
        prefixes.then_with(|| other.entry().cmp(self.entry()))
    }
}

impl PartialOrd for Head<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Head<'_> {}

/// The entries of several runs in one order.
pub(super) struct Merge<'a> {
    heads: BinaryHeap<Head<'a>>,
    until: Option<&'a [u8]>,
    /// The first entry has been handed out. It is borrowed, so it is passed over later.
    is_taken: bool,
}

impl<'a> Merge<'a> {
    /// From one key on up to another, which are engine's keys.
    pub(super) fn new(
        runs: &'a [Run],
        from: Option<&[u8]>,
        until: Option<&'a [u8]>,
    ) -> io::Result<Merge<'a>> {
        let mut heads = BinaryHeap::with_capacity(runs.len());
        for run in runs {
            heads.extend(run.read(from)?);
        }
        Ok(Merge {
            heads,
            until,
            is_taken: false,
        })
    }

    pub(super) fn next(&mut self) -> io::Result<Option<&[u8]>> {
        if std::mem::replace(&mut self.is_taken, true)
            && let Some(mut first) = self.heads.peek_mut()
            && !first.advance()?
        {
            PeekMut::pop(first);
        }
        let first = self.heads.peek().map(Head::entry);
        Ok(first.filter(|entry| self.until.is_none_or(|until| *entry < until)))
    }
}

/// Keys between which about so many entries lie, behind `from`.
pub(super) fn cuts(runs: &[Run], from: Option<&[u8]>, entries: u64) -> Vec<Vec<u8>> {
    let samples = runs.iter().flat_map(Run::samples);
    let behind = |key: &&[u8]| from.is_none_or(|from| *key > from);
    let mut samples: Vec<&[u8]> = samples.filter(behind).collect();
    samples.sort_unstable();
    let each = usize::try_from(entries).unwrap_or(usize::MAX) / SAMPLE_ENTRIES;
    let each = each.max(1);
    let mut cuts: Vec<Vec<u8>> = Vec::new();
    for sample in samples.iter().skip(each).step_by(each) {
        if cuts.last().is_none_or(|last| &last[..] < *sample) {
            cuts.push(sample.to_vec());
        }
    }
    cuts
}
