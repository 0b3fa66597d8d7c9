//! A note beside the log of how far it was certainly complete: committed, and synced.
//!
//! The engine takes damage near the end of its last file for a write that a crash tore, and cuts
//! it off. Entries that the note vouches for were no torn write; if they are missing, the file was
//! damaged, and the log must not be used.

use std::path::{Path, PathBuf};
use std::{fs, io};

const FILE: &str = "committed";

pub(crate) struct Watermark {
    path: PathBuf,
    /// An index, and the generation of the log that it is about.
    written: (u64, u64),
}

impl Watermark {
    pub fn read(dir: &Path) -> io::Result<Watermark> {
        let path = dir.join(FILE);
        let written = match fs::read_to_string(&path) {
            // Renaming without a sync can leave an empty file after a power cut: no note.
            Ok(text) => parse(&text).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => (0, 0),
            Err(error) => return Err(error),
        };
        Ok(Watermark { path, written })
    }

    /// What is known of a generation of the log.
    pub fn index(&self, generation: u64) -> u64 {
        match self.written {
            (index, about) if about == generation => index,
            _ => 0,
        }
    }

    /// Not synced: an older note is as true as a newer one.
    pub fn write(&mut self, index: u64, generation: u64) -> io::Result<()> {
        if index <= self.index(generation) {
            return Ok(());
        }
        let draft = self.path.with_extension("draft");
        fs::write(&draft, format!("{index} {generation}\n"))?;
        fs::rename(&draft, &self.path)?;
        self.written = (index, generation);
        Ok(())
    }
}

fn parse(text: &str) -> Option<(u64, u64)> {
    let (index, generation) = text.trim().split_once(' ')?;
    Some((index.parse().ok()?, generation.parse().ok()?))
}
