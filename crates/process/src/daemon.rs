//! Going to the background: fork before any thread exists, and let the parent wait for the news.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, pipe, setsid};

/// The child's end of the line to its parent, who waits for [`Readiness::tell`].
#[must_use]
pub struct Readiness {
    pipe: Option<File>,
}

impl Readiness {
    /// For a process that stays in the foreground.
    pub fn nobody_waits() -> Readiness {
        Readiness { pipe: None }
    }

    /// The server is up; the parent may end.
    pub fn tell(&mut self) {
        if let Some(mut pipe) = self.pipe.take() {
            // A parent that was killed needs no news.
            let _ = pipe.write_all(&[1]);
        }
    }
}

/// Forks. Returns in the child only; the parent waits until the child is ready or gone and ends
/// with 0 or the child's code.
pub fn go_to_background() -> io::Result<Readiness> {
    println!("about to fork child process, waiting until server is ready for connections.");
    io::stdout().flush()?;
    let (news, teller) = pipe()?;
    // SAFETY: called first thing in main, while the process has one thread.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => {
            drop(teller);
            println!("forked process: {child}");
            wait_for_news(news, child)
        }
        ForkResult::Child => {
            drop(news);
            setsid()?;
            leave_the_terminal()?;
            Ok(Readiness {
                pipe: Some(File::from(teller)),
            })
        }
    }
}

fn wait_for_news(news: OwnedFd, child: Pid) -> ! {
    let mut byte = [0];
    let ready = matches!(File::from(news).read(&mut byte), Ok(1));
    if ready {
        println!("child process started successfully, parent exiting");
        std::process::exit(0);
    }
    // The child closes its end when it is gone; nobody else waits for it.
    let code = match waitpid(child, None) {
        Ok(WaitStatus::Exited(_, code)) if code != 0 => code,
        _ => 1,
    };
    eprintln!("ERROR: child process failed, exited with {code}; the log says why");
    std::process::exit(code);
}

fn leave_the_terminal() -> io::Result<()> {
    let null = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    nix::unistd::dup2_stdin(null.as_fd())?;
    nix::unistd::dup2_stdout(null.as_fd())?;
    nix::unistd::dup2_stderr(null.as_fd())?;
    Ok(())
}
