//! What a document is: comparison order, dotted paths, index keys, extended JSON.

pub mod compare;
pub mod decimal;
pub mod number;
