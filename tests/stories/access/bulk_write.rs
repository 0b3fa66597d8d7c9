//! `bulkWrite` needs for each operation what that needs by itself.

use anyhow::{Result, ensure};
use bson::{Document, doc};

use super::*;

fn bulk(ops: Vec<Document>) -> Document {
    doc! {
        "bulkWrite": 1, "ops": ops, "nsInfo": [{ "ns": "test.c" }, { "ns": "other.c" }],
        "errorsOnly": true,
    }
}

fn insert(place: i32) -> Document {
    doc! { "insert": place, "document": { "a": 1 } }
}

fn update(upsert: bool) -> Document {
    let mods = doc! { "$set": { "b": 1 } };
    doc! { "update": 0, "filter": { "a": 2 }, "updateMods": mods, "upsert": upsert }
}

#[tokio::test]
async fn each_operation_of_a_bulk_needs_what_it_needs_alone() -> Result<()> {
    let mongod = standalone().await;
    let root = make_root(&mongod).await?;
    make_user(&root, "writer", vec![role("readWrite", "test")]).await?;
    make_user(&root, "reader", vec![role("read", "test")]).await?;
    let updates = doc! {
        "resource": { "db": "test", "collection": "c" }, "actions": ["update", "find"],
    };
    let create = doc! { "createRole": "updates", "privileges": [updates], "roles": [] };
    root.database("admin").run_command(create).await?;
    make_user(&root, "updater", vec![role("updates", "admin")]).await?;
    let delete = doc! { "delete": 0, "filter": { "a": 1 } };

    let writer = client(&mongod, "writer").await;
    let all = vec![insert(0), update(true), delete.clone()];
    expect(&writer, "admin", bulk(all), 0).await?;
    let both = bulk(vec![insert(0), insert(1)]);
    expect(&writer, "admin", both.clone(), UNAUTHORIZED).await?;
    expect(&root, "admin", both, 0).await?;
    let mut unchecked = bulk(vec![insert(0)]);
    unchecked.insert("bypassDocumentValidation", true);
    expect(&writer, "admin", unchecked, UNAUTHORIZED).await?;

    let reader = client(&mongod, "reader").await;
    for op in [insert(0), update(false), delete.clone()] {
        expect(&reader, "admin", bulk(vec![op]), UNAUTHORIZED).await?;
    }
    let updater = client(&mongod, "updater").await;
    expect(&updater, "admin", bulk(vec![update(false)]), 0).await?;
    for op in [insert(0), update(true), delete] {
        expect(&updater, "admin", bulk(vec![op]), UNAUTHORIZED).await?;
    }
    let nobody = mongod.direct().await;
    expect(&nobody, "admin", bulk(vec![insert(0)]), UNAUTHORIZED).await?;
    let there = root.database("other").collection::<Document>("c");
    ensure!(there.count_documents(doc! {}).await? == 1);
    Ok(())
}
