//! What a record is known by: a number, given out in the order of insertion, or, in a clustered
//! collection, bytes that sort as the record's `_id` does.
//!
//! Ids keep their order as keys of the engine, and where they follow the fields of an index entry.
//! In a records key they say themselves what they are:
//!
//! | id | in a records key | behind the fields or the type bits of an index entry |
//! | --- | --- | --- |
//! | number (below 2^63) | 8 bytes | 8 bytes |
//! | bytes | 80, then the bytes | the bytes, then their length (u16) |
//!
//! There an id is read from the end, so that its index has to know the form
//! ([`RecordIdFormat`]). The bytes are an encoded value of `banyan_document::key`: none is a prefix
//! of another, and none begins with ff.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use bson::spec::BinarySubtype;
use bson::{RawBinaryRef, RawBsonRef};

/// Bytes up to this length lie in the id itself: an `ObjectId` takes 13, a number up to 10.
const INLINE_BYTES: usize = 22;
const NUMBER_BYTES: usize = 8;
pub(crate) const LENGTH_BYTES: usize = 2;
/// Begins ids of bytes in records keys. Numbers there begin with something lower.
const BYTES_MARK: u8 = 0x80;

/// Cheap to clone. Numbers sort before bytes; no collection has both.
#[derive(Clone)]
pub struct RecordId(Form);

#[derive(Clone)]
enum Form {
    Number(u64),
    Inline {
        length: u8,
        bytes: [u8; INLINE_BYTES],
    },
    Shared(Arc<[u8]>),
}

/// An id looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RecordIdRef<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// What all ids of a collection are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RecordIdFormat {
    #[default]
    Number,
    Bytes,
}

impl RecordId {
    /// The longest id: it has room behind the longest fields of an index entry.
    pub const BYTES_MAX: usize = 4 * 1024;

    pub fn number(number: u64) -> RecordId {
        RecordId(Form::Number(number))
    }

    pub fn bytes(bytes: &[u8]) -> RecordId {
        match u8::try_from(bytes.len()) {
            Ok(length) if bytes.len() <= INLINE_BYTES => {
                let mut inline = [0; INLINE_BYTES];
                inline[..bytes.len()].copy_from_slice(bytes);
                RecordId(Form::Inline {
                    length,
                    bytes: inline,
                })
            }
            _ => RecordId(Form::Shared(bytes.into())),
        }
    }

    #[inline]
    pub fn as_ref(&self) -> RecordIdRef<'_> {
        match &self.0 {
            Form::Number(number) => RecordIdRef::Number(*number),
            Form::Inline { length, bytes } => RecordIdRef::Bytes(&bytes[..usize::from(*length)]),
            Form::Shared(bytes) => RecordIdRef::Bytes(bytes),
        }
    }

    pub fn as_number(&self) -> Option<u64> {
        match self.as_ref() {
            RecordIdRef::Number(number) => Some(number),
            RecordIdRef::Bytes(_) => None,
        }
    }

    /// As documents show it: a long, or binary.
    pub fn to_bson(&self) -> RawBsonRef<'_> {
        match self.as_ref() {
            RecordIdRef::Number(number) => RawBsonRef::Int64(number.cast_signed()),
            RecordIdRef::Bytes(bytes) => RawBsonRef::Binary(RawBinaryRef {
                subtype: BinarySubtype::Generic,
                bytes,
            }),
        }
    }

    pub fn from_bson(value: RawBsonRef<'_>) -> Option<RecordId> {
        match value {
            RawBsonRef::Int64(number) => Some(RecordId::number(number.cast_unsigned())),
            RawBsonRef::Binary(binary) => Some(RecordId::bytes(binary.bytes)),
            _ => None,
        }
    }

    /// Appends what stands for the id in a records key; it says itself what it is.
    pub fn append_to_key(&self, key: &mut Vec<u8>) {
        match self.as_ref() {
            RecordIdRef::Number(number) => key.extend_from_slice(&number.to_be_bytes()),
            RecordIdRef::Bytes(bytes) => {
                // No stored id is longer: nothing lies between what is cut and what is not.
                let length = bytes.len().min(Self::BYTES_MAX + 1);
                key.push(BYTES_MARK);
                key.extend_from_slice(&bytes[..length]);
            }
        }
    }

    /// The id that a records key ends with, without the collection's.
    #[inline]
    pub fn from_key(key: &[u8]) -> Option<RecordId> {
        if let Ok(number) = <[u8; NUMBER_BYTES]>::try_from(key)
            && number[0] < BYTES_MARK
        {
            return Some(RecordId::number(u64::from_be_bytes(number)));
        }
        let bytes = key.strip_prefix(&[BYTES_MARK])?;
        Some(RecordId::bytes(bytes))
    }

    /// How much longer it makes an index entry.
    #[inline]
    pub(crate) fn suffix_bytes(&self) -> usize {
        match self.as_ref() {
            RecordIdRef::Number(_) => NUMBER_BYTES,
            RecordIdRef::Bytes(bytes) => bytes.len() + LENGTH_BYTES,
        }
    }

    /// Writes what an index entry ends with. `suffix` is as long as it takes.
    #[inline]
    pub(crate) fn write_suffix(&self, suffix: &mut [u8]) {
        match self.as_ref() {
            RecordIdRef::Number(number) => suffix.copy_from_slice(&number.to_be_bytes()),
            RecordIdRef::Bytes(bytes) => {
                let (id, length) = suffix.split_at_mut(bytes.len());
                id.copy_from_slice(bytes);
                // `BYTES_MAX` fits.
                length.copy_from_slice(&(bytes.len() as u16).to_be_bytes());
            }
        }
    }

    /// The same by itself: what a unique index maps a key to.
    pub(crate) fn to_suffix(&self) -> fjall::Slice {
        match self.as_ref() {
            RecordIdRef::Number(number) => fjall::Slice::from(number.to_be_bytes()),
            RecordIdRef::Bytes(_) => {
                let mut suffix = vec![0; self.suffix_bytes()];
                self.write_suffix(&mut suffix);
                suffix.into()
            }
        }
    }
}

impl RecordIdFormat {
    /// Where the id that `entry` ends with begins, and the id.
    #[inline]
    pub(crate) fn split(self, entry: &[u8]) -> Option<(usize, RecordId)> {
        match self {
            RecordIdFormat::Number => {
                let (fields, number) = entry.split_last_chunk::<NUMBER_BYTES>()?;
                let number = u64::from_be_bytes(*number);
                Some((fields.len(), RecordId::number(number)))
            }
            RecordIdFormat::Bytes => {
                let (entry, length) = entry.split_last_chunk::<LENGTH_BYTES>()?;
                let length = usize::from(u16::from_be_bytes(*length));
                let end = entry.len().checked_sub(length)?;
                Some((end, RecordId::bytes(&entry[end..])))
            }
        }
    }

    /// How much an entry is longer by than the lengths that an index counts.
    pub(crate) fn uncounted_bytes(self) -> usize {
        match self {
            RecordIdFormat::Number => NUMBER_BYTES,
            RecordIdFormat::Bytes => 0,
        }
    }
}

impl PartialEq for RecordId {
    fn eq(&self, other: &RecordId) -> bool {
        self.as_ref() == other.as_ref()
    }
}

impl Eq for RecordId {}

impl PartialOrd for RecordId {
    fn partial_cmp(&self, other: &RecordId) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for RecordId {
    fn cmp(&self, other: &RecordId) -> Ordering {
        self.as_ref().cmp(&other.as_ref())
    }
}

impl Hash for RecordId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_ref().hash(state);
    }
}

impl From<u64> for RecordId {
    fn from(number: u64) -> RecordId {
        RecordId::number(number)
    }
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_ref() {
            RecordIdRef::Number(number) => number.fmt(f),
            RecordIdRef::Bytes(bytes) => bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
        }
    }
}

impl fmt::Debug for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use banyan_document::key;
    use bson::RawBson;
    use proptest::prelude::*;

    fn of(value: RawBsonRef<'_>) -> RecordId {
        let mut bytes = Vec::new();
        key::encode(value, &mut bytes);
        RecordId::bytes(&bytes)
    }

    fn in_key(record: &RecordId) -> Vec<u8> {
        let mut key = Vec::new();
        record.append_to_key(&mut key);
        key
    }

    fn entry(fields: &[u8], record: &RecordId) -> Vec<u8> {
        let mut entry = fields.to_vec();
        entry.resize(fields.len() + record.suffix_bytes(), 0);
        record.write_suffix(&mut entry[fields.len()..]);
        entry
    }

    fn value() -> impl Strategy<Value = RawBson> {
        prop_oneof![
            any::<i32>().prop_map(RawBson::Int32),
            any::<i64>().prop_map(RawBson::Int64),
            any::<f64>().prop_map(RawBson::Double),
            "[\\x00-\\x02a-c]{0,40}".prop_map(RawBson::String),
            any::<[u8; 12]>().prop_map(|id| RawBson::ObjectId(id.into())),
            any::<bool>().prop_map(RawBson::Boolean),
        ]
    }

    #[test]
    fn a_number_is_no_larger_than_what_lies_inline() {
        assert_eq!(size_of::<RecordId>(), 24);
        assert_eq!(size_of::<Option<RecordId>>(), 24);
    }

    #[test]
    fn eight_bytes_are_not_taken_for_a_number() {
        let seven = RecordId::bytes(&[1; 7]);
        assert_eq!(in_key(&seven).len(), NUMBER_BYTES);
        assert_eq!(RecordId::from_key(&in_key(&seven)), Some(seven));
        let eight = RecordId::bytes(&[1; 8]);
        assert_eq!(RecordId::from_key(&in_key(&eight)), Some(eight));
        assert_eq!(RecordId::from_key(&[]), None);
        assert_eq!(RecordId::from_key(&[0; 7]), None);
    }

    proptest! {
        /// Ids of bytes sort as the values do: in records keys, and behind the fields of an entry.
        #[test]
        fn encoded_ids_keep_their_order(a in value(), b in value(), fields in "[a-c]{0,3}") {
            let order = banyan_document::compare(a.as_raw_bson_ref(), b.as_raw_bson_ref());
            let (a, b) = (of(a.as_raw_bson_ref()), of(b.as_raw_bson_ref()));
            prop_assert_eq!(a.cmp(&b), order);
            prop_assert_eq!(in_key(&a).cmp(&in_key(&b)), order);
            let fields = fields.as_bytes();
            prop_assert_eq!(entry(fields, &a).cmp(&entry(fields, &b)), order);
            prop_assert_eq!(RecordId::from_key(&in_key(&a)), Some(a.clone()));
            let split = RecordIdFormat::Bytes.split(&entry(fields, &a));
            prop_assert_eq!(split, Some((fields.len(), a.clone())));
            prop_assert_eq!(RecordId::from_bson(a.to_bson()), Some(a));
        }

        #[test]
        fn encoded_numbers_keep_their_order(a in 0..1_u64 << 63, b in 0..1_u64 << 63) {
            let (left, right) = (RecordId::number(a), RecordId::number(b));
            prop_assert_eq!(in_key(&left).cmp(&in_key(&right)), a.cmp(&b));
            prop_assert_eq!(entry(b"x", &left).cmp(&entry(b"x", &right)), a.cmp(&b));
            prop_assert_eq!(RecordId::from_key(&in_key(&left)), Some(left.clone()));
            let split = RecordIdFormat::Number.split(&entry(b"x", &left));
            prop_assert_eq!(split, Some((1, left.clone())));
            prop_assert_eq!(RecordId::from_bson(left.to_bson()), Some(left));
        }
    }
}
