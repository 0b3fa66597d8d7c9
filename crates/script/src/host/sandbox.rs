//! What a script host may not do, whatever runs in it: open files, make sockets, start processes,
//! send signals to others.
//!
//! V8 keeps scripts from all of this. The sandbox is for the day on which a script finds a fault of
//! V8 and runs machine code of its own. It is put up in three steps, as a process can only give up
//! what all of its threads have yet to use:
//!
//! 1. [`give_up_user`]: a host of root becomes nobody.
//! 2. [`restrict_files`], before there are other threads: Landlock leaves time zones to read, and
//!    no place to write, bind or connect.
//! 3. [`restrict_calls`], once all threads are there: seccomp leaves the system calls that memory,
//!    locks, clocks and open sockets need.
//!
//! A kernel that has no Landlock or no seccomp leaves its step out; [`missing`] says so, for the
//! log of the data node. A step that the kernel has and that fails ends the host.

use std::collections::BTreeMap;
use std::io;

use landlock::{
    ABI, Access, AccessFs, AccessNet, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, Scope,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

/// The ids of "nobody" and "nogroup", which own nothing.
const NOBODY: libc::uid_t = 65534;
/// What V8 reads to know the local time.
const TIME_ZONES: [&str; 3] = ["/etc/localtime", "/etc/timezone", "/usr/share/zoneinfo"];

/// What memory, threads, clocks and open sockets need. Everything else fails with EPERM.
const CALLS: [libc::c_long; 47] = [
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_ppoll,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_shutdown,
    libc::SYS_close,
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_pkey_alloc,
    libc::SYS_pkey_free,
    libc::SYS_pkey_mprotect,
    libc::SYS_membarrier,
    // A thread of V8 that was made before may take its first steps after, and without them the C
    // library ends the process.
    libc::SYS_rseq,
    libc::SYS_set_robust_list,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getcpu,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getrusage,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// The parts of the sandbox that this kernel has not got, by name.
pub(crate) fn missing() -> Vec<&'static str> {
    let parts = [("Landlock", has_landlock()), ("seccomp", has_seccomp())];
    parts
        .into_iter()
        .filter_map(|(name, there)| (!there).then_some(name))
        .collect()
}

fn has_landlock() -> bool {
    /// Asks which version of the interface there is, and makes no rules.
    const VERSION: libc::c_uint = 1;
    let none: *const libc::c_void = std::ptr::null();
    // SAFETY: with this flag the kernel reads no rules.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0usize, VERSION) };
    version >= 1
}

fn has_seccomp() -> bool {
    let action: u32 = libc::SECCOMP_RET_ERRNO;
    // SAFETY: the kernel reads the number behind the pointer and changes nothing.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_GET_ACTION_AVAIL,
            0,
            &raw const action,
        )
    };
    result == 0 && target().is_some()
}

fn target() -> Option<TargetArch> {
    TargetArch::try_from(std::env::consts::ARCH).ok()
}

/// Of a process of root, for good. Others have no more than their user already.
pub(super) fn give_up_user() -> io::Result<()> {
    // SAFETY: none of these calls reads memory of this process.
    unsafe {
        if libc::geteuid() != 0 {
            return Ok(());
        }
        check(libc::setgroups(0, std::ptr::null()))?;
        check(libc::setresgid(NOBODY, NOBODY, NOBODY))?;
        check(libc::setresuid(NOBODY, NOBODY, NOBODY))
    }
}

/// Of this thread and those that it starts.
pub(super) fn restrict_files() -> io::Result<()> {
    // What a kernel does not know of this, the crate leaves out.
    let newest = ABI::V6;
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(newest))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(newest)))
        .and_then(|rules| rules.scope(Scope::from_all(newest)))
        .and_then(|rules| rules.create())
        .map_err(io::Error::other)?;
    // A path that is not there needs no rule.
    for place in TIME_ZONES
        .into_iter()
        .filter_map(|path| PathFd::new(path).ok())
    {
        let rule = PathBeneath::new(place, AccessFs::ReadFile | AccessFs::ReadDir);
        rules = rules.add_rule(rule).map_err(io::Error::other)?;
    }
    rules.restrict_self().map_err(io::Error::other)?;
    Ok(())
}

/// Of all threads of this process, and for good.
pub(super) fn restrict_calls() -> io::Result<()> {
    match has_seccomp() {
        true => seccompiler::apply_filter_all_threads(&filter()?).map_err(io::Error::other),
        false => Ok(()),
    }
}

fn filter() -> io::Result<BpfProgram> {
    let target = target().ok_or(io::ErrorKind::Unsupported)?;
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        CALLS.iter().map(|&call| (call, Vec::new())).collect();
    // An abort of this process sends itself a signal.
    let own = equals(0, u64::from(std::process::id()))?;
    rules.insert(libc::SYS_tgkill, vec![own]);
    // A lane copies its socket, and the standard library looks whether a file is open.
    let on_files = [libc::F_DUPFD_CLOEXEC, libc::F_GETFD];
    let on_files: io::Result<Vec<_>> = on_files
        .iter()
        .map(|&what| equals(1, what as u64))
        .collect();
    rules.insert(libc::SYS_fcntl, on_files?);
    // A thread's name, and names of memory.
    let names = [libc::PR_SET_NAME, libc::PR_SET_VMA];
    let names: io::Result<Vec<_>> = names.iter().map(|&name| equals(0, name as u64)).collect();
    rules.insert(libc::SYS_prctl, names?);
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    SeccompFilter::new(rules, refused, SeccompAction::Allow, target)
        .and_then(BpfProgram::try_from)
        .map_err(io::Error::other)
}

fn equals(argument: u8, value: u64) -> io::Result<SeccompRule> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
        .and_then(|condition| SeccompRule::new(vec![condition]))
        .map_err(io::Error::other)
}

fn check(result: libc::c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::net::TcpStream;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::process::Command;

    use super::*;

    /// Both restrictions hold for a thread and what it starts: the test's own goes on without.
    #[test]
    fn a_restricted_thread_reaches_nothing() {
        assert_eq!(
            missing(),
            Vec::<&str>::new(),
            "this kernel cannot be tested on"
        );
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "data").unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            // SAFETY: prctl with these arguments reads no memory.
            unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
            File::open(&path).unwrap();
            restrict_files().unwrap();
            let denied = File::open(&path).unwrap_err();
            assert_eq!(denied.raw_os_error(), Some(libc::EACCES));
            assert!(File::create(folder.path().join("new")).is_err());
            assert!(TcpStream::connect(address).is_err());
            let (ours, _theirs) = UnixStream::pair().unwrap();

            seccompiler::apply_filter(&filter().unwrap()).unwrap();
            let denied = [
                File::open("/etc/localtime").map(drop),
                TcpStream::connect(address).map(drop),
                UnixStream::pair().map(drop),
                Command::new("/bin/true").spawn().map(drop),
                // SAFETY: sends nothing; it asks whether it might.
                check(unsafe { libc::kill(libc::getppid(), 0) }),
                // SAFETY: reads and writes no memory of this process.
                check(unsafe { libc::fcntl(ours.as_raw_fd(), libc::F_SETFL, 0) }),
            ];
            for (at, denied) in denied.into_iter().enumerate() {
                let code = denied.unwrap_err().raw_os_error();
                assert_eq!(code, Some(libc::EPERM), "attempt {at}");
            }
            // What a lane does all the time.
            ours.try_clone().unwrap();
            drop(vec![1u8; 64 << 20]);
            std::thread::yield_now();
            assert!(std::time::Instant::now().elapsed().as_secs() < 60);
        })
        .join()
        .unwrap();
    }
}
