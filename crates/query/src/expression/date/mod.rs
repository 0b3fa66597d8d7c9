//! Dates: their parts, their text, and arithmetic with them in a time zone

pub(super) mod arithmetic;
mod calendar;
pub(super) mod parts;
pub(super) mod text;
mod zone;
