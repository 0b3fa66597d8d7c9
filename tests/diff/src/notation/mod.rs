//! Documents as the mongo shell writes them, every type told apart: failing cases, golden files
//! and known differences are written so, can be read, and can be pasted into `mongosh`.
//!
//! Extended JSON is not used for it: `{$regex: "a", $options: "i"}` and the like mean an operator
//! in a filter and a value in extended JSON. A plain number is an int; a double has a point or an
//! exponent (`1.0`), or is `NaN` or `Infinity`.

mod parse;
mod print;

use bson::oid::ObjectId;
use bson::{Bson, RawBsonRef, RawDocumentBuf};

pub use parse::{ParseError, parse, parse_document, split};
pub use print::{name, print, print_document, print_value, text};

/// A DBPointer. `bson` has no constructor for it: it is read out of its bytes.
pub fn pointer(namespace: &str, id: ObjectId) -> Bson {
    let mut bytes = vec![0, 0, 0, 0, POINTER, 0];
    bytes.extend((namespace.len() as u32 + 1).to_le_bytes());
    bytes.extend(namespace.as_bytes());
    bytes.push(0);
    bytes.extend(id.bytes());
    bytes.push(0);
    let length = bytes.len() as u32;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    let document = RawDocumentBuf::from_bytes(bytes).expect("a document of one field");
    let value = document.get("").ok().flatten().expect("its only field");
    Bson::try_from(value).expect("a well-formed pointer")
}

/// The parts of a DBPointer, which are private to `bson`.
fn pointer_parts(value: RawBsonRef<'_>) -> (String, ObjectId) {
    let mut document = RawDocumentBuf::new();
    document.append(bson::cstr!(""), value);
    // Length, type, empty name, length of the string; at the end its zero, the id, a zero.
    let bytes = document.as_bytes();
    let (namespace, rest) = bytes[10..].split_at(bytes.len() - 10 - 14);
    let mut id = [0; 12];
    id.copy_from_slice(&rest[1..13]);
    (
        String::from_utf8_lossy(namespace).into_owned(),
        ObjectId::from_bytes(id),
    )
}

const POINTER: u8 = 0x0c;

#[cfg(test)]
mod tests {
    use super::*;

    /// Prints what it parses.
    #[track_caller]
    fn there_and_back(text: &str) {
        let document = parse_document(text).unwrap();
        assert_eq!(print_document(&document), text);
    }

    #[test]
    fn every_type() {
        there_and_back(r#"{a: 1, b: NumberLong("-2"), c: 1.5, d: NumberDecimal("1.50")}"#);
        there_and_back("{a: 1.0, b: -0.0, c: NaN, d: Infinity, e: -Infinity, f: 1e300, g: 5e-324}");
        there_and_back(r#"{s: "q\"\\\n\u0001é", y: BSONSymbol("x"), c: Code("f", {a: 1})}"#);
        there_and_back(r#"{c: Code("f"), r: /a\/b/im, t: Timestamp(5, 6), n: null}"#);
        there_and_back("{u: undefined, b: true, f: false, l: MinKey(), h: MaxKey()}");
        there_and_back(r#"{o: ObjectId("5f5f5f5f5f5f5f5f5f5f5f5f"), b: BinData(4, "AAEC")}"#);
        there_and_back(r#"{p: DBPointer("a.b", ObjectId("5f5f5f5f5f5f5f5f5f5f5f5f"))}"#);
        there_and_back(r#"{d: ISODate("2024-02-29T12:00:00.123Z"), e: new Date(-99999999999999)}"#);
        there_and_back(r#"{a: [1, [], {}], "b.c": {$gt: 1, "": "x", _id: 1}}"#);
        there_and_back(r#"{$regex: "a", $options: "i"}"#);
    }

    #[test]
    fn what_it_refuses() {
        for text in ["{", "{a 1}", "{a: }", "{a: 1} x", "{a: Foo(1)}", "[1]"] {
            assert!(parse_document(text).is_err(), "{text}");
        }
    }
}
