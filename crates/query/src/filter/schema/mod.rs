//! `$jsonSchema`: JSON Schema draft 4 over BSON, as MongoDB has it.
//!
//! A schema is a list of rules; each says something about values of one type and lets all others
//! pass. `keyword.rs` is the table of the keywords and what each becomes; `matching.rs` runs rules
//! over a value.

mod encryption;
mod keyword;
mod matching;
mod parse;
mod rule;
mod type_names;

pub(crate) use matching::first_duplicate;
pub use rule::Schema;
