//! What the bytes of a key lose of its values: `1`, `1.0` and `NumberDecimal("1.00")` are one key.
//!
//! A key that is to be read again has *type bits* beside it: a code for each of its values of which
//! the bytes alone do not tell the type, in their order. The usual type has the code zero, and
//! zeros at the end are left out, so that most keys have no type bits at all.
//!
//! | value | usual | codes |
//! | --- | --- | --- |
//! | whole number that fits an int | int | [`LONG`], [`DOUBLE`], [`NEGATIVE_ZERO`], [`DECIMAL`] |
//! | whole number below 2^55, or one that no double is | long | [`DOUBLE`], [`DECIMAL`] |
//! | any other number, NaN | double | [`LONG`], [`DOUBLE_BITS`], [`DECIMAL`] |
//! | text | string | [`SYMBOL`] |
//! | null in a field of the key | there is no such field | [`NULL`], [`MISSING`] |
//! | undefined in a field of the key | an empty array | [`UNDEFINED`] |

use std::ops::Deref;

pub(super) const USUAL: u8 = 0;
pub(super) const LONG: u8 = 1;
pub(super) const DOUBLE: u8 = 2;
pub(super) const NEGATIVE_ZERO: u8 = 3;
/// A NaN other than the usual one; its eight bytes follow.
pub(super) const DOUBLE_BITS: u8 = 4;
/// Its sixteen bytes follow.
pub(super) const DECIMAL: u8 = 5;
pub(super) const SYMBOL: u8 = 6;
pub(super) const NULL: u8 = 7;
/// There is no such field; how many documents its path leads through follows in a byte.
pub(super) const MISSING: u8 = 8;
pub(super) const UNDEFINED: u8 = 9;

/// An encoded key and its type bits.
///
/// Keys are the same to an index if their bytes are; their order is that of the bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Key {
    pub bytes: Vec<u8>,
    pub types: Box<[u8]>,
}

impl Deref for Key {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Who is told of types while a key is encoded.
pub(super) trait TypeSink {
    fn usual(&mut self);
    fn other(&mut self, code: u8, rest: &[u8]);
}

/// For keys that are compared and never read.
pub(super) struct NoTypes;

impl TypeSink for NoTypes {
    fn usual(&mut self) {}
    fn other(&mut self, _: u8, _: &[u8]) {}
}

/// Type bits while they are written.
#[derive(Clone, Default)]
pub(super) struct TypeBits {
    bytes: Vec<u8>,
    /// Codes of zero that are written once something follows.
    usual: usize,
}

impl TypeBits {
    pub fn finish(self) -> Box<[u8]> {
        self.bytes.into_boxed_slice()
    }
}

impl TypeSink for TypeBits {
    fn usual(&mut self) {
        self.usual += 1;
    }

    fn other(&mut self, code: u8, rest: &[u8]) {
        self.bytes
            .resize(self.bytes.len() + std::mem::take(&mut self.usual), USUAL);
        self.bytes.push(code);
        self.bytes.extend_from_slice(rest);
    }
}
