//! JavaScript over documents: V8, and everything that may name it.
//!
//! Read in this order:
//!
//! * [`runtime`]: one isolate with a context, its limits, and what goes wrong in it.
//! * [`bindings`]: the shell's types in JavaScript, BSON to V8 and back. The shell uses this
//!   in its own process.

pub mod bindings;
pub mod runtime;

pub use v8;

pub use runtime::{Runtime, RuntimeOptions, ScriptError};
