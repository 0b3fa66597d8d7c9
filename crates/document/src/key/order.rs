//! The order of one field of a key.

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FieldOrder {
    Ascending,
    Descending,
    Hashed,
}
