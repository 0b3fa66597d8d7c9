//! Change streams: `$changeStream` in an aggregation.
//!
//! A stream reads the log behind what is applied ([`crate::oplog::reader`]), so it shows what is
//! committed, on any member, and reading holds up no writer. Every operation has a time of its own;
//! a [`token`] names the one after which a client goes on, and holds nothing that another member
//! would not know. [`event`] makes MongoDB's events of operations: what a collection was called, how
//! an update was written and how the document was before lie in the log and beside it
//! ([`crate::machine::names`]). [`scope`] says which of them a stream is about and which end it.
//!
//! [`stream`] yields the rows: each entry is read once, what the rest of the pipeline lets through
//! goes out, and at the end of the log the token moves with the time.

mod event;
mod options;
mod scope;
mod stream;
mod token;

pub use event::ImagesKept;
pub use options::Options;
pub use scope::Scope;
pub use stream::{Progress, Stream};
