use bson::{RawDocumentBuf, rawdoc};

use super::{Configuration, KnownSettings, QuerySettings, parse_hash};

fn parse(written: RawDocumentBuf) -> Result<QuerySettings, String> {
    let parsed = QuerySettings::parse("setQuerySettings.settings", &written);
    parsed.map_err(|error| error.message)
}

fn hints(database: &str, collection: &str) -> RawDocumentBuf {
    rawdoc! { "ns": { "db": database, "coll": collection }, "allowedIndexes": ["a_1", { "b": 1 }] }
}

#[test]
fn settings_are_read_as_they_are_shown() {
    let written = rawdoc! {
        "indexHints": [hints("d", "c"), hints("d", "e")], "queryFramework": "classic",
        "reject": true, "comment": { "why": "slow" },
    };
    let settings = parse(written.clone()).unwrap();
    assert_eq!(settings.to_document(), written);
    assert!(settings.check().is_ok() && settings.rejects());
    assert!(settings.hints_for("d", "e").is_some());
    assert!(settings.hints_for("other", "e").is_none());
    // One collection's hints need no array.
    let one = parse(rawdoc! { "indexHints": hints("d", "c") }).unwrap();
    assert_eq!(one.index_hints.unwrap().len(), 1);
}

#[test]
fn what_is_wrong_with_settings_is_told() {
    let cases = [
        (
            rawdoc! { "queryFramework": "x" },
            "unexpected value for 'queryFramework': 'x'",
        ),
        (
            rawdoc! { "indexHints": [{ "allowedIndexes": [] }] },
            "BSON field 'setQuerySettings.settings.indexHints.ns' is missing but a required field",
        ),
        (
            rawdoc! { "indexHints": [{ "ns": { "coll": "c" }, "allowedIndexes": [] }] },
            "invalid index hint: 'ns.db' field is missing",
        ),
        (
            rawdoc! { "reject": 1 },
            "BSON field 'setQuerySettings.settings.reject' is the wrong type 'int', expected type \
             'bool'",
        ),
    ];
    for (written, expected) in cases {
        assert_eq!(parse(written).unwrap_err(), expected);
    }
    let nothing = [
        rawdoc! {},
        rawdoc! { "reject": false, "comment": "x" },
        rawdoc! { "indexHints": [{ "ns": { "db": "d", "coll": "c" }, "allowedIndexes": [] }] },
    ];
    for written in nothing {
        assert!(parse(written).unwrap().simplified().check().is_err());
    }
    let twice = parse(rawdoc! { "indexHints": [hints("d", "c"), hints("d", "c")] });
    assert!(twice.unwrap().check().is_err());
}

#[test]
fn what_is_newly_set_takes_the_place_of_what_was() {
    let old = parse(rawdoc! { "indexHints": hints("d", "c"), "reject": true }).unwrap();
    let new = old.merged(parse(rawdoc! { "reject": false, "comment": 1 }).unwrap());
    let new = new.simplified();
    assert!(!new.rejects() && new.index_hints.is_some() && new.comment.is_some());
}

#[test]
fn settings_are_found_by_the_hash_of_the_shape() {
    let hash = |byte: u8| [byte; 32];
    let configuration = |byte: u8, reject: bool| Configuration {
        hash: format!("{byte:02X}").repeat(32),
        settings: QuerySettings {
            reject: Some(reject),
            ..QuerySettings::default()
        },
        representative: Some(rawdoc! { "find": "c", "$db": "d" }),
    };
    let mut known = KnownSettings::default();
    for byte in 1..=3 {
        known.set(configuration(byte, true));
    }
    known.set(configuration(2, false));
    assert_eq!(known.all().len(), 3);
    assert!(!known.find(&hash(2)).unwrap().settings.rejects());
    let kept = KnownSettings::of(&known.to_value());
    assert_eq!(kept, known);
    assert!(known.remove(&hash(1)) && !known.remove(&hash(1)));
    assert_eq!(
        known.find(&hash(3)).unwrap().hash,
        configuration(3, true).hash
    );
    assert!(known.find(&hash(1)).is_none());
}

#[test]
fn a_hash_has_32_bytes() {
    assert_eq!(parse_hash(&"0f".repeat(32)).unwrap(), [15; 32]);
    for wrong in ["", "abc", "tooshort", "0f0f"] {
        assert!(parse_hash(wrong).is_err(), "{wrong}");
    }
}
