//! The write path, end to end in one process: a standalone node, commands in, replies out.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "../../../storage/tests/image/mod.rs"]
mod image;
mod indexes;
mod rig;

use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_node::info::ClusterRole;
use banyan_replication::write::catalog_ops;
use banyan_storage::Namespace;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use crate::image::crash_image;
use crate::rig::{Rig, array, i32_of, in_session, index, insert, rig, update};

#[tokio::test(flavor = "multi_thread")]
async fn duplicates_are_refused_with_their_key() {
    let (_dir, rig) = rig().await;
    let reply = rig
        .ok(insert((0..3).map(|n| rawdoc! { "_id": n, "a": n })))
        .await;
    assert_eq!(i32_of(&reply, "n"), 3);
    // An ordered batch ends at the first error, an unordered one tries them all.
    let documents = [1, 5, 2, 6].map(|n| rawdoc! { "_id": n });
    let reply = rig.run(insert(documents.clone())).await;
    assert_eq!(i32_of(&reply, "n"), 0);
    let errors = reply.get_array("writeErrors").unwrap();
    let error = errors.get_document(0).unwrap();
    assert_eq!((i32_of(error, "index"), i32_of(error, "code")), (0, 11000));
    assert_eq!(
        error.get_document("keyPattern").unwrap(),
        &*rawdoc! { "_id": 1 }
    );
    assert_eq!(
        error.get_document("keyValue").unwrap(),
        &*rawdoc! { "_id": 1 }
    );
    assert_eq!(
        error.get_str("errmsg").unwrap(),
        "E11000 duplicate key error collection: db.c index: _id_ dup key: { _id: 1 }"
    );
    let mut unordered = insert(documents);
    unordered.append(bson::cstr!("ordered"), false);
    let reply = rig.run(unordered).await;
    assert_eq!(i32_of(&reply, "n"), 2);
    let errors = reply.get_array("writeErrors").unwrap();
    let at: Vec<i32> = errors
        .into_iter()
        .map(|e| i32_of(e.unwrap().as_document().unwrap(), "index"))
        .collect();
    assert_eq!(at, [0, 2]);
    // Two of one batch collide with each other, too.
    let twins = [rawdoc! { "_id": "x" }, rawdoc! { "_id": "x" }];
    let reply = rig.run(insert(twins)).await;
    assert_eq!(i32_of(&reply, "n"), 1);
    assert_eq!(rig.validate().await, 6);
}

/// Whether their keys ascend, and are looked up together, or not.
#[tokio::test(flavor = "multi_thread")]
async fn duplicates_are_found_among_many() {
    let (_dir, rig) = rig().await;
    rig.ok(index(rawdoc! { "u": 1 }, "u", true)).await;
    let document = |id: i32, u: i32| rawdoc! { "_id": id, "u": u };
    let run = async |documents: Vec<RawDocumentBuf>| {
        let mut unordered = insert(documents);
        unordered.append(bson::cstr!("ordered"), false);
        let reply = rig.run(unordered).await;
        let errors = reply.get_array("writeErrors");
        let at: Vec<i32> = (errors.into_iter().flatten())
            .map(|e| i32_of(e.unwrap().as_document().unwrap(), "index"))
            .collect();
        (i32_of(&reply, "n"), at)
    };
    let ascending = |from: i32| (from..from + 100).map(move |n| document(n, n));
    assert_eq!(run(ascending(0).collect()).await, (100, vec![]));
    // The last one is there, then the first one, then one that another statement has put there.
    assert_eq!(run(ascending(-99).collect()).await, (99, vec![99]));
    assert_eq!(run(ascending(99).collect()).await, (99, vec![0]));
    rig.ok(insert([document(250, 1000)])).await;
    assert_eq!(run(ascending(200).collect()).await, (99, vec![50]));
    // Twins among them; a key that is there in the other index only; keys that descend.
    let twins = ascending(400).chain([document(499, 900), document(501, 499)]);
    assert_eq!(run(twins.collect()).await, (100, vec![100, 101]));
    let by_u = (600..700).map(|n| document(n, if n == 650 { 0 } else { n }));
    assert_eq!(run(by_u.collect()).await, (99, vec![50]));
    let descending = ascending(699).rev();
    assert_eq!(run(descending.collect()).await, (99, vec![99]));
    rig.validate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_that_cannot_be_stored_are_refused() {
    let (_dir, rig) = rig().await;
    for bad in [
        rawdoc! { "_id": [1] },
        rawdoc! { "_id": bson::RawBson::Undefined },
        rawdoc! { "_id": bson::Regex { pattern: bson::cstr!("a").into(), options: bson::cstr!("").into() } },
    ] {
        assert_eq!(rig.code(insert([bad])).await, 53);
    }
    for bad in [rawdoc! { "$a": 1 }, rawdoc! { "a": [{ "$b": 1 }] }] {
        assert_eq!(rig.code(insert([rawdoc! { "_id": bad }])).await, 52);
    }
    let large = "x".repeat(16 << 20);
    assert_eq!(
        rig.code(insert([rawdoc! { "large": large.as_str() }]))
            .await,
        2
    );
    let just_fits = "x".repeat((16 << 20) - 100);
    rig.ok(insert([
        rawdoc! { "_id": "fits", "large": just_fits.as_str() },
    ]))
    .await;
    let grow = rawdoc! { "$set": { "more": "x".repeat(200) } };
    assert_eq!(
        rig.code(update(rawdoc! { "_id": "fits" }, grow)).await,
        10334
    );
    // An index key that the engine could not hold.
    let long = "k".repeat(70_000);
    assert_eq!(
        rig.code(insert([rawdoc! { "_id": long.as_str() }])).await,
        17280
    );
    assert_eq!(rig.find(rawdoc! { "_id": long.as_str() }).await.len(), 0);
    assert_eq!(
        rig.find(rawdoc! { "_id": { "$gt": long.as_str() } })
            .await
            .len(),
        0
    );
    rig.ok(index(rawdoc! { "a": 1 }, "a", false)).await;
    assert_eq!(
        rig.code(insert([rawdoc! { "_id": 1, "a": long.as_str() }]))
            .await,
        17280
    );
    rig.ok(insert([rawdoc! { "_id": 1, "a": 1 }])).await;
    let grow = rawdoc! { "$set": { "a": long.as_str() } };
    assert_eq!(rig.code(update(rawdoc! { "_id": 1 }, grow)).await, 17280);
    assert_eq!(
        rig.find(rawdoc! { "a": { "$lt": long.as_str() } })
            .await
            .len(),
        0
    );
    assert_eq!(
        rig.code(update(
            rawdoc! { "_id": 1 },
            rawdoc! { "$set": { "_id": 2 } }
        ))
        .await,
        66
    );
    assert_eq!(rig.validate().await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_is_made_and_put_in_front() {
    let (_dir, rig) = rig().await;
    rig.ok(insert([
        rawdoc! { "a": 1 },
        rawdoc! { "a": 2, "_id": "last" },
    ]))
    .await;
    for document in rig.find(rawdoc! {}).await {
        let (name, value) = document.iter().next().unwrap().unwrap();
        assert_eq!(name.as_str(), "_id");
        assert!(matches!(
            value,
            RawBsonRef::ObjectId(_) | RawBsonRef::String("last")
        ));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writers_of_one_record_take_turns() {
    let (_dir, rig) = rig().await;
    let rig = Arc::new(rig);
    let tasks: Vec<_> = (0..16)
        .map(|_| {
            let rig = rig.clone();
            tokio::spawn(async move {
                for _ in 0..25 {
                    let mut command = rawdoc! { "update": "c" };
                    let statement = rawdoc! {
                        "q": { "_id": 1 }, "u": { "$inc": { "n": 1 } }, "upsert": true,
                    };
                    command.append(bson::cstr!("updates"), array([statement]));
                    rig.ok(command).await;
                    rig.ok(rawdoc! {
                        "findAndModify": "c", "query": { "_id": 1 },
                        "update": { "$inc": { "m": 1 } }, "new": true,
                    })
                    .await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let found = rig.find(rawdoc! {}).await;
    assert_eq!(found.len(), 1);
    assert_eq!((i32_of(&found[0], "n"), i32_of(&found[0], "m")), (400, 400));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_takes_a_unique_key() {
    let (_dir, rig) = rig().await;
    rig.ok(index(rawdoc! { "k": 1 }, "k", true)).await;
    rig.ok(insert(
        (0..16).map(|n| rawdoc! { "_id": n, "k": format!("own {n}") }),
    ))
    .await;
    let rig = Arc::new(rig);
    for round in 0..10 {
        // Half of them insert, the others update: all want the same key.
        let tasks: Vec<_> = (0..16)
            .map(|n| {
                let rig = rig.clone();
                let key = format!("wanted {round}");
                tokio::spawn(async move {
                    let command = if n % 2 == 0 {
                        insert([rawdoc! { "k": key }])
                    } else {
                        update(rawdoc! { "_id": n }, rawdoc! { "$set": { "k": key } })
                    };
                    let reply = rig.run(command).await;
                    match reply.get_array("writeErrors") {
                        Err(_) => 1,
                        Ok(errors) => {
                            assert_eq!(i32_of(errors.get_document(0).unwrap(), "code"), 11000);
                            0
                        }
                    }
                })
            })
            .collect();
        let mut winners = 0;
        for task in tasks {
            winners += task.await.unwrap();
        }
        assert_eq!(winners, 1);
        assert_eq!(
            rig.find(rawdoc! { "k": format!("wanted {round}") })
                .await
                .len(),
            1
        );
    }
    rig.validate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_records_are_changed_and_their_keys_follow() {
    let (_dir, rig) = rig().await;
    let document = |n: i32| rawdoc! { "_id": n, "a": n % 7, "tags": [n % 3, n % 5], "n": 0 };
    rig.ok(insert((0..5000).map(document))).await;
    rig.ok(index(rawdoc! { "a": 1, "tags": -1 }, "a_tags", false))
        .await;
    rig.ok(index(rawdoc! { "n": 1 }, "n", false)).await;
    assert_eq!(rig.validate().await, 5000);
    // The scan goes along an index that the update moves the records in.
    let command = rawdoc! {
        "update": "c",
        "updates": [{
            "q": { "n": { "$gte": 0 } },
            "u": { "$inc": { "n": 1, "a": 100 }, "$push": { "tags": 9 } },
            "multi": true,
        }],
    };
    let reply = rig.ok(command).await;
    assert_eq!(
        (i32_of(&reply, "n"), i32_of(&reply, "nModified")),
        (5000, 5000)
    );
    assert_eq!(rig.find(rawdoc! { "n": 1 }).await.len(), 5000);
    assert_eq!(
        rig.find(rawdoc! { "a": 103, "tags": 9 }).await.len(),
        5000 / 7
    );
    let delete = rawdoc! { "delete": "c", "deletes": [{ "q": { "tags": 2 }, "limit": 0 }] };
    let gone = i32_of(&rig.ok(delete).await, "n");
    assert_eq!(rig.validate().await, i64::from(5000 - gone));
    assert_eq!(rig.find(rawdoc! { "tags": 2 }).await.len(), 0);
    let delete = rawdoc! { "delete": "c", "deletes": [{ "q": { "a": 101 }, "limit": 1 }] };
    assert_eq!(i32_of(&rig.ok(delete).await, "n"), 1);
    rig.validate().await;
}

/// What cannot be evaluated fails the statement; it is no document that does not match.
#[tokio::test(flavor = "multi_thread")]
async fn a_filter_that_fails_fails_the_statement() {
    let (_dir, rig) = rig().await;
    rig.ok(insert((0..3).map(|n| rawdoc! { "_id": n, "a": n })))
        .await;
    let filter = || rawdoc! { "$expr": { "$divide": [1, { "$subtract": ["$a", 1] }] } };
    let set = || rawdoc! { "$set": { "b": 1 } };
    let many = rawdoc! { "q": filter(), "u": set(), "multi": true };
    let failing = [
        rawdoc! { "update": "c", "updates": [many] },
        rawdoc! { "delete": "c", "deletes": [{ "q": filter(), "limit": 0 }] },
        rawdoc! { "findAndModify": "c", "query": filter(), "sort": { "b": 1 }, "update": set() },
        rawdoc! { "findAndModify": "c", "query": filter(), "sort": { "b": 1 }, "remove": true },
        rawdoc! { "count": "c", "query": filter() },
        rawdoc! { "distinct": "c", "key": "a", "query": filter() },
    ];
    for command in failing {
        let shown = format!("{command:?}");
        assert_eq!(rig.code(command).await, 2, "{shown}");
    }
    let partial = rawdoc! { "key": { "a": 1 }, "name": "a", "partialFilterExpression": filter() };
    let command = rawdoc! { "createIndexes": "c", "indexes": [partial] };
    assert_eq!(rig.code(command).await, 224);
    // What a statement of many documents has done before it failed stays done, as in MongoDB.
    assert_eq!(rig.validate().await, 2);
    assert_eq!(rig.find(rawdoc! { "_id": 0 }).await.len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_of_one_command_see_each_other() {
    let (_dir, rig) = rig().await;
    rig.ok(index(rawdoc! { "k": 1 }, "k", true)).await;
    let command = rawdoc! {
        "update": "c",
        "updates": [
            { "q": { "_id": 1 }, "u": { "$inc": { "n": 1 }, "$set": { "k": "a" } }, "upsert": true },
            { "q": { "_id": 1 }, "u": { "$inc": { "n": 1 } } },
            { "q": { "k": "a" }, "u": { "$inc": { "n": 1 }, "$set": { "k": "b" } } },
            { "q": { "_id": 2 }, "u": { "$set": { "k": "a" } }, "upsert": true },
            { "q": { "k": { "$in": ["a", "b"] } }, "u": { "$inc": { "n": 10 } }, "multi": true },
        ],
    };
    let reply = rig.ok(command).await;
    assert_eq!((i32_of(&reply, "n"), i32_of(&reply, "nModified")), (6, 4));
    let upserted = reply.get_array("upserted").unwrap();
    assert_eq!(
        upserted.get_document(1).unwrap(),
        &*rawdoc! { "index": 3, "_id": 2 }
    );
    let found = rig.find(rawdoc! { "_id": 1 }).await;
    assert_eq!(i32_of(&found[0], "n"), 13);
    rig.validate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_changed_nothing_is_carried_out_again() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::open_as(dir.path(), ClusterRole::Shard).await;
    rig.ok(insert([rawdoc! { "_id": 1, "n": 0 }])).await;
    let position = || rig.service.node.replica.machine.applied_index();
    let before = position();
    let no_change = rawdoc! {
        "findAndModify": "c", "query": { "_id": 1 }, "update": { "$set": { "n": 0 } },
    };
    let nothing = update(rawdoc! { "_id": 2 }, rawdoc! { "$inc": { "n": 1 } });
    rig.ok(in_session(no_change.clone(), 5)).await;
    let reply = rig.ok(in_session(nothing.clone(), 6)).await;
    assert_eq!(i32_of(&reply, "n"), 0);
    assert_eq!(position(), before, "an entry was written for nothing");
    // An earlier number comes too late although the later one is in no record.
    assert_eq!(rig.code(in_session(no_change, 5)).await, 225);
    rig.ok(insert([rawdoc! { "_id": 2, "n": 0 }])).await;
    for _ in 0..2 {
        let reply = rig.ok(in_session(nothing.clone(), 6)).await;
        assert_eq!(i32_of(&reply, "n"), 1);
    }
    let found = rig.find(rawdoc! { "_id": 2 }).await;
    assert_eq!(i32_of(&found[0], "n"), 1);
    rig.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retried_statement_is_not_applied_twice() {
    // A standalone takes no numbered statements; a shard that is a single server does.
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::open_as(dir.path(), ClusterRole::Shard).await;
    let commands = [
        insert((0..3).map(|n| rawdoc! { "_id": n, "n": 0 })),
        update(rawdoc! { "_id": 1 }, rawdoc! { "$inc": { "n": 1 } }),
        rawdoc! {
            "update": "c",
            "updates": [{ "q": { "_id": 9 }, "u": { "$inc": { "n": 5 } }, "upsert": true }],
        },
        rawdoc! {
            "findAndModify": "c", "query": { "_id": 2 }, "update": { "$inc": { "n": 1 } },
            "new": true,
        },
        rawdoc! { "delete": "c", "deletes": [{ "q": { "n": 0 }, "limit": 1 }] },
    ];
    let mut replies = Vec::new();
    for (number, command) in commands.iter().enumerate() {
        let command = in_session(command.clone(), number as i64);
        let first = rig.ok(command.clone()).await;
        let again = rig.ok(command).await;
        let without_retry = |reply: &RawDocument| {
            let mut kept = RawDocumentBuf::new();
            for (name, value) in reply.iter().flatten() {
                if !name.as_str().starts_with("retriedStmtId") {
                    kept.append(name, value);
                }
            }
            kept
        };
        assert_eq!(without_retry(&first), without_retry(&again));
        replies.push(first);
    }
    let expected = [(1, 1), (2, 1), (9, 5)];
    let check = |found: Vec<RawDocumentBuf>| {
        let found: Vec<_> = found
            .iter()
            .map(|d| (i32_of(d, "_id"), i32_of(d, "n")))
            .collect();
        assert_eq!(found, expected);
    };
    check(rig.find(rawdoc! {}).await);
    // An older number is refused, and the last is still known after a crash.
    assert_eq!(rig.code(in_session(commands[0].clone(), 0)).await, 225);
    let image = crash_image(dir.path());
    let survivor = Rig::open_as(image.path(), ClusterRole::Shard).await;
    survivor.ok(in_session(commands[4].clone(), 4)).await;
    check(survivor.find(rawdoc! {}).await);
    survivor.validate().await;
    survivor.close().await;
    rig.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_writes_survive_a_crash_and_are_counted_right() {
    let (dir, rig) = rig().await;
    rig.ok(index(rawdoc! { "a": 1 }, "a", false)).await;
    let rig = Arc::new(rig);
    let tasks: Vec<_> = (0..8)
        .map(|writer| {
            let rig = rig.clone();
            tokio::spawn(async move {
                for n in 0..100 {
                    let id = writer * 1000 + n;
                    rig.ok(insert([rawdoc! { "_id": id, "a": n % 10, "n": 0 }])).await;
                    let inc = rawdoc! { "$inc": { "n": 1, "a": 1 } };
                    rig.ok(update(rawdoc! { "_id": id }, inc)).await;
                    if n % 10 == 9 {
                        let gone =
                            rawdoc! { "delete": "c", "deletes": [{ "q": { "_id": id }, "limit": 1 }] };
                        rig.ok(gone).await;
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let image = crash_image(dir.path());
    let survivor = Rig::open(image.path()).await;
    assert_eq!(survivor.validate().await, 720);
    assert_eq!(survivor.find(rawdoc! { "n": 1 }).await.len(), 720);
    // New records come after the old ones.
    survivor.ok(insert([rawdoc! { "_id": "new" }])).await;
    let last = survivor.find(rawdoc! {}).await.pop().unwrap();
    assert_eq!(last.get_str("_id").unwrap(), "new");
    survivor.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn namespaces_come_and_go_beside_writers() {
    let (_dir, rig) = rig().await;
    let rig = Arc::new(rig);
    let writers: Vec<_> = (0..4)
        .map(|_| {
            let rig = rig.clone();
            tokio::spawn(async move {
                for n in 0..60 {
                    let a = format!("{n}");
                    rig.ok(insert((0..5).map(|_| rawdoc! { "a": a.as_str() })))
                        .await;
                }
            })
        })
        .collect();
    for round in 0..20 {
        rig.run(index(rawdoc! { "a": 1 }, "a", false)).await;
        let target = format!("old{}", round % 2);
        rig.run(rawdoc! {
            "renameCollection": "db.c", "to": format!("db.{target}"), "dropTarget": true,
        })
        .await;
        rig.run(rawdoc! { "drop": "c" }).await;
    }
    for writer in writers {
        writer.await.unwrap();
    }
    rig.ok(insert([rawdoc! { "a": "last" }])).await;
    rig.validate().await;
    let names: Vec<String> = {
        let catalog = rig.service.node.replica.store.catalog();
        catalog
            .collections()
            .map(|collection| collection.namespace.to_string())
            .collect()
    };
    assert_eq!(
        names.iter().filter(|name| *name == "db.c").count(),
        1,
        "{names:?}"
    );
    rig.ok(rawdoc! { "dropDatabase": 1 }).await;
    let deadline = Instant::now() + Duration::from_secs(20);
    while rig.service.node.replica.store.is_cleaning() {
        assert!(Instant::now() < deadline, "dropped data is still there");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(
        rig.service
            .node
            .replica
            .store
            .catalog()
            .collections()
            .count(),
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_names_and_commands_are_refused() {
    let (_dir, rig) = rig().await;
    let named = |name: &str| rawdoc! { "insert": name, "documents": [{ "a": 1 }] };
    for bad in ["", ".c", "a$b", "nul\0"] {
        assert_eq!(rig.code(named(bad)).await, 73, "{bad:?}");
    }
    assert_eq!(
        rig.code(rawdoc! { "insert": "c", "documents": [] }).await,
        16
    );
    assert_eq!(rig.code(rawdoc! { "drop": "nothing" }).await, 26);
    rig.ok(rawdoc! { "create": "c" }).await;
    assert_eq!(rig.code(rawdoc! { "create": "c" }).await, 48);
    assert_eq!(
        rig.code(update(rawdoc! {}, rawdoc! { "$nope": { "a": 1 } }))
            .await,
        9
    );
    let two = rawdoc! { "update": "c", "updates": [{ "q": {}, "u": { "a": 1 }, "multi": true }] };
    assert_eq!(rig.code(two).await, 9);
    let w = |w: i32| rawdoc! { "insert": "c", "documents": [{}], "writeConcern": { "w": w } };
    assert_eq!(rig.code(w(2)).await, 2);
    assert_eq!(rig.code(w(51)).await, 9);
}

/// The first so many documents that a tailable cursor on a capped collection brings.
async fn tail(rig: &Rig, count: i32) -> Vec<RawDocumentBuf> {
    let find = rawdoc! { "find": "c", "tailable": true, "batchSize": 50, "showRecordId": true };
    let mut reply = rig.ok(find).await;
    let mut seen = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let cursor = reply.get_document("cursor").unwrap();
        let batch = cursor
            .get_array("firstBatch")
            .or_else(|_| cursor.get_array("nextBatch"));
        let batch = batch.unwrap().into_iter().flatten();
        seen.extend(batch.map(|item| item.as_document().unwrap().to_owned()));
        if seen.len() as i32 >= count {
            return seen;
        }
        assert!(Instant::now() < deadline, "{} documents", seen.len());
        let id = cursor.get_i64("id").unwrap();
        assert_ne!(id, 0, "the cursor lives on");
        reply = rig
            .ok(rawdoc! { "getMore": id, "collection": "c", "batchSize": 50 })
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tailable_cursor_misses_nothing_that_writers_add_at_the_same_time() {
    const WRITERS: i32 = 6;
    const EACH: i32 = 150;
    let (_dir, rig) = rig().await;
    let rig = Arc::new(rig);
    let node = &rig.service.node;
    let options = rawdoc! { "capped": true, "size": 1 << 30 };
    let creation = catalog_ops::creation(&node.replica, &Namespace::new("db", "c"), options);
    let term = node.replica.writable_term().unwrap();
    catalog_ops::apply(&node.replica, &[creation], term)
        .await
        .unwrap();
    // The cursor of an empty collection would be closed at once.
    rig.ok(insert([rawdoc! { "writer": -1, "n": 0 }])).await;
    let writers = (0..WRITERS).map(|writer| {
        let rig = rig.clone();
        tokio::spawn(async move {
            for n in 0..EACH {
                rig.ok(insert([rawdoc! { "writer": writer, "n": n }])).await;
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    let seen = tail(&rig, WRITERS * EACH + 1).await;
    for writer in writers {
        writer.await.unwrap();
    }
    let records: Vec<i64> = seen
        .iter()
        .map(|document| document.get_i64("$recordId").unwrap())
        .collect();
    assert!(records.is_sorted_by(|a, b| a < b), "{records:?}");
    for writer in 0..WRITERS {
        let of_writer = seen.iter().filter(|d| i32_of(d, "writer") == writer);
        let numbers: Vec<i32> = of_writer.map(|document| i32_of(document, "n")).collect();
        assert_eq!(numbers, (0..EACH).collect::<Vec<_>>(), "writer {writer}");
    }
}
