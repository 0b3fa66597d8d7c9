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
        // The next process may have written its own id already.
        let own = format!("{}\n", std::process::id());
        if std::fs::read_to_string(&self.path).is_ok_and(|text| text == own) {
            // Left behind, it does no harm: the next start overwrites it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_own_file_is_removed() {
        let path = std::env::temp_dir().join(format!("banyan-pid-{}", std::process::id()));
        drop(PidFile::create(&path).unwrap());
        assert!(!path.exists());
        let file = PidFile::create(&path).unwrap();
        std::fs::write(&path, "1\n").unwrap();
        drop(file);
        assert!(path.exists(), "another process wrote it");
        std::fs::remove_file(&path).unwrap();
    }
}
