//! What every program of Banyan does around its real work.
//!
//! A program's `main` reads: [`options::parse`] (flags, merged with a configuration file),
//! [`start`] (fork before any thread exists, log, pid file), then a runtime, then
//! [`signals::shutdown_token`], its server, and [`Started::ready`] once it listens. What ends a
//! program early goes through [`fail`], so that the exit codes are MongoDB's.

pub mod audit;
mod cluster_auth;
pub mod daemon;
mod exit;
pub mod figures;
pub mod limits;
pub mod lock;
pub mod logging;
pub mod machine;
pub mod member;
mod memory;
pub mod options;
pub mod pid_file;
pub mod scheduling;
pub mod settings;
pub mod signals;
mod start;
mod syslog;
pub mod tls;

pub use cluster_auth::ClusterAuthMode;
pub use exit::{Exit, fail};
pub use member::MemberFlags;
pub use options::{CommonFlags, Parsed};
pub use start::{Started, start};
pub use tls::{TlsFlags, TlsMode};

/// A server's small, short-lived allocations on many threads are what this allocator is made for;
/// point operations spent about a tenth of their time in the C library's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
