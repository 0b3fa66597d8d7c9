//! How deep documents and arrays lie inside one another.

use bson::{RawBsonRef, RawDocument};

use crate::element::{RawFields, raw_fields};
use crate::validate::MAX_STORED_DEPTH;

/// What a document or an array takes besides what is in it: its length and its end.
const LEVEL_BYTES_MIN: usize = 5;
/// What is around the value of a field: its type and the end of its name.
const FIELD_BYTES_MIN: usize = 2;

/// Whether a document nests too deep for a user to store it.
pub fn is_too_deep_to_store(document: &RawDocument) -> bool {
    is_deeper(RawBsonRef::Document(document), MAX_STORED_DEPTH)
}

/// Whether more than so many documents and arrays lie inside one another, the value itself among
/// them. An empty one inside all others does not count, as in MongoDB.
pub fn is_deeper(value: RawBsonRef<'_>, levels: usize) -> bool {
    let bytes = match value {
        RawBsonRef::Document(document) => document.as_bytes(),
        RawBsonRef::Array(array) => array.as_bytes(),
        _ => return false,
    };
    // As a rule there is too little of it.
    has_room(bytes.len(), levels)
        && RawDocument::from_bytes(bytes)
            .is_ok_and(|document| fields_are_deeper(raw_fields(document), levels))
}

/// Whether so many levels below the outermost one fit into so many bytes.
fn has_room(bytes: usize, levels: usize) -> bool {
    bytes >= LEVEL_BYTES_MIN + levels * (LEVEL_BYTES_MIN + FIELD_BYTES_MIN)
}

fn fields_are_deeper(mut fields: RawFields<'_>, levels: usize) -> bool {
    if levels == 0 {
        return fields.next().is_some();
    }
    fields.any(|field| {
        has_room(field.value_bytes().len(), levels - 1)
            && field
                .inner()
                .is_some_and(|inner| fields_are_deeper(inner, levels - 1))
    })
}

#[cfg(test)]
mod tests {
    use bson::{RawBson, RawDocumentBuf, cstr, rawdoc};

    use super::*;

    fn nested(levels: usize, arrays: bool, innermost: RawBson) -> RawDocumentBuf {
        let mut value = innermost;
        for _ in 1..levels {
            value = match arrays {
                true => RawBson::Array([value].into_iter().collect()),
                false => RawBson::Document(rawdoc! { "a": value }),
            };
        }
        let mut document = rawdoc! { "_id": 1, "s": "x" };
        document.append(cstr!("a"), value);
        document.append(cstr!("z"), 1);
        document
    }

    #[test]
    fn levels_are_counted_with_the_outermost_and_without_an_empty_one() {
        for arrays in [false, true] {
            for levels in [1, 2, 3, 50, 180] {
                let document = nested(levels, arrays, RawBson::Int32(1));
                let value = RawBsonRef::Document(&document);
                assert!(is_deeper(value, levels - 1), "{levels}");
                assert!(!is_deeper(value, levels), "{levels}");
            }
            let stored =
                |levels, innermost| !is_too_deep_to_store(&nested(levels, arrays, innermost));
            let empty = RawBson::Document(rawdoc! {});
            assert!(stored(180, RawBson::Null) && stored(180, empty.clone()));
            assert!(!stored(181, RawBson::Null) && !stored(181, empty));
        }
    }
}
