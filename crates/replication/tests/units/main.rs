//! Write units: what statements see of those before them, and how conflicts end.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod generated;
mod member;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use banyan_replication::write::context::WriteContext;
use banyan_replication::write::staging::Staging;
use banyan_replication::write::unit::{Isolation, WriteUnit};
use banyan_storage::{Namespace, Snapshot};
use banyan_wire::ErrorCode;
use bson::{RawDocument, rawdoc};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use member::{Member, Quiet, conflicts, delete, find, index, insert, is_duplicate, update};

/// Whoever comes behind what is on its way meets its keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_is_staged_beside_what_is_being_committed() {
    let member = Member::new().await.with_collection("c", &[]).await;
    let mut staging = member.staging("c").await;
    let mut all = Vec::new();
    for number in 0..60 {
        let document = rawdoc! { "_id": number };
        insert(&mut staging, &document).await.unwrap();
        all.push(document);
        staging.flush_beside().await.unwrap();
        let again = insert(&mut staging, &rawdoc! { "_id": number }).await;
        assert!(is_duplicate(again), "{number}");
    }
    staging.flush_beside().await.unwrap();
    staging.finish().await.unwrap();
    assert_eq!(member.committed("c"), all);
    let mut staging = member.staging("c").await;
    insert(&mut staging, &rawdoc! { "_id": 60 }).await.unwrap();
    staging.flush_beside().await.unwrap();
    staging.give_up().await;
    assert_eq!(member.committed("c").len(), 61, "it was on its way");
}

/// A statement that fills several entries changes each document once, whatever others change meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_are_changed_beside_what_is_being_committed() {
    const DOCUMENTS: i32 = 7_000;
    const ROUNDS: i32 = 4;
    let indexes = [
        index("n", rawdoc! { "n": 1 }, false),
        index("u", rawdoc! { "u": 1 }, true),
    ];
    let member = Member::new().await.with_collection("c", &indexes).await;
    let mut staging = member.staging("c").await;
    for number in 0..DOCUMENTS {
        let document = rawdoc! { "_id": number, "u": number, "n": 1, "m": 0 };
        insert(&mut staging, &document).await.unwrap();
    }
    staging.finish().await.unwrap();
    let done = AtomicBool::new(false);
    let others = async || {
        let mut random = StdRng::seed_from_u64(1);
        let mut changed = 0;
        while !done.load(Ordering::Relaxed) {
            let mut staging = member.staging("c").await;
            let number = random.random_range(0..DOCUMENTS);
            let plus = rawdoc! { "$inc": { "m": 1 } };
            let one = rawdoc! { "_id": number };
            let one = update(&mut staging, &one, &plus, (false, false)).await;
            staging.finish().await.unwrap();
            if number < DOCUMENTS / 2 {
                changed += one.unwrap().1;
            }
        }
        changed
    };
    let all = async || {
        let everything = (DOCUMENTS as u64, DOCUMENTS as u64);
        for _ in 0..ROUNDS {
            let entries = member.entries();
            let mut staging = member.staging("c").await;
            let statements = [
                // The collection, an index within which they move, and unique keys that change.
                (
                    rawdoc! { "m": { "$gte": 0 } },
                    rawdoc! { "$inc": { "n": 1 } },
                ),
                (
                    rawdoc! { "n": { "$gt": 0 } },
                    rawdoc! { "$inc": { "n": 1 } },
                ),
                (
                    rawdoc! { "m": { "$gte": 0 } },
                    rawdoc! { "$inc": { "u": DOCUMENTS } },
                ),
            ];
            for (filter, change) in &statements {
                let changed = update(&mut staging, filter, change, (true, false)).await;
                assert_eq!(changed.unwrap(), everything, "{filter:?}");
            }
            staging.finish().await.unwrap();
            assert!(member.entries() > entries + 3, "in several entries");
        }
        let mut staging = member.staging("c").await;
        let second_half = rawdoc! { "_id": { "$gte": DOCUMENTS / 2 } };
        let gone = delete(&mut staging, &second_half, true).await;
        assert_eq!(gone.unwrap().modified, DOCUMENTS as u64 / 2);
        staging.finish().await.unwrap();
    };
    let runtime = tokio::runtime::Handle::current();
    let changed = std::thread::scope(|scope| {
        let others = scope.spawn(|| runtime.block_on(others()));
        let all = scope.spawn(|| runtime.block_on(all())).join();
        done.store(true, Ordering::Relaxed);
        all.unwrap();
        others.join().unwrap()
    });
    let left = member.committed("c");
    assert_eq!(left.len() as i32, DOCUMENTS / 2);
    let mut counted = 0;
    for (number, document) in left.iter().enumerate() {
        let number = number as i32;
        assert_eq!(document.get_i32("n").unwrap(), 1 + 2 * ROUNDS, "{number}");
        assert_eq!(document.get_i32("u").unwrap(), number + ROUNDS * DOCUMENTS);
        counted += document.get_i32("m").unwrap() as u64;
    }
    assert!(changed > 0);
    assert_eq!(counted, changed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_sees_those_before_it_and_nobody_else_does() {
    let member = Member::new().await.with_collection("c", &[]).await;
    let mut staging = member.staging("c").await;
    insert(&mut staging, &rawdoc! { "_id": 1, "n": 1 })
        .await
        .unwrap();
    let by_id = rawdoc! { "_id": 1 };
    let plus = rawdoc! { "$inc": { "n": 1 } };
    for _ in 0..3 {
        let done = update(&mut staging, &by_id, &plus, (false, false)).await;
        assert_eq!(done.unwrap(), (1, 1));
    }
    let scan = rawdoc! { "n": 4 };
    let done = update(&mut staging, &scan, &plus, (true, false)).await;
    assert_eq!(done.unwrap(), (1, 1));
    assert_eq!(
        find(&mut staging, &rawdoc! {}, None),
        [rawdoc! { "_id": 1, "n": 5 }]
    );
    assert!(member.committed("c").is_empty());
    staging.finish().await.unwrap();
    assert_eq!(member.committed("c"), [rawdoc! { "_id": 1, "n": 5 }]);
    assert_eq!(member.entries(), 1, "one entry for all of them");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_deleted_makes_room_for_another() {
    let unique = index("u", rawdoc! { "u": 1 }, true);
    let member = Member::new().await.with_collection("c", &[unique]).await;
    let mut staging = member.staging("c").await;
    insert(&mut staging, &rawdoc! { "_id": 1, "u": 7 })
        .await
        .unwrap();
    staging.finish().await.unwrap();

    let mut staging = member.staging("c").await;
    let again = rawdoc! { "_id": 1, "u": 7, "again": true };
    assert!(is_duplicate(insert(&mut staging, &again).await));
    assert_eq!(
        delete(&mut staging, &rawdoc! { "_id": 1 }, false)
            .await
            .unwrap()
            .matched,
        1
    );
    assert_eq!(
        delete(&mut staging, &rawdoc! { "_id": 1 }, false)
            .await
            .unwrap()
            .matched,
        0
    );
    assert_eq!(
        delete(&mut staging, &rawdoc! { "u": 7 }, true)
            .await
            .unwrap()
            .matched,
        0
    );
    insert(&mut staging, &again).await.unwrap();
    assert!(is_duplicate(insert(&mut staging, &again).await));
    let entries = member.entries();
    staging.finish().await.unwrap();
    assert_eq!(member.entries(), entries + 1);
    assert_eq!(member.committed("c"), [again]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unique_key_moves_within_a_unit() {
    let unique = index("u", rawdoc! { "u": 1 }, true);
    let member = Member::new().await.with_collection("c", &[unique]).await;
    let mut staging = member.staging("c").await;
    for id in 1..=3 {
        insert(&mut staging, &rawdoc! { "_id": id, "u": id })
            .await
            .unwrap();
    }
    assert!(is_duplicate(
        insert(&mut staging, &rawdoc! { "_id": 4, "u": 3 }).await
    ));
    let to = |u: i32| rawdoc! { "$set": { "u": u } };
    let one = rawdoc! { "_id": 1 };
    assert!(is_duplicate(
        update(&mut staging, &one, &to(2), (false, false)).await
    ));
    update(&mut staging, &rawdoc! { "_id": 2 }, &to(9), (false, false))
        .await
        .unwrap();
    update(&mut staging, &one, &to(2), (false, false))
        .await
        .unwrap();
    insert(&mut staging, &rawdoc! { "_id": 4, "u": 1 })
        .await
        .unwrap();
    // Each takes the key that the one before it has left.
    let all = rawdoc! { "u": { "$gte": 1 } };
    let minus = rawdoc! { "$inc": { "u": -1 } };
    let done = update(&mut staging, &all, &minus, (true, false)).await;
    assert_eq!(done.unwrap(), (4, 4));
    staging.finish().await.unwrap();
    assert_eq!(member.entries(), 1);
    let (mut staging, sort) = (member.staging("c").await, rawdoc! { "u": 1 });
    let found = find(&mut staging, &rawdoc! {}, Some(&sort));
    let found: Vec<_> = found.iter().map(|d| d.get_i32("_id").unwrap()).collect();
    assert_eq!(found, [4, 1, 3, 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_shows_stored_and_staged_keys_in_one_order() {
    let by_n = index("n", rawdoc! { "n": 1 }, false);
    let member = Member::new().await.with_collection("c", &[by_n]).await;
    let mut staging = member.staging("c").await;
    for id in [2, 4, 6, 8] {
        insert(&mut staging, &rawdoc! { "_id": id, "n": id })
            .await
            .unwrap();
    }
    staging.finish().await.unwrap();
    let mut staging = member.staging("c").await;
    for id in [1, 5, 9] {
        insert(&mut staging, &rawdoc! { "_id": id, "n": id })
            .await
            .unwrap();
    }
    let (six, to_three) = (rawdoc! { "_id": 6 }, rawdoc! { "$set": { "n": 3 } });
    update(&mut staging, &six, &to_three, (false, false))
        .await
        .unwrap();
    delete(&mut staging, &rawdoc! { "n": 8 }, false)
        .await
        .unwrap();
    let mut numbers = |filter: &RawDocument, direction: i32| -> Vec<i32> {
        let sort = rawdoc! { "n": direction };
        let found = find(&mut staging, filter, Some(&sort));
        found
            .iter()
            .map(|document| document.get_i32("n").unwrap())
            .collect()
    };
    let inner = rawdoc! { "n": { "$gt": 1, "$lt": 9 } };
    assert_eq!(
        numbers(&rawdoc! { "n": { "$gte": 0 } }, 1),
        [1, 2, 3, 4, 5, 9]
    );
    assert_eq!(numbers(&inner, 1), [2, 3, 4, 5]);
    assert_eq!(numbers(&inner, -1), [5, 4, 3, 2]);
    // A scan does not meet what it moves ahead of itself.
    let (all, up) = (
        rawdoc! { "n": { "$gte": 0 } },
        rawdoc! { "$inc": { "n": 100 } },
    );
    let done = update(&mut staging, &all, &up, (true, false)).await;
    assert_eq!(done.unwrap(), (6, 6));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_array_that_is_only_staged_is_met_once() {
    let by_a = index("a", rawdoc! { "a": 1 }, false);
    let member = Member::new().await.with_collection("c", &[by_a]).await;
    let mut staging = member.staging("c").await;
    insert(&mut staging, &rawdoc! { "_id": 1, "a": [1, 2, 3], "n": 0 })
        .await
        .unwrap();
    let (any, plus) = (
        rawdoc! { "a": { "$gte": 1 } },
        rawdoc! { "$inc": { "n": 1 } },
    );
    assert_eq!(
        update(&mut staging, &any, &plus, (true, false))
            .await
            .unwrap(),
        (1, 1)
    );
    // No single element lies between the two.
    let both = rawdoc! { "a": { "$gt": 2, "$lt": 2 } };
    assert_eq!(find(&mut staging, &both, None).len(), 1);
    staging.finish().await.unwrap();
    assert_eq!(member.committed("c")[0].get_i32("n").unwrap(), 1);
}

fn as_of_now(member: &Member) -> WriteUnit {
    let snapshot: Snapshot = member.replica.store.snapshot();
    WriteUnit::begin(&member.replica, Isolation::Snapshot(snapshot)).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_outlives_commands_and_spans_collections() {
    let member = Member::new().await.with_collection("a", &[]).await;
    let member = member.with_collection("b", &[]).await;
    let entries = member.entries();
    let unit = as_of_now(&member);
    let mut staging = member.within(unit, "a").await;
    insert(&mut staging, &rawdoc! { "_id": 1 }).await.unwrap();
    let mut staging = member.within(staging.into_unit(), "b").await;
    insert(&mut staging, &rawdoc! { "_id": 1 }).await.unwrap();
    let mut staging = member.within(staging.into_unit(), "a").await;
    assert_eq!(find(&mut staging, &rawdoc! { "_id": 1 }, None).len(), 1);

    // Others neither see it nor are told: they wait until it is known how it ends.
    let mut other = member.staging("a").await;
    let twin = rawdoc! { "_id": 1, "other": true };
    let attempt = insert(&mut other, &twin);
    let waited = tokio::time::timeout(Duration::from_millis(50), attempt).await;
    assert!(waited.is_err());
    drop(other);

    let mut unit = staging.into_unit();
    assert!(member.committed("a").is_empty());
    unit.commit(&member.context(), None, || ()).await.unwrap();
    drop(unit);
    assert_eq!(member.entries(), entries + 1);
    assert_eq!(
        (member.committed("a").len(), member.committed("b").len()),
        (1, 1)
    );
    let mut other = member.staging("a").await;
    assert!(is_duplicate(insert(&mut other, &twin).await));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_that_is_dropped_leaves_nothing() {
    let member = Member::new().await.with_collection("c", &[]).await;
    let mut staging = member.within(as_of_now(&member), "c").await;
    insert(&mut staging, &rawdoc! { "_id": 1 }).await.unwrap();
    drop(staging);
    let mut staging = member.staging("c").await;
    insert(&mut staging, &rawdoc! { "_id": 1 }).await.unwrap();
    staging.finish().await.unwrap();
    assert_eq!(member.committed("c").len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_have_changed_since_is_a_conflict() {
    let unique = index("u", rawdoc! { "u": 1 }, true);
    let member = Member::new().await.with_collection("c", &[unique]).await;
    let mut staging = member.staging("c").await;
    for id in 1..=3 {
        insert(&mut staging, &rawdoc! { "_id": id, "u": id })
            .await
            .unwrap();
    }
    staging.finish().await.unwrap();

    let unit = as_of_now(&member);
    let plus = rawdoc! { "$inc": { "n": 1 } };
    let (one, two, three) = (
        rawdoc! { "_id": 1 },
        rawdoc! { "_id": 2 },
        rawdoc! { "_id": 3 },
    );
    let mut other = member.staging("c").await;
    update(&mut other, &one, &plus, (false, false))
        .await
        .unwrap();
    delete(&mut other, &three, false).await.unwrap();
    insert(&mut other, &rawdoc! { "_id": 4, "u": 4 })
        .await
        .unwrap();
    other.finish().await.unwrap();

    let mut staging = member.within(unit, "c").await;
    // It reads the state of then.
    assert_eq!(find(&mut staging, &rawdoc! {}, None).len(), 3);
    assert!(
        find(&mut staging, &one, None)[0]
            .get("n")
            .unwrap()
            .is_none()
    );
    assert!(conflicts(
        update(&mut staging, &one, &plus, (false, false)).await
    ));
    assert!(conflicts(
        update(&mut staging, &rawdoc! { "u": 1 }, &plus, (true, false)).await
    ));
    assert!(conflicts(delete(&mut staging, &three, false).await));
    // Where it has not seen the key that is there, nor that one has gone.
    assert!(conflicts(
        insert(&mut staging, &rawdoc! { "_id": 5, "u": 4 }).await
    ));
    assert!(conflicts(
        insert(&mut staging, &rawdoc! { "_id": 6, "u": 3 }).await
    ));
    update(&mut staging, &two, &plus, (false, false))
        .await
        .unwrap();

    // Whom another one is changing nobody waits for.
    let mut later = member.within(as_of_now(&member), "c").await;
    assert!(conflicts(
        update(&mut later, &two, &plus, (false, false)).await
    ));
    let mut unit = staging.into_unit();
    unit.commit(&member.context(), None, || ()).await.unwrap();
    // It was begun before that.
    assert!(conflicts(
        update(&mut later, &two, &plus, (false, false)).await
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_waited_for_as_long_as_the_operation_has() {
    let member = Member::new().await.with_collection("c", &[]).await;
    let member = member.with_collection("other", &[]).await;
    let namespace = Namespace::new("db", "c");
    let changing = member.replica.locks.exclusive(&[&namespace]).await;
    // Writers of other collections do not notice.
    let mut staging = member.staging("other").await;
    insert(&mut staging, &rawdoc! { "_id": 1 }).await.unwrap();
    assert!(!member.operation.waited.load(Ordering::Relaxed));

    let short = Quiet::new(Some(Instant::now() + Duration::from_millis(30)));
    let context = WriteContext {
        operation: &short,
        ..member.context()
    };
    let error = Staging::open(context, "c", true).await.err().unwrap();
    assert_eq!(error.code, ErrorCode::MaxTimeMSExpired);
    assert!(short.waited.load(Ordering::Relaxed));
    // Others may wait for the holder of a lock, so it gives up.
    let within = Staging::within(member.context(), staging.into_unit(), "c", true);
    let error = within.await.err().unwrap();
    assert_eq!(error.code, ErrorCode::LockTimeout);
    drop(changing);
    member.staging("c").await.finish().await.unwrap();
}
