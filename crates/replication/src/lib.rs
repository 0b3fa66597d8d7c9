//! What a member of a replica set has and does, whoever asks for it: its state, its log, its part
//! in the set.
//!
//! From the bottom up:
//!
//! - [`entry`]: the log entry, what one write amounts to, as bytes; [`sessions`]: what retryable
//!   statements have done, which travels in entries.
//! - [`latches`] keep apart writes that work on the same thing, [`locks`] those of documents and those
//!   of what exists; [`incoming`]: what is on its way into capped collections.
//! - [`machine`]: the state machine, which makes storage batches of committed entries;
//!   [`op_observer`]: who is told of what they change.
//! - [`replica`]: state, log and latches of this member, and [`propose`], by which all writes go.
//! - [`write`]: from a statement to an entry, and from a change of what exists.
//! - [`time_series`]: which collections are such, and which of their buckets are open; [`views`]: the
//!   definitions of views, of which those are some.
//! - [`oplog`] reads the log as MongoDB's, [`change_stream`] as events; [`snapshots`] keeps states
//!   whose time clients were told.
//! - [`set`]: members, elections, joins, and who has what.
//!
//! Nothing here knows a command, a cursor, or a request of a server.

pub mod change_stream;
pub mod clock;
mod codec;
pub mod entry;
pub mod errors;
pub mod incoming;
pub mod latches;
pub mod locks;
pub mod machine;
pub mod op_observer;
pub mod oplog;
pub mod propose;
pub mod replica;
pub mod sessions;
pub mod set;
pub mod snapshots;
pub mod time_series;
pub mod views;
pub mod virtual_collections;
pub mod write;
