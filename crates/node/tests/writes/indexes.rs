//! Writes beside indexes that come and go.

use bson::rawdoc;

use crate::rig::{i32_of, index, insert, rig, update};

#[tokio::test(flavor = "multi_thread")]
async fn indexes_are_built_over_what_is_there() {
    let (_dir, rig) = rig().await;
    rig.ok(insert(
        (0..1000).map(|n| rawdoc! { "_id": n, "a": n / 2, "b": [n, n + 1] }),
    ))
    .await;
    let reply = rig.run(index(rawdoc! { "a": 1 }, "a", true)).await;
    assert_eq!(i32_of(&reply, "code"), 11000, "{reply:?}");
    assert_eq!(
        reply.get_document("keyPattern").unwrap(),
        &*rawdoc! { "a": 1 }
    );
    rig.ok(index(rawdoc! { "a": 1, "_id": 1 }, "a_id", true))
        .await;
    rig.ok(index(rawdoc! { "b": 1 }, "b", false)).await;
    let reply = rig.run(index(rawdoc! { "b": 1, "a": 1 }, "b", false)).await;
    assert_eq!(i32_of(&reply, "code"), 86, "{reply:?}");
    rig.validate().await;
    let sizes: Vec<u64> = {
        let catalog = rig.service.node.replica.store.catalog();
        let collection = catalog.get("db", "c").unwrap();
        collection
            .indexes
            .iter()
            .map(|index| index.key_bytes())
            .collect()
    };
    assert!(
        sizes.len() == 3 && sizes.iter().all(|bytes| *bytes > 1000),
        "{sizes:?}"
    );
    // Arrays in two fields of one index cannot be.
    rig.ok(index(rawdoc! { "b": 1, "c": 1 }, "b_c", false))
        .await;
    assert_eq!(
        rig.code(insert([rawdoc! { "b": [1], "c": [2] }])).await,
        171
    );
    rig.ok(rawdoc! { "dropIndexes": "c", "index": "b" }).await;
    assert_eq!(
        rig.code(rawdoc! { "dropIndexes": "c", "index": "_id_" })
            .await,
        72
    );
    assert_eq!(
        rig.code(rawdoc! { "dropIndexes": "c", "index": "none" })
            .await,
        27
    );
    assert_eq!(rig.validate().await, 1000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hidden_index_is_kept_up_but_not_used() {
    let (_dir, rig) = rig().await;
    rig.ok(insert((0..10).map(|n| rawdoc! { "_id": n, "a": n })))
        .await;
    rig.ok(index(rawdoc! { "a": 1 }, "a", true)).await;
    let plan = async || {
        let reply = rig
            .ok(rawdoc! { "explain": { "find": "c", "filter": { "a": 3 } } })
            .await;
        let bytes = reply.get_document("queryPlanner").unwrap().as_bytes();
        String::from_utf8_lossy(bytes).into_owned()
    };
    let hide = |hidden: bool| {
        rawdoc! { "collMod": "c", "index": { "keyPattern": { "a": 1 }, "hidden": hidden } }
    };
    assert!(plan().await.contains("IXSCAN"));
    rig.ok(hide(true)).await;
    assert!(!plan().await.contains("IXSCAN"));
    assert_eq!(rig.code(insert([rawdoc! { "a": 3 }])).await, 11000);
    let reply = rig.ok(hide(false)).await;
    assert_eq!(reply.get_bool("hidden_old").ok(), Some(true));
    assert!(plan().await.contains("IXSCAN"));
    let missing = rawdoc! { "collMod": "c", "index": { "name": "nope", "hidden": true } };
    assert_eq!(rig.code(missing).await, 27);
    let id = rawdoc! { "collMod": "c", "index": { "name": "_id_", "hidden": true } };
    assert_eq!(rig.code(id).await, 2);
    let prepare = |name: &str| {
        rawdoc! { "collMod": "c", "index": { "name": name, "prepareUnique": true } }
    };
    rig.ok(prepare("a")).await;
    rig.ok(index(rawdoc! { "b": 1 }, "b", false)).await;
    let reply = rig.ok(prepare("b")).await;
    assert_eq!(reply.get_bool("prepareUnique_new").ok(), Some(true));
    rig.ok(insert([rawdoc! { "_id": "first", "b": 1 }])).await;
    let second = || insert([rawdoc! { "_id": "second", "b": 1 }]);
    assert_eq!(rig.code(second()).await, 11000);
    rig.ok(rawdoc! { "delete": "c", "deletes": [{ "q": { "_id": "first" }, "limit": 1 }] })
        .await;
    rig.ok(second()).await;
    rig.ok(rawdoc! { "delete": "c", "deletes": [{ "q": { "_id": "second" }, "limit": 1 }] })
        .await;
    assert_eq!(rig.validate().await, 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn partial_and_sparse_indexes_hold_some_records() {
    let (_dir, rig) = rig().await;
    rig.ok(rawdoc! {
        "createIndexes": "c",
        "indexes": [
            { "key": { "s": 1 }, "name": "s", "sparse": true, "unique": true },
            {
                "key": { "p": 1 }, "name": "p", "unique": true,
                "partialFilterExpression": { "on": true },
            },
        ],
    })
    .await;
    rig.ok(insert(
        (0..10).map(|n| rawdoc! { "_id": n, "p": 1, "on": n == 0 }),
    ))
    .await;
    assert_eq!(
        rig.code(insert([rawdoc! { "p": 1, "on": true }])).await,
        11000
    );
    let turn_on = || update(rawdoc! { "_id": 1 }, rawdoc! { "$set": { "on": true } });
    assert_eq!(rig.code(turn_on()).await, 11000);
    rig.ok(update(
        rawdoc! { "_id": 0 },
        rawdoc! { "$set": { "on": false, "s": 1 } },
    ))
    .await;
    rig.ok(turn_on()).await;
    let set_s = rawdoc! { "$set": { "s": 1 } };
    assert_eq!(rig.code(update(rawdoc! { "_id": 3 }, set_s)).await, 11000);
    assert_eq!(rig.validate().await, 10);
}
