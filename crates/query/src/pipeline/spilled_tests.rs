//! Stages that spill give what they give in memory.

use std::collections::BTreeSet;

use banyan_document::Number;
use bson::{RawDocumentBuf, rawdoc};

use super::*;
use crate::budget::Budget;
use crate::context::Context;
use crate::error::QueryError;
use crate::spill::tests::spilling;

const SORT: &str = "internalQueryMaxBlockingSortMemoryUsageBytes";
const GROUP: &str = "internalDocumentSourceGroupMaxMemoryBytes";
const WINDOW: &str = "internalDocumentSourceSetWindowFieldsMaxMemoryBytes";

fn documents(count: u32) -> Vec<RawDocumentBuf> {
    let mut seed = 11_u64;
    let mut random = |below: u64| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let document = |n: u32| {
        let mut document = rawdoc! { "_id": n as i32, "k": random(60) as i32 };
        // Numbers of several types, so that equal values differ.
        match random(4) {
            0 => document.append(cstr("v"), random(20) as i32),
            1 => document.append(cstr("v"), random(20) as i64),
            2 => document.append(cstr("v"), random(20) as f64),
            _ => {}
        }
        document.append(cstr("w"), random(7) as i32);
        let mut object = RawDocumentBuf::new();
        let names = ["f0", "f1", "f2", "f3", "f4"];
        object.append(cstr(names[random(5) as usize]), n as i32);
        document.append(cstr("o"), object);
        document.append(cstr("s"), "x".repeat(random(200) as usize).as_str());
        document
    };
    (0..count).map(document).collect()
}

fn cstr(name: &'static str) -> bson::raw::CString {
    bson::raw::CString::try_from(name).unwrap()
}

fn run(
    stages: &[RawDocumentBuf],
    documents: &[RawDocumentBuf],
    budget: &Budget,
) -> Result<(Vec<RawDocumentBuf>, Vec<RawDocumentBuf>), QueryError> {
    let context = Context {
        budget: budget.clone(),
        ..Context::default()
    };
    let stages: Vec<_> = stages.iter().map(|stage| &**stage).collect();
    let pipeline = Pipeline::parse(&stages, &context)?;
    let mut execution = pipeline.start(None)?;
    let mut results = Vec::new();
    for document in documents {
        execution.push(document)?;
        while let Some(result) = execution.pop()? {
            results.push(result);
        }
    }
    while execution.drain()? {
        while let Some(result) = execution.pop()? {
            results.push(result);
        }
    }
    Ok((results, execution.explain(pipeline.stages(), 0)))
}

fn accumulators() -> Vec<(&'static str, RawDocumentBuf)> {
    let by = rawdoc! { "w": 1, "v": -1 };
    vec![
        ("sum", rawdoc! { "$sum": "$v" }),
        ("avg", rawdoc! { "$avg": "$v" }),
        ("min", rawdoc! { "$min": "$v" }),
        ("max", rawdoc! { "$max": "$v" }),
        ("count", rawdoc! { "$count": {} }),
        ("first", rawdoc! { "$first": "$v" }),
        ("last", rawdoc! { "$last": "$v" }),
        ("push", rawdoc! { "$push": "$v" }),
        ("addToSet", rawdoc! { "$addToSet": "$v" }),
        ("mergeObjects", rawdoc! { "$mergeObjects": "$o" }),
        ("stdDevPop", rawdoc! { "$stdDevPop": "$w" }),
        ("stdDevSamp", rawdoc! { "$stdDevSamp": "$w" }),
        ("firstN", rawdoc! { "$firstN": { "n": 3, "input": "$v" } }),
        ("lastN", rawdoc! { "$lastN": { "n": 3, "input": "$v" } }),
        ("minN", rawdoc! { "$minN": { "n": 3, "input": "$v" } }),
        ("maxN", rawdoc! { "$maxN": { "n": 3, "input": "$v" } }),
        (
            "top",
            rawdoc! { "$top": { "sortBy": by.clone(), "output": "$_id" } },
        ),
        (
            "bottom",
            rawdoc! { "$bottom": { "sortBy": by.clone(), "output": "$_id" } },
        ),
        (
            "topN",
            rawdoc! { "$topN": { "n": 3, "sortBy": by.clone(), "output": "$_id" } },
        ),
        (
            "bottomN",
            rawdoc! { "$bottomN": { "n": 3, "sortBy": by, "output": "$_id" } },
        ),
        (
            "median",
            rawdoc! { "$median": { "input": "$v", "method": "approximate" } },
        ),
    ]
}

/// Results as text, doubles to so many places: a deviation of parts differs in the last ones.
fn shown(results: &[RawDocumentBuf]) -> Vec<String> {
    let mut shown: Vec<String> = results
        .iter()
        .map(|result| {
            let fields = banyan_document::elements(result);
            let value = |value: bson::RawBsonRef<'_>| match value {
                bson::RawBsonRef::Double(v) => format!("{v:.9}"),
                other => format!("{other:?}"),
            };
            fields
                .map(|field| format!("{}: {}", field.name(), value(field.value())))
                .collect::<Vec<_>>()
                .join(", ")
        })
        .collect();
    shown.sort();
    shown
}

/// The group and the numbers in its array, of whatever types they are.
fn numbers(result: &RawDocumentBuf) -> String {
    let id = result.get("_id").unwrap();
    let values = result.get_array("x").unwrap().into_iter().flatten();
    let values = values.map(|value| Number::from_raw(value).unwrap().to_f64());
    format!("{id:?}: {:?}", values.collect::<Vec<_>>())
}

#[test]
fn groups_on_disk_come_to_the_same() {
    let documents = documents(500);
    for (name, accumulator) in accumulators() {
        for id in ["$k", "$v", "$_id", "$none"] {
            let stage = rawdoc! { "$group": { "_id": id, "x": accumulator.clone() } };
            let stages = [stage];
            let (expected, explained) = run(&stages, &documents, &spilling(&[])).unwrap();
            let group = &explained[0];
            assert_eq!(group.get_i64("spills").unwrap(), 0, "{name}");
            for bytes_max in [1, 2_000, 10_000] {
                let budget = spilling(&[(GROUP, bytes_max)]);
                let (found, explained) = run(&stages, &documents, &budget).unwrap();
                // Which of equal values $maxN keeps depends on what else was there when they came.
                let shown = |results: &[RawDocumentBuf]| match name {
                    "maxN" => results.iter().map(numbers).collect(),
                    _ => shown(results).into_iter().collect(),
                };
                let (found, expected): (BTreeSet<_>, BTreeSet<_>) =
                    (shown(&found), shown(&expected));
                assert_eq!(found, expected, "{name} by {id}, {bytes_max}");
                let spills = explained[0].get_i64("spills").unwrap();
                let used_disk = explained[0].get_bool("usedDisk").unwrap();
                assert_eq!(used_disk, spills > 0);
                assert!(spills > 0 || id != "$_id", "{name}, {bytes_max}");
                assert_eq!(budget.memory().held(), 0);
            }
        }
    }
}

/// What the shards send is merged in little memory as well.
#[test]
fn partial_groups_on_disk_come_to_the_same() {
    let documents = documents(400);
    for (name, accumulator) in accumulators() {
        let group = |mark: Option<&'static str>| {
            let mut spec = rawdoc! { "_id": "$_id", "x": accumulator.clone() };
            if let Some(mark) = mark {
                spec.append(cstr(mark), true);
            }
            [rawdoc! { "$group": spec }]
        };
        let (expected, _) = run(&group(None), &documents, &spilling(&[])).unwrap();
        let budget = spilling(&[(GROUP, 5_000)]);
        let (partial, _) = run(&group(Some("$willBeMerged")), &documents, &budget).unwrap();
        let (found, explained) = run(&group(Some("$doingMerge")), &partial, &budget).unwrap();
        assert_eq!(shown(&found), shown(&expected), "{name}");
        assert!(explained[0].get_i64("spills").unwrap() > 3, "{name}");
    }
}

#[test]
fn sorts_windows_and_buckets_on_disk_come_to_the_same() {
    let documents = documents(1000);
    let window = |function: RawDocumentBuf, bounds: [i32; 2]| {
        let mut function = function;
        let bounds: bson::RawArrayBuf = bounds.into_iter().collect();
        function.append(cstr("window"), rawdoc! { "documents": bounds });
        function
    };
    let windows = |partition: &str| {
        rawdoc! { "$setWindowFields": {
            "partitionBy": partition,
            "sortBy": { "w": 1 },
            "output": {
                "a": window(rawdoc! { "$sum": "$v" }, [-3, 2]),
                "b": { "$push": "$w" },
                "c": { "$documentNumber": {} },
                "d": window(rawdoc! { "$bottom": { "sortBy": { "v": 1 }, "output": "$_id" } }, [-2, 2]),
            },
        } }
    };
    let pipelines = [
        rawdoc! { "$sort": { "v": 1, "w": -1 } },
        rawdoc! { "$bucketAuto": {
            "groupBy": "$v", "buckets": 5, "output": { "n": { "$sum": 1 }, "ids": { "$push": "$_id" } },
        } },
        windows("$k"),
        rawdoc! { "$facet": {
            "a": [{ "$sort": { "s": 1 } }, { "$limit": 40 }],
            "b": [{ "$sort": { "_id": -1 } }, { "$group": { "_id": null, "ids": { "$push": "$_id" } } }],
        } },
    ];
    for stage in pipelines {
        let stages = [stage];
        let (expected, _) = run(&stages, &documents, &spilling(&[])).unwrap();
        // The functions of a window hold their values, and these fit.
        let budget = spilling(&[(SORT, 4_000), (WINDOW, 90_000)]);
        let (found, _) = run(&stages, &documents, &budget).unwrap();
        assert!(found == expected, "{stages:?}");
        let is_bucket = stages[0].get_document("$bucketAuto").is_ok();
        assert!(budget.used_disk() != is_bucket, "{stages:?}");
        assert_eq!(budget.memory().held(), 0);
    }
}

/// The documents of a partition go to disk, the values of the functions stay.
#[test]
fn a_large_partition_comes_to_the_same() {
    let documents = documents(3000);
    for (name, function) in [
        ("$sum", "$v"),
        ("$avg", "$w"),
        ("$min", "$v"),
        ("$max", "$k"),
    ] {
        let mut output = RawDocumentBuf::new();
        output.append(cstr(name), function);
        output.append(cstr("window"), rawdoc! { "documents": [-20, 5] });
        let stages = [rawdoc! { "$setWindowFields": {
            "sortBy": { "_id": 1 }, "output": { "x": output },
        } }];
        let (expected, explained) = run(&stages, &documents, &spilling(&[])).unwrap();
        assert!(!explained[0].get_bool("usedDisk").unwrap());
        let budget = spilling(&[(WINDOW, 400_000)]);
        let (found, explained) = run(&stages, &documents, &budget).unwrap();
        assert!(found == expected, "{name}");
        assert!(explained[0].get_bool("usedDisk").unwrap(), "{name}");
    }
}

#[test]
fn without_the_disk_each_stage_has_its_error() {
    let documents = documents(500);
    let code = |stage: RawDocumentBuf, parameters: &[(&str, i64)], disk: bool| {
        let budget = spilling(parameters);
        budget.allow_disk(disk);
        let outcome = run(&[stage], &documents, &budget);
        outcome.map_or_else(|error| error.kind.code(), |_| 0)
    };
    let sort = || rawdoc! { "$sort": { "s": 1 } };
    let group = |op: &'static str| {
        let mut accumulator = RawDocumentBuf::new();
        accumulator.append(cstr(op), "$_id");
        rawdoc! { "$group": { "_id": null, "x": accumulator } }
    };
    let groups = || rawdoc! { "$group": { "_id": "$_id" } };
    let windows = || {
        rawdoc! { "$setWindowFields": { "sortBy": { "_id": 1 }, "output": { "n": { "$sum": "$w" } } } }
    };
    assert_eq!(code(sort(), &[(SORT, 1000)], false), 292);
    assert_eq!(code(sort(), &[(SORT, 1000)], true), 0);
    assert_eq!(code(groups(), &[(GROUP, 1000)], false), 292);
    assert_eq!(code(groups(), &[(GROUP, 1000)], true), 0);
    assert_eq!(code(windows(), &[(WINDOW, 1000)], false), 5_643_011);
    assert_eq!(code(windows(), &[(WINDOW, 1000)], true), 5_414_201);
    for disk in [false, true] {
        let push = "internalQueryMaxPushBytes";
        assert_eq!(code(group("$push"), &[(push, 1000)], disk), 146);
        let set = "internalQueryMaxAddToSetBytes";
        assert_eq!(code(group("$addToSet"), &[(set, 1000)], disk), 146);
        // What does not fit at once may fit in parts.
        assert_eq!(
            code(group("$push"), &[(push, 1000), (GROUP, 100)], disk),
            if disk { 146 } else { 292 }
        );
    }
    let facet = rawdoc! { "$facet": { "a": [{ "$match": {} }] } };
    let bytes = "internalQueryFacetMaxOutputDocSizeBytes";
    assert_eq!(code(facet, &[(bytes, 1000)], true), 4_031_700);
    let top = rawdoc! { "$group": { "_id": null, "x": { "$lastN": { "n": 400, "input": "$s" } } } };
    assert_eq!(
        code(top, &[("internalQueryTopNAccumulatorBytes", 1000)], true),
        146
    );
}
