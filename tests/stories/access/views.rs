//! Views: who reads one needs nothing of what is below it, and nobody makes one to read what it may
//! not.

use anyhow::{Result, ensure};
use bson::{Document, doc};

use super::*;

async fn make_role(root: &Client, name: &str, privileges: Vec<Document>) -> Result<()> {
    let create = doc! { "createRole": name, "privileges": privileges, "roles": [] };
    root.database("admin").run_command(create).await?;
    make_user(root, name, vec![role(name, "admin")]).await
}

fn on(collection: &str, actions: &[&str]) -> Document {
    doc! { "resource": { "db": "test", "collection": collection }, "actions": actions }
}

fn view(name: &str, on: &str, pipeline: Vec<Document>) -> Document {
    doc! { "create": name, "viewOn": on, "pipeline": pipeline }
}

fn lookup(from: &str) -> Document {
    let fields = doc! { "from": from, "localField": "_id", "foreignField": "_id", "as": "z" };
    doc! { "$lookup": fields }
}

#[tokio::test]
async fn who_may_find_in_a_view_needs_nothing_below_it() -> Result<()> {
    let mongod = standalone().await;
    let root = make_root(&mongod).await?;
    let test = root.database("test");
    for command in [
        doc! { "insert": "c", "documents": [{ "_id": 1, "a": 1 }, { "_id": 2, "a": 2 }] },
        view("v", "c", vec![doc! { "$match": { "a": 1 } }, lookup("c")]),
    ] {
        test.run_command(command).await?;
    }
    make_role(&root, "reader", vec![on("v", &["find"])]).await?;
    let reader = client(&mongod, "reader").await;
    let aggregate = |name: &str, stages: Vec<Document>| {
        doc! { "aggregate": name, "pipeline": stages, "cursor": {} }
    };
    for command in [
        doc! { "find": "v" },
        doc! { "count": "v" },
        doc! { "distinct": "v", "key": "a" },
        aggregate("v", vec![lookup("v")]),
        doc! { "explain": { "find": "v" } },
    ] {
        expect(&reader, "test", command, 0).await?;
    }
    let count = reader
        .database("test")
        .run_command(doc! { "count": "v" })
        .await?;
    ensure!(count.get_i32("n")? == 1, "{count}");
    for command in [
        doc! { "find": "c" },
        doc! { "find": "system.views" },
        aggregate("v", vec![lookup("c")]),
        view("w", "v", vec![]),
        doc! { "collMod": "v", "viewOn": "c", "pipeline": [] },
        doc! { "drop": "v" },
    ] {
        expect(&reader, "test", command, UNAUTHORIZED).await?;
    }
    Ok(())
}

#[tokio::test]
async fn nobody_defines_a_view_to_read_what_it_may_not() -> Result<()> {
    let mongod = standalone().await;
    let root = make_root(&mongod).await?;
    for name in ["c", "secret"] {
        let insert = doc! { "insert": name, "documents": [{ "_id": 1 }] };
        root.database("test").run_command(insert).await?;
    }
    let mine = ["createCollection", "collMod", "find"];
    let privileges = vec![
        on("mine", &mine),
        on("blind", &["createCollection"]),
        on("inserted", &["insert"]),
        on("c", &["find"]),
    ];
    make_role(&root, "definer", privileges).await?;
    let definer = client(&mongod, "definer").await;
    let through = |stage: Document| view("mine", "c", vec![stage]);
    for command in [
        view("mine", "secret", vec![]),
        through(lookup("secret")),
        through(doc! { "$unionWith": "secret" }),
        through(doc! { "$facet": { "x": [lookup("secret")] } }),
        // To insert begins a collection, and no view.
        view("inserted", "c", vec![]),
    ] {
        expect(&definer, "test", command, UNAUTHORIZED).await?;
    }
    // What it cannot read anyway it may define.
    expect(&definer, "test", view("blind", "secret", vec![]), 0).await?;
    expect(&definer, "test", doc! { "find": "blind" }, UNAUTHORIZED).await?;
    expect(&definer, "test", view("mine", "c", vec![lookup("c")]), 0).await?;
    expect(&definer, "test", doc! { "find": "mine" }, 0).await?;
    for command in [
        doc! { "collMod": "mine", "viewOn": "secret", "pipeline": [] },
        doc! { "collMod": "mine", "viewOn": "c", "pipeline": [lookup("secret")] },
    ] {
        expect(&definer, "test", command, UNAUTHORIZED).await?;
    }
    expect(
        &definer,
        "test",
        doc! { "collMod": "mine", "pipeline": [] },
        72,
    )
    .await?;
    let narrowed = doc! { "collMod": "mine", "viewOn": "c", "pipeline": [{ "$limit": 1 }] };
    expect(&definer, "test", narrowed, 0).await
}
