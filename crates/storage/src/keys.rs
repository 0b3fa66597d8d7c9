//! The keys of the three keyspaces.
//!
//! | keyspace | key | value |
//! | --- | --- | --- |
//! | records | collection id (u32) + record id | the document |
//! | indexes, unique | index id (u32) + encoded fields | type bits + record id |
//! | indexes, other | index id (u32) + encoded fields + record id | type bits |
//! | meta | see below | see below |
//!
//! All integers are big-endian, so byte order is numeric order. How record ids lie in keys, and that
//! they keep their order there, [`crate::record_id`] says: a collection's records lie in insertion
//! order, those of a clustered collection in the order of their `_id`s. Encoded fields come from
//! `banyan_document::key` and are never a prefix of one another within one index, which is what lets
//! a record id follow them. Type bits say what the encoded fields do not, so that they can be read
//! again; most keys have none. A record id behind type bits has the form that it has behind encoded
//! fields: it is read from the end, and what lies before it are the type bits.
//!
//! The meta keyspace holds the catalog (`c`), counts (`n`), what is to be removed (`d`), the next
//! unused id (`i`), a mark of an unfinished import (`t`), and the caller's own keys, all under
//! [`CALLER`].

use std::ops::Bound;

use fjall::Slice;

use crate::record_id::{LENGTH_BYTES, RecordId, RecordIdFormat};

pub type CollectionId = u32;
pub type IndexId = u32;

pub(crate) const COLLECTION: u8 = b'c';
pub(crate) const COUNTS: u8 = b'n';
pub(crate) const DROPPED: u8 = b'd';
pub(crate) const NEXT_ID: &[u8] = b"i";
pub(crate) const IMPORTING: &[u8] = b"t";
/// First byte of every key that the caller writes with `Batch::put_meta`.
pub(crate) const CALLER: u8 = b'x';

/// The longest encoded fields that an index can hold: the engine takes keys of up to 64 KiB.
pub const INDEX_KEY_BYTES_MAX: usize = 60_000;

const _: () = assert!(
    ID_BYTES + INDEX_KEY_BYTES_MAX + RecordId::BYTES_MAX + LENGTH_BYTES <= u16::MAX as usize
);

pub(crate) const ID_BYTES: usize = 4;

/// A range of encoded index keys, without index id and record id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    pub lower: Bound<Vec<u8>>,
    pub upper: Bound<Vec<u8>>,
}

impl KeyRange {
    pub fn all() -> KeyRange {
        KeyRange {
            lower: Bound::Unbounded,
            upper: Bound::Unbounded,
        }
    }

    /// Every key that starts with `prefix` (all of a compound key's later fields).
    pub fn prefix(prefix: Vec<u8>) -> KeyRange {
        let upper = match successor(prefix.clone()) {
            Some(next) => Bound::Excluded(next),
            None => Bound::Unbounded,
        };
        KeyRange {
            lower: Bound::Included(prefix),
            upper,
        }
    }
}

/// The smallest byte string greater than every string that starts with `prefix`.
pub fn successor(mut prefix: Vec<u8>) -> Option<Vec<u8>> {
    while let Some(last) = prefix.last_mut() {
        if *last < u8::MAX {
            *last += 1;
            return Some(prefix);
        }
        prefix.pop();
    }
    None
}

/// Builds the key of a record on the stack where it fits, and hands it to `use_key`.
#[inline]
pub(crate) fn with_record_key<T>(
    collection: CollectionId,
    record: &RecordId,
    use_key: impl FnOnce(&[u8]) -> T,
) -> T {
    match record.as_number() {
        Some(number) => {
            let mut key = [0; ID_BYTES + size_of::<u64>()];
            key[..ID_BYTES].copy_from_slice(&collection.to_be_bytes());
            key[ID_BYTES..].copy_from_slice(&number.to_be_bytes());
            use_key(&key)
        }
        None => use_key(&record_key(collection, record)),
    }
}

pub(crate) fn record_key(collection: CollectionId, record: &RecordId) -> Vec<u8> {
    let mut key = collection.to_be_bytes().to_vec();
    record.append_to_key(&mut key);
    key
}

/// Where the entries of an index have their record id, and what that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryForm {
    /// Whether the id ends the value, and not the key.
    pub(crate) unique: bool,
    pub(crate) ids: RecordIdFormat,
}

/// An entry taken apart.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EntryParts {
    /// The end of the encoded fields in the key.
    pub(crate) fields_end: usize,
    /// The end of the type bits in the value.
    pub(crate) types_end: usize,
    pub(crate) record: RecordId,
}

impl EntryForm {
    #[inline]
    pub(crate) fn split(self, key: &[u8], value: &[u8]) -> Option<EntryParts> {
        let (fields_end, types_end, record) = if self.unique {
            let (types_end, record) = self.ids.split(value)?;
            (key.len(), types_end, record)
        } else {
            let (fields_end, record) = self.ids.split(key)?;
            (fields_end, value.len(), record)
        };
        (fields_end >= ID_BYTES).then_some(EntryParts {
            fields_end,
            types_end,
            record,
        })
    }

    /// The value of the entry that names a record, with the type bits of its key.
    pub(crate) fn value(self, record: &RecordId, types: &[u8]) -> Slice {
        match self.unique {
            true if types.is_empty() => record.to_suffix(),
            true => {
                let mut value = vec![0; types.len() + record.suffix_bytes()];
                let (bits, suffix) = value.split_at_mut(types.len());
                bits.copy_from_slice(types);
                record.write_suffix(suffix);
                value.into()
            }
            false => Slice::from(types),
        }
    }

    /// What an entry with these encoded fields adds to the length of all keys.
    pub(crate) fn counted_bytes(self, key: &[u8], record: &RecordId) -> i64 {
        let suffix = match self.unique {
            true => 0,
            false => record.suffix_bytes() - self.ids.uncounted_bytes(),
        };
        (key.len() + suffix) as i64
    }

    /// Builds the key of the entry with these encoded fields, and hands it to `use_key`.
    #[inline]
    pub(crate) fn with_key<T>(
        self,
        index: IndexId,
        key: &[u8],
        record: &RecordId,
        use_key: impl FnOnce(&[u8]) -> T,
    ) -> T {
        with_index_key(index, key, (!self.unique).then_some(record), use_key)
    }
}

/// Builds `id + key (+ record id)` on the stack where it fits, and hands it to `use_key`.
#[inline]
pub(crate) fn with_index_key<T>(
    index: IndexId,
    key: &[u8],
    record: Option<&RecordId>,
    use_key: impl FnOnce(&[u8]) -> T,
) -> T {
    const STACK_BYTES: usize = 128;
    let length = ID_BYTES + key.len() + record.map_or(0, RecordId::suffix_bytes);
    let fill = |buffer: &mut [u8]| {
        buffer[..ID_BYTES].copy_from_slice(&index.to_be_bytes());
        buffer[ID_BYTES..ID_BYTES + key.len()].copy_from_slice(key);
        if let Some(record) = record {
            record.write_suffix(&mut buffer[ID_BYTES + key.len()..length]);
        }
    };
    if length <= STACK_BYTES {
        let mut buffer = [0; STACK_BYTES];
        fill(&mut buffer);
        use_key(&buffer[..length])
    } else {
        let mut buffer = vec![0; length];
        fill(&mut buffer);
        use_key(&buffer)
    }
}

/// The bounds of an index scan in the indexes keyspace.
///
/// For an index whose keys carry the record id, a bound on the encoded fields must take in, or
/// leave out, every record id that can follow them. A bound longer than any key is cut short: no
/// key lies between the two.
pub(crate) fn index_bounds(
    index: IndexId,
    unique: bool,
    range: &KeyRange,
) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let whole = |key: &[u8], pad: &[u8]| {
        let key = &key[..key.len().min(INDEX_KEY_BYTES_MAX + 1)];
        [&index.to_be_bytes()[..], key, pad].concat()
    };
    // No id begins with it.
    let after_all_ids: &[u8] = &[u8::MAX];
    let lower = match &range.lower {
        Bound::Included(key) => Bound::Included(whole(key, &[])),
        Bound::Excluded(key) if unique => Bound::Excluded(whole(key, &[])),
        Bound::Excluded(key) => Bound::Excluded(whole(key, after_all_ids)),
        Bound::Unbounded => Bound::Included(whole(&[], &[])),
    };
    let upper = match &range.upper {
        Bound::Included(key) if unique => Bound::Included(whole(key, &[])),
        Bound::Included(key) => Bound::Included(whole(key, after_all_ids)),
        Bound::Excluded(key) => Bound::Excluded(whole(key, &[])),
        Bound::Unbounded => end_of_id(index),
    };
    (lower, upper)
}

/// Sorts behind all records of a collection, and before those of the next one.
pub(crate) fn end_of_records(collection: CollectionId) -> Vec<u8> {
    [&collection.to_be_bytes()[..], &[u8::MAX]].concat()
}

/// The upper bound of everything that starts with `id`.
pub(crate) fn end_of_id(id: u32) -> Bound<Vec<u8>> {
    match id.checked_add(1) {
        Some(next) => Bound::Excluded(next.to_be_bytes().to_vec()),
        None => Bound::Unbounded,
    }
}

pub(crate) fn meta_key(kind: u8, id: u32) -> [u8; 1 + ID_BYTES] {
    let mut key = [kind; 1 + ID_BYTES];
    key[1..].copy_from_slice(&id.to_be_bytes());
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn successor_skips_full_bytes() {
        assert_eq!(successor(vec![1, 2]), Some(vec![1, 3]));
        assert_eq!(successor(vec![1, 255]), Some(vec![2]));
        assert_eq!(successor(vec![255, 255]), None);
        assert_eq!(successor(vec![]), None);
    }

    #[test]
    fn long_index_keys_do_not_fit_the_stack_buffer() {
        let key = vec![7; 4000];
        let record = RecordId::number(9);
        let built = with_index_key(3, &key, Some(&record), |bytes| bytes.to_vec());
        assert_eq!(built.len(), 4 + 4000 + 8);
        let form = EntryForm {
            unique: false,
            ids: RecordIdFormat::Number,
        };
        let parts = EntryParts {
            fields_end: 4 + 4000,
            types_end: 0,
            record,
        };
        assert_eq!(form.split(&built, &[]), Some(parts));
    }

    #[test]
    fn entries_are_taken_apart_as_they_were_put_together() {
        let long: &[u8] = &[3; 300];
        for record in [
            RecordId::number(0x0102),
            RecordId::bytes(b"id"),
            RecordId::bytes(long),
        ] {
            let ids = match record.as_number() {
                Some(_) => RecordIdFormat::Number,
                None => RecordIdFormat::Bytes,
            };
            for (unique, types) in [(true, false), (true, true), (false, false), (false, true)] {
                let types: &[u8] = if types { &[0, 9, 255] } else { &[] };
                let form = EntryForm { unique, ids };
                let value = form.value(&record, types);
                let parts = form.with_key(7, b"fields", &record, |key| form.split(key, &value));
                let parts = parts.unwrap();
                assert_eq!(parts.fields_end, ID_BYTES + b"fields".len());
                assert_eq!(&value[..parts.types_end], types);
                assert_eq!(parts.record, record);
            }
        }
    }

    #[test]
    fn bounds_longer_than_any_key_are_cut() {
        let long = vec![7; 100_000];
        let range = KeyRange {
            lower: Bound::Included(long.clone()),
            upper: Bound::Included(long),
        };
        for unique in [true, false] {
            let (lower, upper) = index_bounds(1, unique, &range);
            for bound in [lower, upper] {
                let (Bound::Included(bytes) | Bound::Excluded(bytes)) = bound else {
                    panic!("a bound without an end")
                };
                assert!(bytes.len() <= usize::from(u16::MAX));
            }
        }
    }
}
