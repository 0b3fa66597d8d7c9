//! What a machine forgets when its power goes: what was written and not synced.
//!
//! A killed process leaves all that to the operating system, which still writes it. So the preloaded
//! library remembers how to take unsynced writes back, and here they are taken back, file by file, all
//! of them or those after some moment. Names (created, renamed, removed files) stay as they are.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result};
use rand::Rng;
use rand::rngs::StdRng;

/// Length before, place, count, as `preload/undo.rs` writes them; then so many bytes.
const HEAD_BYTES: usize = 24;

struct Record<'a> {
    length: u64,
    from: u64,
    bytes: &'a [u8],
}

/// Takes back what the process that wrote to `disk` had not synced; none runs now. Tells in how many
/// files something was lost.
pub fn lose_unsynced(disk: &Path, undo: &Path, rng: &mut StdRng) -> Result<usize> {
    let mut lists: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(undo)? {
        lists.push(entry?.path());
    }
    let mut by_file: HashMap<String, Vec<(String, PathBuf)>> = HashMap::new();
    for list in lists {
        let name = list
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let mut parts = name.splitn(3, '-');
        let file: Vec<&str> = parts.by_ref().take(2).collect();
        // Lists that a sync had set aside come in its order, and before the current one.
        let place = parts.next().unwrap_or("~").to_owned();
        by_file
            .entry(file.join("-"))
            .or_default()
            .push((place, list));
    }
    let files = files(disk)?;
    let everything = rng.random_bool(0.5);
    let mut lost = 0;
    let mut names: Vec<_> = by_file.into_iter().collect();
    names.sort();
    for (name, mut lists) in names {
        lists.sort();
        let mut bytes = Vec::new();
        for (_, list) in &lists {
            bytes.extend(fs::read(list)?);
            fs::remove_file(list)?;
        }
        let records = parse(&bytes);
        let kept = if everything {
            0
        } else {
            rng.random_range(0..=records.len())
        };
        if let Some(path) = files.get(&name)
            && kept < records.len()
        {
            take_back(path, &records[kept..]).with_context(|| path.display().to_string())?;
            lost += 1;
        }
    }
    Ok(lost)
}

/// A record that was cut off belongs to a write that did not happen.
fn parse(mut bytes: &[u8]) -> Vec<Record<'_>> {
    let mut records = Vec::new();
    while let Some((head, rest)) = bytes.split_at_checked(HEAD_BYTES) {
        let number = |place: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&head[place..place + 8]);
            u64::from_ne_bytes(eight)
        };
        let Some((covered, rest)) = rest.split_at_checked(number(16) as usize) else {
            break;
        };
        records.push(Record {
            length: number(0),
            from: number(8),
            bytes: covered,
        });
        bytes = rest;
    }
    records
}

fn take_back(path: &Path, records: &[Record<'_>]) -> Result<()> {
    let file = File::options().write(true).open(path)?;
    for record in records.iter().rev() {
        file.set_len(record.length)?;
        file.write_all_at(record.bytes, record.from)?;
    }
    Ok(())
}

/// Files by the name that the library gives them.
fn files(folder: &Path) -> Result<HashMap<String, PathBuf>> {
    let mut files = HashMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let metadata = fs::symlink_metadata(&path)?;
        if metadata.is_dir() {
            files.extend(self::files(&path)?);
        } else if metadata.is_file() {
            let born = metadata.created()?.duration_since(UNIX_EPOCH)?;
            files.insert(format!("{}-{}", metadata.ino(), born.as_nanos()), path);
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rand::SeedableRng;

    use super::*;
    use crate::control::Control;

    #[test]
    fn unsynced_writes_are_taken_back_and_synced_ones_stay() {
        let folder = tempfile::tempdir().unwrap();
        let (disk, undo) = (folder.path().join("disk"), folder.path().join("undo"));
        fs::create_dir(&disk).unwrap();
        let control = Control::new(folder.path()).unwrap();
        let script = "printf synced > a; sync a; printf ' and more' >> a; printf new > b; \
                      printf x | dd of=a conv=notrunc status=none";
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).current_dir(&disk);
        for (name, value) in control.variables(&disk) {
            shell.env(name, value);
        }
        assert!(shell.status().unwrap().success());
        assert_eq!(
            fs::read_to_string(disk.join("a")).unwrap(),
            "xynced and more"
        );
        // Some seed loses everything at once.
        let lost = (0..100).find(|&seed| StdRng::seed_from_u64(seed).random_bool(0.5));
        let mut rng = StdRng::seed_from_u64(lost.unwrap());
        assert_eq!(lose_unsynced(&disk, &undo, &mut rng).unwrap(), 2);
        assert_eq!(fs::read_to_string(disk.join("a")).unwrap(), "synced");
        assert_eq!(fs::read_to_string(disk.join("b")).unwrap(), "");
        assert_eq!(fs::read_dir(&undo).unwrap().count(), 0);
    }
}
