//! What a crash would leave.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use tempfile::TempDir;

/// The directory as a crash at this moment would leave it: everything that has reached the
/// operating system.
///
/// The engine may write and merge tables meanwhile. A copy with a list of tables from before and
/// tables from after that is what no crash leaves: it is made again if files came or went.
pub fn crash_image(of: &Path) -> TempDir {
    loop {
        let image = tempfile::tempdir().unwrap();
        match copy_unless_changing(of, image.path()) {
            Ok(true) => return image,
            Ok(false) => {}
            // The engine has removed a file meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn copy_unless_changing(from: &Path, to: &Path) -> io::Result<bool> {
    let before = files(from)?;
    copy(from, to)?;
    Ok(files(from)? == before)
}

fn files(of: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(of)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.extend(files(&entry.path())?);
        }
        found.insert(entry.path());
    }
    Ok(found)
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
