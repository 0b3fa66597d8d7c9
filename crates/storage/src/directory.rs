//! The data directory: whose it is, which format it has, and who holds it.
//!
//! ```text
//! BANYAN         "banyan data, format 2": written once, checked on every opening
//! mongod.lock    locked while a server runs; holds its pid
//! state/         the engine
//! log/           the replicated log (not this crate's)
//! ```
//!
//! In format 1 the engine's journal held what was not in tables yet. A directory of it is opened with
//! its journal, and becomes one of format 2 as soon as all of that is in tables.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_128;

use crate::OpenError;

pub const FORMAT_VERSION: u32 = 2;
/// What is not in tables lies in the engine's journal.
const JOURNALED_FORMAT: u32 = 1;

const FORMAT_FILE: &str = "BANYAN";
const FORMAT_PREFIX: &str = "banyan data, format ";
const LOCK_FILE: &str = "mongod.lock";
/// Names the file that lists the tables of a keyspace.
const CURRENT_FILE: &str = "current";
const STATE_DIRECTORY: &str = "state";
/// Complete ones where nothing is missing: records, indexes, meta, and the engine's own.
const KEYSPACES: usize = 4;

/// A data directory that this process has locked. The lock goes with the value.
#[derive(Debug)]
pub(crate) struct DataDirectory {
    path: PathBuf,
    format: u32,
    lock: File,
}

impl DataDirectory {
    /// Checks and locks `path`. A directory that is empty (but for what may lie around in any
    /// directory) becomes one of ours.
    pub(crate) fn open(path: &Path) -> Result<DataDirectory, OpenError> {
        let io = |source| OpenError::Io {
            path: path.to_owned(),
            source,
        };
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => {}
            Ok(_) => {
                return Err(OpenError::NotADirectory {
                    path: path.to_owned(),
                });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(OpenError::Missing {
                    path: path.to_owned(),
                });
            }
            Err(error) => return Err(io(error)),
        }
        let format = check_format(path)?;
        if format.is_none()
            && let Some(found) = foreign_entry(path).map_err(io)?
        {
            return Err(OpenError::Foreign {
                path: path.to_owned(),
                found,
            });
        }
        let lock = lock(path)?;
        if format.is_none() {
            write_format(path).map_err(io)?;
        }
        Ok(DataDirectory {
            path: path.to_owned(),
            format: format.unwrap_or(FORMAT_VERSION),
            lock,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.path.join(STATE_DIRECTORY)
    }

    pub(crate) fn is_of_earlier_format(&self) -> bool {
        self.format < FORMAT_VERSION
    }

    /// Says that the directory has the newest format: all that its journal held is in tables.
    pub(crate) fn upgrade(&self) -> io::Result<()> {
        write_format(&self.path)
    }

    /// A keyspace that has lost the file that says which of its tables count, if any has. The engine
    /// would take it for one that has just been made, and show nothing of it.
    ///
    /// One that is being removed loses the file first, but not before all that take its place are
    /// there: then nothing is missing.
    pub(crate) fn headless_keyspace(&self) -> io::Result<Option<PathBuf>> {
        let mut complete = 0;
        let mut headless = None;
        for keyspace in self.keyspaces()? {
            if keyspace.join(CURRENT_FILE).try_exists()? {
                complete += 1;
                continue;
            }
            let tables = fs::read_dir(keyspace.join("tables"));
            let has_tables = tables.is_ok_and(|mut tables| tables.next().is_some());
            // The first version is written before the file that names it: a crash may lie between.
            if has_tables || keyspace.join("v1").exists() {
                headless = Some(keyspace);
            }
        }
        Ok(headless.filter(|_| complete < KEYSPACES))
    }

    /// A file that lists the tables of a keyspace and is not as it was written, if any is. The engine
    /// notes a checksum of it beside its name, and does not hold the file against that: it would show
    /// what tables the damaged list names.
    pub(crate) fn altered_version(&self) -> io::Result<Option<PathBuf>> {
        for keyspace in self.keyspaces()? {
            let current = match fs::read(keyspace.join(CURRENT_FILE)) {
                Ok(current) => current,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            // The version, the checksum of its file, and the kind of the checksum.
            let Some((version, rest)) = current.split_first_chunk() else {
                continue;
            };
            let version = keyspace.join(format!("v{}", u64::from_le_bytes(*version)));
            // The engine says that it is missing.
            if !version.try_exists()? {
                continue;
            }
            let noted = rest.first_chunk().map(|noted| u128::from_le_bytes(*noted));
            if noted != Some(xxh3_128(&fs::read(&version)?)) {
                return Ok(Some(version));
            }
        }
        Ok(None)
    }

    /// Where the engine has its keyspaces; none where there is no state yet.
    fn keyspaces(&self) -> io::Result<Vec<PathBuf>> {
        match fs::read_dir(self.state().join("keyspaces")) {
            Ok(keyspaces) => keyspaces.map(|entry| Ok(entry?.path())).collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

impl Drop for DataDirectory {
    fn drop(&mut self) {
        // An empty lock file tells the next start that this one ended in good order.
        let _ = self.lock.set_len(0);
        let _ = self.lock.unlock();
    }
}

/// Which format the directory has, one that we read. `None`: it is not ours.
fn check_format(path: &Path) -> Result<Option<u32>, OpenError> {
    let text = match fs::read_to_string(path.join(FORMAT_FILE)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => String::new(),
        Err(source) => {
            return Err(OpenError::Io {
                path: path.to_owned(),
                source,
            });
        }
    };
    let version = text
        .strip_prefix(FORMAT_PREFIX)
        .and_then(|rest| rest.trim_end().parse().ok());
    match version {
        Some(format @ JOURNALED_FORMAT..=FORMAT_VERSION) => Ok(Some(format)),
        Some(found) => Err(OpenError::FormatVersion {
            path: path.to_owned(),
            found,
            supported: FORMAT_VERSION,
        }),
        None => Err(OpenError::Damaged {
            path: path.to_owned(),
            reason: format!("{FORMAT_FILE} does not name a format version"),
        }),
    }
}

fn write_format(path: &Path) -> io::Result<()> {
    let partial = path.join(format!(".{FORMAT_FILE}.partial"));
    let mut file = File::create(&partial)?;
    writeln!(file, "{FORMAT_PREFIX}{FORMAT_VERSION}")?;
    file.sync_all()?;
    fs::rename(&partial, path.join(FORMAT_FILE))?;
    File::open(path)?.sync_all()
}

/// The first entry that shows the directory to be in somebody else's use.
fn foreign_entry(path: &Path) -> io::Result<Option<String>> {
    let harmless = |name: &str| {
        name.starts_with('.')
            || name == LOCK_FILE
            || name == "lost+found"
            || name.ends_with(".pid")
            || name.contains(".log")
    };
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !harmless(&name) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

fn lock(path: &Path) -> Result<File, OpenError> {
    let io = |source| OpenError::Io {
        path: path.to_owned(),
        source,
    };
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path.join(LOCK_FILE))
        .map_err(io)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            let _ = file.read_to_string(&mut text);
            let pid = text.trim().parse().ok();
            return Err(OpenError::Locked {
                path: path.to_owned(),
                pid,
            });
        }
        Err(TryLockError::Error(source)) => return Err(io(source)),
    }
    file.set_len(0).map_err(io)?;
    file.rewind().map_err(io)?;
    writeln!(file, "{}", std::process::id()).map_err(io)?;
    Ok(file)
}
