//! MongoDB's hash of a value, as hashed indexes and hashed shard keys use it: the first eight
//! bytes of an MD5 over seed, type and value, numbers taken as 64-bit integers.

use bson::{RawBsonRef, RawDocument};
use md5::{Digest, Md5};

use crate::collation::{Collator, Simple, StringOrder};
use crate::element::{elements, items};
use crate::number::Number;
use crate::writer;

const SEED: i32 = 0;

/// The hash of a value; of a missing field, that of null.
pub fn hash(value: RawBsonRef<'_>) -> i64 {
    hash_by(value, Simple)
}

/// The hash of a value as a collation sees it: strings that are equal have equal hashes.
pub fn hash_collated(value: RawBsonRef<'_>, collator: Option<&Collator>) -> i64 {
    match collator {
        None => hash_by(value, Simple),
        Some(collator) => hash_by(value, collator),
    }
}

fn hash_by(value: RawBsonRef<'_>, strings: impl StringOrder) -> i64 {
    let mut digest = Md5::new();
    digest.update(SEED.to_le_bytes());
    update(&mut digest, None, value, strings);
    let digest: [u8; 16] = digest.finalize().into();
    let mut head = [0; 8];
    head.copy_from_slice(&digest[..8]);
    i64::from_le_bytes(head)
}

fn update(digest: &mut Md5, name: Option<&str>, value: RawBsonRef<'_>, strings: impl StringOrder) {
    digest.update(type_code(&value).to_le_bytes());
    if let Some(name) = name {
        digest.update(name.as_bytes());
        digest.update([0]);
    }
    match value {
        RawBsonRef::Document(document) => update_fields(digest, document, strings),
        RawBsonRef::Array(array) => {
            for item in items(array) {
                update(digest, Some(item.name()), item.value(), strings);
            }
            update_end(digest);
        }
        // As a string is stored: its length with the zero byte that ends it, and both.
        RawBsonRef::String(text) | RawBsonRef::Symbol(text) => {
            strings.with_sort_key(text, |bytes| {
                digest.update((bytes.len() as u32 + 1).to_le_bytes());
                digest.update(bytes);
                digest.update([0]);
            });
        }
        RawBsonRef::JavaScriptCodeWithScope(code) => {
            digest.update(code.code.as_bytes());
            digest.update([0]);
            update_fields(digest, code.scope, strings);
        }
        _ => match Number::from_raw(value) {
            Some(number) => digest.update(as_integer(number).to_le_bytes()),
            None => {
                let mut bytes = Vec::new();
                writer::append_value(&mut bytes, value);
                digest.update(bytes);
            }
        },
    }
}

fn update_fields(digest: &mut Md5, document: &RawDocument, strings: impl StringOrder) {
    for element in elements(document) {
        update(digest, Some(element.name()), element.value(), strings);
    }
    update_end(digest);
}

/// The end of a document counts as an element of type 0.
fn update_end(digest: &mut Md5) {
    digest.update(0i32.to_le_bytes());
}

/// NaN is 0; what is too large is the largest integer, but the smallest double of these is the
/// smallest integer, as hashes of old have it. Doubles are cut off, decimals rounded.
fn as_integer(number: Number) -> i64 {
    match number {
        Number::Double(9_223_372_036_854_775_808.0) => i64::MIN,
        other => other.to_i64_rounded(),
    }
}

fn type_code(value: &RawBsonRef<'_>) -> i32 {
    match value {
        RawBsonRef::MinKey => -1,
        RawBsonRef::Undefined => 0,
        other => i32::from(crate::compare::canonical_rank(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Bson, RawBson, bson, doc};

    /// Computed by MongoDB 6.0.
    #[test]
    fn agrees_with_mongodb() {
        let decimal = |text: &str| Bson::Decimal128(text.parse().unwrap());
        let regex = bson::Regex {
            pattern: "a".try_into().unwrap(),
            options: "i".try_into().unwrap(),
        };
        let code = bson::JavaScriptCodeWithScope {
            code: "x".into(),
            scope: doc! {"a": 1},
        };
        let cases = [
            (bson!(1), 5902408780260971510),
            (Bson::Int64(1), 5902408780260971510),
            (bson!(1.7), 5902408780260971510),
            (bson!(-1.7), 1140205862565771219),
            (decimal("1.5"), 848411777775835583),
            (decimal("1E+40"), 921523596458303250),
            (decimal("NaN"), 4854801880128277513),
            (bson!(f64::NAN), 4854801880128277513),
            (bson!(1e30), 921523596458303250),
            (bson!(-1e30), 4532067210535695462),
            (bson!("abc"), 8478485326885698097),
            (Bson::Null, 2338878944348059895),
            (bson!(true), 6405873908747105701),
            (bson!({"a": 1}), -8705610352600103477),
            (bson!({"a": {"b": [1]}}), 1999935801941773160),
            (bson!([1, 2]), 8312708174902235769),
            (
                Bson::Binary(bson::Binary {
                    subtype: 0.into(),
                    bytes: b"ab".to_vec(),
                }),
                -5211738885555603998,
            ),
            (Bson::JavaScriptCode("x".into()), 6541829121976638719),
            (Bson::JavaScriptCodeWithScope(code), 1114765668211402900),
            (Bson::RegularExpression(regex), -1736204118293582337),
            (
                Bson::Timestamp(bson::Timestamp {
                    time: 1,
                    increment: 2,
                }),
                6130793394493442031,
            ),
            (Bson::MinKey, 7961148599568647290),
            (Bson::MaxKey, 5504842513779440750),
            (bson!({}), 7980500913326740417),
            (
                Bson::DateTime(bson::DateTime::from_millis(1_577_836_800_000)),
                -8439725397068880569,
            ),
            (Bson::Int64(1 << 40), -7760001454274422498),
        ];
        for (value, expected) in cases {
            let raw = RawBson::try_from(value.clone()).unwrap();
            assert_eq!(hash(raw.as_raw_bson_ref()), expected, "{value}");
        }
    }
}
