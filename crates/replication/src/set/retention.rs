//! How much of the log is kept for members that are behind and for those who read it.
//!
//! The size comes from the command line until `replSetResizeOplog` sets another, which is written
//! beside the log and from then on wins, as in MongoDB. The time it is kept is the command line's
//! at every start.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;

use super::options::StartError;
use crate::replica::Replica;

const FILE: &str = "size";

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    pub bytes_max: u64,
    /// Entries younger than this are kept whatever they take.
    pub hours_min: f64,
}

pub struct Retention {
    path: PathBuf,
    limits: Mutex<Limits>,
}

impl Retention {
    /// `limits`: those of the command line.
    pub fn open(log_dir: &Path, mut limits: Limits) -> Result<Retention, StartError> {
        let path = log_dir.join(FILE);
        match fs::read_to_string(&path) {
            Ok(text) => {
                let megabytes = text.trim().parse::<u64>().ok();
                let bytes = megabytes.and_then(|megabytes| megabytes.checked_mul(1 << 20));
                limits.bytes_max = bytes.ok_or_else(|| {
                    StartError(format!("{}: damaged: it holds no size", path.display()))
                })?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(StartError(format!("{}: {error}", path.display()))),
        }
        Ok(Retention {
            path,
            limits: Mutex::new(limits),
        })
    }

    pub fn limits(&self) -> Limits {
        *self.limits.lock()
    }

    /// Makes the group keep to the limits.
    pub fn apply(&self, replica: &Replica) {
        let limits = self.limits();
        let age = Duration::from_secs_f64(limits.hours_min * 3600.0);
        replica.group.set_log_limits(limits.bytes_max, age);
    }

    pub fn set(
        &self,
        replica: &Replica,
        megabytes: Option<u64>,
        hours_min: Option<f64>,
    ) -> io::Result<()> {
        if let Some(megabytes) = megabytes {
            self.write(megabytes)?;
            self.limits.lock().bytes_max = megabytes.saturating_mul(1 << 20);
        }
        if let Some(hours) = hours_min {
            self.limits.lock().hours_min = hours;
        }
        self.apply(replica);
        Ok(())
    }

    fn write(&self, megabytes: u64) -> io::Result<()> {
        let draft = self.path.with_extension("draft");
        let mut file = fs::File::create(&draft)?;
        writeln!(file, "{megabytes}")?;
        file.sync_all()?;
        fs::rename(&draft, &self.path)
    }
}
