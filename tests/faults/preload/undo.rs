//! Remembers how to take back what was written and not yet synced, as a machine that loses its power
//! forgets it.
//!
//! Each file has a list of records in a folder of the harness: what its bytes and its length were
//! before a write. A sync drops those that came before it.

use std::ffi::c_int;
use std::fs::{self, File};
use std::io::Write;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::UNIX_EPOCH;

static FOLDER: OnceLock<PathBuf> = OnceLock::new();
/// One write at a time, so that a record says what was there right before.
static WRITING: Mutex<()> = Mutex::new(());
static SYNCS: AtomicU64 = AtomicU64::new(1);

pub fn use_folder(folder: &Path) {
    // A process that was killed during a sync has left lists that the next sync covers.
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let number = |file: String| file.rsplit_once('-')?.1.parse::<u64>().ok();
    let aside = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|file| file.matches('-').count() == 2)
        .filter_map(number);
    SYNCS.store(aside.max().unwrap_or(0) + 1, Ordering::Relaxed);
    let _ = FOLDER.set(folder.to_owned());
}

/// Held while what was recorded happens.
pub type Recorded = Option<MutexGuard<'static, ()>>;

fn borrowed(fd: c_int) -> ManuallyDrop<File> {
    // SAFETY: the caller's descriptor, which stays its own: this handle is never dropped.
    ManuallyDrop::new(unsafe { File::from_raw_fd(fd) })
}

/// A number may be given to another file once this one is removed; its birth tells them apart.
fn name(file: &File) -> Option<String> {
    let metadata = file.metadata().ok().filter(fs::Metadata::is_file)?;
    let born = metadata.created().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(format!("{}-{}", metadata.ino(), born.as_nanos()))
}

/// Before bytes are written to a file, or it becomes so long.
pub fn record(fd: c_int, from: Option<u64>, bytes: u64) -> Recorded {
    let folder = FOLDER.get()?;
    let guard = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    let file = borrowed(fd);
    let length = file.metadata().ok()?.len();
    let from = from.unwrap_or(length);
    let covered = length.saturating_sub(from).min(bytes);
    let mut record = Vec::with_capacity(24 + covered as usize);
    for number in [length, from, covered] {
        record.extend_from_slice(&number.to_ne_bytes());
    }
    record.resize(24 + covered as usize, 0);
    if covered > 0 {
        // The descriptor may be for writing only.
        let readable = File::open(format!("/proc/self/fd/{fd}")).ok()?;
        readable.read_exact_at(&mut record[24..], from).ok()?;
    }
    let path = folder.join(name(&file)?);
    let mut list = File::options().create(true).append(true).open(path).ok()?;
    list.write_all(&record).ok()?;
    Some(guard)
}

/// The records that a sync makes needless: set aside when it begins.
pub fn begin_sync(fd: c_int) -> Option<(String, u64)> {
    let folder = FOLDER.get()?;
    let _guard = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    let name = name(&borrowed(fd))?;
    let number = SYNCS.fetch_add(1, Ordering::Relaxed);
    // Nothing to rename: nothing was written.
    let _ = fs::rename(
        folder.join(&name),
        folder.join(format!("{name}-{number:020}")),
    );
    Some((name, number))
}

/// It covers what earlier ones cover that have not ended yet.
pub fn end_sync((name, number): &(String, u64)) {
    let Some(folder) = FOLDER.get() else { return };
    let aside = format!("{name}-");
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let file = entry.file_name();
        let earlier = file
            .to_str()
            .and_then(|file| file.strip_prefix(&aside)?.parse::<u64>().ok());
        if earlier.is_some_and(|earlier| earlier <= *number) {
            let _ = fs::remove_file(entry.path());
        }
    }
}
