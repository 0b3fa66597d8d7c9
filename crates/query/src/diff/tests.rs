use bson::{RawDocumentBuf, rawdoc};

use super::{by_operators, by_pipeline};

fn nested() -> (RawDocumentBuf, RawDocumentBuf) {
    (
        rawdoc! { "_id": 1, "a": 1, "b": { "c": [1, 2], "d": { "e": 1 } }, "gone": "x" },
        rawdoc! { "_id": 1, "a": 2, "b": { "c": [1, 7, 3], "d": { "e": 1, "f": 5 } }, "new": 9 },
    )
}

#[test]
fn operators_are_told_by_the_fields_they_touched() {
    let (before, after) = nested();
    let diff = by_operators(&before, &after, &[]);
    let oplog = rawdoc! {
        "d": { "gone": false },
        "u": { "a": 2 },
        "i": { "new": 9 },
        "sb": { "sc": { "a": true, "u1": 7, "u2": 3 }, "sd": { "i": { "f": 5 } } },
    };
    assert_eq!(diff.to_oplog(), oplog);
    let description = rawdoc! {
        "updatedFields": { "a": 2, "new": 9, "b.c.1": 7, "b.c.2": 3, "b.d.f": 5 },
        "removedFields": ["gone"],
        "truncatedArrays": [],
    };
    assert_eq!(diff.to_description(false), description);
}

#[test]
fn a_value_given_as_a_whole_is_told_as_a_whole() {
    let (before, after) = nested();
    let updated = |wholes: &[&str]| {
        let description = by_operators(&before, &after, wholes).to_description(false);
        description
            .get_document("updatedFields")
            .unwrap()
            .to_owned()
    };
    assert_eq!(
        updated(&["b.d"]),
        rawdoc! { "a": 2, "new": 9, "b.d": { "e": 1, "f": 5 }, "b.c.1": 7, "b.c.2": 3 }
    );
    assert_eq!(
        updated(&["b.c", "x.y"]),
        rawdoc! { "a": 2, "new": 9, "b.c": [1, 7, 3], "b.d.f": 5 }
    );
}

#[test]
fn any_position_fits_a_positional_path() {
    let before = rawdoc! { "l": [{ "v": { "n": 1, "m": 1 } }, { "v": { "n": 1, "m": 1 } }] };
    let after = rawdoc! { "l": [{ "v": { "n": 1, "m": 1 } }, { "v": { "n": 2, "m": 1 } }] };
    for path in ["l.$.v", "l.$[].v", "l.$[x].v", "l.1.v"] {
        let oplog = by_operators(&before, &after, &[path]).to_oplog();
        let expected = rawdoc! {
            "sl": { "a": true, "s1": { "u": { "v": { "n": 2, "m": 1 } } } },
        };
        assert_eq!(oplog, expected, "{path}");
    }
    let other = by_operators(&before, &after, &["l.0.v"]).to_oplog();
    let expected = rawdoc! { "sl": { "a": true, "s1": { "sv": { "u": { "n": 2 } } } } };
    assert_eq!(other, expected);
}

#[test]
fn what_is_put_behind_an_empty_array_is_told_as_a_whole() {
    let before = rawdoc! { "z": 1, "l": [], "m": [[], 1], "n": [0] };
    let after = rawdoc! { "z": 2, "l": ["x"], "m": [[5], 1], "n": [0, 1], "a": 3 };
    let oplog = by_operators(&before, &after, &["l..", "m.0..", "n.."]).to_oplog();
    let expected = rawdoc! {
        "u": { "l": ["x"], "z": 2 },
        "i": { "a": 3 },
        "sm": { "a": true, "u0": [5] },
        "sn": { "a": true, "u1": 1 },
    };
    assert_eq!(oplog, expected);
    let before = rawdoc! { "x": 1, "10": 1, "9": 1, "s": 1, "c": 1 };
    let after = rawdoc! { "x": 2, "10": 2, "9": 2 };
    let oplog = by_operators(&before, &after, &[]).to_oplog();
    let expected = rawdoc! { "d": { "c": false, "s": false }, "u": { "9": 2, "10": 2, "x": 2 } };
    assert_eq!(oplog, expected);
    // A position was given.
    let before = rawdoc! { "l": [] };
    let after = rawdoc! { "l": [null, null, 7] };
    let oplog = by_operators(&before, &after, &[]).to_oplog();
    assert_eq!(oplog, rawdoc! { "sl": { "a": true, "u2": 7 } });
    let update = rawdoc! { "$push": { "l": 1, "m.$[]": 1 } };
    let update = bson::RawBsonRef::Document(&update);
    let update = crate::Update::parse(update, &[], &crate::Context::default()).unwrap();
    assert_eq!(update.wholes(), ["l..", "m.$[].."]);
}

#[test]
fn an_array_of_which_many_elements_were_meant_is_whole_if_more_than_one_has_changed() {
    let before = rawdoc! { "l": [{ "v": 1, "m": 1 }, { "v": 1, "m": 1 }] };
    let one = rawdoc! { "l": [{ "v": 1, "m": 1 }, { "v": 2, "m": 1 }] };
    let both = rawdoc! { "l": [{ "v": 2, "m": 1 }, { "v": 2, "m": 1 }] };
    for path in ["l.$[].v.", "l.$[x].v."] {
        let oplog = by_operators(&before, &one, &[path]).to_oplog();
        let expected = rawdoc! { "sl": { "a": true, "s1": { "u": { "v": 2 } } } };
        assert_eq!(oplog, expected, "{path}");
        let oplog = by_operators(&before, &both, &[path]).to_oplog();
        let expected = rawdoc! { "u": { "l": [{ "v": 2, "m": 1 }, { "v": 2, "m": 1 }] } };
        assert_eq!(oplog, expected, "{path}");
    }
    let update = rawdoc! { "$inc": { "l.$[].v": 1, "n": 1 }, "$addToSet": { "s": 1 } };
    let update = bson::RawBsonRef::Document(&update);
    let update = crate::Update::parse(update, &[], &crate::Context::default()).unwrap();
    assert_eq!(update.wholes(), ["l.$[].v.", "s"]);
}

#[test]
fn a_shorter_array_is_whole_after_operators_and_cut_after_a_pipeline() {
    let filler = "a text that makes the document worth a difference";
    let before = rawdoc! { "_id": 1, "l": [1, 2, 3, filler, 5], "filler": filler };
    let after = rawdoc! { "_id": 1, "l": [1, 2, 4, filler], "filler": filler };
    let by_operators = by_operators(&before, &after, &[]).to_oplog();
    assert_eq!(by_operators, rawdoc! { "u": { "l": [1, 2, 4, filler] } });
    let diff = by_pipeline(&before, &after).unwrap();
    let oplog = rawdoc! { "sl": { "a": true, "l": 4, "u2": 4 } };
    assert_eq!(diff.to_oplog(), oplog);
    let description = rawdoc! {
        "updatedFields": { "l.2": 4 },
        "removedFields": [],
        "truncatedArrays": [{ "field": "l", "newSize": 4 }],
    };
    assert_eq!(diff.to_description(false), description);
}

/// The sizes at which MongoDB 6.0 went over to the whole.
#[test]
fn a_pipeline_is_told_by_the_difference_while_that_is_shorter() {
    let before = rawdoc! { "_id": 2, "totally": "different" };
    let after = rawdoc! { "_id": 2, "totally": "diffe" };
    assert!(by_pipeline(&before, &after).is_none());
    let filler = "a text that makes the document worth a difference";
    let before = rawdoc! { "_id": 1, "f": filler, "dotted": { "a.b": 1, "0": 2 } };
    let after = rawdoc! { "_id": 1, "f": filler, "dotted": { "a.b": 5, "0": 2 } };
    let diff = by_pipeline(&before, &after).unwrap();
    let oplog = rawdoc! { "u": { "dotted": { "a.b": 5, "0": 2 } } };
    assert_eq!(diff.to_oplog(), oplog);
}

#[test]
fn a_field_that_moved_is_inserted_at_the_end() {
    let filler = "a text that makes the document worth a difference";
    let before = rawdoc! { "_id": 1, "f": filler, "x": 1, "y": 2 };
    let after = rawdoc! { "_id": 1, "f": filler, "y": 2, "x": 1 };
    let diff = by_pipeline(&before, &after).unwrap();
    assert_eq!(diff.to_oplog(), rawdoc! { "i": { "x": 1 } });
}

#[test]
fn paths_that_mislead_are_taken_apart() {
    let before = rawdoc! { "a": { "b.c": 1, "0": 1 }, "l": [{ "1": 1 }] };
    let after = rawdoc! { "a": { "b.c": 2, "0": 2 }, "l": [{ "1": 2 }] };
    let description = by_operators(&before, &after, &[]).to_description(true);
    let paths = rawdoc! { "a.0": ["a", "0"], "a.b.c": ["a", "b.c"], "l.0.1": ["l", 0, "1"] };
    assert_eq!(
        description.get_document("disambiguatedPaths").unwrap(),
        &*paths
    );
}
