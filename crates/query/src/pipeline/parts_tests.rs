//! The first stages over parts of the input, as several threads run them, against one run over all
//! of it.

use std::sync::Arc;

use bson::{Document, RawDocument, RawDocumentBuf, doc};

use super::{Execution, Pipeline};
use crate::budget::Budget;
use crate::context::Context;
use crate::error::QueryError;
use crate::spill::tests::spilling;

const DOCUMENTS: i32 = 4000;
const PART: usize = 500;

fn raw(document: &Document) -> RawDocumentBuf {
    RawDocumentBuf::try_from(document).unwrap()
}

fn input() -> Vec<RawDocumentBuf> {
    let document = |n: i32| match n % 9 {
        0 => doc! { "_id": n },
        1 => doc! { "_id": n, "a": null, "b": "B" },
        2 => doc! { "_id": n, "a": [n % 7, n % 5], "b": "b" },
        3 => doc! { "_id": n, "a": n % 40, "b": [] },
        4 => doc! { "_id": n, "a": f64::from(n % 40), "b": "a" },
        _ => doc! { "_id": n, "a": n * 7919 % 211, "b": format!("x{}", n % 31) },
    };
    (0..DOCUMENTS).map(|n| raw(&document(n))).collect()
}

fn drain(mut execution: Execution) -> Vec<RawDocumentBuf> {
    let mut results = Vec::new();
    loop {
        while let Some(result) = execution.pop().unwrap() {
            results.push(result);
        }
        if !execution.drain().unwrap() {
            return results;
        }
    }
}

fn feed(execution: &mut Execution, documents: &[RawDocumentBuf]) -> Result<(), QueryError> {
    let mut documents = documents.iter();
    documents.try_for_each(|document| execution.push(document).map(|_| ()))
}

/// As workers do that take these parts, each its own in this order.
fn in_parts(pipeline: &Pipeline, workers: &[&[usize]]) -> Vec<RawDocumentBuf> {
    let input = input();
    let gathering = pipeline.gathering().expect("it gathers");
    let together = Arc::default();
    let mut seen: Vec<(usize, Execution)> = Vec::new();
    for parts in workers {
        let mut own: Option<(usize, Execution)> = None;
        for part in *parts {
            let goes_on = own
                .as_mut()
                .is_some_and(|(_, execution)| execution.begin(*part as u64));
            if !goes_on {
                seen.extend(own.take());
                let mut execution = gathering.start_part(None, &together).unwrap();
                execution.begin(*part as u64);
                own = Some((*part, execution));
            }
            let documents = &input[part * PART..(part + 1) * PART];
            feed(&mut own.as_mut().unwrap().1, documents).unwrap();
        }
        if let Some((_, execution)) = &mut own {
            execution.seal().unwrap();
        }
        seen.extend(own);
    }
    seen.sort_by_key(|(first, _)| *first);
    let mut whole = pipeline.start(None).unwrap();
    for (_, part) in seen {
        whole.absorb(part).unwrap();
    }
    drain(whole)
}

fn parse(stages: &[Document], budget: &Budget) -> Pipeline {
    let stages: Vec<RawDocumentBuf> = stages.iter().map(raw).collect();
    let stages: Vec<&RawDocument> = stages.iter().map(|stage| &**stage).collect();
    let context = Context {
        budget: budget.clone(),
        ..Context::default()
    };
    Pipeline::parse(&stages, &context).unwrap()
}

#[test]
fn parts_come_to_what_the_whole_comes_to() {
    let sums = doc! { "_id": "$b", "n": { "$sum": 1 }, "ids": { "$push": "$_id" },
    "first": { "$first": "$a" }, "last": { "$last": "$_id" }, "least": { "$min": "$a" } };
    let appended = doc! { "$unionWith": { "pipeline": [
        { "$documents": [{ "_id": 1000, "a": 3, "b": 4 }, { "_id": 1001, "a": -1, "b": 4 }] },
    ] } };
    let joined = [1, 3, 3, 4].map(|k| doc! { "k": k, "n": k * 10 });
    let join = doc! { "$lookup": {
        "localField": "b", "foreignField": "k", "as": "joined",
        "pipeline": [{ "$documents": joined.to_vec() }, { "$match": { "n": { "$gt": 10 } } }],
    } };
    let pipelines = [
        vec![doc! { "$sort": { "a": 1 } }],
        vec![doc! { "$sort": { "b": -1, "a": 1 } }, doc! { "$limit": 30 }],
        vec![
            doc! { "$match": { "_id": { "$gte": 100 } } },
            doc! { "$project": { "a": 1 } },
            doc! { "$sort": { "a": -1 } },
            doc! { "$group": { "_id": null, "ids": { "$push": "$_id" } } },
        ],
        vec![
            doc! { "$bucketAuto": { "groupBy": "$a", "buckets": 7, "output": {
            "ids": { "$push": "$_id" } } } },
        ],
        vec![doc! { "$group": sums.clone() }],
        vec![doc! { "$sortByCount": "$a" }],
        vec![doc! { "$unwind": "$a" }, doc! { "$sort": { "a": 1 } }],
        vec![doc! { "$facet": {
            "groups": [{ "$match": { "b": { "$gt": 2 } } }, { "$group": sums.clone() }],
            "sorted": [{ "$sort": { "a": 1 } }, { "$limit": 20 }, { "$project": { "a": 1 } }],
            "count": [{ "$count": "n" }],
        } }],
        vec![
            join.clone(),
            doc! { "$group": { "_id": "$joined.n", "ids": { "$push": "$_id" } } },
        ],
        vec![
            join,
            doc! { "$unwind": "$joined" },
            doc! { "$sort": { "joined.n": 1, "a": 1 } },
        ],
        vec![appended.clone(), doc! { "$group": sums.clone() }],
        vec![appended.clone(), doc! { "$sort": { "a": 1 } }],
    ];
    let divisions: [&[&[usize]]; 3] = [
        &[&[0, 1, 2, 3, 4, 5, 6, 7]],
        &[&[0, 7, 2], &[4, 5, 1, 6, 3]],
        &[&[6], &[0, 5], &[3, 2, 1, 4, 7]],
    ];
    for stages in &pipelines {
        // All in memory, and with next to none of it.
        for bytes_max in [100 << 20, 2000] {
            let budget = spilling(&[
                ("internalQueryMaxBlockingSortMemoryUsageBytes", bytes_max),
                ("internalDocumentSourceGroupMaxMemoryBytes", bytes_max),
            ]);
            let pipeline = parse(stages, &Budget::unlimited());
            let mut whole = pipeline.start(None).unwrap();
            feed(&mut whole, &input()).unwrap();
            let mut expected = drain(whole);
            let groups = |stage: &Document| {
                stage.contains_key("$group") || stage.contains_key("$sortByCount")
            };
            let is_group = stages.iter().any(groups);
            for division in divisions {
                let mut found = in_parts(&parse(stages, &budget), division);
                if is_group && bytes_max == 2000 {
                    // Groups that were on disk come in the order of their keys.
                    found.sort_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
                    expected.sort_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
                }
                assert_eq!(found, expected, "{stages:?} {bytes_max} {division:?}");
                assert_eq!(budget.memory().held(), 0);
            }
        }
    }
}
