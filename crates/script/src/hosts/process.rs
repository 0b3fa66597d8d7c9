//! Starting and ending one host process.
//!
//! A host inherits its sockets and nothing else: no other open file, no environment, no way to
//! gain privileges, no core dumps, no files to write, bounded memory. What else a process may do it
//! gives up itself (`crate::host::sandbox`). It ends when its control socket does, so it never
//! outlives the node, however that ends.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::error::JobError;
use super::options::HostOptions;
use crate::frame::{Kind, write_frame};
use crate::host::{CONTROL_FD, Configuration, EXIT_OUT_OF_MEMORY};

/// How often a job that waits for its host looks whether it was interrupted.
const WAIT_STEP: Duration = Duration::from_millis(25);
/// Beside the heaps: V8's own tables and compiler, stacks, the frames in flight.
const MEMORY_BESIDE_HEAPS_BYTES: usize = 1 << 30;
/// The sockets, the copies that a lane makes of its own, and what the loader opens on the way.
const FILES_BESIDE_LANES: usize = 32;
/// A socket's buffer: enough that the two sides seldom wait for each other.
const SOCKET_BUFFER_BYTES: libc::c_int = 1 << 20;

pub struct Host {
    pub process: Arc<Process>,
    pub lanes: Vec<Arc<UnixStream>>,
    /// Held open: its end is the host's end.
    _control: UnixStream,
}

/// The process itself, shared with the threads that may have to end it.
pub struct Process {
    child: Mutex<Child>,
    id: u32,
}

impl Host {
    pub fn start(options: &HostOptions) -> Result<Host, JobError> {
        start(options).map_err(|error| JobError::Start {
            reason: error.to_string(),
        })
    }

    pub fn is_alive(&mut self) -> bool {
        matches!(self.process.child.lock().try_wait(), Ok(None))
    }

    pub fn process_id(&self) -> u32 {
        self.process.id
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.process.kill();
        let _ = self.process.child.lock().wait();
    }
}

impl Process {
    pub fn kill(&self) {
        // It may have ended by itself.
        let _ = self.child.lock().kill();
    }

    /// Why the host is gone; called once its sockets have ended. One that only closed them, if
    /// that can be, goes now.
    pub fn autopsy(&self) -> JobError {
        self.kill();
        match self.child.lock().wait() {
            Ok(status) if status.code() == Some(EXIT_OUT_OF_MEMORY) => JobError::OutOfMemory,
            Ok(status) => JobError::HostDied {
                how: describe(status),
            },
            Err(error) => JobError::HostDied {
                how: error.to_string(),
            },
        }
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "cause unknown".to_string(),
    }
}

fn start(options: &HostOptions) -> io::Result<Host> {
    let (control, control_theirs) = UnixStream::pair()?;
    let mut lanes = Vec::with_capacity(options.lanes);
    let mut theirs = vec![control_theirs];
    for _ in 0..options.lanes {
        let (ours, other) = UnixStream::pair()?;
        enlarge(&ours)?;
        enlarge(&other)?;
        ours.set_read_timeout(Some(WAIT_STEP))?;
        lanes.push(Arc::new(ours));
        theirs.push(other);
    }
    let inherited: Vec<RawFd> = theirs.iter().map(AsRawFd::as_raw_fd).collect();
    let limits = Limits {
        memory_bytes: options.lanes * options.heap_bytes_max * 2 + MEMORY_BESIDE_HEAPS_BYTES,
        files: options.lanes * 4 + FILES_BESIDE_LANES,
    };
    let mut command = Command::new(&options.program);
    command
        .args(&options.arguments)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // SAFETY: between fork and exec only system calls are made; nothing allocates or locks.
    unsafe {
        command.pre_exec(move || {
            hand_over(&inherited)?;
            limits.apply()
        });
    }
    let child = command.spawn()?;
    let id = child.id();
    let process = Arc::new(Process {
        child: Mutex::new(child),
        id,
    });
    let host = Host {
        process,
        lanes,
        _control: control,
    };
    let configuration = Configuration {
        lanes: options.lanes,
        heap_bytes_max: options.heap_bytes_max,
    };
    write_frame(
        &mut &host._control,
        Kind::Configure,
        &configuration.to_bytes(),
    )?;
    Ok(host)
}

fn enlarge(socket: &UnixStream) -> io::Result<()> {
    let size = SOCKET_BUFFER_BYTES;
    // SAFETY: the option's value is a c_int that lives through the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_SNDBUF,
            (&raw const size).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    check(result)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// In the child: puts the sockets where the host looks for them and closes everything else.
/// They go to places above all of theirs first: a place may be taken by one still to be moved.
fn hand_over(sockets: &[RawFd]) -> io::Result<()> {
    let first_free = CONTROL_FD + sockets.len() as RawFd;
    let highest = sockets.iter().copied().fold(first_free, RawFd::max);
    for (index, socket) in sockets.iter().enumerate() {
        let above = highest + 1 + index as RawFd;
        // SAFETY: dup2 takes any numbers. What it closes is not needed in this process.
        check(unsafe { libc::dup2(*socket, above) })?;
    }
    for index in 0..sockets.len() as RawFd {
        // SAFETY: as above. A duplicate is not closed by exec.
        check(unsafe { libc::dup2(highest + 1 + index, CONTROL_FD + index) })?;
    }
    // SAFETY: closes descriptors of this process, which is about to become another program.
    let closed = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first_free as libc::c_uint,
            libc::c_uint::MAX,
            0,
        )
    };
    check(closed as libc::c_int)
}

#[derive(Clone, Copy)]
struct Limits {
    memory_bytes: usize,
    files: usize,
}

impl Limits {
    /// In the child.
    fn apply(self) -> io::Result<()> {
        limit(libc::RLIMIT_DATA, self.memory_bytes)?;
        limit(libc::RLIMIT_NOFILE, self.files)?;
        limit(libc::RLIMIT_CORE, 0)?;
        limit(libc::RLIMIT_FSIZE, 0)?;
        // SAFETY: prctl with these arguments reads no memory.
        check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })
    }
}

fn limit(resource: libc::__rlimit_resource_t, most: usize) -> io::Result<()> {
    let most = most as libc::rlim_t;
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure lives through both calls.
    unsafe {
        check(libc::getrlimit(resource, &mut limit))?;
        limit.rlim_max = limit.rlim_max.min(most);
        limit.rlim_cur = limit.rlim_max;
        check(libc::setrlimit(resource, &limit))
    }
}
