use std::sync::Arc;

use banyan_document::Collator;
use banyan_query::CanonicalQuery;
use banyan_storage::{Batch, CatalogChange, Collection, IndexDefinition, Namespace};
use bson::{RawDocumentBuf, rawdoc};

use super::{CollectionQueryInfo, Creation, ENTRIES_MAX, Entry, PlanCache, PlanCacheKey, PlanName};
use crate::fixture::{Fixture, collated_request, index, request};
use crate::request::Request;

fn key(filter: RawDocumentBuf, plans: &[&str]) -> PlanCacheKey {
    let plans = plans.iter().map(|name| PlanName::Index((*name).to_owned()));
    PlanCacheKey::new(&request(&filter, None).query, plans)
}

fn learn(cache: &PlanCache, collection: &Collection, key: &PlanCacheKey, plan: &str, works: u64) {
    let plan = PlanName::Index(plan.to_owned());
    cache.learn(collection, key.clone(), plan, works, Creation::default);
}

fn only(cache: &PlanCache, collection: &Collection) -> Entry {
    let entries = cache.entries(collection);
    assert_eq!(entries.len(), 1);
    entries[0].1.clone()
}

#[test]
fn a_key_is_that_of_a_shape_and_of_the_plans() {
    let one = key(rawdoc! { "a": 1, "b": 2 }, &["a", "b"]);
    assert_eq!(one, key(rawdoc! { "a": "x", "b": null }, &["b", "a"]));
    assert_ne!(one, key(rawdoc! { "a": 1, "b": 2 }, &["a"]));
    assert_ne!(one, key(rawdoc! { "a": 1, "b": { "$gt": 2 } }, &["a", "b"]));
    assert_ne!(one.hash(), key(rawdoc! { "a": 1, "b": 2 }, &["ab"]).hash());
    let collator = Collator::parse(&rawdoc! { "locale": "en" }).unwrap();
    let collated = collated_request(&rawdoc! { "a": 1, "b": 2 }, None, collator).query;
    let plans = ["a", "b"].map(|name| PlanName::Index(name.to_owned()));
    assert_ne!(one, PlanCacheKey::new(&collated, plans.into_iter()));
    let scan = PlanCacheKey::new(
        &CanonicalQuery::default(),
        [PlanName::Collection].into_iter(),
    );
    assert_eq!(scan.hash(), scan.shape().hash());
}

#[test]
fn the_paths_of_a_wildcard_index_are_plans_of_their_own() {
    let fixture = Fixture::new();
    let all = index(rawdoc! { "$**": 1 }, "all");
    let collection = fixture.collection("c", &[rawdoc! { "_id": 1, "a": 1, "b": 2 }], &[all]);
    let request = request(&rawdoc! { "a": 1, "b": 2 }, None);
    let solutions = fixture.solutions(&collection, &request);
    let mut names: Vec<_> = solutions.iter().map(PlanName::of).collect();
    names.retain(|name| *name != PlanName::Collection);
    names.sort_unstable();
    let of_path = |path: &str| PlanName::Index(format!("all\0{path}"));
    assert_eq!(names, [of_path("a"), of_path("b")]);
}

#[test]
fn an_entry_becomes_active_once_a_trial_takes_no_more_work_than_it_notes() {
    let fixture = Fixture::new();
    let collection = fixture.collection("c", &[], &[]);
    let (cache, key) = (PlanCache::default(), key(rawdoc! { "a": 1 }, &["a", "b"]));
    assert!(cache.active(&collection, &key).is_none());
    learn(&cache, &collection, &key, "a", 10);
    assert!(cache.active(&collection, &key).is_none());
    // A trial that takes more work leaves it inactive, and makes it grow.
    learn(&cache, &collection, &key, "b", 35);
    let entry = only(&cache, &collection);
    assert_eq!((entry.is_active, entry.works), (false, 20));
    learn(&cache, &collection, &key, "b", 35);
    assert_eq!(only(&cache, &collection).works, 40);
    learn(&cache, &collection, &key, "b", 35);
    let plan = PlanName::Index("b".to_owned());
    assert_eq!(cache.active(&collection, &key), Some((plan.clone(), 35)));
    // An active one is replaced by a better one only.
    learn(&cache, &collection, &key, "a", 50);
    assert_eq!(cache.active(&collection, &key), Some((plan, 35)));
    cache.deactivate(&collection, &key);
    assert!(cache.active(&collection, &key).is_none());
    learn(&cache, &collection, &key, "a", 30);
    let plan = PlanName::Index("a".to_owned());
    assert_eq!(cache.active(&collection, &key), Some((plan, 30)));
}

#[test]
fn other_indexes_and_another_name_make_the_entries_void() {
    let fixture = Fixture::new();
    let collection = fixture.collection("c", &[], &[index(rawdoc! { "a": 1 }, "a")]);
    let key = key(rawdoc! { "a": 1 }, &["a", "b"]);
    let cached = |collection: &Collection| {
        let info = CollectionQueryInfo::of(collection);
        info.plan_cache.entries(collection).len()
    };
    let change = |change: CatalogChange| -> Arc<Collection> {
        let mut batch = Batch::new();
        batch.change_catalog(change);
        fixture.store.commit(batch).unwrap();
        fixture
            .store
            .catalog()
            .by_id(collection.id)
            .unwrap()
            .clone()
    };
    let teach = |collection: &Collection| {
        let info = CollectionQueryInfo::of(collection);
        learn(&info.plan_cache, collection, &key, "a", 10);
        assert_eq!(cached(collection), 1);
    };
    teach(&collection);
    let definition = collection.index("a").unwrap().definition();
    let hidden = rawdoc! { "v": 2, "key": { "a": 1 }, "name": "a", "hidden": true };
    let spec = CatalogChange::SetIndexSpec {
        collection: collection.id,
        index: IndexDefinition {
            spec: hidden,
            ..definition.clone()
        },
    };
    let later = change(spec);
    assert_eq!(cached(&later), 0);
    teach(&later);
    let later = change(CatalogChange::DropIndex {
        collection: collection.id,
        index: definition.id,
    });
    assert_eq!(cached(&later), 0);
    teach(&later);
    let later = change(CatalogChange::RenameCollection {
        id: collection.id,
        to: Namespace::new("test", "other"),
    });
    assert_eq!(cached(&later), 0);
}

#[test]
fn the_entry_that_was_not_used_for_the_longest_time_goes_first() {
    let fixture = Fixture::new();
    let collection = fixture.collection("c", &[], &[]);
    let cache = PlanCache::default();
    let key = |number: usize| {
        let mut filter = RawDocumentBuf::new();
        let name = bson::raw::CString::try_from(format!("f{number}")).unwrap();
        filter.append(name, 1);
        key(filter, &["a", "b"])
    };
    for number in 0..ENTRIES_MAX {
        learn(&cache, &collection, &key(number), "a", 10);
    }
    cache.active(&collection, &key(0));
    learn(&cache, &collection, &key(ENTRIES_MAX), "a", 10);
    let entries = cache.entries(&collection);
    assert_eq!(entries.len(), ENTRIES_MAX);
    let holds = |number: usize| entries.iter().any(|(known, _)| *known == key(number));
    assert!(holds(0) && holds(ENTRIES_MAX));
    assert!(!holds(1));
}

/// 3,000 documents: each `a` has 300 of them, each `b` three.
fn numbers(fixture: &Fixture) -> Arc<Collection> {
    let documents: Vec<_> = (0..3_000)
        .map(|id: i32| rawdoc! { "_id": id, "a": id % 10, "b": id % 1_000 })
        .collect();
    let indexes = [
        index(rawdoc! { "a": 1 }, "a"),
        index(rawdoc! { "b": 1 }, "b"),
    ];
    fixture.collection("numbers", &documents, &indexes)
}

fn summary(fixture: &Fixture, collection: &Arc<Collection>, request: &Request<'_>) -> String {
    let mut executor = fixture.open(collection, request);
    while executor.next_record().unwrap().is_some() {}
    let choice = executor.stats.choice().unwrap();
    let how = match (choice.from_multi_planner, &choice.replan_reason) {
        (true, Some(_)) => "replanned",
        (true, None) => "tried",
        (false, _) => "cached",
    };
    format!("{how} {}", executor.stats.summary)
}

#[test]
fn a_cached_plan_serves_other_values_until_it_takes_far_more_work() {
    let fixture = Fixture::new();
    let collection = numbers(&fixture);
    let find = |a: RawDocumentBuf, b: RawDocumentBuf| {
        let filter = rawdoc! { "a": a, "b": b };
        let request = request(&filter, None);
        let (mut found, _) = fixture.find(&collection, &request);
        found.sort_unstable();
        let matching = |id: &i32| {
            let document = rawdoc! { "a": id % 10, "b": id % 1_000 };
            request.query.filter.try_matches(&document).unwrap()
        };
        assert_eq!(found, (0..3_000).filter(matching).collect::<Vec<_>>());
        summary(&fixture, &collection, &request)
    };
    let range = |from: i32, to: i32| rawdoc! { "$gte": from, "$lt": to };
    // Every search runs twice: its documents are compared first.
    assert_eq!(find(range(0, 10), range(5, 7)), "tried IXSCAN { b: 1 }");
    assert_eq!(find(range(3, 10), range(8, 9)), "cached IXSCAN { b: 1 }");
    let entry = only(
        &CollectionQueryInfo::of(&collection).plan_cache,
        &collection,
    );
    assert!(entry.is_active && entry.works < 30, "{}", entry.works);
    // All of `b`, and next to nothing of `a`: the first of the two replans.
    let other = request(&rawdoc! { "a": range(10, 11), "b": range(0, 1_000) }, None);
    assert_eq!(
        summary(&fixture, &collection, &other),
        "replanned IXSCAN { a: 1 }"
    );
    assert_eq!(
        summary(&fixture, &collection, &other),
        "cached IXSCAN { a: 1 }"
    );
}

#[test]
fn one_plan_is_not_worth_an_entry() {
    let fixture = Fixture::new();
    let collection = numbers(&fixture);
    for filter in [rawdoc! { "_id": 5 }, rawdoc! {}, rawdoc! { "c": 1 }] {
        let mut executor = fixture.open(&collection, &request(&filter, None));
        while executor.next_record().unwrap().is_some() {}
        assert!(executor.stats.choice().is_none());
        assert!(executor.stats.plan_cache_key().is_some());
    }
    let info = CollectionQueryInfo::of(&collection);
    assert!(info.plan_cache.entries(&collection).is_empty());
}
