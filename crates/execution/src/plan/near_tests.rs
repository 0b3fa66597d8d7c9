//! What an index over shapes finds is what a scan of the collection finds; what is near comes in
//! the order of its distance. The plans rest between any two documents.

use std::sync::Arc;

use banyan_query::Budget;
use banyan_storage::Collection;
use bson::{RawArrayBuf, RawBsonRef, RawDocumentBuf, rawdoc};

use super::near::NearSearch;
use crate::fixture::{Fixture, index, request};
use crate::request::{Goal, Request};

/// Places all over the earth, more of them near one of them; some are lines and polygons.
fn documents() -> Vec<RawDocumentBuf> {
    let mut state = 7_u64;
    let mut next = move |low: f64, high: f64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        low + (high - low) * (state >> 11) as f64 / (1_u64 << 53) as f64
    };
    let place = |id: i32| {
        let (x, y) = match id % 3 {
            0 => (next(-180.0, 180.0), next(-85.0, 85.0)),
            _ => (10.0 + next(-1.0, 1.0), 50.0 + next(-1.0, 1.0)),
        };
        let at = |dx: f64, dy: f64| RawArrayBuf::from_iter([(x + dx).clamp(-180.0, 180.0), y + dy]);
        let location = match id % 7 {
            0 => return rawdoc! { "_id": id, "a": id % 4 },
            1 => rawdoc! { "type": "LineString", "coordinates": [at(0.0, 0.0), at(0.5, 0.25)] },
            2 => rawdoc! { "type": "Polygon", "coordinates":
            [[at(0.0, 0.0), at(0.2, 0.0), at(0.1, 0.3), at(0.0, 0.0)]] },
            3 => return rawdoc! { "_id": id, "a": id % 4, "l": at(0.0, 0.0) },
            _ => rawdoc! { "type": "Point", "coordinates": at(0.0, 0.0) },
        };
        rawdoc! { "_id": id, "a": id % 4, "l": location }
    };
    (0..1500).map(place).collect()
}

fn places(fixture: &Fixture) -> (Arc<Collection>, Arc<Collection>) {
    let documents = documents();
    let indexes = [
        index(rawdoc! { "l": "2dsphere" }, "l"),
        index(rawdoc! { "a": 1, "l": "2dsphere" }, "al"),
    ];
    let scanned = fixture.collection("scanned", &documents, &[]);
    (scanned, fixture.collection("indexed", &documents, &indexes))
}

fn has_stage(explained: &RawDocumentBuf, stage: &str) -> bool {
    let shown = bson::Document::try_from(&**explained).unwrap();
    shown.to_string().contains(stage)
}

#[test]
fn an_index_finds_what_a_scan_finds() {
    let fixture = Fixture::new();
    let (scanned, indexed) = places(&fixture);
    let square = |size: f64| {
        let at = |dx: f64, dy: f64| RawArrayBuf::from_iter([10.0 + dx * size, 50.0 + dy * size]);
        rawdoc! { "type": "Polygon", "coordinates": [
            [at(-1.0, -1.0), at(1.0, -1.0), at(1.0, 1.0), at(-1.0, 1.0), at(-1.0, -1.0)],
        ] }
    };
    let mut found_any = 0;
    for size in [0.05, 0.4, 3.0, 30.0] {
        for filter in [
            rawdoc! { "l": { "$geoWithin": { "$geometry": square(size) } } },
            rawdoc! { "l": { "$geoIntersects": { "$geometry": square(size) } } },
            rawdoc! { "l": { "$geoIntersects": { "$geometry": square(size) } }, "a": 2 },
            rawdoc! { "l": { "$geoWithin": { "$centerSphere": [[10.0, 50.0], size / 60.0] } } },
        ] {
            let (mut found, explained) = fixture.find(&indexed, &request(&filter, None));
            let (mut expected, _) = fixture.find(&scanned, &request(&filter, None));
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found, expected, "{filter:?}");
            assert!(has_stage(&explained, "IXSCAN"));
            found_any += found.len();
        }
    }
    assert!(found_any > 1000);
}

/// Where all shapes are points, their keys tell most of what is asked of them. Some points lie on the
/// edges.
#[test]
fn keys_of_points_tell_what_their_documents_do() {
    let fixture = Fixture::new();
    let point = |document: &RawDocumentBuf| {
        let place = document.get_document("l");
        !place.is_ok_and(|place| place.get_str("type").is_ok_and(|kind| kind != "Point"))
    };
    let mut documents: Vec<_> = documents().into_iter().filter(point).collect();
    for (id, longitude) in (2000..).zip([9.0, 9.5, 10.0, 11.0]) {
        let at = rawdoc! { "type": "Point", "coordinates": [longitude, 51.0] };
        documents.push(rawdoc! { "_id": id, "a": 2, "l": at });
    }
    let indexes = [
        index(rawdoc! { "l": "2dsphere" }, "l"),
        index(rawdoc! { "a": 1, "l": "2dsphere" }, "al"),
    ];
    let scanned = fixture.collection("scanned", &documents, &[]);
    let indexed = fixture.collection("indexed", &documents, &indexes);
    let square = rawdoc! { "type": "Polygon", "coordinates": [[
        [9.0, 49.0], [11.0, 49.0], [11.0, 51.0], [9.0, 51.0], [9.0, 49.0],
    ], [
        [9.8, 49.8], [9.8, 50.2], [10.2, 50.2], [10.2, 49.8], [9.8, 49.8],
    ]] };
    for filter in [
        rawdoc! { "l": { "$geoWithin": { "$geometry": square.clone() } } },
        rawdoc! { "l": { "$geoIntersects": { "$geometry": square.clone() } } },
        rawdoc! { "l": { "$geoWithin": { "$geometry": square.clone() } }, "a": 2 },
        rawdoc! { "l": { "$geoWithin": { "$geometry": square } }, "_id": { "$lt": 700 } },
        rawdoc! { "l": { "$geoWithin": { "$centerSphere": [[10.0, 50.0], 0.012] } } },
    ] {
        let request = request(&filter, None);
        let (mut found, _) = fixture.find(&indexed, &request);
        let (mut expected, _) = fixture.find(&scanned, &request);
        found.sort_unstable();
        expected.sort_unstable();
        assert!(expected.len() > 100);
        assert_eq!(found, expected, "{filter:?}");
        let counting = Request {
            goal: Goal::Count,
            ..request
        };
        let mut counted = fixture.open(&indexed, &counting);
        let count = counted.count_up_to(u64::MAX).unwrap();
        assert_eq!(count, expected.len() as u64, "{filter:?}");
    }
}

/// Without a condition on a place it would miss documents.
#[test]
fn an_index_over_shapes_serves_nothing_else() {
    let fixture = Fixture::new();
    let (_, indexed) = places(&fixture);
    for filter in [
        rawdoc! { "a": 1 },
        rawdoc! { "a": 1, "l": { "$not": { "$geoWithin": { "$centerSphere": [[10, 50], 0.1] } } } },
        rawdoc! { "l": { "$geoWithin": { "$box": [[0, 0], [20, 60]] } } },
    ] {
        let (_, explained) = fixture.find(&indexed, &request(&filter, None));
        assert!(has_stage(&explained, "COLLSCAN"));
    }
}

/// The same places as pairs, some documents with several.
fn pairs() -> Vec<RawDocumentBuf> {
    let flat = |document: RawDocumentBuf| {
        let (id, a) = (
            document.get_i32("_id").unwrap(),
            document.get_i32("a").unwrap(),
        );
        let Ok(Some(place)) = document.get("l") else {
            return document;
        };
        let pair = match place {
            RawBsonRef::Array(pair) => pair,
            place => match place
                .as_document()
                .map(|place| place.get_array("coordinates"))
            {
                Some(Ok(pair)) if pair.get_f64(0).is_ok() => pair,
                _ => return rawdoc! { "_id": id, "a": a, "l": [] },
            },
        };
        let (x, y) = (pair.get_f64(0).unwrap(), pair.get_f64(1).unwrap());
        match id % 5 {
            0 => rawdoc! { "_id": id, "a": a, "l": [[x, y], [y, x / 2.0]] },
            1 => rawdoc! { "_id": id, "a": a, "l": { "lng": x, "lat": y } },
            _ => rawdoc! { "_id": id, "a": a, "l": [x, y] },
        }
    };
    documents().into_iter().map(flat).collect()
}

fn points(fixture: &Fixture) -> (Arc<Collection>, Arc<Collection>) {
    let documents = pairs();
    let indexes = [index(rawdoc! { "l": "2d", "a": 1 }, "la")];
    let scanned = fixture.collection("scanned", &documents, &[]);
    (scanned, fixture.collection("indexed", &documents, &indexes))
}

#[test]
fn an_index_over_points_finds_what_a_scan_finds() {
    let fixture = Fixture::new();
    let (scanned, indexed) = points(&fixture);
    let mut found_any = 0;
    for size in [0.05, 0.4, 3.0, 30.0, 300.0] {
        let at = |dx: f64, dy: f64| RawArrayBuf::from_iter([10.0 + dx * size, 50.0 + dy * size]);
        for within in [
            rawdoc! { "$box": [at(-1.0, -1.0), at(1.0, 1.0)] },
            rawdoc! { "$center": [[10.0, 50.0], size] },
            rawdoc! { "$polygon": [at(-1.0, -1.0), at(1.0, 1.0), at(1.0, -1.0)] },
            rawdoc! { "$centerSphere": [[10.0, 50.0], size / 60.0] },
            rawdoc! { "$centerSphere": [[179.5, 80.0], size / 60.0] },
        ] {
            for filter in [
                rawdoc! { "l": { "$geoWithin": within.clone() } },
                rawdoc! { "l": { "$geoWithin": within.clone() }, "a": 2 },
            ] {
                let (mut found, explained) = fixture.find(&indexed, &request(&filter, None));
                let (mut expected, _) = fixture.find(&scanned, &request(&filter, None));
                found.sort_unstable();
                expected.sort_unstable();
                assert_eq!(found, expected, "{filter:?}");
                assert!(has_stage(&explained, "IXSCAN"));
                found_any += found.len();
            }
        }
    }
    assert!(found_any > 1000);
    for other in [
        rawdoc! { "a": 1 },
        rawdoc! { "l": { "$geoIntersects": { "$geometry": [1, 2] } } },
        rawdoc! { "l": { "$not": { "$geoWithin": { "$box": [[0, 0], [20, 60]] } } } },
    ] {
        let (_, explained) = fixture.find(&indexed, &request(&other, None));
        assert!(has_stage(&explained, "COLLSCAN"));
    }
}

#[test]
fn what_is_near_on_a_plane_comes_first() {
    let fixture = Fixture::new();
    let (_, indexed) = points(&fixture);
    for filter in [
        rawdoc! { "l": { "$near": [10.1, 50.2] } },
        rawdoc! { "l": { "$near": [10.1, 50.2], "$maxDistance": 0.8 } },
        rawdoc! { "l": { "$near": [-170.0, 50.2], "$minDistance": 30.0 }, "a": 1 },
        rawdoc! { "l": { "$nearSphere": [10.1, 50.2] } },
        rawdoc! { "l": { "$nearSphere": [179.9, 89.0], "$maxDistance": 2.0 } },
        rawdoc! { "l": { "$nearSphere": [-179.9, 0.0], "$minDistance": 0.3 } },
    ] {
        let request = request(&filter, None);
        let (found, explained) = fixture.find(&indexed, &request);
        assert!(has_stage(&explained, "GEO_NEAR_2D"));
        assert_eq!(
            found,
            by_distance(&indexed, &request, pairs()),
            "{filter:?}"
        );
        assert!(found.len() > 50);
    }
}

/// What a search finds, by looking at every document.
fn by_distance(
    indexed: &Collection,
    request: &Request<'_>,
    documents: Vec<RawDocumentBuf>,
) -> Vec<i32> {
    let filter = &request.query.filter;
    let mut indexes = indexed.indexes.iter();
    let search = indexes.find_map(|index| NearSearch::of(index, filter));
    let search = search.unwrap();
    let near = &search.near;
    let range = near.min_distance..=near.max_distance;
    let matching = documents.iter();
    let matching = matching.filter(|document| filter.try_matches(document).unwrap());
    let distances = matching.filter_map(|document| {
        let nearest = search.nearest(document, &Budget::unlimited()).unwrap()?;
        let id = document.get_i32("_id").unwrap();
        range
            .contains(&nearest.distance)
            .then_some((nearest.distance, id))
    });
    let mut distances: Vec<(f64, i32)> = distances.collect();
    distances.sort_by(|a, b| a.partial_cmp(b).unwrap());
    distances.into_iter().map(|(_, id)| id).collect()
}

#[test]
fn what_is_near_comes_first() {
    let fixture = Fixture::new();
    let (_, indexed) = places(&fixture);
    let center = || rawdoc! { "type": "Point", "coordinates": [10.1, 50.2] };
    for filter in [
        rawdoc! { "l": { "$near": { "$geometry": center() } } },
        rawdoc! { "l": { "$near": { "$geometry": center() } }, "a": 3 },
        rawdoc! { "l": { "$near": { "$geometry": center(), "$maxDistance": 60_000 } } },
        rawdoc! { "l": { "$nearSphere": { "$geometry": center(), "$minDistance": 30_000 } } },
        rawdoc! { "l": { "$nearSphere": [10.1, 50.2], "$maxDistance": 0.5 } },
    ] {
        let request = request(&filter, None);
        let (found, explained) = fixture.find(&indexed, &request);
        assert!(has_stage(&explained, "GEO_NEAR_2DSPHERE"));
        let expected = by_distance(&indexed, &request, documents());
        assert!(expected.len() > 100);
        assert_eq!(found, expected, "{filter:?}");
        // How wide the first ring is changes nothing.
        for wanted in [1, 20] {
            let few = Request {
                wanted: Some(wanted),
                ..request.clone()
            };
            assert_eq!(fixture.find(&indexed, &few).0, expected, "{filter:?}");
        }
    }
}
