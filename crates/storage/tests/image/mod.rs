//! What a crash would leave.

use std::path::Path;
use std::{fs, io};

use tempfile::TempDir;

/// The directory as a crash at this moment would leave it: everything that has reached the
/// operating system.
pub fn crash_image(of: &Path) -> TempDir {
    loop {
        let image = tempfile::tempdir().unwrap();
        match copy(of, image.path()) {
            Ok(()) => return image,
            // The engine has removed a file meanwhile: what was copied before may still name it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => panic!("{error}"),
        }
    }
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
