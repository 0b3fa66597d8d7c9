//! A plan is only a shortcut: whichever indexes there are, the same documents come back, in the
//! order that was asked for. A collection without indexes is the judge.

use std::sync::Arc;

use banyan_document::Collator;
use banyan_query::canonical::CanonicalQuery;
use banyan_query::{Context, Filter};
use bson::{Bson, RawDocumentBuf, doc, rawdoc};

use super::{Access, solutions};
use crate::fixture::{Fixture, collated_request, index, request};
use crate::index_filters::{AllowedIndex, AllowedIndexes};
use crate::request::Request;

/// Documents whose fields take turns through values of many types.
fn documents() -> Vec<RawDocumentBuf> {
    let values = [
        Bson::Null,
        Bson::Int32(1),
        Bson::Int32(3),
        Bson::Double(2.5),
        Bson::Int64(5),
        Bson::String("a".into()),
        Bson::String("ab".into()),
        Bson::String("b".into()),
        Bson::Boolean(true),
        doc! { "x": 1 }.into(),
        vec![Bson::Int32(1), Bson::Int32(5)].into(),
        Bson::Array(Vec::new()),
        Bson::Double(f64::NAN),
        Bson::MinKey,
        Bson::MaxKey,
        Bson::Undefined,
        Bson::RegularExpression(regex("^a")),
        vec![Bson::Array(vec![Bson::Int32(1)]), Bson::Int32(4)].into(),
        vec![Bson::Null].into(),
        Bson::DateTime(bson::DateTime::from_millis(5)),
        vec![Bson::String("ab".into()), Bson::Int32(9)].into(),
    ];
    let mut documents = Vec::new();
    for id in 0..150_usize {
        let mut document = doc! { "_id": id as i32 };
        if !id.is_multiple_of(7) {
            document.insert("a", values[id * 11 % values.len()].clone());
        }
        if !id.is_multiple_of(5) {
            document.insert("b", (id * 13 % 10) as i32);
        }
        if id.is_multiple_of(2) {
            let item = |n: usize| doc! { "p": (n % 3) as i32, "q": (n % 4) as i32 };
            let mut items: Vec<Bson> = (0..id % 4).map(|n| item(n + id / 3).into()).collect();
            if id.is_multiple_of(11) {
                items.push(doc! { "p": [1, 9] }.into());
                items.push(Bson::Array(vec![doc! { "p": 1 }.into()]));
                items.push(Bson::Int32(1));
            }
            document.insert("s", items);
        }
        documents.push(RawDocumentBuf::try_from(&document).unwrap());
    }
    documents
}

fn regex(pattern: &str) -> bson::Regex {
    bson::Regex {
        pattern: pattern.try_into().unwrap(),
        options: "".try_into().unwrap(),
    }
}

fn filters() -> Vec<RawDocumentBuf> {
    let filters = vec![
        doc! {},
        doc! { "a": 1 },
        doc! { "a": Bson::Null },
        doc! { "a": { "$exists": true } },
        doc! { "a": { "$exists": false } },
        doc! { "a": { "$gt": 1 } },
        doc! { "a": { "$gte": 1, "$lt": 5 } },
        doc! { "a": { "$lte": "ab" } },
        doc! { "a": { "$in": [1, "a", Bson::Null] } },
        doc! { "a": { "$in": [5, 3] } },
        doc! { "a": { "$ne": 1 } },
        doc! { "a": { "$elemMatch": { "$gt": 3, "$lt": 9 } } },
        doc! { "a": { "$regex": "^a" } },
        doc! { "a": [1, 5] },
        doc! { "a": [] },
        doc! { "a": { "x": 1 } },
        doc! { "a": f64::NAN },
        doc! { "a": { "$lt": f64::INFINITY } },
        doc! { "a": { "$gt": 9, "$lt": 2 } },
        doc! { "a": 3, "b": { "$gt": 2 } },
        doc! { "b": { "$in": [1, 2, 3] }, "a": { "$gte": 1 } },
        doc! { "b": { "$gt": 6 } },
        doc! { "b": { "$gt": 2, "$lt": 8 }, "a": { "$in": [1, 5, "a", Bson::Null] } },
        doc! { "b": { "$in": [1, 4, 5, 9] }, "a": { "$lt": 3 } },
        doc! { "b": { "$in": [1, 4, 5, 9] } },
        doc! { "a": { "$in": [1, "a", Bson::Null, 3] }, "b": 5 },
        doc! { "a": { "$in": [1, "a", Bson::Null, 3] }, "b": { "$in": [1, 5, 6] } },
        doc! { "a": { "$in": [1, 5] }, "b": { "$gt": 2 }, "_id": { "$ne": 50 } },
        doc! { "b": { "$gte": 1, "$ne": 4 }, "a": { "$gt": 1, "$lte": "ab" }, "_id": { "$lt": 99 } },
        doc! { "b": { "$lt": 9 }, "s.p": { "$in": [1, 2] }, "_id": { "$gt": 9 } },
        doc! { "$or": [{ "b": { "$lt": 3 } }, { "b": 7 }, { "b": { "$gt": 8 } }], "a": { "$gt": 1 } },
        doc! { "$or": [{ "b": 1 }, { "b": 8 }], "_id": { "$gt": 30 } },
        doc! { "b": { "$gt": 2, "$lte": 6 } },
        doc! { "s.p": 1 },
        doc! { "s.p": 1, "s.q": 2 },
        doc! { "s": { "$elemMatch": { "p": 1, "q": 2 } } },
        doc! { "s.p": Bson::Null },
        doc! { "$or": [{ "a": 1 }, { "b": 3 }] },
        doc! { "$or": [{ "a": 1 }, { "b": 3 }], "s.p": { "$lte": 1 } },
        doc! { "$and": [{ "a": { "$gt": 1 } }, { "b": { "$lt": 5 } }] },
        doc! { "$nor": [{ "a": 1 }] },
        doc! { "_id": { "$in": [1, 5, 1000] } },
        doc! { "_id": 5, "a": { "$exists": true } },
        doc! { "_id": { "$gt": 140 } },
        doc! { "_id": { "$gte": 3, "$lt": 7 }, "b": { "$lt": 8 } },
        doc! { "_id": { "$in": [90, 4, 3, 17] }, "a": { "$ne": 1 } },
        doc! { "_id": { "$nin": [4, 3, 17], "$lte": 30 } },
        doc! { "_id": { "$lt": 2.5 } },
        doc! { "_id": "a" },
        doc! { "$or": [{ "_id": 3 }, { "b": 3 }] },
        doc! { "$or": [{ "_id": { "$lt": 5 } }, { "_id": { "$gt": 145 } }, { "_id": 4 }] },
        doc! { "a": { "$ne": Bson::Null } },
        doc! { "a": { "$nin": [1, 5, Bson::Null] } },
        doc! { "a": { "$nin": ["a", 2.5, true] } },
        doc! { "a": { "$not": { "$gt": 2 } } },
        doc! { "a": { "$not": { "$gt": 1, "$lt": 5 } } },
        doc! { "a": { "$not": { "$regex": "^a" } } },
        doc! { "a": { "$regex": "b" } },
        doc! { "a": { "$in": [regex("^a"), 3] } },
        doc! { "a": { "$nin": [regex("^a"), 3] } },
        doc! { "a": { "$type": "number" } },
        doc! { "a": { "$type": ["string", "null"] } },
        doc! { "a": { "$type": ["minKey", "bool", "date", "object"] } },
        doc! { "a": { "$type": "array" } },
        doc! { "a": { "$mod": [2, 1] } },
        doc! { "a": { "$size": 2 } },
        doc! { "a": { "$all": [1, 5] } },
        doc! { "a": { "$elemMatch": { "$ne": 1 } } },
        doc! { "a": { "$elemMatch": { "$nin": [1, 5] } } },
        doc! { "a": { "$elemMatch": { "$gte": 1, "$not": { "$gt": 4 } } } },
        doc! { "a": { "$lt": Bson::MaxKey } },
        doc! { "a": { "$gte": Bson::MinKey } },
        doc! { "$nor": [{ "a": { "$gt": 2 } }, { "b": 3 }] },
        doc! { "$nor": [{ "a": { "$gt": 2 }, "b": { "$lt": 5 } }] },
        doc! { "$or": [{ "a": { "$ne": 1 } }, { "b": { "$nin": [1, 2] } }] },
        doc! { "$or": [{ "a": 1 }, { "a": "b" }, { "a": { "$gt": 4 } }] },
        doc! { "s.p": { "$ne": 1 } },
        doc! { "s.p": { "$nin": [0, 1] } },
        doc! { "s.p": { "$ne": Bson::Null } },
        doc! { "s.p": { "$exists": false } },
        doc! { "s.p": { "$gt": 2, "$lt": 5 } },
        doc! { "s": { "$elemMatch": { "p": { "$gt": 2, "$lt": 5 } } } },
        doc! { "s": { "$elemMatch": { "p": { "$ne": 1 } } } },
        doc! { "s": { "$elemMatch": { "p": { "$ne": 1 }, "q": { "$gte": 1 } } } },
        doc! { "s": { "$elemMatch": { "$or": [{ "p": 2 }, { "q": 3 }] } } },
        doc! { "s": { "$not": { "$elemMatch": { "p": 1 } } } },
        doc! { "$expr": { "$eq": ["$b", 3] } },
        doc! { "$expr": { "$lt": ["$a", 3] } },
        doc! { "$expr": { "$lte": ["$b", Bson::Null] } },
        doc! { "$expr": { "$gte": ["$b", 5] }, "a": { "$gt": 1 } },
        doc! { "$expr": { "$or": [{ "$eq": ["$b", 1] }, { "$gt": ["$b", 7] }] } },
        doc! { "$nor": [{ "$expr": { "$gt": ["$b", 3] } }] },
        doc! { "$alwaysFalse": 1 },
        doc! { "$or": [{ "$alwaysTrue": 1 }, { "a": 1 }] },
    ];
    filters
        .iter()
        .map(|filter| RawDocumentBuf::try_from(filter).unwrap())
        .collect()
}

#[test]
fn indexes_change_how_documents_are_found_and_not_which() {
    let fixture = Fixture::new();
    let documents = documents();
    let judge = fixture.collection("judge", &documents, &[]);
    let candidates = [
        vec![
            index(rawdoc! { "a": 1 }, "a"),
            index(rawdoc! { "b": 1 }, "b"),
        ],
        vec![
            index(rawdoc! { "a": -1 }, "a"),
            index(rawdoc! { "b": -1, "a": 1 }, "ba"),
        ],
        vec![
            index(rawdoc! { "b": 1, "a": -1 }, "ba"),
            index(rawdoc! { "s.p": 1, "s.q": -1 }, "s"),
        ],
        vec![
            index(rawdoc! { "a": 1, "b": 1 }, "ab"),
            index(rawdoc! { "b": "hashed" }, "h"),
        ],
        vec![
            rawdoc! { "v": 2, "key": { "a": 1 }, "name": "sparse", "sparse": true },
            rawdoc! {
                "v": 2, "key": { "b": 1 }, "name": "partial",
                "partialFilterExpression": { "b": { "$gt": 5 } },
            },
        ],
        vec![
            index(rawdoc! { "b": -1, "s.p": 1, "_id": -1 }, "bsi"),
            index(rawdoc! { "b": 1, "x": 1, "a": -1 }, "bxa"),
        ],
        vec![
            index(rawdoc! { "b": -1, "_id": 1 }, "bi"),
            index(rawdoc! { "a": 1, "b": 1, "_id": -1 }, "abi"),
        ],
        vec![
            rawdoc! { "v": 2, "key": { "s.p": 1 }, "name": "sp", "sparse": true },
            rawdoc! { "v": 2, "key": { "b": -1 }, "name": "b", "sparse": true },
            rawdoc! {
                "v": 2, "key": { "a": 1 }, "name": "partial",
                "partialFilterExpression": { "a": { "$exists": true } },
            },
        ],
    ];
    let sorts = [
        None,
        Some(rawdoc! { "_id": -1 }),
        Some(rawdoc! { "a": 1, "_id": 1 }),
        Some(rawdoc! { "b": 1, "a": -1, "_id": 1 }),
        Some(rawdoc! { "b": -1, "a": 1, "_id": 1 }),
        Some(rawdoc! { "b": 1, "_id": -1 }),
    ];
    for (number, indexes) in candidates.iter().enumerate() {
        let name = format!("candidate{number}");
        let plain = fixture.collection(&name, &documents, indexes);
        let clustered = fixture.clustered(&format!("clustered{number}"), &documents, indexes);
        for filter in &filters() {
            for sort in &sorts {
                let request = request(filter, sort.as_deref());
                let (mut expected, _) = fixture.find(&judge, &request);
                if sort.is_none() {
                    expected.sort_unstable();
                }
                for candidate in [&plain, &clustered] {
                    let (mut found, plan) = fixture.find(candidate, &request);
                    if sort.is_none() {
                        found.sort_unstable();
                    }
                    assert_eq!(found, expected, "{filter:?} {sort:?} by {plan:?}");
                    if sort.is_none() {
                        continue;
                    }
                    for most in [2, 1000] {
                        let (found, plan) = fixture.find(candidate, &first(most, &request));
                        let expected: Vec<_> = expected.iter().take(most).collect();
                        let found: Vec<_> = found.iter().collect();
                        assert_eq!(found, expected, "{most} of {filter:?} {sort:?} by {plan:?}");
                    }
                }
            }
        }
    }
}

/// The request, of which only so many documents are wanted.
fn first(most: usize, request: &Request<'static>) -> Request<'static> {
    let query = CanonicalQuery {
        limit: Some(most as u64),
        ..(*request.query).clone()
    };
    Request {
        query: Arc::new(query),
        ..Request::default()
    }
}

#[test]
fn ranges_in_order_are_merged_where_few_are_wanted() {
    let fixture = Fixture::new();
    let documents: Vec<_> = (0..2000)
        .map(|id| rawdoc! { "_id": id, "a": id % 50, "b": id % 3, "n": (id * 7) % 2000 })
        .collect();
    let key = rawdoc! { "a": 1, "b": 1, "n": -1 };
    let collection = fixture.collection("c", &documents, &[index(key, "abn")]);
    let names = |filter: RawDocumentBuf, sort: RawDocumentBuf, most: Option<usize>| {
        let request = request(&filter, Some(&sort));
        let request = match most {
            Some(most) => first(most, &request),
            None => request,
        };
        let found = fixture.solutions(&collection, &request);
        let names = found.iter().map(|way| name(&way.access));
        names.collect::<Vec<_>>().join(" ")
    };
    let both = rawdoc! { "a": { "$in": [3, 7, 9] }, "b": { "$in": [0, 1] } };
    let one = rawdoc! { "a": { "$in": [3, 7, 9] }, "b": 1 };
    let newest = rawdoc! { "n": -1 };
    assert_eq!(names(both.clone(), newest.clone(), Some(10)), "6 ranges");
    assert_eq!(names(one.clone(), newest.clone(), Some(10)), "3 ranges");
    assert_eq!(names(one.clone(), newest.clone(), None), "abn");
    let in_range = rawdoc! { "a": { "$in": [3, 7] }, "b": { "$gt": 0 } };
    let sort = rawdoc! { "b": -1, "n": 1 };
    assert_eq!(names(in_range.clone(), sort, Some(10)), "2 ranges");
    assert_eq!(names(in_range, newest.clone(), Some(10)), "abn");
    let many: Vec<i32> = (0..50).collect();
    let many = doc! { "a": { "$in": many }, "b": { "$in": [0, 1, 2, 3, 4] } };
    let many = RawDocumentBuf::try_from(&many).unwrap();
    assert_eq!(names(many, newest.clone(), Some(10)), "abn");
    // Some documents of each range are read, and not all 80.
    let mut executor = fixture.open(&collection, &first(10, &request(&both, Some(&newest))));
    assert_eq!(executor.count_up_to(10).unwrap(), 10);
    let read = executor.stats.documents();
    assert!(read <= 40, "{read}");
}

/// The documents that match lie where a scan begins: a trial of it would find them at once.
#[test]
fn no_scan_of_the_collection_is_tried_beside_an_index() {
    let fixture = Fixture::new();
    let documents: Vec<_> = (0..3000).map(|id| rawdoc! { "_id": id, "n": id }).collect();
    let collection = fixture.collection("c", &documents, &[index(rawdoc! { "n": 1 }, "n_1")]);
    let request = request(&rawdoc! { "n": { "$lt": 300 } }, None);
    let found = fixture.solutions(&collection, &request);
    let names: Vec<_> = found.iter().map(|way| name(&way.access)).collect();
    assert_eq!(names, ["n_1"]);
}

fn name(access: &Access) -> String {
    match access {
        Access::Index { bounds, .. } => bounds.index.name.clone(),
        Access::Union(union) => format!("{} parts", union.branches.len()),
        Access::Merge { ranges, .. } => format!("{} ranges", ranges.len()),
        Access::Collection { .. } => "collection".to_owned(),
        Access::Nothing => "nothing".to_owned(),
        Access::Near(search) => format!("near by {}", search.index.name),
        Access::Sample(_) => "sample".to_owned(),
        Access::Text(text) => format!("text {}", text.index.name),
    }
}

fn collator(locale: &str, strength: i32) -> Option<Collator> {
    Collator::parse(&rawdoc! { "locale": locale, "strength": strength }).unwrap()
}

fn collated(mut spec: RawDocumentBuf, locale: &str, strength: i32) -> RawDocumentBuf {
    let collation = rawdoc! { "locale": locale, "strength": strength };
    spec.append(bson::cstr!("collation"), collation);
    spec
}

/// As above, with strings that differ in letter case: whatever collations the query, the indexes and
/// partial filters have.
#[test]
fn collations_of_indexes_do_not_change_what_is_found() {
    let fixture = Fixture::new();
    let mut documents = documents();
    let texts = ["A", "aB", "AB", "b", "B", "\u{e1}", "a", ""];
    for id in 150..230_usize {
        let text = texts[id % texts.len()];
        let document = match id % 5 {
            0 => rawdoc! { "_id": id as i32, "a": { "x": text } },
            1 => rawdoc! { "_id": id as i32, "a": text, "b": (id % 10) as i32 },
            2 => rawdoc! { "_id": id as i32, "a": (id % 4) as i32, "b": text },
            _ => rawdoc! { "_id": id as i32, "a": text, "b": texts[id / 3 % texts.len()] },
        };
        documents.push(document);
    }
    let judge = fixture.collection("judge", &documents, &[]);
    let mut partial = collated(index(rawdoc! { "b": 1 }, "partial"), "en", 2);
    partial.append(
        bson::cstr!("partialFilterExpression"),
        rawdoc! { "a": { "$gte": "A" } },
    );
    let candidates = [
        vec![collated(index(rawdoc! { "a": 1 }, "a"), "en", 2)],
        vec![
            collated(index(rawdoc! { "a": -1 }, "a"), "fr", 1),
            collated(index(rawdoc! { "b": 1, "a": 1 }, "ba"), "en", 2),
        ],
        vec![
            index(rawdoc! { "a": 1, "b": 1 }, "ab"),
            collated(index(rawdoc! { "b": "hashed" }, "h"), "en", 2),
            partial,
        ],
        vec![collated(index(rawdoc! { "$**": 1 }, "all"), "en", 2)],
    ];
    let sorts = [None, Some(rawdoc! { "a": 1, "b": -1, "_id": 1 })];
    for (number, indexes) in candidates.iter().enumerate() {
        let name = format!("collated{number}");
        let candidate = fixture.collection(&name, &documents, indexes);
        for collator in [None, collator("en", 2), collator("fr", 1)] {
            for (filter, sort) in filters()
                .iter()
                .flat_map(|filter| sorts.iter().map(move |sort| (filter, sort)))
            {
                let request = collated_request(filter, sort.as_deref(), collator.clone());
                let (mut expected, _) = fixture.find(&judge, &request);
                let (mut found, plan) = fixture.find(&candidate, &request);
                if sort.is_none() {
                    expected.sort_unstable();
                    found.sort_unstable();
                }
                assert_eq!(found, expected, "{filter:?} {sort:?} by {plan:?}");
            }
        }
    }
}

#[test]
fn strings_are_looked_up_in_an_index_of_their_collation() {
    let fixture = Fixture::new();
    let spec = collated(index(rawdoc! { "a": 1 }, "a"), "en", 3);
    let collection = fixture.collection("posts", &documents(), &[spec]);
    let used = |filter: RawDocumentBuf, collator: Option<Collator>| {
        let request = collated_request(&filter, Some(&rawdoc! { "a": 1 }), collator);
        let solution = &fixture.solutions(&collection, &request)[0];
        let by_index = matches!(solution.access, Access::Index { .. });
        (by_index, solution.sorted)
    };
    let (en, fr) = (collator("en", 3), collator("fr", 3));
    assert_eq!(used(rawdoc! { "b": "x" }, en.clone()), (true, true));
    assert_eq!(used(rawdoc! { "b": "x" }, None), (false, false));
    // The index is multikey, so that only a whole scan keeps its order.
    assert_eq!(used(rawdoc! { "a": "x" }, en), (true, false));
    assert_eq!(used(rawdoc! { "a": "x" }, None), (false, false));
    assert_eq!(used(rawdoc! { "a": { "$gt": 5 } }, fr), (true, false));
}

#[test]
fn strings_are_looked_up_in_a_wildcard_index_of_their_collation() {
    let fixture = Fixture::new();
    let spec = collated(index(rawdoc! { "$**": 1 }, "all"), "en", 2);
    let documents = [
        rawdoc! { "_id": 1, "a": "X" },
        rawdoc! { "_id": 2, "a": "x" },
        rawdoc! { "_id": 3, "A": "x" },
    ];
    let collection = fixture.collection("posts", &documents, &[spec]);
    let found = |collator: Option<Collator>| {
        let request = collated_request(&rawdoc! { "a": "x" }, None, collator);
        let access = name(&fixture.solutions(&collection, &request)[0].access);
        (access, fixture.find(&collection, &request).0)
    };
    assert_eq!(found(collator("en", 2)), ("all".to_owned(), vec![1, 2]));
    assert_eq!(found(None), ("collection".to_owned(), vec![2]));
}

#[test]
fn an_id_is_looked_up_by_itself_only_under_the_collation_of_its_index() {
    let fixture = Fixture::new();
    let collection = fixture.collection("posts", &documents(), &[]);
    let by_id = |filter: RawDocumentBuf, collator: Option<Collator>| {
        fixture.solutions(&collection, &collated_request(&filter, None, collator))[0].by_id
    };
    assert!(by_id(rawdoc! { "_id": "x" }, None));
    assert!(by_id(rawdoc! { "_id": 5 }, collator("en", 2)));
    assert!(!by_id(rawdoc! { "_id": "x" }, collator("en", 2)));
}

#[test]
fn a_hint_by_pattern_names_one_index() {
    let fixture = Fixture::new();
    let indexes = [
        index(rawdoc! { "a": 1 }, "a"),
        collated(index(rawdoc! { "a": 1 }, "a_en"), "en", 2),
    ];
    let collection = fixture.collection("posts", &documents(), &indexes);
    let hints = rawdoc! { "pattern": { "a": 1 }, "name": "a_en" };
    let hinted = |hint| {
        let query = Request {
            hint: hints.get(hint).unwrap(),
            ..Request::default()
        };
        solutions(Some(&collection), &query, None)
    };
    let error = hinted("pattern").unwrap_err();
    assert_eq!(error.kind, banyan_query::ErrorKind::Location(27));
    assert_eq!(name(&hinted("name").unwrap()[0].access), "a_en");
}

#[test]
fn selective_filters_use_an_index() {
    let fixture = Fixture::new();
    let indexes = [
        index(rawdoc! { "b": 1, "a": 1 }, "ba"),
        index(rawdoc! { "a": 1 }, "a"),
    ];
    let collection = fixture.collection("posts", &documents(), &indexes);
    let used = |filter: RawDocumentBuf| {
        let found = &fixture.solutions(&collection, &request(&filter, None))[0];
        name(&found.access)
    };
    assert_eq!(used(rawdoc! { "_id": 3 }), "_id_");
    assert_eq!(used(rawdoc! { "_id": 3, "b": 9, "a": 1 }), "_id_");
    assert_eq!(used(rawdoc! { "b": 3, "a": 1 }), "ba");
    assert_eq!(used(rawdoc! { "a": { "$gt": 3 } }), "a");
    assert_eq!(used(rawdoc! { "s.p": 3 }), "collection");
    assert_eq!(used(rawdoc! {}), "collection");
    assert_eq!(
        used(rawdoc! { "$or": [{ "_id": 3 }, { "a": 1 }] }),
        "2 parts"
    );
    assert_eq!(
        used(rawdoc! { "$or": [{ "_id": 3 }, { "s.p": 1 }] }),
        "collection"
    );
}

#[test]
fn an_order_is_taken_from_an_index_when_few_are_wanted() {
    let fixture = Fixture::new();
    let collection = fixture.collection("posts", &documents(), &[index(rawdoc! { "b": 1 }, "b")]);
    let request = Request {
        wanted: Some(3),
        ..request(&rawdoc! {}, Some(&rawdoc! { "b": -1 }))
    };
    let solution = &fixture.solutions(&collection, &request)[0];
    assert!(solution.sorted);
    assert!(
        matches!(solution.access, Access::Index { reverse: true, .. }),
        "{:?}",
        solution.access
    );
}

#[test]
fn a_hint_is_followed_or_refused() {
    let fixture = Fixture::new();
    let collection = fixture.collection("posts", &documents(), &[index(rawdoc! { "b": 1 }, "b")]);
    let name = rawdoc! { "hint": "b" };
    let query = Request {
        hint: name.get("hint").unwrap(),
        ..Request::default()
    };
    assert!(matches!(
        fixture.solutions(&collection, &query)[0].access,
        Access::Index { .. }
    ));
    let unknown = rawdoc! { "hint": { "c": 1 } };
    let query = Request {
        hint: unknown.get("hint").unwrap(),
        ..Request::default()
    };
    let error = solutions(Some(&collection), &query, None).unwrap_err();
    assert_eq!(error.kind, banyan_query::ErrorKind::BadValue);
}

#[test]
fn an_index_filter_names_the_only_indexes_and_outweighs_a_hint() {
    let fixture = Fixture::new();
    let indexes = [
        index(rawdoc! { "b": 1, "a": 1 }, "ba"),
        index(rawdoc! { "a": 1 }, "a"),
        index(rawdoc! { "b": 1 }, "b"),
    ];
    let collection = fixture.collection("posts", &documents(), &indexes);
    let hint = rawdoc! { "hint": "ba" };
    let hint = hint.get("hint").unwrap();
    let used = |filter: RawDocumentBuf, allowed: AllowedIndex, hint| -> Vec<String> {
        let allowed = AllowedIndexes(vec![allowed]);
        let request = Request {
            hint,
            ..request(&filter, None)
        };
        let found = solutions(Some(&collection), &request, Some(&allowed)).unwrap();
        found
            .iter()
            .map(|solution| name(&solution.access))
            .collect()
    };
    let by_name = |name: &str| AllowedIndex::Name(name.to_owned());
    let filter = rawdoc! { "a": 1, "b": { "$gt": 2 } };
    assert_eq!(used(filter.clone(), by_name("b"), hint), ["b"]);
    let pattern = AllowedIndex::KeyPattern(rawdoc! { "a": 1 });
    assert_eq!(used(filter.clone(), pattern, hint), ["a"]);
    assert_eq!(used(filter, by_name("gone"), None), ["collection"]);
    let id = rawdoc! { "_id": 4 };
    assert_eq!(used(id.clone(), by_name("b"), None), ["_id_"]);
    assert_eq!(used(id, by_name("b"), hint), ["collection"]);
}

#[test]
fn settings_name_the_only_indexes_unless_none_of_them_helps() {
    let fixture = Fixture::new();
    let indexes = [
        index(rawdoc! { "a": 1 }, "a"),
        index(rawdoc! { "b": 1 }, "b"),
    ];
    let collection = fixture.collection("posts", &documents(), &indexes);
    let filter = rawdoc! { "a": 1, "b": { "$gt": 2 } };
    let hint = rawdoc! { "hint": "a" };
    let summary = |allowed: &[AllowedIndex], hint| {
        let request = Request {
            hint,
            settings: Some(Arc::new(AllowedIndexes(allowed.to_vec()))),
            ..request(&filter, None)
        };
        let executor = fixture.open(&collection, &request);
        executor.stats.summary.to_string()
    };
    let hint = hint.get("hint").unwrap();
    let by_name = |name: &str| AllowedIndex::Name(name.to_owned());
    assert_eq!(summary(&[by_name("b")], hint), "IXSCAN { b: 1 }");
    // What is not there helps nobody.
    assert_eq!(summary(&[by_name("gone")], hint), "IXSCAN { a: 1 }");
    let natural = AllowedIndex::KeyPattern(rawdoc! { "$natural": 1 });
    assert_eq!(summary(&[natural], hint), "COLLSCAN");
    assert_eq!(summary(&[by_name("$natural")], None), "COLLSCAN");
}

/// The name of the stage at the end of a path of inputs, and a number that it tells.
fn told(plan: &RawDocumentBuf, path: &[&str], number: &str) -> i32 {
    let mut stage = plan.clone();
    for (depth, name) in path.iter().enumerate() {
        if depth > 0 {
            stage = stage.get_document("inputStage").unwrap().to_owned();
        }
        assert_eq!(stage.get_str("stage").unwrap(), *name, "{plan:?}");
    }
    let number = stage.get(number).unwrap().unwrap();
    super::number(number).unwrap() as i32
}

/// Keys that later fields leave out are passed over in seeks, in both directions.
#[test]
fn a_scan_seeks_from_one_run_of_keys_inside_to_the_next() {
    let fixture = Fixture::new();
    let document =
        |id: i32| rawdoc! { "_id": id, "a": id % 10, "b": id / 10 % 100, "c": id / 1000 };
    let documents: Vec<_> = (0..5000).map(document).collect();
    let keys = [index(rawdoc! { "a": 1, "b": -1, "c": 1 }, "abc")];
    let collection = fixture.collection("c", &documents, &keys);
    let filter = rawdoc! { "a": { "$gte": 2, "$lt": 6 }, "b": { "$in": [7, 50] }, "c": 3 };
    for (sort, reverse) in [
        (rawdoc! { "a": 1, "b": -1 }, false),
        (rawdoc! { "a": -1, "b": 1 }, true),
    ] {
        let (mut found, plan) = fixture.find(&collection, &request(&filter, Some(&sort)));
        let examined = told(&plan, &["FETCH", "IXSCAN"], "keysExamined");
        // Out of 2,000 in the range of the first field.
        assert!(examined < 200, "{examined} keys, backwards: {reverse}");
        assert_eq!(told(&plan, &["FETCH"], "docsExamined"), 8);
        assert_eq!(found[0] % 10, if reverse { 5 } else { 2 });
        found.sort_unstable();
        assert_eq!(found, [3072, 3073, 3074, 3075, 3502, 3503, 3504, 3505]);
    }
}

/// The values of an `$in` that lie close to one another take one scan.
#[test]
fn near_points_are_stepped_to() {
    let fixture = Fixture::new();
    let documents: Vec<_> = (0..2000).map(|id| rawdoc! { "_id": id, "n": id }).collect();
    let collection = fixture.collection("c", &documents, &[index(rawdoc! { "n": 1 }, "n_1")]);
    for step in [1, 3, 40] {
        let values: Vec<i32> = (0..2000).step_by(step).collect();
        let expected = values.len();
        let filter =
            rawdoc! { "n": { "$in": values.iter().copied().collect::<bson::RawArrayBuf>() } };
        let mut executor = fixture.open(&collection, &request(&filter, None));
        let mut found = Vec::new();
        while let Some((_, row)) = executor.next_record().unwrap() {
            found.push(row.get_i32("n").unwrap());
        }
        assert_eq!(found, values);
        let examined = executor.stats.keys() as usize;
        assert!(
            examined >= expected && examined <= 2000,
            "{examined} for {expected}"
        );
    }
}

#[test]
fn what_is_skipped_is_not_fetched() {
    let fixture = Fixture::new();
    let documents: Vec<_> = (0..300)
        .map(|id| rawdoc! { "_id": id, "n": id, "m": id % 7 })
        .collect();
    let indexes = [
        index(rawdoc! { "n": 1 }, "n_1"),
        index(rawdoc! { "m": 1 }, "m_1"),
    ];
    let collection = fixture.collection("c", &documents, &indexes);
    let run = |filter: RawDocumentBuf, sort: Option<RawDocumentBuf>| {
        let mut request = request(&filter, sort.as_deref());
        let query = std::sync::Arc::make_mut(&mut request.query);
        (query.skip, query.limit) = (100, Some(5));
        fixture.find(&collection, &request)
    };
    let by_n = Some(rawdoc! { "n": 1 });
    let (found, plan) = run(rawdoc! { "n": { "$gte": 10 } }, by_n.clone());
    assert_eq!(found, [110, 111, 112, 113, 114]);
    let fetched = told(&plan, &["LIMIT", "FETCH", "SKIP", "IXSCAN"], "keysExamined");
    assert!((105..=110).contains(&fetched), "{fetched}");
    assert!(told(&plan, &["LIMIT", "FETCH"], "docsExamined") <= 8);
    let (found, plan) = run(
        rawdoc! { "$or": [{ "n": { "$gte": 10 } }, { "m": 3 }] },
        None,
    );
    assert_eq!(found.len(), 5);
    assert!(told(&plan, &["LIMIT", "FETCH"], "docsExamined") <= 8);
    told(&plan, &["LIMIT", "FETCH", "SKIP", "OR"], "nReturned");
    // What is matched with documents decides what is skipped.
    let (found, plan) = run(
        rawdoc! { "n": { "$gte": 10 }, "x": bson::RawBson::Null },
        by_n,
    );
    assert_eq!(found, [110, 111, 112, 113, 114]);
    told(&plan, &["LIMIT", "SKIP", "FETCH", "IXSCAN"], "keysExamined");
}

#[test]
fn branches_that_bounds_answer_are_not_matched_again() {
    let fixture = Fixture::new();
    let documents: Vec<_> = (0..100)
        .map(|id| rawdoc! { "_id": id, "n": id, "m": id % 7 })
        .collect();
    let indexes = [
        index(rawdoc! { "n": 1 }, "n_1"),
        index(rawdoc! { "m": 1 }, "m_1"),
    ];
    let collection = fixture.collection("c", &documents, &indexes);
    let run = |filter: RawDocumentBuf| fixture.find(&collection, &request(&filter, None));
    let (found, plan) =
        run(rawdoc! { "$or": [{ "n": { "$lt": 3 } }, { "m": 3 }], "x": bson::RawBson::Null });
    assert_eq!(found.len(), 3 + 14);
    let filter = plan.get_document("filter").unwrap();
    assert!(filter.get("x").unwrap().is_some(), "{plan:?}");
    assert!(filter.get("$or").unwrap().is_none());
    // One path alone: one scan, without anything to match or to look for twice.
    let (found, plan) = run(rawdoc! { "$or": [{ "n": { "$lt": 3 } }, { "n": { "$gt": 97 } }] });
    assert_eq!(found, [0, 1, 2, 98, 99]);
    assert_eq!(told(&plan, &["FETCH", "IXSCAN"], "keysExamined"), 5);
    assert!(plan.get("filter").unwrap().is_none());
}

/// Whether records come one behind the other, backwards, or from here and there.
#[test]
fn records_are_found_whatever_order_the_index_has_them_in() {
    let fixture = Fixture::new();
    let place = |id: i32| match id {
        0..200 => id,
        200..400 => 599 - id,
        _ => 400 + id * 37 % 200,
    };
    let documents: Vec<_> = (0..600)
        .map(|id| rawdoc! { "_id": id, "n": place(id), "few": id % 9 == 0 })
        .collect();
    let collection = fixture.collection("c", &documents, &[index(rawdoc! { "n": 1 }, "n_1")]);
    let mut expected: Vec<i32> = (0..600).collect();
    expected.sort_by_key(|id| place(*id));
    for (direction, filter) in [1, -1].into_iter().flat_map(|direction| {
        let filters = [
            rawdoc! {},
            rawdoc! { "few": true },
            rawdoc! { "n": { "$gte": 150 } },
        ];
        filters.map(move |filter| (direction, filter))
    }) {
        let sort = rawdoc! { "n": direction };
        let mut executor = fixture.open(&collection, &request(&filter, Some(&sort)));
        let mut found = Vec::new();
        while let Some((_, row)) = executor.next_record().unwrap() {
            found.push(row.get_i32("_id").unwrap());
        }
        let parsed = Filter::parse(&filter, &Context::default()).unwrap();
        let mut expected = expected.clone();
        expected.retain(|id| parsed.try_matches(&documents[*id as usize]).unwrap());
        if direction < 0 {
            expected.reverse();
        }
        assert_eq!(found, expected, "{filter:?} {direction}");
    }
}
