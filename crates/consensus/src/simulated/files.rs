//! The engine's file system: the real one, and, simulated, one that a [`Disk`] decides about.

use std::io::{Error, Read, Result, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use raft_engine::env::{DefaultFileSystem, FileSystem, Handle, Permission, WriteExt};

use super::disk::{Disk, Effect, Outcome};
use super::world::disk_of;

type RealHandle = <DefaultFileSystem as FileSystem>::Handle;
type RealReader = <DefaultFileSystem as FileSystem>::Reader;
type RealWriter = <DefaultFileSystem as FileSystem>::Writer;

pub(crate) struct Files {
    disk: Option<Arc<Disk>>,
}

impl Files {
    /// What this thread uses for a directory.
    pub fn at(dir: &Path) -> Files {
        Files { disk: disk_of(dir) }
    }

    pub fn is_simulated(&self) -> bool {
        self.disk.is_some()
    }

    fn strike(&self, effect: Effect) -> Result<Outcome> {
        self.disk
            .as_ref()
            .map_or(Ok(Outcome::Done), |disk| disk.strike(effect))
    }

    fn stage(&self, path: &Path) -> Result<Option<Staged>> {
        let Some(disk) = &self.disk else {
            return Ok(None);
        };
        disk.opened(path)?;
        Ok(Some(Staged {
            disk: disk.clone(),
            path: Mutex::new(path.to_owned()),
        }))
    }
}

/// A file on a simulated disk.
struct Staged {
    disk: Arc<Disk>,
    path: Mutex<PathBuf>,
}

pub(crate) struct StagedHandle {
    real: Arc<RealHandle>,
    staged: Option<Arc<Staged>>,
}

impl StagedHandle {
    fn resize(&self, length: usize, effect: Effect) -> Result<()> {
        if let Some(staged) = &self.staged {
            if staged.disk.strike(effect)? != Outcome::Done {
                return Ok(());
            }
            staged.disk.resized(&staged.path.lock(), length);
        }
        self.real.truncate(length)
    }
}

impl Handle for StagedHandle {
    fn truncate(&self, offset: usize) -> Result<()> {
        self.resize(offset, Effect::Truncate)
    }

    fn file_size(&self) -> Result<usize> {
        self.real.file_size()
    }

    fn sync(&self) -> Result<()> {
        let Some(staged) = &self.staged else {
            return self.real.sync();
        };
        if staged.disk.strike(Effect::Sync)? == Outcome::Done {
            staged.disk.synced(&staged.path.lock());
        }
        Ok(())
    }
}

pub(crate) struct StagedReader {
    real: RealReader,
    staged: Option<Arc<Staged>>,
}

impl Read for StagedReader {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize> {
        if let Some(staged) = &self.staged {
            staged.disk.strike(Effect::Read)?;
        }
        self.real.read(bytes)
    }
}

impl Seek for StagedReader {
    fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        self.real.seek(to)
    }
}

pub(crate) struct StagedWriter {
    real: RealWriter,
    handle: Arc<StagedHandle>,
    offset: usize,
}

impl Write for StagedWriter {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let mut kept = bytes.len();
        let mut failure = None;
        if let Some(staged) = &self.handle.staged {
            match staged.disk.strike(Effect::Write(bytes.len())) {
                Ok(Outcome::Ignored) => kept = 0,
                Ok(Outcome::Torn(length)) => kept = length.min(kept),
                Ok(_) => {}
                // A write that fails may have begun.
                Err(error) => {
                    kept /= 2;
                    failure = Some(error);
                }
            }
            if kept > 0 {
                let path = staged.path.lock();
                staged.disk.written(&path, self.offset, &bytes[..kept]);
            }
        }
        self.real.write_all(&bytes[..kept])?;
        if let Some(error) = failure {
            self.real.seek(SeekFrom::Start(self.offset as u64))?;
            return Err(error);
        }
        self.offset += bytes.len();
        if kept < bytes.len() {
            self.real.seek(SeekFrom::Start(self.offset as u64))?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Seek for StagedWriter {
    fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        let offset = self.real.seek(to)?;
        self.offset = offset as usize;
        Ok(offset)
    }
}

impl WriteExt for StagedWriter {
    fn truncate(&mut self, offset: usize) -> Result<()> {
        self.handle.truncate(offset)?;
        self.seek(SeekFrom::Start(offset as u64)).map(drop)
    }

    fn allocate(&mut self, offset: usize, size: usize) -> Result<()> {
        if self.handle.staged.is_none() {
            return self.real.allocate(offset, size);
        }
        let length = offset + size;
        if self.handle.file_size()? >= length {
            return Ok(());
        }
        self.handle.resize(length, Effect::Write(0))
    }
}

impl FileSystem for Files {
    type Handle = StagedHandle;
    type Reader = StagedReader;
    type Writer = StagedWriter;

    fn create<P: AsRef<Path>>(&self, path: P) -> Result<StagedHandle> {
        if self.strike(Effect::Create)? != Outcome::Done {
            return Err(Error::other("the machine is dead"));
        }
        let real = Arc::new(DefaultFileSystem.create(&path)?);
        let staged = self.stage(path.as_ref())?.map(Arc::new);
        Ok(StagedHandle { real, staged })
    }

    fn open<P: AsRef<Path>>(&self, path: P, permission: Permission) -> Result<StagedHandle> {
        let real = Arc::new(DefaultFileSystem.open(&path, permission)?);
        let staged = self.stage(path.as_ref())?.map(Arc::new);
        Ok(StagedHandle { real, staged })
    }

    fn delete<P: AsRef<Path>>(&self, path: P) -> Result<()> {
        if self.strike(Effect::Delete)? != Outcome::Done {
            return Ok(());
        }
        DefaultFileSystem.delete(&path)?;
        if let Some(disk) = &self.disk {
            disk.deleted(path.as_ref());
        }
        Ok(())
    }

    fn rename<P: AsRef<Path>>(&self, from: P, to: P) -> Result<()> {
        if self.strike(Effect::Rename)? != Outcome::Done {
            return Ok(());
        }
        DefaultFileSystem.rename(&from, &to)?;
        if let Some(disk) = &self.disk {
            disk.renamed(from.as_ref(), to.as_ref());
        }
        Ok(())
    }

    fn new_reader(&self, handle: Arc<StagedHandle>) -> Result<StagedReader> {
        Ok(StagedReader {
            real: DefaultFileSystem.new_reader(handle.real.clone())?,
            staged: handle.staged.clone(),
        })
    }

    fn new_writer(&self, handle: Arc<StagedHandle>) -> Result<StagedWriter> {
        Ok(StagedWriter {
            real: DefaultFileSystem.new_writer(handle.real.clone())?,
            handle,
            offset: 0,
        })
    }
}

/// Syncs a file that is held open elsewhere.
pub(crate) fn sync(path: &Path) -> Option<Result<()>> {
    let disk = disk_of(path.parent()?)?;
    Some(disk.strike(Effect::Sync).map(|outcome| {
        if outcome == Outcome::Done {
            disk.synced(path);
        }
    }))
}
