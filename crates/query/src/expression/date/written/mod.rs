//! Dates as people write them, by themselves: what `$dateFromString` reads without a format, and
//! `$toDate` of a string.
//!
//! A text is a row of parts in any order (a day, a time, a zone, a weekday, a step from there), each
//! of them in one of many forms (`forms.rs`). Where several forms fit, the longest one counts, and of
//! those the first: so the reference's library reads them, and so odd texts mean the same here.

mod forms;
mod scan;
mod zones;

pub(super) use scan::{Unread, read};
pub(super) use zones::abbreviated;
