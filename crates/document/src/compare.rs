//! MongoDB's comparison order over raw values.
//!
//! Types come in a fixed order (MinKey, undefined, null, numbers, strings and symbols, objects,
//! arrays, binary, ObjectId, booleans, dates, timestamps, regular expressions, DBPointers, code,
//! code with scope, MaxKey); inside a type the values decide, numbers exactly and across their
//! four representations. The order is total: NaN is the lowest number and equals itself. A collator
//! decides about strings and symbols, wherever in a value they are.

use std::cmp::Ordering;

use bson::raw::RawIter;
use bson::{RawArray, RawBsonRef, RawDocument, RawDocumentBuf};

use crate::collation::{Collator, Simple, StringOrder};
use crate::number::Number;

/// The place of a value's type in the order. Types of one rank compare by value.
pub fn canonical_rank(value: &RawBsonRef<'_>) -> u8 {
    match value {
        RawBsonRef::MinKey => 0,
        RawBsonRef::Undefined => 1,
        RawBsonRef::Null => 5,
        RawBsonRef::Int32(_)
        | RawBsonRef::Int64(_)
        | RawBsonRef::Double(_)
        | RawBsonRef::Decimal128(_) => 10,
        RawBsonRef::String(_) | RawBsonRef::Symbol(_) => 15,
        RawBsonRef::Document(_) => 20,
        RawBsonRef::Array(_) => 25,
        RawBsonRef::Binary(_) => 30,
        RawBsonRef::ObjectId(_) => 35,
        RawBsonRef::Boolean(_) => 40,
        RawBsonRef::DateTime(_) => 45,
        RawBsonRef::Timestamp(_) => 47,
        RawBsonRef::RegularExpression(_) => 50,
        RawBsonRef::DbPointer(_) => 55,
        RawBsonRef::JavaScriptCode(_) => 60,
        RawBsonRef::JavaScriptCodeWithScope(_) => 65,
        RawBsonRef::MaxKey => 127,
    }
}

pub fn compare(a: RawBsonRef<'_>, b: RawBsonRef<'_>) -> Ordering {
    compare_by(a, b, Simple)
}

/// In the order of a collation; without one, in the simple order.
pub fn compare_collated(
    a: RawBsonRef<'_>,
    b: RawBsonRef<'_>,
    collator: Option<&Collator>,
) -> Ordering {
    match collator {
        None => compare_by(a, b, Simple),
        Some(collator) => compare_by(a, b, collator),
    }
}

fn compare_by(a: RawBsonRef<'_>, b: RawBsonRef<'_>, strings: impl StringOrder) -> Ordering {
    use RawBsonRef as V;
    match (a, b) {
        (V::Int32(a), V::Int32(b)) => a.cmp(&b),
        (V::String(a) | V::Symbol(a), V::String(b) | V::Symbol(b)) => strings.compare(a, b),
        (V::ObjectId(a), V::ObjectId(b)) => a.bytes().cmp(&b.bytes()),
        (V::Document(a), V::Document(b)) => compare_documents_by(a, b, strings),
        (V::Array(a), V::Array(b)) => compare_arrays_by(a, b, strings),
        (V::Boolean(a), V::Boolean(b)) => a.cmp(&b),
        (V::DateTime(a), V::DateTime(b)) => a.timestamp_millis().cmp(&b.timestamp_millis()),
        (V::Timestamp(a), V::Timestamp(b)) => (a.time, a.increment).cmp(&(b.time, b.increment)),
        (V::Binary(a), V::Binary(b)) => {
            let subtype = |v: &bson::RawBinaryRef<'_>| u8::from(v.subtype);
            // The old subtype carries a second length inside its data.
            let length =
                |v: &bson::RawBinaryRef<'_>| v.bytes.len() + if subtype(v) == 2 { 4 } else { 0 };
            length(&a)
                .cmp(&length(&b))
                .then_with(|| subtype(&a).cmp(&subtype(&b)))
                .then_with(|| a.bytes.cmp(b.bytes))
        }
        (V::RegularExpression(a), V::RegularExpression(b)) => a
            .pattern
            .as_str()
            .cmp(b.pattern.as_str())
            .then_with(|| a.options.as_str().cmp(b.options.as_str())),
        (V::JavaScriptCode(a), V::JavaScriptCode(b)) => a.cmp(b),
        (V::JavaScriptCodeWithScope(a), V::JavaScriptCodeWithScope(b)) => a
            .code
            .cmp(b.code)
            .then_with(|| compare_documents(a.scope, b.scope)),
        (V::DbPointer(_), V::DbPointer(_)) => compare_db_pointers(a, b),
        _ => match (Number::from_raw(a), Number::from_raw(b)) {
            (Some(a), Some(b)) => a.compare(b),
            _ => canonical_rank(&a).cmp(&canonical_rank(&b)),
        },
    }
}

/// Field by field in stored order: type, then name, then value; a prefix is smaller.
pub fn compare_documents(a: &RawDocument, b: &RawDocument) -> Ordering {
    compare_documents_by(a, b, Simple)
}

/// Element by element; a prefix is smaller.
pub fn compare_arrays(a: &RawArray, b: &RawArray) -> Ordering {
    compare_arrays_by(a, b, Simple)
}

fn compare_documents_by(a: &RawDocument, b: &RawDocument, strings: impl StringOrder) -> Ordering {
    if a.as_bytes() == b.as_bytes() {
        return Ordering::Equal;
    }
    compare_elements(a.iter_elements(), b.iter_elements(), true, strings)
}

fn compare_arrays_by(a: &RawArray, b: &RawArray, strings: impl StringOrder) -> Ordering {
    if a.as_bytes() == b.as_bytes() {
        return Ordering::Equal;
    }
    compare_elements(a.iter_elements(), b.iter_elements(), false, strings)
}

fn compare_elements(
    mut a: RawIter<'_>,
    mut b: RawIter<'_>,
    names: bool,
    strings: impl StringOrder,
) -> Ordering {
    // Documents are validated when they enter the process, so an element that cannot be read
    // stands for the end.
    loop {
        let (left, right) = match (a.next(), b.next()) {
            (Some(Ok(left)), Some(Ok(right))) => (left, right),
            (Some(Ok(_)), _) => return Ordering::Greater,
            (_, Some(Ok(_))) => return Ordering::Less,
            _ => return Ordering::Equal,
        };
        let (Ok(left_value), Ok(right_value)) = (left.value(), right.value()) else {
            return Ordering::Equal;
        };
        let mut order = canonical_rank(&left_value).cmp(&canonical_rank(&right_value));
        if names {
            order = order.then_with(|| left.key().as_str().cmp(right.key().as_str()));
        }
        order = order.then_with(|| compare_by(left_value, right_value, strings));
        if order != Ordering::Equal {
            return order;
        }
    }
}

/// By length, then bytes. `bson` keeps the fields of a DBPointer to itself, so the values are
/// laid out once more; the type is long deprecated and rare.
fn compare_db_pointers(a: RawBsonRef<'_>, b: RawBsonRef<'_>) -> Ordering {
    let bytes = |value| {
        let mut document = RawDocumentBuf::new();
        document.append(bson::raw::cstr!(""), value);
        document.into_bytes()
    };
    let (a, b) = (bytes(a), bytes(b));
    a.len().cmp(&b.len()).then_with(|| a.cmp(&b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Bson, RawBson, bson, doc, oid::ObjectId};

    fn ascending() -> Vec<Bson> {
        vec![
            Bson::MinKey,
            Bson::Undefined,
            Bson::Null,
            Bson::Double(f64::NAN),
            Bson::Double(f64::NEG_INFINITY),
            Bson::Int32(-5),
            Bson::Double(-0.5),
            Bson::Int64(0),
            Bson::Decimal128("0.1".parse().unwrap()),
            Bson::Double(0.1),
            Bson::Int64(9_007_199_254_740_992),
            Bson::Int64(9_007_199_254_740_993),
            Bson::Double(f64::INFINITY),
            bson!(""),
            bson!("B"),
            bson!("a"),
            bson!("ab"),
            bson!({}),
            bson!({"a": 1}),
            bson!({"b": 1}),
            bson!({"b": 1, "a": 0}),
            bson!({"a": "x"}), // the type decides before the name
            bson!([]),
            bson!([1]),
            bson!([1, 2]),
            bson!([2]),
            bson!(["a"]),
            Bson::Binary(bson::Binary {
                subtype: 5.into(),
                bytes: vec![9],
            }),
            Bson::Binary(bson::Binary {
                subtype: 0.into(),
                bytes: vec![0, 0],
            }),
            Bson::ObjectId(ObjectId::from_bytes([1; 12])),
            Bson::Boolean(false),
            Bson::Boolean(true),
            Bson::DateTime(bson::DateTime::from_millis(-1)),
            Bson::DateTime(bson::DateTime::from_millis(1)),
            Bson::Timestamp(bson::Timestamp {
                time: 1,
                increment: u32::MAX,
            }),
            Bson::Timestamp(bson::Timestamp {
                time: u32::MAX,
                increment: 0,
            }),
            Bson::RegularExpression(bson::Regex {
                pattern: "a".try_into().unwrap(),
                options: "".try_into().unwrap(),
            }),
            Bson::JavaScriptCode("f".into()),
            Bson::JavaScriptCodeWithScope(bson::JavaScriptCodeWithScope {
                code: "a".into(),
                scope: doc! {},
            }),
            Bson::MaxKey,
        ]
    }

    #[test]
    fn orders_all_types() {
        let values: Vec<RawBson> = ascending()
            .into_iter()
            .map(|v| RawBson::try_from(v).unwrap())
            .collect();
        for (i, a) in values.iter().enumerate() {
            for (j, b) in values.iter().enumerate() {
                let order = compare(a.as_raw_bson_ref(), b.as_raw_bson_ref());
                assert_eq!(order, i.cmp(&j), "{a:?} with {b:?}");
            }
        }
    }

    #[test]
    fn equal_across_representations() {
        let equal = [
            (bson!(1), Bson::Int64(1)),
            (bson!(1), bson!(1.0)),
            (bson!(-0.0), bson!(0)),
            (bson!(1), Bson::Decimal128("1.00".parse().unwrap())),
            (bson!("s"), Bson::Symbol("s".into())),
            (bson!({"a": 1}), bson!({"a": 1.0})),
        ];
        for (a, b) in equal {
            let (a, b) = (RawBson::try_from(a).unwrap(), RawBson::try_from(b).unwrap());
            assert_eq!(
                compare(a.as_raw_bson_ref(), b.as_raw_bson_ref()),
                Ordering::Equal
            );
        }
    }
}
