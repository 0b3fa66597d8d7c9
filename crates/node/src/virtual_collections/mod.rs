//! Collections that are not stored: what the member keeps in another form, shown as documents.

pub mod config;
pub mod local;
pub mod profile;
