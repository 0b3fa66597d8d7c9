//! Dates: their parts, their text, and arithmetic with them in a time zone

pub(super) mod arithmetic;
mod calendar;
pub(super) mod parts;
mod reader;
pub(super) mod text;
mod written;
mod zone;
