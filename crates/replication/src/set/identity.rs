//! Which member a data directory is: a number drawn once and never changed.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use banyan_consensus::PeerId;

use super::options::StartError;

const FILE: &str = "member";

/// Reads the directory's number, or draws one.
///
/// State without a number is state without its log: what the log promised to others (votes,
/// entries) is gone, so the directory must not be used.
pub fn load_or_draw(log_dir: &Path, has_state: bool) -> Result<PeerId, StartError> {
    let path = log_dir.join(FILE);
    let failed = |error: io::Error| StartError(format!("{}: {error}", path.display()));
    match fs::read_to_string(&path) {
        Ok(text) => read(text.trim_end()).ok_or_else(|| {
            StartError(format!(
                "{}: damaged: it holds no member id",
                path.display()
            ))
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound && has_state => Err(StartError(
            format!("{}: the log of this data is missing", path.display()),
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Kept positive, so that it's the same number in BSON's signed integers.
            let id = (rand::random::<u64>() >> 1).max(1);
            write(&path, id).map_err(failed)?;
            Ok(id)
        }
        Err(error) => Err(failed(error)),
    }
}

/// The number and its checksum, in hexadecimal: a member with another's number would vote in its
/// name. Directories that were made before there was a checksum hold the number alone.
fn read(text: &str) -> Option<PeerId> {
    let (number, sum) = match text.split_once(' ') {
        Some((number, sum)) => (number, Some(sum)),
        None => (text, None),
    };
    let is_sound =
        |sum: &str| u32::from_str_radix(sum, 16) == Ok(crc32c::crc32c(number.as_bytes()));
    if number.len() != 16 || !sum.is_none_or(is_sound) {
        return None;
    }
    u64::from_str_radix(number, 16).ok().filter(|&id| id != 0)
}

fn write(path: &Path, id: PeerId) -> io::Result<()> {
    let draft = path.with_extension("draft");
    let mut file = fs::File::create(&draft)?;
    let number = format!("{id:016x}");
    writeln!(file, "{number} {:08x}", crc32c::crc32c(number.as_bytes()))?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    match path.parent() {
        Some(parent) => fs::File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_keeps_its_number_and_damage_is_seen() {
        let dir = std::env::temp_dir().join(format!("banyan-identity-{}", rand::random::<u64>()));
        fs::create_dir_all(&dir).unwrap();
        let first = load_or_draw(&dir, false).unwrap();
        assert_eq!(load_or_draw(&dir, true).unwrap(), first);
        let sound = fs::read(dir.join(FILE)).unwrap();
        for bit in 0..8 * (sound.len() - 1) {
            let mut damaged = sound.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            fs::write(dir.join(FILE), &damaged).unwrap();
            // A letter in the other case says the same.
            let read = load_or_draw(&dir, true).ok();
            assert!(read.is_none_or(|id| id == first), "{damaged:?}: {read:?}");
        }
        fs::write(dir.join(FILE), &sound[..16]).unwrap();
        assert_eq!(load_or_draw(&dir, true).unwrap(), first);
        fs::write(dir.join(FILE), "what").unwrap();
        assert!(load_or_draw(&dir, false).is_err());
        fs::remove_file(dir.join(FILE)).unwrap();
        assert!(load_or_draw(&dir, true).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }
}
