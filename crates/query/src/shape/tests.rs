use bson::{RawArrayBuf, RawBson, RawDocumentBuf, rawdoc};

use super::{Names, QueryShape, stage};
use crate::pipeline::stage_names;

fn shape(body: &RawDocumentBuf) -> QueryShape {
    QueryShape::of("t", body).unwrap()
}

fn shown(body: &RawDocumentBuf) -> RawDocumentBuf {
    shape(body).show(&Names::AsTheyAre)
}

fn filter(filter: RawDocumentBuf) -> RawDocumentBuf {
    let shown = shown(&rawdoc! { "find": "c", "filter": filter });
    shown.get_document("filter").unwrap().to_owned()
}

fn pipeline(stages: impl IntoIterator<Item = RawDocumentBuf>) -> RawArrayBuf {
    let stages = RawArrayBuf::from_iter(stages);
    let shown = shown(&rawdoc! { "aggregate": "c", "pipeline": stages });
    shown.get_array("pipeline").unwrap().to_owned()
}

#[test]
fn a_find_has_its_parts_in_their_order_without_values() {
    let body = rawdoc! {
        "find": "c", "sort": { "bar": -1.0 }, "limit": 2, "skip": 0, "batchSize": 5,
        "filter": { "foo": { "$lte": 2 } }, "projection": { "a": 1, "b": { "$slice": 3 } },
        "hint": "i", "comment": "x", "$db": "t",
    };
    let expected = rawdoc! {
        "cmdNs": { "db": "t", "coll": "c" },
        "command": "find",
        "filter": { "foo": { "$lte": "?number" } },
        "projection": { "a": true, "b": { "$slice": "?number" }, "_id": true },
        "sort": { "bar": -1 },
        "limit": "?number",
    };
    assert_eq!(shown(&body), expected);
    let other = rawdoc! {
        "find": "c", "filter": { "foo": { "$lte": 9.5 } }, "projection": { "a": true, "b": { "$slice": 1 } },
        "sort": { "bar": -1 }, "limit": 100,
    };
    assert_eq!(shape(&body), shape(&other));
    assert_eq!(shape(&body).to_string().len(), 64);
    let another = rawdoc! { "find": "c", "filter": { "foo": { "$lte": "x" } } };
    assert_ne!(shape(&body).hash(), shape(&another).hash());
    assert!(QueryShape::of("t", &rawdoc! { "count": "c" }).is_none());
    let all = rawdoc! { "aggregate": "c", "pipeline": [], "cursor": {} };
    let explained = rawdoc! { "aggregate": "c", "pipeline": [], "explain": true };
    assert_eq!(shape(&all), shape(&explained));
}

#[test]
fn conditions_stand_by_themselves() {
    let cases = [
        (rawdoc! {}, rawdoc! {}),
        (
            rawdoc! { "v": 1, "$comment": "x" },
            rawdoc! { "v": { "$eq": "?number" } },
        ),
        (
            rawdoc! { "v": { "$gt": 0, "$lt": 3 } },
            rawdoc! { "$and": [
                { "v": { "$gt": "?number" } },
                { "v": { "$lt": "?number" } },
            ] },
        ),
        (
            rawdoc! { "a": { "$in": [1, 2] }, "b": { "$in": ["x"] } },
            rawdoc! { "$and": [
                { "a": { "$in": "?array<?number>" } },
                { "b": { "$in": "?array<?string>" } },
            ] },
        ),
        (
            rawdoc! { "a": { "$regex": "^x", "$options": "i" } },
            rawdoc! { "a": { "$regex": "?string", "$options": "?string" } },
        ),
        (
            rawdoc! { "a": { "$ne": 1 } },
            rawdoc! { "a": { "$not": { "$eq": "?number" } } },
        ),
        (
            rawdoc! { "a": { "$elemMatch": { "b": 1 } }, "c": { "$elemMatch": { "$gt": 1, "$lt": 2 } } },
            rawdoc! { "$and": [
                { "a": { "$elemMatch": { "b": { "$eq": "?number" } } } },
                { "c": { "$elemMatch": { "$gt": "?number", "$lt": "?number" } } },
            ] },
        ),
        (
            rawdoc! { "$or": [{ "a": { "x": 1 } }, { "b": [1, "x"] }] },
            rawdoc! { "$or": [{ "a": { "$eq": "?object" } }, { "b": { "$eq": "?array<>" } }] },
        ),
        (
            rawdoc! { "p": { "$near": { "$geometry": { "type": "Point", "coordinates": [1, 2] }, "$maxDistance": 5 } } },
            rawdoc! { "p": { "$near": {
                "$geometry": { "type": "Point", "coordinates": "?array<?number>" },
                "$maxDistance": "?number",
            } } },
        ),
        (
            rawdoc! { "$expr": { "$eq": ["$a", "x"] } },
            rawdoc! { "$expr": { "$eq": ["$a", "?string"] } },
        ),
    ];
    for (written, expected) in cases {
        assert_eq!(filter(written), expected);
    }
}

#[test]
fn how_many_values_an_in_has_is_no_matter() {
    let of =
        |values: RawArrayBuf| shape(&rawdoc! { "find": "c", "filter": { "a": { "$in": values } } });
    let one = of(RawArrayBuf::from_iter([1]));
    assert_eq!(one, of(RawArrayBuf::from_iter([1, 2, 3])));
    assert_ne!(one, shape(&rawdoc! { "find": "c", "filter": { "a": 1 } }));
}

#[test]
fn stages_keep_operators_and_paths() {
    let stages = [
        rawdoc! { "$group": { "_id": "$a", "n": { "$sum": 1 }, "top": { "$topN": {
            "n": 3, "output": "$b", "sortBy": { "b": -1 },
        } } } },
        rawdoc! { "$project": { "x": { "$cond": { "if": "$a", "then": 1, "else": [1, 2] } }, "_id": 0 } },
        rawdoc! { "$unwind": { "path": "$tags", "preserveNullAndEmptyArrays": true } },
        rawdoc! { "$setWindowFields": { "partitionBy": "$a", "sortBy": { "b": 1 }, "output": {
            "s": { "$sum": "$x", "window": { "documents": [-1, 1] } },
        } } },
        rawdoc! { "$merge": { "into": "other", "on": "_id", "whenMatched": "replace" } },
    ];
    let expected = [
        rawdoc! { "$group": { "_id": "$a", "n": { "$sum": "?number" }, "top": { "$topN": {
            "n": "?number", "output": "$b", "sortBy": { "b": -1 },
        } } } },
        rawdoc! { "$project": {
            "x": { "$cond": { "if": "$a", "then": "?number", "else": "?array<?number>" } },
            "_id": false,
        } },
        rawdoc! { "$unwind": { "path": "$tags", "preserveNullAndEmptyArrays": "?bool" } },
        rawdoc! { "$setWindowFields": { "partitionBy": "$a", "sortBy": { "b": 1 }, "output": {
            "s": { "$sum": "$x", "window": { "documents": "?array<?number>" } },
        } } },
        rawdoc! { "$merge": { "into": "other", "on": "_id", "whenMatched": "replace" } },
    ];
    assert_eq!(pipeline(stages), RawArrayBuf::from_iter(expected));
}

#[test]
fn clients_names_can_be_hidden_and_nothing_else() {
    let body = rawdoc! {
        "aggregate": "c",
        "pipeline": [
            { "$lookup": {
                "from": "other", "as": "out", "let": { "name": "$a.b" },
                "pipeline": [{ "$match": { "$expr": { "$eq": ["$$name", "$$NOW.x"] } } }],
            } },
            { "$out": "result" },
        ],
        "let": { "most": 3.0 },
    };
    let hide = |name: &str| format!("h({name})");
    let expected = rawdoc! {
        "cmdNs": { "db": "h(t)", "coll": "h(c)" },
        "command": "aggregate",
        "pipeline": [
            { "$lookup": {
                "from": "h(other)", "as": "h(out)", "let": { "h(name)": "$h(a).h(b)" },
                "pipeline": [{ "$match": { "$expr": { "$eq": ["$$h(name)", "$$NOW.h(x)"] } } }],
            } },
            { "$out": "h(result)" },
        ],
        "let": { "h(most)": "?number" },
    };
    assert_eq!(shape(&body).show(&Names::Hidden(&hide)), expected);
    let others = super::other_collections("t", &body);
    let expected = ["other", "result"].map(|name| rawdoc! { "db": "t", "coll": name });
    let others: Vec<_> = others
        .iter()
        .map(|one| super::show(one, &Names::AsTheyAre))
        .collect();
    assert_eq!(others, expected);
}

#[test]
fn no_value_of_a_client_is_left_whatever_it_writes() {
    let secret = "secret-value";
    for operator in [
        "$eq",
        "$in",
        "$all",
        "$mod",
        "$near",
        "$geoWithin",
        "$regex",
        "$what",
    ] {
        for value in [RawBson::from(secret), rawdoc! { "x": secret }.into()] {
            let mut condition = RawDocumentBuf::new();
            condition.append(bson::raw::CString::try_from(operator).unwrap(), value);
            let shown = format!("{:?}", filter(rawdoc! { "a": condition }));
            assert!(!shown.contains(secret), "{shown}");
        }
    }
    for name in stage_names() {
        for value in [
            RawBson::from(3),
            rawdoc! { "a": { "b": { "$literal": secret } } }.into(),
        ] {
            let mut stage = RawDocumentBuf::new();
            stage.append(bson::raw::CString::try_from(name).unwrap(), value);
            let shown = format!("{:?}", pipeline([stage]));
            assert!(!shown.contains(secret), "{shown}");
        }
    }
}

/// Stages without names and expressions.
const PLAIN: [&str; 13] = [
    "$changeStream",
    "$changeStreamSplitLargeEvent",
    "$collStats",
    "$currentOp",
    "$indexStats",
    "$listCatalog",
    "$listClusterCatalog",
    "$listLocalSessions",
    "$listSessions",
    "$planCacheStats",
    "$querySettings",
    "$sample",
    "$shardedDataDistribution",
];

#[test]
fn of_every_stage_it_is_said_what_it_holds() {
    for name in stage_names().filter(|name| !name.starts_with("$_internal")) {
        let is_plain = PLAIN.contains(&name);
        assert!(stage::is_known(name) != is_plain, "{name}");
    }
}
