use std::cmp::Ordering;

use bson::{Bson, Decimal128, RawBson, RawDocumentBuf, bson};
use proptest::prelude::*;

use super::*;
use crate::compare::compare;

fn raw(value: &Bson) -> RawBson {
    RawBson::try_from(value.clone()).unwrap()
}

fn encoded(value: &Bson) -> Vec<u8> {
    let mut out = Vec::new();
    encode(raw(value).as_raw_bson_ref(), &mut out);
    out
}

fn check(a: &Bson, b: &Bson) {
    let expected = compare(raw(a).as_raw_bson_ref(), raw(b).as_raw_bson_ref());
    let (left, right) = (encoded(a), encoded(b));
    assert_eq!(
        left.cmp(&right),
        expected,
        "{a} with {b}: {left:x?} {right:x?}"
    );
    if expected != Ordering::Equal {
        assert!(
            !left.starts_with(&right) && !right.starts_with(&left),
            "{a} with {b}"
        );
    }
    let mut descending = (Vec::new(), Vec::new());
    encode_descending(raw(a).as_raw_bson_ref(), &mut descending.0);
    encode_descending(raw(b).as_raw_bson_ref(), &mut descending.1);
    assert_eq!(
        descending.1.cmp(&descending.0),
        expected,
        "{a} with {b}, descending"
    );
}

fn decimal(text: &str) -> Bson {
    Bson::Decimal128(text.parse::<Decimal128>().unwrap())
}

fn numbers() -> Vec<Bson> {
    let mut numbers = vec![
        Bson::Double(f64::NAN),
        Bson::Double(f64::INFINITY),
        Bson::Double(f64::NEG_INFINITY),
        Bson::Double(f64::MAX),
        Bson::Double(f64::MIN_POSITIVE),
        Bson::Double(5e-324),
        Bson::Double(-0.0),
        Bson::Double(0.1),
        decimal("0.1"),
        decimal("-0.1"),
        decimal("1.00"),
        decimal("-1.5"),
        decimal("NaN"),
        decimal("Infinity"),
        decimal("-Infinity"),
        decimal("1E-6176"),
        decimal("-1E-6176"),
        decimal("9.999999999999999999999999999999999E+6144"),
        decimal("0.1000000000000000055511151231257827"),
        decimal("0.1000000000000000055511151231257828"),
        decimal("9007199254740993.5"),
        decimal("9007199254740993"),
        decimal("36028797018963968.25"),
        decimal("36028797018963967.75"),
        decimal("-0"),
        decimal("0E+100"),
        decimal("1E+18"),
        decimal("1E+30"),
    ];
    let edges = [
        0,
        1,
        5,
        127,
        128,
        255,
        256,
        1 << 31,
        1 << 52,
        1 << 53,
        1 << 54,
        1 << 55,
        1 << 62,
    ];
    for edge in edges.into_iter().chain([i64::MAX - 1]) {
        for near in [edge - 1, edge, edge + 1] {
            for value in [near, near.wrapping_neg()] {
                numbers.push(Bson::Int64(value));
                numbers.push(Bson::Double(value as f64));
                numbers.push(Bson::Double(value as f64 + 0.5));
                numbers.push(decimal(&value.to_string()));
                numbers.push(decimal(&format!("{value}.5")));
                if let Ok(small) = i32::try_from(value) {
                    numbers.push(Bson::Int32(small));
                }
            }
        }
    }
    numbers
}

#[test]
fn numbers_of_all_types_sort_exactly() {
    let numbers = numbers();
    for a in &numbers {
        for b in &numbers {
            check(a, b);
        }
    }
}

#[test]
fn text_with_low_bytes() {
    let texts = [
        "", "\0", "\0\0", "\u{1}", "\0\u{1}", "a", "a\0", "a\u{1}", "a\0b", "ab", "é",
    ];
    for a in texts {
        for b in texts {
            check(&bson!(a), &bson!(b));
            check(&bson!([a, 1]), &bson!([b, 0]));
        }
    }
}

#[test]
fn small_integers_are_short() {
    assert_eq!(encoded(&bson!(0)).len(), 1);
    assert_eq!(encoded(&bson!(100)).len(), 2);
    assert_eq!(encoded(&bson!(1_000_000)).len(), 4);
    assert_eq!(encoded(&bson!(1_000_000.0)).len(), 4);
}

#[test]
fn type_range_holds_every_value_of_a_type() {
    for value in numbers() {
        let (low, high) = type_range(&raw(&value).as_raw_bson_ref());
        let bytes = encoded(&value);
        assert!(low <= bytes && bytes < high, "{value}");
    }
    let (low, high) = type_range(&raw(&bson!("x")).as_raw_bson_ref());
    assert!(low <= encoded(&bson!("")) && encoded(&bson!("\u{10ffff}")) < high);
    assert!(encoded(&bson!({})) >= high && encoded(&bson!(1)) < low);
}

fn scalar() -> impl Strategy<Value = Bson> {
    prop_oneof![
        any::<i32>().prop_map(Bson::Int32),
        (-3i32..3).prop_map(Bson::Int32),
        any::<i64>().prop_map(Bson::Int64),
        (-3i64..3).prop_map(Bson::Int64),
        any::<f64>().prop_map(Bson::Double),
        (-6i32..6).prop_map(|n| Bson::Double(f64::from(n) / 2.0)),
        (any::<i64>(), -30i32..30).prop_map(|(m, e)| decimal(&format!("{m}E{e}"))),
        (-30i64..30).prop_map(|m| decimal(&format!("{m}E-1"))),
        any::<i64>().prop_map(|n| Bson::Double(n as f64)),
        "[\\x00-\\x02ab]{0,3}".prop_map(Bson::String),
        "[ab]{0,2}".prop_map(Bson::Symbol),
        any::<bool>().prop_map(Bson::Boolean),
        Just(Bson::Null),
        Just(Bson::Undefined),
        Just(Bson::MinKey),
        Just(Bson::MaxKey),
        any::<i64>().prop_map(|n| Bson::DateTime(bson::DateTime::from_millis(n))),
        any::<[u32; 2]>()
            .prop_map(|[time, increment]| Bson::Timestamp(bson::Timestamp { time, increment })),
        any::<[u8; 12]>().prop_map(|b| Bson::ObjectId(bson::oid::ObjectId::from_bytes(b))),
        (0u8..6, proptest::collection::vec(any::<u8>(), 0..4)).prop_map(|(subtype, bytes)| {
            Bson::Binary(bson::Binary {
                subtype: subtype.into(),
                bytes,
            })
        }),
        ("[\\x01ab]{0,2}", "[im]{0,1}").prop_map(|(pattern, options)| {
            Bson::RegularExpression(bson::Regex {
                pattern: pattern.try_into().unwrap(),
                options: options.try_into().unwrap(),
            })
        }),
        "[\\x00a]{0,2}".prop_map(Bson::JavaScriptCode),
    ]
}

fn value() -> impl Strategy<Value = Bson> {
    scalar().prop_recursive(3, 16, 4, |inner| {
        let fields = proptest::collection::vec(("[ab\\x01]{0,2}", inner.clone()), 0..3);
        prop_oneof![
            proptest::collection::vec(inner, 0..3).prop_map(Bson::Array),
            fields.prop_map(|fields| Bson::Document(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None,
        ..ProptestConfig::default() })]

    #[test]
    fn bytes_sort_as_values_do(a in value(), b in value()) {
        check(&a, &b);
    }

    #[test]
    fn scalars_sort_as_values_do(a in scalar(), b in scalar()) {
        check(&a, &b);
    }
}

/// The value as it comes back out of the key of a document that has it at `a`.
fn read_back(value: &Bson, order: FieldOrder) -> Bson {
    let mut key = KeyBuilder::default();
    key.push(KeyField::Value(raw(value).as_raw_bson_ref()), order, None);
    // What follows must not matter, and has to be found.
    key.push(KeyField::Value(RawBsonRef::Double(3.0)), order, None);
    let key = key.finish();
    let mut reader = KeyReader::new(&key.bytes, &key.types);
    let mut passing = reader.clone();
    let mut out = vec![0; 4];
    assert_eq!(reader.read(order, "v", &mut out), Ok(FieldValue::Present));
    passing.skip(order).unwrap();
    assert_eq!(reader.position(), passing.position(), "{value}");
    for mut reader in [reader, passing] {
        let mut rest = Vec::new();
        assert_eq!(reader.read(order, "w", &mut rest), Ok(FieldValue::Present));
        assert_eq!(rest, [&[1, b'w', 0][..], &3.0_f64.to_le_bytes()].concat());
        assert_eq!(reader.position(), key.bytes.len());
    }
    out.push(0);
    let length = (out.len() as u32).to_le_bytes();
    out[..4].copy_from_slice(&length);
    let document = RawDocument::from_bytes(&out).unwrap();
    Bson::try_from(document.get("v").unwrap().unwrap()).unwrap()
}

/// Equal in type and bytes: NaN with itself, 0 not with -0.
fn check_read_back(value: &Bson) {
    let bytes = |value: &Bson| {
        let document = bson::Document::from_iter([("v".to_owned(), value.clone())]);
        RawDocumentBuf::try_from(&document).unwrap().into_bytes()
    };
    for order in [FieldOrder::Ascending, FieldOrder::Descending] {
        let read = read_back(value, order);
        assert_eq!(bytes(&read), bytes(value), "{value:?} as {read:?}");
    }
}

#[test]
fn numbers_come_back_with_their_types() {
    for number in numbers() {
        check_read_back(&number);
    }
    check_read_back(&Bson::Double(f64::from_bits(0xfff8_0000_0000_0007)));
    check_read_back(&Bson::Decimal128(Decimal128::from_bytes([0xff; 16])));
    check_read_back(&Bson::Decimal128(Decimal128::from_bytes([0x6f; 16])));
}

#[test]
fn composites_come_back_with_the_types_inside() {
    let scope = bson::doc! { "a": 1.0, "b": "x\0\u{1}" };
    let code = "f\0".to_owned();
    check_read_back(&Bson::JavaScriptCodeWithScope(
        bson::JavaScriptCodeWithScope { code, scope },
    ));
    check_read_back(&bson!([1, 2.0, [], {}, { "": [null, -0.0] }]));
    check_read_back(&bson!({ "a": Bson::Symbol("s".into()), "b": { "c": 7_i64 }, "": Bson::Null }));
    let items: Vec<Bson> = (0..300).map(Bson::Int32).collect();
    check_read_back(&Bson::Array(items));
}

#[test]
fn usual_types_take_no_space() {
    let types = |document: &RawDocument| {
        let pattern = KeyPattern::parse(&bson::rawdoc! {"a": 1, "b.c": -1}).unwrap();
        let keys = pattern.keys(document).unwrap().keys;
        keys[0].types.to_vec()
    };
    let usual: [RawDocumentBuf; 5] = [
        bson::rawdoc! {"a": 7, "b": {"c": "x"}},
        bson::rawdoc! {"a": 7.5, "b": {"c": 1_i64 << 40}},
        bson::rawdoc! {"a": true, "b": {"c": i64::MAX}},
        bson::rawdoc! {"a": bson::oid::ObjectId::from_bytes([7; 12]), "b": {"c": 1e300}},
        bson::rawdoc! {},
    ];
    for document in usual {
        assert!(types(&document).is_empty(), "{document:?}");
    }
    assert_eq!(types(&bson::rawdoc! {"a": 7, "b": {"c": 7.0}}), [0, 2]);
    assert_eq!(types(&bson::rawdoc! {"a": 7.0, "b": {}}), [2, 8, 1]);
}

/// What a covered plan knows of a field that is not there.
#[test]
fn what_is_missing_is_known_from_null() {
    let read = |document: &RawDocument| {
        let pattern = KeyPattern::parse(&bson::rawdoc! {"a.b.c": 1}).unwrap();
        let key = pattern.keys(document).unwrap().keys.remove(0);
        let mut reader = KeyReader::new(&key.bytes, &key.types);
        reader
            .read(FieldOrder::Ascending, "c", &mut Vec::new())
            .unwrap()
    };
    let missing = |documents| FieldValue::Missing { documents };
    assert_eq!(read(&bson::rawdoc! {}), missing(0));
    assert_eq!(read(&bson::rawdoc! {"a": 1}), missing(0));
    assert_eq!(read(&bson::rawdoc! {"a": {}}), missing(1));
    assert_eq!(read(&bson::rawdoc! {"a": {"b": "x"}}), missing(1));
    assert_eq!(read(&bson::rawdoc! {"a": {"b": {"d": 1}}}), missing(2));
    assert_eq!(
        read(&bson::rawdoc! {"a": {"b": {"c": null}}}),
        FieldValue::Present
    );
    assert_eq!(
        read(&bson::rawdoc! {"a": {"b": {"c": []}}}),
        FieldValue::EmptyArray
    );
}

#[test]
fn damaged_keys_are_refused() {
    let key = encoded(&bson!({ "a": [1, 2.5, "x", decimal("1.5")] }));
    for length in 0..key.len() {
        let mut reader = KeyReader::new(&key[..length], &[]);
        let read = reader.read(FieldOrder::Ascending, "v", &mut Vec::new());
        assert_eq!(read, Err(Unreadable));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None,
        ..ProptestConfig::default() })]

    #[test]
    fn every_value_comes_back(value in value()) {
        check_read_back(&value);
    }
}

/// Prints the keys of the block's documents under each pattern, as values, with `*` where an
/// array was met.
#[test]
fn golden() {
    crate::golden::check("src/key/keys.golden", |commands| {
        let mut documents = Vec::new();
        let mut output = Vec::new();
        for command in commands {
            let (name, argument) = crate::golden::split(command);
            let parsed = crate::extjson::parse(argument).unwrap();
            if name == "doc" {
                documents.push(parsed);
                continue;
            }
            let pattern = match KeyPattern::parse(&parsed) {
                Ok(pattern) => pattern,
                Err(error) => {
                    output.push(format!("{argument} => error {error}"));
                    continue;
                }
            };
            output.push(format!("{argument} =>"));
            for document in &documents {
                output.push(format!(
                    "  {}",
                    show_keys(&pattern, document, name == "sparse")
                ));
            }
        }
        output
    });
}

fn show_keys(pattern: &KeyPattern, document: &RawDocument, sparse: bool) -> String {
    let keys = if sparse {
        pattern.sparse_keys(document)
    } else {
        pattern.keys(document)
    };
    let mut first = Vec::new();
    let written = pattern.write_first(document, &mut first);
    let keys = match keys {
        Ok(keys) => keys,
        Err(error) => {
            assert_eq!(written, Err(error.clone()));
            return format!("error {} {error}", error.code());
        }
    };
    // A sparse index leaves keys out.
    if let Some(key) = keys.keys.first().filter(|_| !sparse) {
        assert_eq!(first, key.bytes, "the first key of {document:?}");
    }
    let shown: Vec<String> = keys
        .keys
        .iter()
        .map(|key| {
            let values = pattern.value_of_key(document, key).unwrap();
            crate::extjson::relaxed_text(&values).unwrap()
        })
        .collect();
    let multikey = match keys.arrays.iter().map(|path| &**path).collect::<Vec<_>>() {
        arrays if arrays.is_empty() => String::new(),
        arrays => format!(" * {}", arrays.join(", ")),
    };
    format!(
        "{}{multikey}",
        if shown.is_empty() {
            "none".into()
        } else {
            shown.join(" ")
        }
    )
}

#[test]
fn keys_sort_as_their_fields_do() {
    let pattern = KeyPattern::parse(&bson::rawdoc! {"a": 1, "b": -1}).unwrap();
    let key = |a: i32, b: &str| {
        let keys = pattern.keys(&bson::rawdoc! {"a": a, "b": b}).unwrap();
        assert!(!keys.is_multikey());
        keys.keys[0].bytes.clone()
    };
    assert!(key(1, "b") < key(1, "a"));
    assert!(key(1, "ab") < key(1, "a"));
    assert!(key(1, "a") < key(2, "b"));
}
