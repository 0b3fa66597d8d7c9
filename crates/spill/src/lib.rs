//! Where queries go that do not fit into memory: files without a name, in a directory of the
//! process. They are gone when they are closed, and so when the process ends, however it does.
//!
//! Blocks are compressed where that makes them smaller.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use banyan_process::machine;
use banyan_query::spill::{SpillFile, SpillStore};
use banyan_query::{ErrorKind, Memory, QueryError};
use snap::raw::{Decoder, Encoder, max_compress_len};

/// What stands before a block: how many bytes are stored, and how many they become.
const HEAD_BYTES: usize = 8;

/// The memory that the queries of a process may use: half of the machine's if it is known, and
/// what does not fit goes into files of this directory.
pub fn memory(directory: &Path) -> Arc<Memory> {
    let bytes_max = machine::memory_limit_bytes()
        .and_then(|bytes| usize::try_from(bytes / 2).ok())
        .unwrap_or(usize::MAX);
    let store = SpillDirectory::new(directory);
    Arc::new(Memory::new(Some(Box::new(store)), bytes_max))
}

/// Makes nameless files in a directory.
#[derive(Debug)]
pub struct SpillDirectory(PathBuf);

impl SpillDirectory {
    /// The directory is made when it is needed.
    pub fn new(directory: &Path) -> SpillDirectory {
        SpillDirectory(directory.to_owned())
    }
}

impl SpillStore for SpillDirectory {
    fn create(&self) -> Result<Box<dyn SpillFile>, QueryError> {
        let open = || {
            fs::create_dir_all(&self.0)?;
            tempfile::tempfile_in(&self.0)
        };
        Ok(Box::new(BlockFile {
            file: open().map_err(failed)?,
            end: 0,
            encoder: Encoder::new(),
            stored: Vec::new(),
        }))
    }
}

struct BlockFile {
    file: File,
    end: u64,
    encoder: Encoder,
    stored: Vec<u8>,
}

impl SpillFile for BlockFile {
    fn append(&mut self, block: &[u8]) -> Result<u64, QueryError> {
        self.stored
            .resize(HEAD_BYTES + max_compress_len(block.len()), 0);
        let compressed = self.encoder.compress(block, &mut self.stored[HEAD_BYTES..]);
        let stored_bytes = match compressed {
            Ok(bytes) if bytes < block.len() => bytes,
            // As it is: as many bytes as it becomes.
            _ => {
                self.stored.truncate(HEAD_BYTES);
                self.stored.extend_from_slice(block);
                block.len()
            }
        };
        let length = |bytes: usize| u32::try_from(bytes).map_err(|_| damaged());
        self.stored[..4].copy_from_slice(&length(stored_bytes)?.to_le_bytes());
        self.stored[4..HEAD_BYTES].copy_from_slice(&length(block.len())?.to_le_bytes());
        let place = self.end;
        let bytes = &self.stored[..HEAD_BYTES + stored_bytes];
        self.file.write_all_at(bytes, place).map_err(failed)?;
        self.end += bytes.len() as u64;
        Ok(place)
    }

    fn read(&self, place: u64, block: &mut Vec<u8>) -> Result<u64, QueryError> {
        let mut head = [0; HEAD_BYTES];
        self.file.read_exact_at(&mut head, place).map_err(failed)?;
        let [a, b, c, d, e, f, g, h] = head;
        let stored_bytes = u32::from_le_bytes([a, b, c, d]) as usize;
        let bytes = u32::from_le_bytes([e, f, g, h]) as usize;
        let next = place + (HEAD_BYTES + stored_bytes) as u64;
        if stored_bytes > bytes || next > self.end {
            return Err(damaged());
        }
        block.resize(bytes, 0);
        let after_head = place + HEAD_BYTES as u64;
        if stored_bytes == bytes {
            self.file.read_exact_at(block, after_head).map_err(failed)?;
            return Ok(next);
        }
        let mut stored = vec![0; stored_bytes];
        self.file
            .read_exact_at(&mut stored, after_head)
            .map_err(failed)?;
        match Decoder::new().decompress(&stored, block) {
            Ok(read) if read == bytes => Ok(next),
            _ => Err(damaged()),
        }
    }
}

fn failed(error: io::Error) -> QueryError {
    let kind = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::OutOfDiskSpace,
        _ => ErrorKind::InternalError,
    };
    QueryError::new(kind, format!("spilling to disk failed: {error}"))
}

fn damaged() -> QueryError {
    QueryError::new(
        ErrorKind::DataCorruptionDetected,
        "what was spilled to disk is damaged",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_read_back_and_no_file_has_a_name() {
        let directory = tempfile::tempdir().unwrap();
        let store = SpillDirectory::new(&directory.path().join("_tmp"));
        let mut file = store.create().unwrap();
        let noise: Vec<u8> = (0..50_000_u32)
            .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        let blocks: [&[u8]; 4] = [b"", b"some words", &noise, &[7; 100_000]];
        let mut places = Vec::new();
        for block in blocks {
            places.push(file.append(block).unwrap());
        }
        let (mut read, mut next) = (Vec::new(), places[0]);
        for block in blocks {
            next = file.read(next, &mut read).unwrap();
            assert_eq!(read, block);
        }
        file.read(places[2], &mut read).unwrap();
        assert_eq!(read, noise);
        assert!(file.read(next, &mut read).is_err());
        // The last block was made much smaller.
        assert!(next - places[3] < 10_000);
        let named = fs::read_dir(directory.path().join("_tmp")).unwrap();
        assert_eq!(named.count(), 0);
    }
}
