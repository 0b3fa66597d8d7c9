use bson::{Bson, RawDocumentBuf, bson, doc};
use proptest::prelude::*;

use super::*;
use crate::compare::compare_collated;
use crate::extjson;
use crate::key::{encode_collated, hash_collated};

/// `show` prints a collation completed, or MongoDB's code for what is wrong with it, `create` one
/// that a collection is created with. `order` prints strings in its order, equal ones joined by `=`.
#[test]
fn golden() {
    crate::golden::check("src/collation/collation.golden", |commands| {
        let mut output = Vec::new();
        let mut words: Vec<String> = Vec::new();
        for command in commands {
            let (name, argument) = crate::golden::split(command);
            match name {
                "words" => words = argument.split(' ').map(unescaped).collect(),
                "show" | "create" => {
                    let document = extjson::parse(argument).unwrap();
                    let parsed = match name {
                        "show" => Collator::parse(&document),
                        _ => Collator::parse_default(&document),
                    };
                    output.push(format!("{argument} => {}", shown(parsed)));
                }
                "order" => {
                    let collator = Collator::parse(&extjson::parse(argument).unwrap()).unwrap();
                    let order = ordered(&words, collator.as_ref());
                    output.push(format!("{argument} => {order}"));
                }
                other => panic!("{other}"),
            }
        }
        output
    });
}

fn unescaped(word: &str) -> String {
    word.replace('␠', " ")
}

fn shown(parsed: Result<Option<Collator>, CollationError>) -> String {
    match parsed {
        Ok(Some(collator)) => extjson::relaxed_text(&collator.collation().to_document()).unwrap(),
        Ok(None) => "simple".to_owned(),
        Err(error) => format!("error {}", error.code()),
    }
}

fn ordered(words: &[String], collator: Option<&Collator>) -> String {
    let compare = |a: &str, b: &str| match collator {
        Some(collator) => collator.compare(a, b),
        None => a.cmp(b),
    };
    let mut sorted: Vec<&str> = words.iter().map(String::as_str).collect();
    sorted.sort_by(|a, b| compare(a, b));
    let mut line = String::new();
    for (at, word) in sorted.iter().enumerate() {
        if at > 0 {
            let equal = compare(sorted[at - 1], word).is_eq();
            line.push_str(if equal { "=" } else { " " });
        }
        line.push_str(&word.replace(' ', "␠"));
    }
    line
}

fn collator(locale: &str, options: bson::Document) -> Collator {
    let mut document = doc! { "locale": locale };
    document.extend(options);
    let raw = RawDocumentBuf::try_from(document).unwrap();
    Collator::parse(&raw).unwrap().unwrap()
}

#[test]
fn every_locale_has_rules() {
    for name in locale::names() {
        let found = collator(&name, doc! {});
        assert_eq!(found.collation().locale, name);
    }
}

#[test]
fn a_completed_collation_is_itself() {
    let first = collator("fr_CA", doc! { "strength": 2, "alternate": "shifted" });
    let again = Collator::parse(&first.collation().to_document()).unwrap();
    assert_eq!(again, Some(first));
}

#[test]
fn values_of_other_types_compare_as_ever() {
    let collator = collator("en", doc! { "strength": 1 });
    let raw = |value: Bson| bson::RawBson::try_from(value).unwrap();
    let compare = |a: Bson, b: Bson| {
        let (a, b) = (raw(a), raw(b));
        compare_collated(a.as_raw_bson_ref(), b.as_raw_bson_ref(), Some(&collator))
    };
    assert!(compare(bson!("a"), bson!("A")).is_eq());
    assert!(compare(bson!(["a", {"b": "C"}]), bson!(["A", {"b": "c"}])).is_eq());
    // Names are no values.
    assert!(compare(bson!({"a": 1}), bson!({"A": 1})).is_gt());
    assert!(compare(bson!(1), bson!("a")).is_lt());
    assert!(
        compare(
            Bson::JavaScriptCode("a".into()),
            Bson::JavaScriptCode("A".into())
        )
        .is_gt()
    );
    let hash = |value: Bson| hash_collated(raw(value).as_raw_bson_ref(), Some(&collator));
    assert_eq!(hash(bson!({"a": "X"})), hash(bson!({"a": "x"})));
    assert_ne!(hash(bson!({"a": "X"})), hash(bson!({"a": "y"})));
    assert_eq!(
        hash(bson!(1)),
        crate::key::hash(raw(bson!(1)).as_raw_bson_ref())
    );
}

fn collators() -> Vec<Collator> {
    let mut collators = vec![
        collator("en", doc! { "caseLevel": true, "strength": 1 }),
        collator("en", doc! { "numericOrdering": true }),
        collator("en", doc! { "caseFirst": "upper" }),
        collator("en", doc! { "alternate": "shifted", "strength": 4 }),
        collator(
            "en",
            doc! { "alternate": "shifted", "maxVariable": "space" },
        ),
        collator("fr_CA", doc! { "strength": 2 }),
        collator("sv", doc! {}),
        collator("zh", doc! {}),
    ];
    collators.extend((1..=5).map(|strength| collator("en", doc! { "strength": strength })));
    collators
}

fn text() -> impl Strategy<Value = String> {
    let letter = prop::sample::select(vec![
        'a', 'A', 'b', 'é', 'É', 'e', 'ö', 'Z', '1', '2', '0', ' ', '-', '.', '$', '_', '\0',
        '\u{1}', 'ß', '\u{301}', '中', '文', 'か', 'ガ', '😀',
    ]);
    prop_oneof![
        prop::collection::vec(letter, 0..6).prop_map(|letters| letters.into_iter().collect()),
        "\\PC{0,6}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None,
        ..ProptestConfig::default() })]

    #[test]
    fn sort_keys_sort_as_strings_do(a in text(), b in text()) {
        let (left, right) = (bson!([&a]), bson!([&b]));
        let raw = |value: Bson| bson::RawBson::try_from(value).unwrap();
        let (left, right) = (raw(left), raw(right));
        for collator in collators() {
            let key = |value: &bson::RawBson| {
                let mut key = Vec::new();
                encode_collated(value.as_raw_bson_ref(), Some(&collator), &mut key);
                key
            };
            let expected =
                compare_collated(left.as_raw_bson_ref(), right.as_raw_bson_ref(), Some(&collator));
            prop_assert_eq!(key(&left).cmp(&key(&right)), expected, "{:?}", collator);
            let value = |value: &bson::RawBson| key_value(value.as_raw_bson_ref(), &collator);
            let (left_value, right_value) = (value(&left), value(&right));
            let (a, b) = (left_value.as_raw_bson_ref(), right_value.as_raw_bson_ref());
            prop_assert_eq!(crate::compare::compare(a, b), expected, "{:?}", collator);
            let mut encoded = Vec::new();
            crate::key::encode(a, &mut encoded);
            prop_assert_eq!(encoded, key(&left));
        }
    }
}
