//! What a document is.
//!
//! A document is validated BSON bytes, read in place. Read in this order: [`validate`] (what comes
//! in from outside), [`element`], [`field_index`] and [`writer`] (reading and writing raw bytes),
//! [`path`] (dotted names and MongoDB's way through arrays), [`compare`] over [`number`], [`decimal`] and
//! [`collation`] (the order of all values), [`kind`] (names of types), [`key`] (the same order as bytes, and the index keys of a document),
//! [`time_series`] (many small documents as one), [`extjson`] (for people), [`mod@prefetch`] (bytes that will be
//! read soon). The crate knows nothing but documents.

pub mod collation;
pub mod compare;
pub mod decimal;
pub mod depth;
pub mod element;
pub mod extjson;
pub mod field_index;
#[cfg(test)]
mod golden;
pub mod key;
pub mod kind;
pub mod number;
pub mod path;
pub mod prefetch;
pub mod time_series;
pub mod validate;
pub mod writer;

pub use collation::{Collation, CollationError, Collator};
pub use compare::{canonical_rank, compare, compare_arrays, compare_collated, compare_documents};
pub use element::{
    Element, Elements, RawField, RawFields, Values, elements, field, first_value, items,
    raw_fields, values,
};
pub use field_index::FieldIndex;
pub use key::{FieldOrder, KeyError, KeyPattern, KeyPatternError, Keys};
pub use number::{Number, is_true};
pub use path::{Path, PathError};
pub use validate::{
    COMMAND_SLACK_BYTES, Invalid, MAX_DEPTH, MAX_DOCUMENT_BYTES, MAX_MESSAGE_BYTES,
    MAX_STORED_DEPTH, validate,
};
pub use writer::DocumentWriter;
