use std::ops::Bound;
use std::sync::Arc;

use super::bounds::{IndexBounds, candidates, whole};
use super::ranges::ScanRange;
use banyan_query::Filter;
use banyan_query::bounds::Conjunction;
use banyan_storage::{ArrayPaths, Index, IndexDefinition};
use bson::{RawBson, RawDocument, RawDocumentBuf, rawdoc};

fn described(bounds: &IndexBounds) -> Vec<Vec<String>> {
    bounds.described(false).collect()
}

fn index(key: RawDocumentBuf, arrays: &[&str]) -> Arc<Index> {
    let spec = rawdoc! { "v": 2, "key": key, "name": "index" };
    let arrays = ArrayPaths::of(&arrays.iter().map(|path| Box::from(*path)).collect());
    Arc::new(Index::parse(&IndexDefinition { id: 7, spec }, arrays).unwrap())
}

fn bounds(index: &Arc<Index>, conjunction: &Conjunction<'_>) -> Option<IndexBounds> {
    candidates(index, conjunction).next()
}

/// The bounds as explain shows them, and whether they are exact.
fn shown(key: RawDocumentBuf, arrays: &[&str], filter: RawDocumentBuf) -> (Vec<Vec<String>>, bool) {
    let filter = parse(&filter);
    let bounds = bounds(&index(key, arrays), &Conjunction::of(&filter)).unwrap();
    (described(&bounds), bounds.exact)
}

fn parse(filter: &RawDocument) -> Filter {
    Filter::parse(filter, &banyan_query::Context::default()).unwrap()
}

/// Whether a document's key lies inside the bounds.
fn inside(key: RawDocumentBuf, filter: &RawDocumentBuf, document: &RawDocumentBuf) -> bool {
    let index = index(key, &[]);
    let bounds = bounds(&index, &Conjunction::of(&parse(filter))).unwrap();
    let keys = index.kind.keys(document).unwrap().keys;
    keys.iter().map(|key| &key.bytes).any(|key| {
        bounds.ranges.iter().any(|range| {
            let above = match &range.range.lower {
                Bound::Included(lower) => key >= lower,
                Bound::Excluded(lower) => key > lower,
                Bound::Unbounded => true,
            };
            let below = match &range.range.upper {
                Bound::Included(upper) => key <= upper,
                Bound::Excluded(upper) => key < upper,
                Bound::Unbounded => true,
            };
            above && below
        })
    })
}

#[test]
fn equality_prefixes_and_a_range_combine() {
    let (shown, exact) = shown(
        rawdoc! { "a": 1, "b": -1, "c": 1 },
        &[],
        rawdoc! { "a": 5, "b": { "$gt": 1, "$lte": 9 }, "c": 3 },
    );
    assert_eq!(shown, [["[5, 5]"], ["[9, 1)"], ["[3, 3]"]]);
    assert!(exact);
}

#[test]
fn bounds_are_shown_as_a_scan_meets_them() {
    let filter = parse(&rawdoc! { "a": { "$in": [5, 7] }, "b": { "$not": { "$gt": 1 } } });
    let index = index(rawdoc! { "a": 1, "b": -1, "c": 1 }, &[]);
    let bounds = bounds(&index, &Conjunction::of(&filter)).unwrap();
    let shown = |reverse| {
        let fields: Vec<String> = bounds.described(reverse).map(|one| one.join(" ")).collect();
        fields
    };
    let forwards = [
        "[5, 5] [7, 7]",
        "[MaxKey, inf.0) [1, MinKey]",
        "[MinKey, MaxKey]",
    ];
    assert_eq!(shown(false), forwards);
    let backwards = [
        "[7, 7] [5, 5]",
        "[MinKey, 1] (inf.0, MaxKey]",
        "[MaxKey, MinKey]",
    ];
    assert_eq!(shown(true), backwards);
}

#[test]
fn one_range_is_points_then_an_interval() {
    let is_one = |filter: RawDocumentBuf| {
        let filter = parse(&filter);
        let index = index(rawdoc! { "a": 1, "b": -1 }, &[]);
        let bounds = bounds(&index, &Conjunction::of(&filter)).unwrap();
        bounds.are_one_range()
    };
    assert!(is_one(rawdoc! { "a": 1 }));
    assert!(is_one(rawdoc! { "a": { "$gt": 1 } }));
    assert!(is_one(rawdoc! { "a": 1, "b": { "$lt": 2 } }));
    assert!(!is_one(rawdoc! { "a": { "$gt": 1 }, "b": 2 }));
    assert!(!is_one(rawdoc! { "a": { "$in": [1, 2] } }));
    assert!(!is_one(rawdoc! { "a": RawBson::Null }));
}

#[test]
fn ranges_stay_within_their_type() {
    let (shown, exact) = shown(rawdoc! { "a": 1 }, &[], rawdoc! { "a": { "$gt": 5 } });
    assert_eq!(shown, [["(5, inf.0]"]]);
    assert!(exact);
    let range = rawdoc! { "a": { "$gt": 5 } };
    assert!(inside(rawdoc! { "a": 1 }, &range, &rawdoc! { "a": 6.5 }));
    assert!(!inside(rawdoc! { "a": 1 }, &range, &rawdoc! { "a": 5_i64 }));
    assert!(!inside(rawdoc! { "a": 1 }, &range, &rawdoc! { "a": "x" }));
    assert!(!inside(rawdoc! { "a": 1 }, &range, &rawdoc! {}));
}

#[test]
fn descending_fields_turn_the_ends_round() {
    let range = rawdoc! { "a": { "$gte": 2, "$lt": 4 } };
    for (value, expected) in [(1, false), (2, true), (3, true), (4, false)] {
        let document = rawdoc! { "a": value };
        assert_eq!(
            inside(rawdoc! { "a": -1 }, &range, &document),
            expected,
            "{value}"
        );
        assert_eq!(
            inside(rawdoc! { "a": -1, "b": 1 }, &range, &document),
            expected,
            "{value}"
        );
    }
}

#[test]
fn an_array_may_meet_two_conditions_with_two_elements() {
    let filter = rawdoc! { "a": { "$gt": 3, "$lt": 5 } };
    let (shown_multikey, exact) = shown(rawdoc! { "a": 1 }, &["a"], filter.clone());
    assert_eq!(shown_multikey, [["[-inf.0, 5)"]]);
    assert!(!exact);
    let element = rawdoc! { "a": { "$elemMatch": { "$gt": 3, "$lt": 5 } } };
    assert_eq!(shown(rawdoc! { "a": 1 }, &["a"], element).0, [["(3, 5)"]]);
    assert_eq!(shown(rawdoc! { "a": 1 }, &[], filter).0, [["(3, 5)"]]);
}

#[test]
fn fields_of_one_array_are_not_combined() {
    let filter = rawdoc! { "a.b": 1, "a.c": 2 };
    let key = rawdoc! { "a.b": 1, "a.c": 1 };
    let (multikey, _) = shown(key.clone(), &["a"], filter.clone());
    assert_eq!(multikey, [["[1, 1]"], ["[MinKey, MaxKey]"]]);
    assert_eq!(shown(key, &[], filter).0, [["[1, 1]"], ["[2, 2]"]]);
}

#[test]
fn fields_beside_an_array_are_confined_as_without_it() {
    let key = rawdoc! { "a": 1, "b": 1 };
    let filter = rawdoc! { "a": 5, "b": { "$gt": 1, "$lt": 9 } };
    let (bounds, exact) = shown(key.clone(), &["a"], filter.clone());
    assert_eq!(bounds, [["[5, 5]"], ["(1, 9)"]]);
    assert!(exact, "one item is enough");
    let (bounds, exact) = shown(key, &["b"], rawdoc! { "a": { "$gt": 1, "$lt": 9 } });
    assert_eq!(bounds, [["(1, 9)"], ["[MinKey, MaxKey]"]]);
    assert!(exact, "no array is on the path that is confined");
    // An array below the part that the paths share does not pair them up.
    let key = rawdoc! { "c.d": 1, "c.e": 1 };
    let filter = rawdoc! { "c.d": 1, "c.e": { "$gt": 1, "$lt": 7 } };
    let (bounds, _) = shown(key, &["c.d"], filter);
    assert_eq!(bounds, [["[1, 1]"], ["(1, 7)"]]);
}

#[test]
fn a_wildcard_index_answers_for_each_path_by_itself() {
    let index = index(rawdoc! { "$**": 1 }, &["a"]);
    let shown = |filter: RawDocumentBuf| -> Vec<String> {
        let filter = parse(&filter);
        let conjunction = Conjunction::of(&filter);
        candidates(&index, &conjunction)
            .map(|bounds| {
                let prefix = bounds.layout.prefix.as_ref().unwrap();
                let below = if prefix.with_below { ".*" } else { "" };
                let path = prefix.paths.join(",") + below;
                let exact = if bounds.exact { "" } else { " ?" };
                let multikey = if bounds.multikey { " *" } else { "" };
                format!(
                    "{path} {}{exact}{multikey}",
                    described(&bounds)[0].join(" ")
                )
            })
            .collect()
    };
    assert_eq!(shown(rawdoc! { "b.c": { "$gt": 1 } }), ["b.c (1, inf.0]"]);
    assert_eq!(
        shown(rawdoc! { "a.x": 1, "b": "s" }),
        ["a.x [1, 1] ? *", "b [\"s\", \"s\"] ?"]
    );
    let nothing: [&str; 0] = [];
    assert_eq!(shown(rawdoc! {}), nothing);
    assert_eq!(shown(rawdoc! { "b": bson::RawBson::Null }), nothing);
    assert_eq!(shown(rawdoc! { "b": { "$ne": 1 } }), nothing);
    assert_eq!(shown(rawdoc! { "b": { "c": 1 } }), nothing);
    assert_eq!(shown(rawdoc! { "b": { "$gte": {} } }), nothing);
    assert_eq!(shown(rawdoc! { "b": [1] }), nothing);
    assert_eq!(
        shown(rawdoc! { "b": [] }),
        ["b [undefined, undefined] [[], []] ?"]
    );
    assert_eq!(
        shown(rawdoc! { "b.c": { "$exists": true } }),
        ["b.c.* [MinKey, MaxKey]"]
    );
    assert_eq!(
        shown(rawdoc! { "a": { "$type": "array" } }),
        ["a.* [MinKey, MaxKey] ? *"]
    );
    // Those of values say more.
    assert_eq!(
        shown(rawdoc! { "b": { "$exists": true, "$gt": 1 } }),
        ["b (1, inf.0] ?"]
    );
    assert_eq!(shown(rawdoc! { "a.0": 1 }), ["a,a.0 [1, 1] ? *"]);
    assert_eq!(
        shown(rawdoc! { "a.0": { "$exists": true } }),
        ["a.* [MinKey, MaxKey] ? *"]
    );
    assert_eq!(shown(rawdoc! { "b": { "$in": [1, null] } }), nothing);
    assert_eq!(shown(rawdoc! { "a.0.b": 1 }), nothing);
    assert!(whole(&index, None).is_none());
}

#[test]
fn points_of_an_in_are_sorted_and_kept_apart() {
    let filter = rawdoc! { "a": { "$in": [3, 1, 3.0, 2] }, "b": 1 };
    let filter = parse(&filter);
    let index = index(rawdoc! { "a": 1, "b": 1 }, &[]);
    let bounds = bounds(&index, &Conjunction::of(&filter)).unwrap();
    assert_eq!(bounds.ranges.len(), 3);
    assert!(bounds.ranges.iter().all(|range| range.point.is_some()));
    assert!(bounds.exact);
    let mut sorted = bounds.ranges.clone();
    sorted.sort_by(|a, b| a.point.cmp(&b.point));
    let points = |ranges: &[ScanRange]| -> Vec<_> {
        ranges.iter().map(|range| range.point.clone()).collect()
    };
    assert_eq!(points(&sorted), points(&bounds.ranges));
}

#[test]
fn null_takes_in_missing_fields() {
    let filter = rawdoc! { "a": bson::RawBson::Null };
    assert!(inside(rawdoc! { "a": 1 }, &filter, &rawdoc! { "b": 1 }));
    assert!(!inside(rawdoc! { "a": 1 }, &filter, &rawdoc! { "a": 0 }));
    assert!(shown(rawdoc! { "a": 1 }, &[], filter).1);
}

#[test]
fn a_sparse_index_is_no_help_where_missing_fields_match() {
    let spec = rawdoc! { "v": 2, "key": { "a": 1 }, "name": "a_1", "sparse": true };
    let index =
        Arc::new(Index::parse(&IndexDefinition { id: 7, spec }, ArrayPaths::default()).unwrap());
    let bounds =
        |filter: RawDocumentBuf| bounds(&index, &Conjunction::of(&parse(&filter))).is_some();
    assert!(bounds(rawdoc! { "a": 1 }));
    assert!(bounds(rawdoc! { "a": { "$exists": true } }));
    assert!(!bounds(rawdoc! { "a": bson::RawBson::Null }));
    assert!(!bounds(rawdoc! { "b": 1 }));
    assert!(!bounds(rawdoc! {}));
}

#[test]
fn contradictions_leave_nothing_to_look_at() {
    let filter = rawdoc! { "a": { "$gt": 5, "$lt": 3 } };
    let filter = parse(&filter);
    let bounds = bounds(&index(rawdoc! { "a": 1 }, &[]), &Conjunction::of(&filter)).unwrap();
    assert!(bounds.ranges.is_empty());
}

#[test]
fn fields_behind_a_range_are_confined_unless_the_first_is_not() {
    let key = rawdoc! { "a": 1, "b": -1, "c": 1 };
    let behind_a_gap = rawdoc! { "a": { "$gt": 5 }, "c": { "$in": [3, 1] } };
    let (bounds, exact) = shown(key.clone(), &[], behind_a_gap);
    assert_eq!(bounds[0], ["(5, inf.0]"]);
    assert_eq!(bounds[1], ["[MaxKey, MinKey]"]);
    assert_eq!(bounds[2], ["[1, 1]", "[3, 3]"]);
    assert!(exact);
    let filter = parse(&rawdoc! { "b": 2, "c": 3 });
    let first_is_open = bounds_of(key, &filter);
    assert_eq!(first_is_open.confined, 0);
    assert!(first_is_open.later.fields.is_empty());
    assert!(!first_is_open.exact);
}

#[test]
fn a_later_field_without_any_value_leaves_nothing_to_look_at() {
    let filter = parse(&rawdoc! { "a": { "$gt": 5 }, "b": { "$gt": 5, "$lt": 3 } });
    let bounds = bounds_of(rawdoc! { "a": 1, "b": 1 }, &filter);
    assert!(bounds.ranges.is_empty());
}

fn bounds_of(key: RawDocumentBuf, filter: &Filter) -> IndexBounds {
    bounds(&index(key, &[]), &Conjunction::of(filter)).unwrap()
}

#[test]
fn branches_that_speak_of_one_path_are_intervals_of_it() {
    let filter =
        rawdoc! { "$or": [{ "a": { "$gt": 7 } }, { "a": 3 }, { "a": { "$gte": 5, "$lt": 8 } }] };
    let several = parse(&filter);
    assert_eq!(bounds_of(rawdoc! { "a": 1 }, &several).confined, 0);
    let filter = rawdoc! { "$or": [{ "a": { "$gt": 7 } }, { "a": { "$lt": 3 } }], "b": 1 };
    let filter = parse(&filter);
    let bounds = bounds_of(rawdoc! { "b": 1, "a": 1 }, &filter);
    assert_eq!(described(&bounds)[1], ["[-inf.0, 3)", "(7, inf.0]"]);
    assert_eq!(bounds.met.len(), filter.conjuncts().len());
    // An array may meet one with an item that the other one leaves out.
    let index = index(rawdoc! { "a": 1 }, &["a"]);
    let bounds = candidates(&index, &Conjunction::of(&filter))
        .next()
        .unwrap();
    assert_eq!(bounds.confined, 0);
}
