//! One `system.profile`: the newest entries, in memory and in a file.
//!
//! An entry is added in memory, so that no client waits for a disk. What was added is appended to the
//! file once in a while; a file with much in it that is no longer in the collection is written anew.
//! After a crash the newest entries may be missing.

use std::collections::{HashMap, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use banyan_document::validate::{MAX_DEPTH, validate_with_depth};
use bson::{RawDocument, RawDocumentBuf, cstr, rawdoc};
use parking_lot::Mutex;

/// All entries are kept in memory, too.
pub const BYTES_MAX: u64 = 64 << 20;
/// Names end so while a file is being written.
const UNFINISHED: &str = ".new";
const SUFFIX: &str = ".bson";
/// An entry has the command in it, and what the command came from.
const DEPTH_MAX: usize = 2 * MAX_DEPTH;

pub struct ProfileCollection {
    pub bytes_max: u64,
    pub documents_max: Option<u64>,
    database: String,
    path: PathBuf,
    state: Mutex<State>,
    /// Held by whoever writes the file: its length. `None`: it has to be written anew.
    file: Mutex<Option<u64>>,
    removed: AtomicBool,
}

#[derive(Default)]
struct State {
    entries: VecDeque<Arc<RawDocumentBuf>>,
    /// The number of the first entry: entries are numbered from 0 on as they come.
    first: u64,
    bytes: u64,
    /// Up to this number entries are in the file.
    written: u64,
}

/// What was to be read next is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Behind;

impl ProfileCollection {
    pub fn new(
        directory: &Path,
        database: &str,
        bytes_max: u64,
        documents_max: Option<u64>,
    ) -> ProfileCollection {
        ProfileCollection {
            bytes_max,
            documents_max,
            database: database.to_owned(),
            path: directory.join(format!("{}{SUFFIX}", hex(database))),
            state: Mutex::default(),
            file: Mutex::new(None),
            removed: AtomicBool::new(false),
        }
    }

    pub fn add(&self, entry: RawDocumentBuf) {
        let bytes = entry.as_bytes().len() as u64;
        // It could not stay.
        if bytes > self.bytes_max {
            return;
        }
        let mut state = self.state.lock();
        state.bytes += bytes;
        state.entries.push_back(Arc::new(entry));
        let most = self.documents_max.unwrap_or(u64::MAX);
        while state.bytes > self.bytes_max || state.entries.len() as u64 > most {
            let Some(oldest) = state.entries.pop_front() else {
                return;
            };
            state.bytes -= oldest.as_bytes().len() as u64;
            state.first += 1;
        }
    }

    /// How many entries there are, and how many bytes they have together.
    pub fn counts(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.entries.len() as u64, state.bytes)
    }

    /// The entries that there are now, the newest first if `reverse`.
    pub fn entries(&self, reverse: bool) -> Vec<Arc<RawDocumentBuf>> {
        let state = self.state.lock();
        let entries = state.entries.iter().cloned();
        match reverse {
            true => entries.rev().collect(),
            false => entries.collect(),
        }
    }

    /// The entry of a number. `None`: it has not come yet.
    fn entry(&self, number: u64) -> Result<Option<Arc<RawDocumentBuf>>, Behind> {
        let state = self.state.lock();
        let Some(at) = number.checked_sub(state.first) else {
            return Err(Behind);
        };
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        Ok(state.entries.get(at).cloned())
    }

    /// The file goes, and comes no more.
    pub fn remove(&self) {
        self.removed.store(true, Ordering::Release);
        let _file = self.file.lock();
        if let Err(error) = fs::remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.path.display(), %error, "a profile could not be removed");
        }
    }

    pub fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    /// Brings the file up to date.
    pub fn write(&self) -> io::Result<()> {
        let mut file = self.file.lock();
        if self.is_removed() {
            return Ok(());
        }
        let (added, all, next, begins_behind) = {
            let state = self.state.lock();
            let next = state.first + state.entries.len() as u64;
            if file.is_some() && state.written == next {
                return Ok(());
            }
            let from = state.written.saturating_sub(state.first);
            let skipped = usize::try_from(from).unwrap_or(usize::MAX);
            let added: Vec<_> = state.entries.iter().skip(skipped).cloned().collect();
            let all: Vec<_> = state.entries.iter().cloned().collect();
            (added, all, next, state.written < state.first)
        };
        let length = |entries: &[Arc<RawDocumentBuf>]| -> u64 {
            let lengths = entries.iter().map(|entry| entry.as_bytes().len() as u64);
            lengths.sum()
        };
        let appended = file.map(|bytes| bytes + length(&added));
        let is_small = |bytes: &u64| *bytes <= self.bytes_max.saturating_mul(2);
        match appended.filter(is_small).filter(|_| !begins_behind) {
            Some(bytes) => {
                // What was written in part is written anew.
                *file = None;
                let out = OpenOptions::new().append(true).open(&self.path)?;
                write_all(out, &added)?;
                *file = Some(bytes);
            }
            None => {
                *file = None;
                let head = self.head();
                let head_bytes = head.as_bytes().len() as u64;
                self.write_anew(head, &all)?;
                *file = Some(head_bytes + length(&all));
            }
        }
        self.state.lock().written = next;
        Ok(())
    }

    fn write_anew(&self, head: RawDocumentBuf, all: &[Arc<RawDocumentBuf>]) -> io::Result<()> {
        if let Some(directory) = self.path.parent() {
            fs::create_dir_all(directory)?;
        }
        let mut unfinished = self.path.clone().into_os_string();
        unfinished.push(UNFINISHED);
        let mut documents = vec![Arc::new(head)];
        documents.extend(all.iter().cloned());
        write_all(File::create(&unfinished)?, &documents)?;
        fs::rename(&unfinished, &self.path)
    }

    /// What the file begins with.
    fn head(&self) -> RawDocumentBuf {
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let mut head = rawdoc! {
            "database": self.database.as_str(),
            "size": number(self.bytes_max),
        };
        if let Some(documents) = self.documents_max {
            head.append(cstr!("max"), number(documents));
        }
        head
    }
}

fn write_all(file: File, documents: &[Arc<RawDocumentBuf>]) -> io::Result<()> {
    let mut out = BufWriter::new(file);
    for document in documents {
        out.write_all(document.as_bytes())?;
    }
    out.flush()
}

/// Follows a collection as it grows: what was there, and then what comes.
pub struct Entries {
    collection: Arc<ProfileCollection>,
    next: u64,
}

impl Entries {
    pub fn from_first(collection: Arc<ProfileCollection>) -> Entries {
        let next = collection.state.lock().first;
        Entries { collection, next }
    }

    /// `None`: no further one, for now.
    pub fn next_entry(&mut self) -> Result<Option<Arc<RawDocumentBuf>>, Behind> {
        if self.collection.is_removed() {
            return Err(Behind);
        }
        let found = self.collection.entry(self.next)?;
        self.next += u64::from(found.is_some());
        Ok(found)
    }
}

/// The collections whose files are in a directory. What cannot be read is left out: a crash may cut
/// the last entry.
pub fn load(directory: &Path) -> HashMap<String, Arc<ProfileCollection>> {
    let mut collections = HashMap::new();
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    for file in files {
        let path = file.path();
        if !path.to_string_lossy().ends_with(SUFFIX) {
            continue;
        }
        let Ok(bytes) = fs::read(&path) else {
            tracing::warn!(path = %path.display(), "a profile could not be read");
            continue;
        };
        if let Some(collection) = read(directory, &bytes) {
            collections.insert(collection.database.clone(), Arc::new(collection));
        }
    }
    collections
}

fn read(directory: &Path, bytes: &[u8]) -> Option<ProfileCollection> {
    let mut rest = bytes;
    let head = next_document(&mut rest)?;
    let number = |name| Some(head.get_i64(name).ok()?.max(0).unsigned_abs());
    let bytes_max = number("size")?.min(BYTES_MAX);
    let database = head.get_str("database").ok()?;
    let collection = ProfileCollection::new(directory, database, bytes_max, number("max"));
    while let Some(entry) = next_document(&mut rest) {
        collection.add(entry);
    }
    Some(collection)
}

fn next_document(rest: &mut &[u8]) -> Option<RawDocumentBuf> {
    let length = rest.get(..4)?.try_into().ok().map(u32::from_le_bytes)?;
    let (document, behind) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    let document = RawDocument::from_bytes(document).ok()?;
    // What the disk has made of it is not trusted.
    validate_with_depth(document.as_bytes(), DEPTH_MAX).ok()?;
    *rest = behind;
    Some(document.to_owned())
}

/// A name that any file system takes, whatever the database is called.
fn hex(name: &str) -> String {
    name.bytes().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: i32) -> RawDocumentBuf {
        rawdoc! { "n": number, "filler": "x".repeat(50) }
    }

    fn numbers(collection: &ProfileCollection) -> Vec<i32> {
        let entries = collection.entries(false);
        entries
            .iter()
            .map(|entry| entry.get_i32("n").unwrap())
            .collect()
    }

    #[test]
    fn the_oldest_go() {
        let directory = tempfile::tempdir().unwrap();
        let one = entry(0).as_bytes().len() as u64;
        let collection = ProfileCollection::new(directory.path(), "a", 3 * one, None);
        (0..5).for_each(|number| collection.add(entry(number)));
        assert_eq!(numbers(&collection), [2, 3, 4]);
        assert_eq!(collection.counts(), (3, 3 * one));
        let few = ProfileCollection::new(directory.path(), "b", 1 << 20, Some(2));
        (0..5).for_each(|number| few.add(entry(number)));
        assert_eq!(numbers(&few), [3, 4]);
    }

    #[test]
    fn who_follows_sees_each_entry_or_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let few = ProfileCollection::new(directory.path(), "a", 1 << 20, Some(2));
        let few = Arc::new(few);
        few.add(entry(0));
        let mut entries = Entries::from_first(few.clone());
        assert!(entries.next_entry().unwrap().is_some());
        assert!(entries.next_entry().unwrap().is_none());
        few.add(entry(1));
        assert!(entries.next_entry().unwrap().is_some());
        (2..6).for_each(|number| few.add(entry(number)));
        assert_eq!(entries.next_entry(), Err(Behind));
    }

    #[test]
    fn files_bring_back_what_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("profile");
        let one = entry(0).as_bytes().len() as u64;
        let collection = ProfileCollection::new(&path, "a", 3 * one, None);
        for number in 0..20 {
            collection.add(entry(number));
            collection.write().unwrap();
            let loaded = load(&path);
            assert_eq!(numbers(&loaded["a"]), numbers(&collection));
            assert_eq!(loaded["a"].bytes_max, 3 * one);
        }
        let file = fs::metadata(&collection.path).unwrap().len();
        assert!(file <= 7 * one + 100, "{file} bytes");
        // A crash may leave a part of the last entry.
        let mut bytes = fs::read(&collection.path).unwrap();
        bytes.truncate(bytes.len() - 5);
        fs::write(&collection.path, &bytes).unwrap();
        let cut = numbers(&load(&path)["a"]);
        assert!(!cut.contains(&19) && cut.contains(&18), "{cut:?}");
        collection.remove();
        collection.add(entry(20));
        collection.write().unwrap();
        assert!(load(&path).is_empty());
    }
}
