//! JavaScript over documents: V8, and everything that may name it.
//!
//! Read in this order:
//!
//! * [`evaluate`]: a source becomes a value or a function, or a [`ScriptError`].
//! * [`bindings`]: the shell's types in JavaScript, BSON to V8 and back. The shell uses this
//!   in its own process.
//! * [`runtime`]: one isolate with contexts that have these types, and its limits.
//! * [`hosts`]: the data node's side of map-reduce and of functions in queries. Scripts run in
//!   host processes that are pooled, bounded and expendable.
//! * [`host`]: the inside of such a process, and `frame` what the two say to each other.
//!
//! The data node never runs a script in its own process: V8 aborts the process it lives in when
//! memory runs out in the wrong place.

pub mod bindings;
mod error;
pub mod evaluate;
mod frame;
pub mod host;
pub mod hosts;
pub mod runtime;

pub use v8;

pub use error::{ConvertError, ScriptError};
pub use host::main as host_main;
pub use hosts::{HostOptions, Hosts, JobError, MapReduceSpec};
pub use runtime::{Runtime, RuntimeOptions};
