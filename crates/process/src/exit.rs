//! How a program ends that cannot go on.

use std::io::Write;

use tracing::error;

use crate::logging;

/// Why a program ends, as MongoDB's exit codes have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    BadOptions = 2,
    /// An error that cannot be recovered from.
    Abrupt = 14,
    /// The port can't be listened on.
    Network = 48,
    /// Something that should not have happened; a data directory that can't be used.
    Uncaught = 100,
}

/// Says the reason in the log (on the error stream as well, for whoever typed the command) and
/// ends the process.
pub fn fail(exit: Exit, reason: &str) -> ! {
    if logging::log().is_some() {
        error!(code = exit as i32, "{reason}");
    }
    complain(reason);
    std::process::exit(exit as i32);
}

pub(crate) fn complain(reason: &str) {
    // Nobody may be listening there.
    let _ = writeln!(std::io::stderr(), "{reason}");
}
