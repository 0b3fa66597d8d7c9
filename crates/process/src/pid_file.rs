//! The file that `--pidfilepath` names.

use std::io;
use std::path::{Path, PathBuf};

/// Removed when the program ends in good order.
pub struct PidFile {
    path: PathBuf,
}

impl PidFile {
    pub fn create(path: &Path) -> io::Result<PidFile> {
        std::fs::write(path, format!("{}\n", std::process::id()))?;
        Ok(PidFile {
            path: path.to_owned(),
        })
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // Left behind, it does no harm: the next start overwrites it.
        let _ = std::fs::remove_file(&self.path);
    }
}
