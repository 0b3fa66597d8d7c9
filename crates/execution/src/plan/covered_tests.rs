//! What is read from keys is what the documents hold: answers do not depend on whether a plan is
//! covered. A collection without indexes is the judge; others are clustered or not.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use banyan_document::key;
use banyan_document::path::{self, Path};
use banyan_query::canonical::{CanonicalQuery, Order};
use banyan_query::{Context, Filter, Projection};
use banyan_storage::Collection;
use bson::{Bson, RawBsonRef, RawDocumentBuf, doc, rawdoc};

use crate::fixture::{Fixture, index, request};
use crate::request::{Distinct, DistinctOf, Goal, Request};

/// Values of all types that keys do not tell apart, at paths that end early.
fn documents() -> Vec<RawDocumentBuf> {
    let decimal = |text: &str| Bson::Decimal128(text.parse().unwrap());
    let values = [
        Bson::Int32(1),
        Bson::Int64(1),
        Bson::Double(1.0),
        decimal("1.00"),
        Bson::Double(-0.0),
        Bson::Int32(0),
        Bson::Null,
        Bson::Undefined,
        Bson::String("s".into()),
        Bson::Symbol("s".into()),
        doc! { "y": 1.0, "x": [1, 2.0] }.into(),
        Bson::Double(2.5),
        decimal("2.5"),
        Bson::MaxKey,
        Bson::Int64(7),
    ];
    let nested = |n: usize| match n % 8 {
        0 => Bson::Null,
        1 => Bson::Int32(5),
        2 => doc! {}.into(),
        3 => doc! { "e": 1.0 }.into(),
        4 => doc! { "f": 1_i64, "e": {} }.into(),
        5 => doc! { "e": Bson::Null, "f": 2 }.into(),
        6 => doc! { "e": { "g": 1 } }.into(),
        _ => doc! { "x": 1 }.into(),
    };
    let mut documents = Vec::new();
    for id in 0..120_usize {
        let mut document = doc! { "_id": id as i32 };
        if !id.is_multiple_of(7) {
            document.insert("a", values[id * 11 % values.len()].clone());
        }
        if !id.is_multiple_of(5) {
            document.insert("b", values[id * 7 % 6].clone());
        }
        if !id.is_multiple_of(3) {
            document.insert("d", nested(id));
        }
        let tags = [1, 2, 3].map(|n| Bson::Int32((id % (n + 3)) as i32));
        match id % 6 {
            0 => {}
            1 => drop(document.insert("t", Bson::Array(Vec::new()))),
            2 => drop(document.insert("t", 2.0)),
            3 => drop(document.insert("t", vec![Bson::Array(tags.to_vec()), Bson::Int32(9)])),
            _ => drop(document.insert("t", tags.to_vec())),
        }
        documents.push(RawDocumentBuf::try_from(&document).unwrap());
    }
    documents
}

fn indexes() -> Vec<RawDocumentBuf> {
    vec![
        index(rawdoc! { "a": 1 }, "a"),
        index(rawdoc! { "b": -1, "a": 1 }, "ba"),
        index(rawdoc! { "d.e": 1, "b": 1, "d.f": -1 }, "d"),
        index(rawdoc! { "b": 1, "t": 1 }, "bt"),
        index(rawdoc! { "t": -1, "a": 1 }, "ta"),
        index(rawdoc! { "b": "hashed", "a": 1 }, "h"),
        rawdoc! { "v": 2, "key": { "a": 1, "_id": 1 }, "name": "a_id", "unique": true },
    ]
}

/// Collections with these documents and indexes: one as usual, and one that is clustered.
fn candidates(
    fixture: &Fixture,
    documents: &[RawDocumentBuf],
    indexes: &[RawDocumentBuf],
) -> [Arc<Collection>; 2] {
    let number = fixture.store.allocate_id();
    [
        fixture.collection(&format!("plain{number}"), documents, indexes),
        fixture.clustered(&format!("clustered{number}"), documents, indexes),
    ]
}

fn pairs(
    candidates: &[Arc<Collection>],
) -> impl Iterator<Item = (&Arc<Collection>, RawDocumentBuf)> {
    let specs = |candidate| indexes().into_iter().map(move |spec| (candidate, spec));
    candidates.iter().flat_map(specs)
}

fn filters() -> Vec<RawDocumentBuf> {
    let filters = vec![
        doc! {},
        doc! { "a": 1 },
        doc! { "a": 1, "_id": 11 },
        doc! { "a": { "$gte": 0 } },
        doc! { "a": Bson::Null },
        doc! { "a": { "$exists": false } },
        doc! { "a": { "$type": "long" } },
        doc! { "a": { "$gt": 0 }, "b": { "$type": "double" } },
        doc! { "b": 1, "a": { "$mod": [2, 1] } },
        doc! { "b": { "$in": [0, 1] }, "a": { "$ne": Bson::Null } },
        doc! { "b": { "$lt": 5 }, "$or": [{ "a": 1 }, { "a": "s" }] },
        doc! { "b": { "$lt": 5 }, "_id": { "$gt": 50 } },
        doc! { "b": 1, "$expr": { "$eq": ["$a", 1] } },
        doc! { "d.e": { "$exists": true } },
        doc! { "d.e": Bson::Null },
        doc! { "d.f": { "$exists": false }, "b": 1 },
        doc! { "d": { "$type": "object" }, "b": 1 },
        doc! { "b": { "$lt": 5 }, "t": 2 },
        doc! { "t": 2 },
        doc! { "t": { "$gt": 1 } },
        doc! { "t": { "$gte": 1, "$lt": 3 } },
        doc! { "t": { "$in": [1, 9, 2.0] } },
        doc! { "t": { "$in": [1, Bson::Null] } },
        doc! { "t": { "$ne": 2 } },
        doc! { "t": Bson::Null },
        doc! { "t": [] },
        doc! { "t": { "$size": 2 } },
        doc! { "t": 2, "a": 1 },
    ];
    let filters = filters.iter().map(RawDocumentBuf::try_from);
    filters.collect::<Result<_, _>>().unwrap()
}

fn asking(filter: &RawDocumentBuf, projection: &RawDocumentBuf) -> Request<'static> {
    let context = Context::default();
    let filter = Filter::parse(filter, &context).unwrap();
    let projection = Projection::parse(projection, &context).unwrap();
    let query = CanonicalQuery {
        projection: Some(Arc::new(projection)),
        ..CanonicalQuery::of_filter(Arc::new(filter))
    };
    Request {
        query: Arc::new(query),
        ..Request::default()
    }
}

/// The documents, whatever their order and that of their fields, and the plan's stages.
fn rows(
    fixture: &Fixture,
    collection: &Arc<Collection>,
    request: &Request<'_>,
) -> (Vec<String>, String) {
    let mut executor = fixture.open(collection, request);
    let mut rows = Vec::new();
    while let Some((_, row)) = executor.next_record().unwrap() {
        rows.push(sorted(Bson::try_from(bson::RawBsonRef::Document(&row)).unwrap()).to_string());
        // The plan rests now and then.
        if rows.len() % 16 == 1 {
            executor.save();
        }
    }
    rows.sort();
    (rows, stages(&executor.explain_plan()))
}

fn sorted(value: Bson) -> Bson {
    match value {
        Bson::Document(document) => {
            let mut fields: Vec<_> = document.into_iter().collect();
            fields.sort_by(|a, b| a.0.cmp(&b.0));
            let fields = fields
                .into_iter()
                .map(|(name, value)| (name, sorted(value)));
            Bson::Document(fields.collect())
        }
        other => other,
    }
}

fn stages(plan: &bson::RawDocument) -> String {
    let name = plan.get_str("stage").unwrap().to_owned();
    match plan.get_document("inputStage") {
        Ok(input) => format!("{name} {}", stages(input)),
        Err(_) => name,
    }
}

#[test]
fn covered_plans_return_what_the_documents_hold() {
    let fixture = Fixture::new();
    let documents = documents();
    let judge = fixture.collection("judge", &documents, &[]);
    let candidates = candidates(&fixture, &documents, &indexes());
    let projections = [
        rawdoc! { "a": 1, "_id": 0 },
        rawdoc! { "b": 1, "a": 1, "_id": 0 },
        rawdoc! { "d.e": 1, "_id": 0 },
        rawdoc! { "d": { "e": 1, "f": 1 }, "b": 1, "_id": 0 },
        rawdoc! { "x": "$b", "y": { "$type": "$a" }, "_id": 0 },
        rawdoc! { "t": 1, "_id": 0 },
        rawdoc! { "b": 1 },
        rawdoc! { "a.x": 1, "_id": 0 },
    ];
    let sorts = [None, Some(rawdoc! { "b": 1 })];
    let mut covered = 0;
    for (filter, projection, sort) in filters().iter().flat_map(|filter| {
        let pairs = projections
            .iter()
            .flat_map(|projection| sorts.iter().map(move |sort| (projection, sort)));
        pairs.map(move |(projection, sort)| (filter.clone(), projection, sort))
    }) {
        let mut request = asking(&filter, projection);
        let mut query = CanonicalQuery::clone(&request.query);
        query.order = Order::parse(sort.as_deref(), None).unwrap();
        request.query = Arc::new(query);
        let (expected, _) = rows(&fixture, &judge, &request);
        for (candidate, spec) in pairs(&candidates) {
            let name = spec.get_str("name").unwrap();
            let hint = rawdoc! { "hint": name };
            let hinted = Request {
                hint: hint.get("hint").unwrap(),
                ..request.clone()
            };
            let (found, plan) = rows(&fixture, candidate, &hinted);
            let what = format!("{name}: {filter:?} {projection:?} {sort:?} by {plan}");
            assert_eq!(found, expected, "{what}");
            let fetches = plan.contains("FETCH");
            covered += usize::from(!fetches);
            // Arrays, hashes and fields that are not in the index are in the documents only.
            let cannot = [("ta", "t"), ("a", "b"), ("h", "b"), ("bt", "a"), ("a", "d")];
            for (index, field) in cannot {
                let asked = projection.get(field).unwrap().is_some();
                assert!(fetches || name != index || !asked, "{what}");
            }
        }
    }
    assert!(covered > 200, "{covered} plans were covered");
}

#[test]
fn stages_have_mongodbs_names() {
    let fixture = Fixture::new();
    let collection = fixture.collection("named", &documents(), &indexes());
    let plan = |filter: RawDocumentBuf, projection: RawDocumentBuf, hint: &str| {
        let hint = rawdoc! { "hint": hint };
        let request = Request {
            hint: hint.get("hint").unwrap(),
            ..asking(&filter, &projection)
        };
        let executor = fixture.open(&collection, &request);
        stages(&executor.explain_plan())
    };
    let covered = rawdoc! { "a": 1, "_id": 0 };
    assert_eq!(
        plan(rawdoc! { "a": 1 }, covered.clone(), "a"),
        "PROJECTION_COVERED IXSCAN"
    );
    assert_eq!(
        plan(rawdoc! { "a": 1 }, rawdoc! { "a": 1 }, "a"),
        "PROJECTION_SIMPLE FETCH IXSCAN"
    );
    assert_eq!(
        plan(rawdoc! { "d.e": 1 }, rawdoc! { "d.e": 1, "_id": 0 }, "d"),
        "PROJECTION_DEFAULT IXSCAN"
    );
    assert_eq!(
        plan(
            rawdoc! { "b": 1, "t": 1 },
            rawdoc! { "b": 1, "_id": 0 },
            "bt"
        ),
        "PROJECTION_COVERED IXSCAN"
    );
    assert_eq!(
        plan(rawdoc! { "b": 1, "x": 1 }, covered, "ba"),
        "PROJECTION_SIMPLE FETCH IXSCAN"
    );
}

#[test]
fn only_what_is_left_of_a_filter_is_matched_by_documents() {
    let fixture = Fixture::new();
    let collection = fixture.collection("left", &documents(), &indexes());
    let hint = rawdoc! { "hint": "ba" };
    let filter = rawdoc! { "b": { "$lte": 1 }, "a": { "$mod": [2, 1] }, "t": { "$gt": 1 } };
    let request = Request {
        hint: hint.get("hint").unwrap(),
        ..request(&filter, None)
    };
    let plan = fixture.open(&collection, &request).explain_plan();
    let shown = |stage: &bson::RawDocument| stage.get_document("filter").unwrap().to_owned();
    assert_eq!(shown(&plan), rawdoc! { "t": { "$gt": 1 } });
    let scan = plan.get_document("inputStage").unwrap();
    assert_eq!(shown(scan), rawdoc! { "a": { "$mod": [2_i64, 1_i64] } });
}

/// The expression fails for documents that the other condition leaves out.
#[test]
fn an_expression_is_not_evaluated_before_what_leaves_documents_out() {
    let fixture = Fixture::new();
    let collection = fixture.collection("failing", &documents(), &indexes());
    let fails = rawdoc! { "$expr": { "$bsonSize": "$a" } };
    let filters = [
        rawdoc! { "b": 1, "t": "never", "$expr": { "$bsonSize": "$a" } },
        rawdoc! { "b": 1, "$and": [{ "t": "never" }, fails] },
    ];
    let hint = rawdoc! { "hint": "ba" };
    for filter in filters {
        let request = Request {
            hint: hint.get("hint").unwrap(),
            ..request(&filter, None)
        };
        let mut executor = fixture.open(&collection, &request);
        assert!(executor.next_record().unwrap().is_none());
    }
}

#[test]
fn counts_by_keys_are_those_of_the_documents() {
    let fixture = Fixture::new();
    let documents = documents();
    let judge = fixture.collection("judge", &documents, &[]);
    let candidates = candidates(&fixture, &documents, &indexes());
    let mut without_documents = 0;
    for (candidate, spec) in pairs(&candidates) {
        let hint = rawdoc! { "hint": spec.get_str("name").unwrap() };
        for filter in &filters() {
            let mut request = Request {
                goal: Goal::Count,
                ..request(filter, None)
            };
            let count = |collection, request: &Request<'_>| {
                let mut executor = fixture.open(collection, request);
                let count = executor.count_up_to(u64::MAX).unwrap();
                (count, executor.stats.documents(), executor.explain_plan())
            };
            let (expected, ..) = count(&judge, &request);
            request.hint = hint.get("hint").unwrap();
            let (found, fetched, plan) = count(candidate, &request);
            assert_eq!(found, expected, "{filter:?} by {plan:?}");
            without_documents += usize::from(fetched == 0);
        }
    }
    assert!(without_documents > 60, "{without_documents}");
}

/// The different values at a path, and how many documents were read for them.
fn values(
    fixture: &Fixture,
    collection: &Arc<Collection>,
    filter: &RawDocumentBuf,
    path: &str,
) -> (BTreeSet<Vec<u8>>, u64) {
    let request = Request {
        distinct: Some(Distinct {
            path: path.to_owned(),
            of: DistinctOf::Values,
        }),
        reads: Some(Arc::new(BTreeSet::from([path.to_owned()]))),
        ..request(filter, None)
    };
    let path = Path::parse(path).unwrap();
    let mut executor = fixture.open(collection, &request);
    let mut values = BTreeSet::new();
    while let Some((_, row)) = executor.next_record().unwrap() {
        path::visit(&row, &path, &mut |visit| {
            if let Some(value) = visit.value.filter(|_| !visit.whole_array) {
                let mut bytes = Vec::new();
                key::encode(value, &mut bytes);
                values.insert(bytes);
            }
            ControlFlow::Continue(())
        });
        executor.save();
    }
    (values, executor.stats.documents())
}

/// Beside those, keys have null for documents without a value, and undefined for empty arrays.
#[test]
fn distinct_values_are_those_of_the_documents() {
    let of_keys = [RawBsonRef::Null, RawBsonRef::Undefined].map(|value| {
        let mut bytes = Vec::new();
        key::encode(value, &mut bytes);
        bytes
    });
    let fixture = Fixture::new();
    let documents = documents();
    let judge = fixture.collection("judge", &documents, &[]);
    let mut by_keys = 0;
    for (number, spec) in indexes().into_iter().enumerate() {
        let candidates = candidates(&fixture, &documents, &[spec]);
        for filter in &filters() {
            for path in ["a", "b", "d.e", "d.f", "t", "d", "_id"] {
                let (expected, _) = values(&fixture, &judge, filter, path);
                for candidate in &candidates {
                    let (found, read) = values(&fixture, candidate, filter, path);
                    let mut found = found;
                    if read == 0 {
                        found.retain(|value| expected.contains(value) || !of_keys.contains(value));
                    }
                    assert_eq!(found, expected, "{path} of {filter:?} in {number}");
                    by_keys += usize::from(read == 0);
                }
            }
        }
    }
    assert!(by_keys > 50, "{by_keys}");
}

/// The first document of each group in an order, and how many documents were read for them.
#[test]
fn the_first_or_last_of_each_group_is_found_by_jumping() {
    let fixture = Fixture::new();
    let documents = documents();
    let specs = [index(rawdoc! { "b": 1, "a": -1, "_id": 1 }, "ba_id")];
    let candidates = candidates(&fixture, &documents, &specs);
    let judge = fixture.collection("judge", &documents, &[]);
    let sort = rawdoc! { "b": 1, "a": -1, "_id": 1 };
    let projection = rawdoc! { "_id": 1, "b": 1, "a": 1 };
    for filter in [
        rawdoc! {},
        rawdoc! { "b": { "$gte": 0 } },
        rawdoc! { "b": 1 },
    ] {
        let mut request = asking(&filter, &projection);
        let mut query = CanonicalQuery::clone(&request.query);
        query.order = Order::parse(Some(&sort), None).unwrap();
        request.query = Arc::new(query);
        let ids = |collection, request: &Request<'_>| {
            let mut executor = fixture.open(collection, request);
            let mut found: Vec<(Vec<u8>, i32)> = Vec::new();
            while let Some((_, row)) = executor.next_record().unwrap() {
                let value = row.get("b").unwrap().unwrap_or(bson::RawBsonRef::Null);
                let mut bytes = Vec::new();
                key::encode(value, &mut bytes);
                found.push((bytes, row.get_i32("_id").unwrap()));
                executor.save();
            }
            (found, stages(&executor.explain_plan()))
        };
        let (mut all, _) = ids(&judge, &request);
        for of in [DistinctOf::First, DistinctOf::Last] {
            if of == DistinctOf::Last {
                all.reverse();
            }
            let mut expected = all.clone();
            expected.dedup_by(|next, first| next.0 == first.0);
            let path = "b".to_owned();
            request.distinct = Some(Distinct { path, of });
            for candidate in &candidates {
                let (found, plan) = ids(candidate, &request);
                assert_eq!(plan, "PROJECTION_COVERED DISTINCT_SCAN");
                assert_eq!(found, expected, "{filter:?}");
            }
        }
    }
}

/// The order of a clustered collection has no keys beside its documents.
#[test]
fn the_order_of_a_clustered_collection_covers_nothing() {
    let fixture = Fixture::new();
    let documents = documents();
    let clustered = fixture.clustered("clustered", &documents, &[]);
    let filter = rawdoc! { "_id": { "$gte": 100 } };
    let of_ids = rawdoc! { "_id": 1 };
    let (found, plan) = rows(&fixture, &clustered, &asking(&filter, &of_ids));
    assert_eq!(
        (found.len(), &*plan),
        (20, "PROJECTION_SIMPLE CLUSTERED_IXSCAN")
    );
    let counted = Request {
        goal: Goal::Count,
        ..request(&filter, None)
    };
    let mut executor = fixture.open(&clustered, &counted);
    assert_eq!(executor.count_up_to(u64::MAX).unwrap(), 20);
    assert_eq!(stages(&executor.explain_plan()), "CLUSTERED_IXSCAN");
    let (found, read) = values(&fixture, &clustered, &filter, "_id");
    assert_eq!((found.len(), read), (20, 20));
    let sampled = Request {
        sample: Some(1),
        ..Request::default()
    };
    assert!(!fixture.open(&clustered, &sampled).is_sample());
}
