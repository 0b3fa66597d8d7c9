//! JavaScript over documents: V8, and everything that may name it.
//!
//! Read in this order:
//!
//! * [`runtime`]: one isolate with a context, its limits, and what goes wrong in it.
//! * [`bindings`]: the shell's types in JavaScript, BSON to V8 and back. The shell uses this
//!   in its own process.
//! * [`hosts`]: the data node's side of map-reduce and of functions in queries. Scripts run in
//!   host processes that are pooled, bounded and expendable.
//! * [`host`]: the inside of such a process, and `frame` what the two say to each other.
//!
//! The data node never runs a script in its own process: V8 aborts the process it lives in when
//! memory runs out in the wrong place.

pub mod bindings;
mod frame;
pub mod host;
pub mod hosts;
pub mod runtime;

pub use v8;

pub use host::main as host_main;
pub use hosts::{HostOptions, Hosts, JobError, MapReduceSpec};
pub use runtime::{Runtime, RuntimeOptions, ScriptError};
