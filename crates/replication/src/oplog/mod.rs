//! The Raft log, read as MongoDB's oplog.
//!
//! An entry of the log holds the operations of one command batch; the oplog has a document for each
//! operation, with a time of its own. [`reader`] finds the entry of a time by binary search, since
//! times grow along the log, and follows the log as far as this member has applied it.
//! [`describe`] makes MongoDB's documents of operations. [`view`] is the collection
//! `local.oplog.rs`: it reads no more than what a filter on `ts` leaves open, and can be tailed.
//!
//! Change streams read through the same [`reader`]. What it reads at the end of the log is kept for
//! a while, with what each entry is about, so that many who follow it cost little more than one
//! ([`recent`]).

pub mod describe;
mod log;
pub mod reader;
pub mod recent;
pub mod view;

pub use log::Log;
pub use reader::{LogReader, ReadError};
pub use recent::{About, Seen};
