//! The lock file in a data directory: one process at a time, and `--shutdown` finds it by its id.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const NAME: &str = "mongod.lock";
/// How long a process gets to end in good order.
const SHUTDOWN_WAIT: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("{path}: another process (pid {pid}) is using this data directory")]
    Held { path: PathBuf, pid: String },
    #[error("cannot lock {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
}

#[derive(Debug, thiserror::Error)]
pub enum ShutdownError {
    #[error("There doesn't seem to be a server running with dbpath: {0}")]
    NotRunning(PathBuf),
    #[error("cannot signal process {pid}: {source}")]
    Signal { pid: i32, source: Errno },
    #[error("process {pid} is still running after {SHUTDOWN_WAIT:?}")]
    StillRunning { pid: i32 },
}

/// Held for as long as this lives; the file is emptied on a clean end.
#[derive(Debug)]
pub struct DataLock {
    file: Flock<File>,
}

impl DataLock {
    pub fn take(directory: &Path) -> Result<DataLock, LockError> {
        let path = directory.join(NAME);
        let failed = |source: io::Error| LockError::Io {
            path: path.clone(),
            source,
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        let mut file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => file,
            Err((mut file, Errno::EWOULDBLOCK)) => {
                let mut pid = String::new();
                file.read_to_string(&mut pid).map_err(failed)?;
                return Err(LockError::Held {
                    path,
                    pid: pid.trim().to_owned(),
                });
            }
            Err((_, error)) => return Err(failed(error.into())),
        };
        file.set_len(0)
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .map_err(failed)?;
        Ok(DataLock { file })
    }
}

impl Drop for DataLock {
    fn drop(&mut self) {
        // What stays behind names a process that is gone, and the next one overwrites it.
        let _ = self.file.set_len(0).and_then(|()| self.file.rewind());
    }
}

/// `--shutdown`: ends the server of this data directory and waits until it is gone.
pub fn shut_down(directory: &Path) -> Result<(), ShutdownError> {
    let not_running = || ShutdownError::NotRunning(directory.to_owned());
    let text = std::fs::read_to_string(directory.join(NAME)).map_err(|_| not_running())?;
    let pid: i32 = text.trim().parse().map_err(|_| not_running())?;
    // A file that nobody holds is of a process that was killed; its id may be somebody else's now.
    if pid <= 1 || !is_held(directory) {
        return Err(not_running());
    }
    println!("killing process with pid: {pid}");
    let process = Pid::from_raw(pid);
    match kill(process, Signal::SIGTERM) {
        Ok(()) => {}
        Err(Errno::ESRCH) => return Err(not_running()),
        Err(source) => return Err(ShutdownError::Signal { pid, source }),
    }
    let started = Instant::now();
    while is_held(directory) && kill(process, None).is_ok() {
        if started.elapsed() > SHUTDOWN_WAIT {
            return Err(ShutdownError::StillRunning { pid });
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn is_held(directory: &Path) -> bool {
    let Ok(file) = File::open(directory.join(NAME)) else {
        return false;
    };
    Flock::lock(file, FlockArg::LockSharedNonblock).is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_at_a_time() {
        let dir = std::env::temp_dir().join(format!("banyan-lock-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        assert!(matches!(shut_down(&dir), Err(ShutdownError::NotRunning(_))));
        let lock = DataLock::take(&dir).unwrap();
        let error = DataLock::take(&dir).unwrap_err();
        let pid = std::process::id().to_string();
        assert!(
            matches!(&error, LockError::Held { pid: held, .. } if *held == pid),
            "{error}"
        );
        assert!(is_held(&dir));
        drop(lock);
        assert!(!is_held(&dir));
        assert!(matches!(shut_down(&dir), Err(ShutdownError::NotRunning(_))));
        std::fs::write(dir.join(NAME), "1234567\n").unwrap();
        assert!(matches!(shut_down(&dir), Err(ShutdownError::NotRunning(_))));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
