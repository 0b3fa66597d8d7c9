//! A disk that remembers what was synced, can fail, and can lose the rest.
//!
//! The bytes lie in real files (in memory, if the directory does), so that whatever reads them
//! past the engine's file system sees the same. What is added here is what a power cut would
//! leave of each.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

/// Something that a disk is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Write(usize),
    Sync,
    Truncate,
    Create,
    Rename,
    Delete,
    Read,
}

/// How it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// Nobody is there any more who would notice.
    Ignored,
    Fails(io::ErrorKind),
    /// So many bytes are written; then the machine is dead.
    Torn(usize),
}

/// Decides on every effect of one member, in order.
pub trait Fate: Send + Sync {
    fn strike(&self, effect: Effect) -> Outcome;
}

enum Change {
    Write(usize, Vec<u8>),
    Length(usize),
}

#[derive(Default)]
struct FileState {
    /// What a sync has made certain; zeros at the end are left out of it.
    synced: Vec<u8>,
    synced_length: usize,
    /// What was done since.
    since: Vec<Change>,
}

impl FileState {
    fn read(path: &Path) -> io::Result<FileState> {
        let mut synced = std::fs::read(path)?;
        let synced_length = synced.len();
        trim(&mut synced);
        Ok(FileState {
            synced,
            synced_length,
            since: Vec::new(),
        })
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Write(offset, bytes) => {
                let end = offset + bytes.len();
                if self.synced.len() < end {
                    self.synced.resize(end, 0);
                }
                self.synced[offset..end].copy_from_slice(&bytes);
                self.synced_length = self.synced_length.max(end);
            }
            Change::Length(length) => {
                self.synced.truncate(length);
                self.synced_length = length;
            }
        }
    }

    fn sync(&mut self) {
        for change in std::mem::take(&mut self.since) {
            self.apply(change);
        }
    }

    /// Part of what was not synced survives: a beginning of it, or any of it.
    fn lose(&mut self, chance: &mut impl FnMut(u64) -> u64) {
        let since = std::mem::take(&mut self.since);
        let in_order = chance(3) != 0;
        let kept = chance(since.len() as u64 + 1) as usize;
        for (number, change) in since.into_iter().enumerate() {
            let survives = match in_order {
                true => number < kept,
                false => chance(2) == 0,
            };
            let torn = in_order && number == kept && chance(2) == 0;
            match change {
                change if survives => self.apply(change),
                Change::Write(offset, mut bytes) if torn => {
                    bytes.truncate(chance(bytes.len() as u64 + 1) as usize);
                    self.apply(Change::Write(offset, bytes));
                }
                _ => {}
            }
        }
    }

    fn restore(&self, path: &Path) -> io::Result<()> {
        std::fs::write(path, &self.synced)?;
        let file = std::fs::File::options().write(true).open(path)?;
        file.set_len(self.synced_length as u64)
    }
}

fn trim(bytes: &mut Vec<u8>) {
    let used = bytes.iter().rposition(|&byte| byte != 0);
    bytes.truncate(used.map_or(0, |at| at + 1));
}

/// The disk of one member, for one life of it.
pub struct Disk {
    fate: Arc<dyn Fate>,
    files: Mutex<BTreeMap<PathBuf, FileState>>,
}

impl Disk {
    /// The disk of a new life. What the life before has written and not synced still is not.
    pub fn new(fate: Arc<dyn Fate>, before: Option<&Disk>) -> Arc<Disk> {
        let mut files = before.map_or_else(BTreeMap::new, |disk| {
            std::mem::take(&mut *disk.files.lock())
        });
        files.retain(|path, _| path.exists());
        Arc::new(Disk {
            fate,
            files: Mutex::new(files),
        })
    }

    /// The power goes: files become what a power cut leaves of them. `chance(n)` draws below n.
    pub fn cut_power(&self, mut chance: impl FnMut(u64) -> u64) -> io::Result<()> {
        for (path, file) in self.files.lock().iter_mut() {
            if !file.since.is_empty() {
                file.lose(&mut chance);
                file.restore(path)?;
            }
        }
        Ok(())
    }

    /// What is written and not synced, in bytes.
    pub fn unsynced(&self) -> usize {
        let size = |change: &Change| match change {
            Change::Write(_, bytes) => bytes.len(),
            Change::Length(_) => 0,
        };
        let files = self.files.lock();
        files.values().flat_map(|file| &file.since).map(size).sum()
    }

    pub(super) fn strike(&self, effect: Effect) -> io::Result<Outcome> {
        match self.fate.strike(effect) {
            Outcome::Fails(kind) => Err(io::Error::new(kind, "the simulated disk failed")),
            outcome => Ok(outcome),
        }
    }

    pub(super) fn opened(&self, path: &Path) -> io::Result<()> {
        let mut files = self.files.lock();
        if !files.contains_key(path) {
            files.insert(path.to_owned(), FileState::read(path)?);
        }
        Ok(())
    }

    pub(super) fn written(&self, path: &Path, offset: usize, bytes: &[u8]) {
        self.note(path, Change::Write(offset, bytes.to_vec()));
    }

    pub(super) fn resized(&self, path: &Path, length: usize) {
        self.note(path, Change::Length(length));
    }

    fn note(&self, path: &Path, change: Change) {
        let mut files = self.files.lock();
        files.entry(path.to_owned()).or_default().since.push(change);
    }

    pub(super) fn synced(&self, path: &Path) {
        if let Some(file) = self.files.lock().get_mut(path) {
            file.sync();
        }
    }

    pub(super) fn renamed(&self, from: &Path, to: &Path) {
        let mut files = self.files.lock();
        if let Some(file) = files.remove(from) {
            files.insert(to.to_owned(), file);
        }
    }

    pub(super) fn deleted(&self, path: &Path) {
        self.files.lock().remove(path);
    }
}
