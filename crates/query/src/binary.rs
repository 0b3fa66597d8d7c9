//! Binary data of the oldest subtype, which says its length once more.

use bson::RawBinaryRef;
use bson::spec::BinarySubtype;

/// What lies before the bytes of the oldest subtype, and counts as data where data is measured or
/// its bits are asked for.
pub(crate) fn prefix(binary: RawBinaryRef<'_>) -> Option<[u8; 4]> {
    let is_old = binary.subtype == BinarySubtype::BinaryOld;
    // BSON itself holds the length in 32 bits.
    is_old.then(|| (binary.bytes.len() as u32).to_le_bytes())
}

/// The byte at a position of the data.
pub(crate) fn byte(binary: RawBinaryRef<'_>, at: usize) -> Option<u8> {
    match prefix(binary) {
        None => binary.bytes.get(at).copied(),
        Some(prefix) => match at.checked_sub(prefix.len()) {
            None => prefix.get(at).copied(),
            Some(at) => binary.bytes.get(at).copied(),
        },
    }
}

/// All bytes of the data.
pub(crate) fn bytes(binary: RawBinaryRef<'_>) -> Vec<u8> {
    let prefix = prefix(binary);
    let mut bytes = prefix.map_or_else(Vec::new, Vec::from);
    bytes.extend_from_slice(binary.bytes);
    bytes
}
