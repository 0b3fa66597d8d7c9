//! Indexes whose keys come from arrays, and indexes over all fields: what they answer is what a scan
//! answers, and `explain` says which arrays there are.

use anyhow::{Context, Result};
use banyan_tests::Launch;
use bson::{Bson, Document, doc};
use futures::TryStreamExt;
use mongodb::Database;
use mongodb::error::ErrorKind;

const CANNOT_CREATE_INDEX: i32 = 67;
const NO_QUERY_EXECUTION_PLANS: i32 = 291;

fn code<T>(outcome: mongodb::error::Result<T>) -> Option<i32> {
    match *outcome.err()?.kind {
        ErrorKind::Command(error) => Some(error.code),
        _ => None,
    }
}

async fn ids(things: &Database, find: Document) -> Result<Vec<Bson>> {
    let collection = things.collection::<Document>("things");
    let filter = find.get_document("filter")?.clone();
    let found = collection.find(filter);
    let found = match find.get("hint") {
        Some(Bson::String(name)) => found.hint(mongodb::options::Hint::Name(name.clone())),
        _ => found.hint(mongodb::options::Hint::Keys(doc! { "$natural": 1 })),
    };
    let found: Vec<Document> = found.await?.try_collect().await?;
    let mut ids: Vec<Bson> = found
        .iter()
        .filter_map(|found| found.get("_id").cloned())
        .collect();
    ids.sort_by_key(|id| id.as_i32());
    Ok(ids)
}

/// The index scan at the bottom of a plan.
async fn index_scan(things: &Database, find: Document) -> Result<Document> {
    let explained = things.run_command(doc! { "explain": find }).await?;
    let plan = explained.get_document("queryPlanner")?;
    let mut stage = plan.get_document("winningPlan")?;
    while let Ok(input) = stage.get_document("inputStage") {
        stage = input;
    }
    Ok(stage.clone())
}

#[tokio::test]
async fn arrays_are_known_by_path_and_still_are_after_a_restart() -> Result<()> {
    let mut server = Launch::mongod().start().await;
    let things = server.direct().await.database("things");
    let indexes = vec![doc! { "key": { "a": 1, "b": 1 }, "name": "a_b" }];
    things
        .run_command(doc! { "createIndexes": "things", "indexes": indexes })
        .await?;
    let documents = (0..20).map(|n| doc! { "_id": n, "a": [n % 3, n % 5], "b": n });
    things
        .collection::<Document>("things")
        .insert_many(documents)
        .await?;
    let find = doc! {
        "find": "things", "filter": { "a": 2, "b": { "$gt": 3, "$lt": 15 } },
        "sort": { "b": 1 }, "hint": "a_b",
    };
    for _ in 0..2 {
        let things = server.direct().await.database("things");
        let scan = index_scan(&things, find.clone()).await?;
        assert_eq!(scan.get_str("stage")?, "IXSCAN");
        assert_eq!(
            scan.get_document("multiKeyPaths")?,
            &doc! { "a": ["a"], "b": [] }
        );
        assert_eq!(
            scan.get_document("indexBounds")?,
            &doc! { "a": ["[2, 2]"], "b": ["(3, 15)"] }
        );
        server.kill();
        server.start().await;
    }
    Ok(())
}

#[tokio::test]
async fn a_wildcard_index_finds_what_a_scan_finds() -> Result<()> {
    let server = Launch::mongod().start().await;
    let things = server.direct().await.database("things");
    let documents = vec![
        doc! { "_id": 1, "a": 1, "b": { "c": 2 } },
        doc! { "_id": 2, "a": [1, 2, { "x": 3 }], "b": {} },
        doc! { "_id": 3, "a": Bson::Null, "e": [] },
        doc! { "_id": 4, "a": { "x": [5, [7]] } },
        doc! { "_id": 5, "s": "str", "a": 2.5 },
    ];
    let collection = things.collection::<Document>("things");
    collection.insert_many(documents).await?;
    let wildcard = doc! { "key": { "$**": 1 }, "name": "all" };
    things
        .run_command(doc! { "createIndexes": "things", "indexes": [wildcard.clone()] })
        .await?;
    collection
        .insert_one(doc! { "_id": 6, "a": [[1]], "b": { "c": [2, 9] } })
        .await?;
    let update = doc! { "$set": { "a": 2 } };
    collection.update_one(doc! { "_id": 1 }, update).await?;
    for filter in [
        doc! { "a": 1 },
        doc! { "a": { "$gt": 1 } },
        doc! { "a": { "$in": [2, 2.5] } },
        doc! { "a.x": 3 },
        doc! { "a.x": { "$gte": 3, "$lt": 9 } },
        doc! { "a": { "$elemMatch": { "x": 3 } } },
        doc! { "b": {} },
        doc! { "b.c": { "$gt": 1, "$lt": 5 } },
        doc! { "s": { "$regex": "^st" }, "a": { "$gt": 0 } },
        doc! { "no": 1 },
    ] {
        let scanned = ids(&things, doc! { "filter": filter.clone() }).await?;
        let find = doc! { "filter": filter.clone(), "hint": "all" };
        assert_eq!(ids(&things, find).await?, scanned, "{filter}");
    }
    let find = doc! { "find": "things", "filter": { "b.c": 2 }, "hint": "all" };
    let scan = index_scan(&things, find).await?;
    assert_eq!(
        scan.get_document("keyPattern")?,
        &doc! { "$_path": 1, "b.c": 1 }
    );
    assert_eq!(
        scan.get_document("indexBounds")?,
        &doc! { "$_path": ["[\"b.c\", \"b.c\"]"], "b.c": ["[2, 2]"] }
    );
    assert_eq!(
        scan.get_document("multiKeyPaths")?,
        &doc! { "$_path": [], "b.c": ["b.c"] }
    );
    let whole = doc! { "find": "things", "filter": { "a": Bson::Null }, "hint": "all" };
    assert_eq!(
        code(things.run_command(whole).await),
        Some(NO_QUERY_EXECUTION_PLANS)
    );
    let validated = things
        .run_command(doc! { "validate": "things", "full": true })
        .await?;
    assert!(validated.get_bool("valid")?, "{validated}");
    Ok(())
}

#[tokio::test]
async fn a_wildcard_index_is_asked_for_and_listed_as_mongodb_does() -> Result<()> {
    let server = Launch::mongod().start().await;
    let things = server.direct().await.database("things");
    let create = |index: Document| {
        things.run_command(doc! { "createIndexes": "things", "indexes": [index] })
    };
    for (index, expected) in [
        (doc! { "key": { "$**": -1 } }, CANNOT_CREATE_INDEX),
        (doc! { "key": { "$**": "hashed" } }, CANNOT_CREATE_INDEX),
        (doc! { "key": { "$**": 1, "a": 1 } }, CANNOT_CREATE_INDEX),
        (doc! { "key": { "$**.$**": 1 } }, CANNOT_CREATE_INDEX),
        (
            doc! { "key": { "$**": 1 }, "unique": true },
            CANNOT_CREATE_INDEX,
        ),
        (
            doc! { "key": { "$**": 1 }, "sparse": true },
            CANNOT_CREATE_INDEX,
        ),
        (
            doc! { "key": { "a": 1 }, "wildcardProjection": { "a": 1 } },
            2,
        ),
        (
            doc! { "key": { "a.$**": 1 }, "wildcardProjection": { "a": 1 } },
            9,
        ),
        (doc! { "key": { "$**": 1 }, "wildcardProjection": {} }, 9),
        (doc! { "key": { "$**": 1 }, "wildcardProjection": 5 }, 14),
        (
            doc! { "key": { "$**": 1 }, "wildcardProjection": { "a": 1, "b": 0 } },
            31254,
        ),
        (
            doc! { "key": { "$**": 1 }, "wildcardProjection": { "a": "x" } },
            51271,
        ),
        (
            doc! { "key": { "$**": 1 }, "wildcardProjection": { "$x": 1 } },
            16410,
        ),
    ] {
        let mut named = index.clone();
        named.insert("name", "index");
        assert_eq!(code(create(named).await), Some(expected), "{index}");
    }
    create(doc! { "key": { "$**": 1 }, "name": "all" }).await?;
    let some = doc! { "key": { "$**": 1 }, "name": "some", "wildcardProjection": { "a": 0 } };
    create(some).await?;
    create(doc! { "key": { "a.b.$**": 1 }, "name": "below" }).await?;
    let listed = things.run_command(doc! { "listIndexes": "things" }).await?;
    let listed = listed.get_document("cursor")?.get_array("firstBatch")?;
    let listed: Vec<&Document> = listed
        .iter()
        .skip(1)
        .filter_map(Bson::as_document)
        .collect();
    assert_eq!(
        listed,
        [
            &doc! { "v": 2, "key": { "$**": 1 }, "name": "all" },
            &doc! {
                "v": 2, "key": { "$**": 1 }, "name": "some", "wildcardProjection": { "a": 0 },
            },
            &doc! { "v": 2, "key": { "a.b.$**": 1 }, "name": "below" },
        ]
    );
    let dropped = doc! { "dropIndexes": "things", "index": { "a.b.$**": 1 } };
    things
        .run_command(dropped)
        .await
        .context("by its pattern")?;
    Ok(())
}
