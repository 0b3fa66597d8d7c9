//! Putting a key together, field by field, with its type bits.

use bson::RawBsonRef;

use super::encode_typed;
use super::order::FieldOrder;
use super::types::{Key, MISSING, NULL, NoTypes, TypeBits, TypeSink, UNDEFINED};
use crate::collation::Collator;

/// What a key has in a field.
#[derive(Debug, Clone, Copy)]
pub enum KeyField<'a> {
    Value(RawBsonRef<'a>),
    /// As undefined.
    EmptyArray,
    /// As null. The path leads through so many documents, one in the other.
    Missing {
        documents: usize,
    },
}

impl<'a> KeyField<'a> {
    /// The value that stands for it in the key.
    pub fn as_value(self) -> RawBsonRef<'a> {
        match self {
            KeyField::Value(value) => value,
            KeyField::EmptyArray => RawBsonRef::Undefined,
            KeyField::Missing { .. } => RawBsonRef::Null,
        }
    }
}

#[derive(Clone, Default)]
pub struct KeyBuilder {
    bytes: Vec<u8>,
    types: TypeBits,
}

impl KeyBuilder {
    pub fn with_capacity(bytes: usize) -> KeyBuilder {
        KeyBuilder {
            bytes: Vec::with_capacity(bytes),
            types: TypeBits::default(),
        }
    }

    /// A value that nobody reads: a hash, a path.
    pub fn push_opaque(&mut self, value: RawBsonRef<'_>) {
        encode_typed(value, None, &mut NoTypes, &mut self.bytes);
    }

    pub fn push(&mut self, field: KeyField<'_>, order: FieldOrder, collator: Option<&Collator>) {
        let start = self.bytes.len();
        let types = &mut self.types;
        match field {
            KeyField::Value(RawBsonRef::Null) => types.other(NULL, &[]),
            KeyField::Value(RawBsonRef::Undefined) => types.other(UNDEFINED, &[]),
            KeyField::EmptyArray | KeyField::Missing { documents: 0 } => types.usual(),
            KeyField::Missing { documents } => {
                types.other(MISSING, &[u8::try_from(documents).unwrap_or(u8::MAX)]);
            }
            KeyField::Value(_) => {}
        }
        encode_typed(field.as_value(), collator, types, &mut self.bytes);
        if order == FieldOrder::Descending {
            for byte in &mut self.bytes[start..] {
                *byte = !*byte;
            }
        }
    }

    pub fn finish(self) -> Key {
        Key {
            bytes: self.bytes,
            types: self.types.finish(),
        }
    }
}
