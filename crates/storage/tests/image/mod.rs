//! What a crash would leave.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

/// The directory as a crash at this moment would leave it: everything that has reached the
/// operating system.
pub fn crash_image(of: &Path) -> TempDir {
    fn copy(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let target = to.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                copy(&entry.path(), &target);
            } else {
                fs::copy(entry.path(), target).unwrap();
            }
        }
    }
    let image = tempfile::tempdir().unwrap();
    copy(of, image.path());
    image
}
