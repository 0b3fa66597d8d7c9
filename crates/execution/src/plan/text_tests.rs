//! A search for the best few finds the first of all that it would find.

use std::sync::Arc;

use banyan_query::Context;
use banyan_query::canonical::{CanonicalQuery, Written};
use banyan_query::text::{SearchedIndex, TextContext};
use bson::{RawDocument, RawDocumentBuf, rawdoc};

use crate::fixture::Fixture;
use crate::request::Request;

/// Many have the same score.
fn documents() -> Vec<RawDocumentBuf> {
    let words = ["tea", "cake", "milk", "bread", "salt"];
    let text = |id: usize| {
        let count = 1 + id % 4;
        let chosen = (0..count).map(|at| words[(id / 3 + at * (1 + id % 2)) % words.len()]);
        chosen.collect::<Vec<_>>().join(" ")
    };
    (0..600)
        .map(|id| rawdoc! { "_id": (id * 7 % 600) as i32, "a": (id % 3) as i32, "t": text(id) })
        .collect()
}

#[test]
fn the_best_few_are_the_first_of_all() {
    let fixture = Fixture::new();
    let index = rawdoc! { "v": 2, "key": { "_fts": "text", "_ftsx": 1 }, "name": "t",
    "weights": { "t": 1 }, "default_language": "english", "language_override": "language",
    "textIndexVersion": 3 };
    let collection = fixture.collection("c", &documents(), &[index]);
    let text = collection
        .indexes
        .iter()
        .find_map(|index| index.kind.text());
    let text = text.map(|(text, _)| text.clone()).unwrap();
    let found = |filter: &RawDocument, sort: &RawDocument, skip: u64, limit: Option<u64>| {
        let context = Context {
            text: Some(TextContext::new(SearchedIndex::Here(text.clone()))),
            ..Context::default()
        };
        let written = Written {
            filter: Some(filter),
            sort: Some(sort),
            skip,
            limit,
            ..Written::default()
        };
        let query = CanonicalQuery::parse(&written, &context).unwrap();
        let request = Request {
            query: Arc::new(query),
            ..Request::default()
        };
        fixture.find(&collection, &request)
    };
    let score = || rawdoc! { "$meta": "textScore" };
    for filter in [
        rawdoc! { "$text": { "$search": "tea cake" } },
        rawdoc! { "$text": { "$search": "tea -salt" }, "a": 1 },
        rawdoc! { "$text": { "$search": "\"milk bread\" cake" } },
    ] {
        for sort in [
            rawdoc! { "s": score(), "_id": 1 },
            rawdoc! { "s": score(), "a": -1, "_id": -1 },
            rawdoc! { "_id": 1, "s": score() },
        ] {
            let (all, _) = found(&filter, &sort, 0, None);
            assert!(all.len() > 40);
            for (skip, limit) in [(0, 1), (0, 10), (7, 12), (0, 1000)] {
                let (few, explained) = found(&filter, &sort, skip, Some(limit));
                let expected = all.iter().skip(skip as usize).take(limit as usize);
                assert_eq!(
                    few,
                    expected.copied().collect::<Vec<_>>(),
                    "{filter:?} {sort:?}"
                );
                let shown = bson::Document::try_from(&*explained).unwrap().to_string();
                assert!(shown.contains("TEXT_OR") && shown.contains("SORT"));
            }
        }
    }
}
