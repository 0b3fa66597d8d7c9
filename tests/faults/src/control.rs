//! The clock and the disk of one member: the page of memory that its preloaded library looks at.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use banyan_tests::Launch;

#[path = "../preload/layout.rs"]
mod layout;

/// The library that `build.rs` has made.
const LIBRARY: &str = env!("BANYAN_FAULTS_PRELOAD");

pub struct Control {
    page: File,
    path: PathBuf,
    undo: PathBuf,
}

impl Control {
    /// A page in this folder that asks for nothing.
    pub fn new(folder: &Path) -> Result<Self> {
        let path = folder.join("control");
        let options = || {
            File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(&path)
        };
        let page = options().with_context(|| path.display().to_string())?;
        page.set_len(layout::PAGE_BYTES as u64)?;
        let undo = folder.join("undo");
        fs::create_dir(&undo)?;
        let control = Self { page, path, undo };
        control.enough_disk()?;
        Ok(control)
    }

    /// The program, looking at this page; what lies in `disk` can fail.
    pub fn over(&self, launch: Launch, disk: &Path) -> Launch {
        let variables = self.variables(disk);
        variables
            .into_iter()
            .fold(launch, |launch, (name, value)| launch.env(name, value))
    }

    pub fn variables(&self, disk: &Path) -> [(&'static str, PathBuf); 4] {
        [
            ("LD_PRELOAD", LIBRARY.into()),
            (layout::CONTROL_VARIABLE, self.path.clone()),
            (layout::DISK_VARIABLE, disk.to_owned()),
            (layout::UNDO_VARIABLE, self.undo.clone()),
        ]
    }

    /// Where the library remembers what is not yet synced.
    pub fn undo(&self) -> &Path {
        &self.undo
    }

    fn set(&self, offset: usize, value: i64) -> Result<()> {
        self.page
            .write_all_at(&value.to_ne_bytes(), offset as u64)?;
        Ok(())
    }

    pub fn shift_clock(&self, seconds: i64) -> Result<()> {
        self.set(layout::CLOCK_OFFSET_NS, seconds * 1_000_000_000)
    }

    /// No more than these bytes fit from now on.
    pub fn fill_disk(&self, bytes_left: u32) -> Result<()> {
        self.set(layout::DISK_BYTES_LEFT, bytes_left.into())
    }

    pub fn enough_disk(&self) -> Result<()> {
        self.set(layout::DISK_BYTES_LEFT, -1)
    }

    pub fn slow_disk(&self, sync: Duration) -> Result<()> {
        self.set(layout::SYNC_DELAY_MS, i64::try_from(sync.as_millis())?)
    }

    /// How many writes did not fit, so far.
    pub fn refused_writes(&self) -> Result<u64> {
        let mut bytes = [0; 8];
        self.page
            .read_exact_at(&mut bytes, layout::WRITES_REFUSED as u64)?;
        Ok(u64::from_ne_bytes(bytes))
    }
}
