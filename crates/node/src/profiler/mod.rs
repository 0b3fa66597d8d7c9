//! The profiler: which operations of which database are kept in its `system.profile`.
//!
//! The collection belongs to the member alone: it is no part of the replicated state, and lies in a
//! file beside it ([`collection`]). What an operation leaves in it is made up in
//! [`crate::profiling`].

mod collection;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use banyan_query::Filter;
use bson::{RawDocumentBuf, rawdoc};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

pub use banyan_replication::virtual_collections::PROFILE;
pub use collection::{BYTES_MAX, Behind, Entries, ProfileCollection};

/// The size of a collection that is made because somebody profiles.
pub const BYTES_DEFAULT: u64 = 1 << 20;

/// What is profiled of a database, and what the log tells of it.
#[derive(Clone, Default)]
pub struct Settings {
    /// 0: nothing; 1: what is slow, or what the filter lets pass; 2: everything.
    pub level: i32,
    /// Takes the place of the time limit and the sample rate, for the log as well.
    pub filter: Option<Arc<Filter>>,
}

impl Settings {
    fn is_default(&self) -> bool {
        self.level == 0 && self.filter.is_none()
    }
}

/// What is noted while a command runs, if any database is profiled.
#[derive(Default)]
pub struct Notes {
    /// What the stages of its plan have done.
    pub stages: Option<RawDocumentBuf>,
    /// The command that opened the cursor that it continues.
    pub origin: Option<Arc<RawDocumentBuf>>,
}

/// The profiler of one process.
pub struct Profiler {
    /// Some database has settings: all that a command asks while none has.
    is_on: AtomicBool,
    /// By database; those that differ from the default.
    settings: RwLock<HashMap<String, Settings>>,
    /// Of slow operations, the share that is logged and profiled; the bits of an `f64`.
    sample_rate: AtomicU64,
    collections: Mutex<HashMap<String, Arc<ProfileCollection>>>,
    directory: PathBuf,
    /// Counts what was added, for who waits for it.
    added: watch::Sender<u64>,
}

impl Profiler {
    /// `dbpath`: the collections of the last run are there.
    pub fn open(dbpath: &Path) -> Profiler {
        let directory = dbpath.join("profile");
        let collections = collection::load(&directory);
        Profiler {
            is_on: AtomicBool::new(false),
            settings: RwLock::default(),
            sample_rate: AtomicU64::new(1.0_f64.to_bits()),
            collections: Mutex::new(collections),
            directory,
            added: watch::Sender::new(0),
        }
    }

    /// Whether any database has settings.
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    pub fn settings(&self, database: &str) -> Settings {
        let settings = self.settings.read();
        settings.get(database).cloned().unwrap_or_default()
    }

    pub fn set(&self, database: &str, settings: Settings) {
        let mut all = self.settings.write();
        match settings.is_default() {
            true => all.remove(database),
            false => all.insert(database.to_owned(), settings),
        };
        self.is_on.store(!all.is_empty(), Ordering::Relaxed);
    }

    pub fn sample_rate(&self) -> f64 {
        f64::from_bits(self.sample_rate.load(Ordering::Relaxed))
    }

    pub fn set_sample_rate(&self, rate: f64) {
        self.sample_rate.store(rate.to_bits(), Ordering::Relaxed);
    }

    /// Whether a slow operation is one of those that are told of.
    pub fn samples(&self) -> bool {
        let rate = self.sample_rate();
        rate >= 1.0 || rand::random::<f64>() < rate
    }

    pub fn collection(&self, database: &str) -> Option<Arc<ProfileCollection>> {
        self.collections.lock().get(database).cloned()
    }

    /// The databases that have such a collection.
    pub fn databases(&self) -> Vec<String> {
        self.collections.lock().keys().cloned().collect()
    }

    /// Makes the collection; false: it is there already.
    pub fn create(&self, database: &str, bytes_max: u64, documents_max: Option<u64>) -> bool {
        let mut collections = self.collections.lock();
        if collections.contains_key(database) {
            return false;
        }
        let made = ProfileCollection::new(&self.directory, database, bytes_max, documents_max);
        collections.insert(database.to_owned(), Arc::new(made));
        true
    }

    /// Drops the collection; false: there is none.
    pub fn drop_collection(&self, database: &str) -> bool {
        let dropped = self.collections.lock().remove(database);
        if let Some(dropped) = &dropped {
            dropped.remove();
            self.added.send_modify(|count| *count += 1);
        }
        dropped.is_some()
    }

    /// A database goes, with all that is set for it.
    pub fn forget(&self, database: &str) {
        self.set(database, Settings::default());
        self.drop_collection(database);
    }

    /// Keeps an entry. A collection that was dropped meanwhile is made again.
    pub fn add(&self, database: &str, entry: RawDocumentBuf) {
        let collection = match self.collection(database) {
            Some(collection) => collection,
            None => {
                self.create(database, BYTES_DEFAULT, None);
                match self.collection(database) {
                    Some(collection) => collection,
                    None => return,
                }
            }
        };
        collection.add(entry);
        self.added.send_modify(|count| *count += 1);
    }

    /// Changes whenever an entry was added or a collection dropped.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.added.subscribe()
    }

    /// Writes what was added since the last time to the files. May wait for the disk.
    pub fn write_files(&self) {
        let collections: Vec<_> = self.collections.lock().values().cloned().collect();
        for collection in collections {
            if let Err(error) = collection.write() {
                tracing::warn!(%error, "a profile could not be written");
            }
        }
    }
}

/// The options of such a collection, as `listCollections` shows them.
pub fn options(collection: &ProfileCollection) -> RawDocumentBuf {
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let mut options = rawdoc! { "capped": true, "size": number(collection.bytes_max) };
    if let Some(documents) = collection.documents_max {
        options.append(bson::cstr!("max"), number(documents));
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_on_while_some_database_has_settings() {
        let directory = tempfile::tempdir().unwrap();
        let profiler = Profiler::open(directory.path());
        assert!(!profiler.is_on());
        let level = |level| Settings {
            level,
            filter: None,
        };
        profiler.set("a", level(1));
        profiler.set("b", level(2));
        profiler.set("a", level(0));
        assert!(profiler.is_on());
        assert_eq!(profiler.settings("b").level, 2);
        profiler.forget("b");
        assert!(!profiler.is_on());
        profiler.set_sample_rate(0.0);
        assert!(!profiler.samples());
    }
}
