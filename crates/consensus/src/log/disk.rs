//! The log on disk, over `raft-engine`.
//!
//! Each generation of the log is a region of its own; installing a snapshot begins the next one,
//! so that no entry of the old log can be mistaken for one of the new. Region 0 is not used by
//! entries: it says which generation counts.

use std::cell::Cell;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use banyan_crash::{Point, pass};
use raft::eraftpb::{Entry, HardState};
use raft_engine::{Command, Config, Engine, LogBatch, MessageExt, ReadableSize, RecoveryMode};

use super::files::{self, Files};
use super::{Batch, Disk, Loaded, LogError, Terms, decode_membership, encode_membership};
use crate::machine::LogBarrier;

const DIRECTORY_REGION: u64 = 0;
const GENERATION: &[u8] = b"generation";
const HARD: &[u8] = b"hard";
const MEMBERS: &[u8] = b"members";
const TERMS: &[u8] = b"terms";
const STALE: &[u8] = b"stale";
const AHEAD: &[u8] = b"ahead";
/// In region 0: a generation, and an index of its log.
const REACHED: &[u8] = b"reached";
/// Read at once, at most: the engine prepares for all of a range before it looks at its bytes.
const READ_ENTRIES_MAX: u64 = 8192;

#[derive(Clone)]
struct Entries;

impl MessageExt for Entries {
    type Entry = Entry;

    fn index(entry: &Entry) -> u64 {
        entry.index
    }
}

#[derive(Clone)]
pub(crate) struct EngineDisk {
    engine: Arc<Engine<Files>>,
    reading: Reading,
    generation: u64,
    /// The same, as of the last write.
    written_generation: Arc<AtomicU64>,
    file_bytes: u64,
    scratch: LogBatch,
}

impl EngineDisk {
    /// Opens the log, or makes an empty one.
    ///
    /// A crash may have torn the last write, which the engine then cuts off. In case more than that
    /// turns out to be missing, what it cuts is kept: see [`Kept`].
    pub fn open(dir: &Path, bytes_max: u64) -> Result<(EngineDisk, Option<Kept>), LogError> {
        // With more files than about four the engine would, now and then, rewrite entries that are
        // still needed in order to free the files they are in.
        let file_bytes = (bytes_max / 3).clamp(1 << 20, 2 << 30);
        let (file_system, recovery_threads) = files::at(dir);
        let config = Config {
            dir: dir.to_string_lossy().into_owned(),
            target_file_size: ReadableSize(file_bytes),
            purge_threshold: ReadableSize(2 * file_bytes),
            recovery_threads,
            recovery_mode: RecoveryMode::AbsoluteConsistency,
            // It would cost a load more than writing what it saves, and large entries two more copies.
            batch_compression_threshold: ReadableSize(0),
            ..Config::default()
        };
        let (engine, kept) =
            match Engine::open_with_file_system(config.clone(), file_system.clone()) {
                Ok(engine) => (engine, None),
                // A header that ends within a number is not called corrupt.
                Err(raft_engine::Error::Corruption(_) | raft_engine::Error::Codec(_)) => {
                    let kept = Kept::newest_of(dir)?;
                    let tolerant = Config {
                        recovery_mode: RecoveryMode::TolerateTailCorruption,
                        ..config
                    };
                    match Engine::open_with_file_system(tolerant, file_system) {
                        Ok(engine) => (engine, kept),
                        Err(error) => {
                            kept.map_or(Ok(()), Kept::put_back)?;
                            return Err(failed(error));
                        }
                    }
                }
                Err(error) => return Err(failed(error)),
            };
        // What a killed process had written and not synced was read as well. It counts from now on,
        // as a promise to the others, so that it must outlast a power cut too.
        sync_newest_file(dir).map_err(|error| LogError::Io(error.to_string()))?;
        let engine = Arc::new(engine);
        let generation = match engine.get(DIRECTORY_REGION, GENERATION) {
            None => 1,
            Some(bytes) => bytes
                .as_slice()
                .try_into()
                .map(u64::from_le_bytes)
                .map_err(|_| LogError::Damaged("its generation is not a number".into()))?,
        };
        let disk = EngineDisk {
            engine,
            reading: Reading::new(),
            generation,
            written_generation: Arc::new(AtomicU64::new(generation)),
            file_bytes,
            scratch: LogBatch::default(),
        };
        Ok((disk, kept))
    }

    pub fn purger(&self) -> Purger {
        Purger {
            engine: self.engine.clone(),
            reading: self.reading,
        }
    }

    /// For the state: see [`crate::StateMachine::keep_behind_log`].
    pub fn barrier(&self) -> LogBarrier {
        let engine = self.engine.clone();
        let generation = self.written_generation.clone();
        Box::new(move |index| {
            let generation = generation.load(Ordering::Acquire);
            let note = [generation, index].map(u64::to_le_bytes).concat();
            let mut batch = LogBatch::default();
            let put = batch.put(DIRECTORY_REGION, REACHED.to_vec(), note);
            put.map_err(std::io::Error::other)?;
            pass(Point::LogSyncing);
            let written = engine.write(&mut batch, true);
            pass(Point::LogSynced);
            written.map(drop).map_err(std::io::Error::other)
        })
    }

    /// How far the state on the disk may be, as far as this generation of the log goes.
    fn reached(&self) -> Result<u64, LogError> {
        let Some(note) = self.engine.get(DIRECTORY_REGION, REACHED) else {
            return Ok(0);
        };
        let numbers = note.split_first_chunk().and_then(|(generation, rest)| {
            let index = u64::from_le_bytes(rest.try_into().ok()?);
            Some((u64::from_le_bytes(*generation), index))
        });
        match numbers {
            Some((generation, index)) if generation == self.generation => Ok(index),
            Some(_) => Ok(0),
            None => Err(LogError::Damaged(
                "its note of the state is unreadable".into(),
            )),
        }
    }

    /// The size of a file that is full.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// How often the log was replaced.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.engine.get(self.generation, key)
    }

    fn fill(&self, out: &mut LogBatch, batch: &Batch<'_>, region: u64) -> raft_engine::Result<()> {
        if let Some(index) = batch.compact {
            out.add_command(region, Command::Compact { index });
        }
        if !batch.entries.is_empty() {
            out.add_entries::<Entries>(region, batch.entries)?;
        }
        if let Some(hard) = batch.hard {
            out.put_message(region, HARD.to_vec(), hard)?;
        }
        if let Some(membership) = batch.membership {
            out.put(region, MEMBERS.to_vec(), encode_membership(membership))?;
        }
        if let Some(terms) = batch.terms {
            out.put(region, TERMS.to_vec(), terms.encode())?;
        }
        match batch.ahead {
            None => {}
            Some(true) => out.put(region, AHEAD.to_vec(), vec![1])?,
            Some(false) => out.delete(region, AHEAD.to_vec()),
        }
        if batch.stale {
            out.put(region, STALE.to_vec(), vec![1])?;
        }
        Ok(())
    }
}

/// Whose entries a thread reads.
///
/// The engine keeps the block that a thread has read last, by its place in the files and not by
/// whose files they are. Where a process has several logs, as a simulation and tests do, a thread
/// reads one of them, and what it wants of another is read by a thread of its own.
#[derive(Clone, Copy)]
struct Reading {
    log: u64,
}

thread_local! {
    static LOG_OF_THREAD: Cell<Option<u64>> = const { Cell::new(None) };
}

impl Reading {
    fn new() -> Reading {
        static LOGS: AtomicU64 = AtomicU64::new(0);
        Reading {
            log: LOGS.fetch_add(1, Ordering::Relaxed),
        }
    }

    fn run<T: Send>(self, read: impl FnOnce() -> T + Send) -> T {
        let known = LOG_OF_THREAD.get();
        if known.is_none() {
            LOG_OF_THREAD.set(Some(self.log));
        }
        if known.is_none_or(|log| log == self.log) {
            return read();
        }
        std::thread::scope(|scope| match scope.spawn(read).join() {
            Ok(read) => read,
            Err(panic) => resume_unwind(panic),
        })
    }
}

/// A copy of the file that the engine is about to repair, until the log is known to be good.
pub(crate) struct Kept {
    file: PathBuf,
    copy: PathBuf,
}

impl Kept {
    fn newest_of(dir: &Path) -> Result<Option<Kept>, LogError> {
        let io = |error: std::io::Error| LogError::Io(error.to_string());
        let Some(file) = newest_file(dir).map_err(io)? else {
            return Ok(None);
        };
        let copy = file.with_extension("kept");
        std::fs::copy(&file, &copy).map_err(io)?;
        Ok(Some(Kept { file, copy }))
    }

    /// The log is good; what was cut off was a torn write.
    pub fn discard(self) {
        // A copy that stays behind is overwritten by the next one.
        let _ = std::fs::remove_file(self.copy);
    }

    /// The log is damaged: it is left as it was found. The engine must be closed.
    pub fn put_back(self) -> Result<(), LogError> {
        std::fs::rename(&self.copy, &self.file).map_err(|error| LogError::Io(error.to_string()))
    }
}

/// Removes files that hold nothing but dropped entries, beside the appends.
pub(crate) struct Purger {
    engine: Arc<Engine<Files>>,
    reading: Reading,
}

impl Purger {
    pub fn purge(&self) -> Result<(), LogError> {
        let purged = self.reading.run(|| self.engine.purge_expired_files());
        purged.map(drop).map_err(failed)
    }
}

impl Disk for EngineDisk {
    fn load(&mut self) -> Result<Loaded, LogError> {
        let hard: Option<HardState> = self
            .engine
            .get_message(self.generation, HARD)
            .map_err(failed)?;
        let membership = match self.get(MEMBERS) {
            None => Default::default(),
            Some(bytes) => decode_membership(&bytes)
                .ok_or_else(|| LogError::Damaged("its list of members is unreadable".into()))?,
        };
        let terms = match self.get(TERMS) {
            None => Terms::default(),
            Some(bytes) => Terms::decode(&bytes)
                .ok_or_else(|| LogError::Damaged("its list of terms is unreadable".into()))?,
        };
        let ahead = self.get(AHEAD).is_some();
        Ok(Loaded {
            hard: hard.unwrap_or_default(),
            membership,
            terms,
            first_index: self.engine.first_index(self.generation).unwrap_or(0),
            last_index: self.engine.last_index(self.generation).unwrap_or(0),
            stale: self.get(STALE).is_some(),
            ahead,
            // A state that has come from elsewhere is whole, and may be further than the log.
            reached: match ahead {
                true => 0,
                false => self.reached()?,
            },
        })
    }

    fn write(&mut self, batch: &Batch<'_>, sync: bool) -> Result<(), LogError> {
        // Its memory is used again: a large entry takes some, which is not at hand otherwise.
        let mut out = std::mem::take(&mut self.scratch);
        let region = self.generation + batch.reset as u64;
        self.fill(&mut out, batch, region).map_err(failed)?;
        if batch.reset {
            let generation = region.to_le_bytes().to_vec();
            out.put(DIRECTORY_REGION, GENERATION.to_vec(), generation)
                .map_err(failed)?;
        }
        pass(Point::LogAppending);
        self.engine.write(&mut out, sync).map_err(failed)?;
        self.scratch = out;
        pass(Point::LogAppended);
        if batch.reset {
            pass(Point::LogReplaced);
            let mut clean = LogBatch::default();
            clean.add_command(self.generation, Command::Clean);
            self.engine.write(&mut clean, false).map_err(failed)?;
            self.generation = region;
            self.written_generation.store(region, Ordering::Release);
        }
        Ok(())
    }

    fn read(&self, low: u64, high: u64, bytes_max: u64) -> Result<Vec<Entry>, LogError> {
        let high = high.min(low + READ_ENTRIES_MAX);
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        self.reading.run(|| {
            let mut entries = Vec::new();
            let max = Some(bytes_max);
            self.engine
                .fetch_entries_to::<Entries>(self.generation, low, high, max, &mut entries)
                .map_err(failed)?;
            Ok(entries)
        })
    }

    fn bytes_used(&self) -> u64 {
        self.engine.get_used_size() as u64
    }
}

/// Syncs what was written to the log before the call, without getting in the way of appends.
///
/// The engine syncs a file before it begins the next one, so only the newest can hold anything
/// unsynced; any descriptor of it will do.
pub(crate) fn sync_newest_file(dir: &Path) -> std::io::Result<()> {
    match newest_file(dir)? {
        None => Ok(()),
        Some(path) => {
            pass(Point::LogSyncing);
            files::sync(&path)?;
            pass(Point::LogSynced);
            Ok(())
        }
    }
}

fn newest_file(dir: &Path) -> std::io::Result<Option<PathBuf>> {
    let mut newest: Option<PathBuf> = None;
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let is_log = path
            .extension()
            .is_some_and(|extension| extension == "raftlog");
        if is_log && newest.as_ref().is_none_or(|newest| path > *newest) {
            newest = Some(path);
        }
    }
    Ok(newest)
}

fn failed(error: raft_engine::Error) -> LogError {
    match error {
        raft_engine::Error::Corruption(_)
        | raft_engine::Error::Codec(_)
        | raft_engine::Error::Protobuf(_)
        | raft_engine::Error::EntryNotFound
        | raft_engine::Error::EntryCompacted => LogError::Damaged(error.to_string()),
        error => LogError::Io(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two members write entries of the same size, which lie at the same places of their files.
    #[test]
    fn one_thread_reads_the_entries_of_several_logs() {
        let logs: Vec<_> = ["one", "two"]
            .into_iter()
            .map(|text| {
                let dir = tempfile::tempdir().unwrap();
                let (mut disk, _) = EngineDisk::open(dir.path(), 1 << 20).unwrap();
                let entry = Entry {
                    index: 1,
                    term: 1,
                    data: text.into(),
                    ..Entry::default()
                };
                let batch = Batch {
                    entries: &[entry],
                    ..Batch::default()
                };
                disk.write(&batch, false).unwrap();
                (dir, disk, text)
            })
            .collect();
        for (_, disk, text) in logs.iter().chain(&logs) {
            let read = disk.read(1, 2, u64::MAX).unwrap();
            assert_eq!(read[0].data, text.as_bytes());
        }
    }
}
