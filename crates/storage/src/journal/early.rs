//! Bringing the journal to the disk while it is written.
//!
//! The engine syncs its journal before it writes a table from memory, and lets nobody write
//! meanwhile. For that moment hardly anything is left to sync: whenever some megabytes have come, a
//! thread syncs them through a handle of its own, beside the writes.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::thread::{self, JoinHandle};

use super::{journal_path, newest};

const EVERY_BYTES: u64 = 8 << 20;

/// The thread that syncs. Dropping this ends and joins it.
pub(crate) struct EarlySync {
    written: AtomicU64,
    wake: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl EarlySync {
    pub(crate) fn start(state: PathBuf) -> io::Result<EarlySync> {
        let (wake, woken) = mpsc::sync_channel(1);
        let thread = thread::Builder::new()
            .name("journal-sync".to_owned())
            .spawn(move || {
                while woken.recv().is_ok() {
                    if let Err(error) = sync_newest(&state) {
                        // Whoever needs it on the disk syncs it again, and is told.
                        tracing::warn!(%error, "the state's journal cannot be synced");
                    }
                }
            })?;
        Ok(EarlySync {
            written: AtomicU64::new(0),
            wake: Some(wake),
            thread: Some(thread),
        })
    }

    /// So much more is in the journal, or about to be.
    pub(crate) fn note(&self, bytes: u64) {
        let before = self.written.fetch_add(bytes, Ordering::Relaxed);
        let is_due = before / EVERY_BYTES != (before + bytes) / EVERY_BYTES;
        if let Some(wake) = self.wake.as_ref().filter(|_| is_due) {
            // One that is on its way does for this as well.
            let _ = wake.try_send(());
        }
    }
}

impl Drop for EarlySync {
    fn drop(&mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn sync_newest(state: &Path) -> io::Result<()> {
    let Some(journal) = newest(state)? else {
        return Ok(());
    };
    match File::open(journal_path(state, journal)) {
        Ok(file) => file.sync_data(),
        // It was sealed and its memory written meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}
