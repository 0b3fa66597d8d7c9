//! `$listClusterCatalog`: what collections there are, and where.

use anyhow::{Context, Result, ensure};
use banyan_tests::{Cluster, ClusterShape, ReplicaSet};
use bson::{Bson, Document, doc};
use mongodb::Database;
use mongodb::error::ErrorKind;

async fn catalog(
    database: &Database,
    options: Document,
    more: Vec<Document>,
) -> Result<Vec<Document>> {
    let mut pipeline = vec![doc! { "$listClusterCatalog": options }];
    pipeline.extend(more);
    let command = doc! { "aggregate": 1, "pipeline": pipeline, "cursor": {} };
    let reply = database.run_command(command).await?;
    let batch = reply.get_document("cursor")?.get_array("firstBatch")?;
    Ok(batch
        .iter()
        .filter_map(Bson::as_document)
        .cloned()
        .collect())
}

fn named<'d>(documents: &'d [Document], ns: &str) -> Result<&'d Document> {
    let mut found = documents
        .iter()
        .filter(|one| one.get_str("ns").ok() == Some(ns));
    let first = found
        .next()
        .with_context(|| format!("{ns} in {documents:?}"))?;
    ensure!(found.next().is_none(), "{ns} is there twice");
    Ok(first)
}

async fn fill(shop: &Database) -> Result<()> {
    let time = doc! { "timeField": "at" };
    for command in [
        doc! { "create": "plain", "capped": true, "size": 4096 },
        doc! { "create": "seen", "viewOn": "plain", "pipeline": [] },
        doc! { "create": "measured", "timeseries": time },
    ] {
        shop.run_command(command).await?;
    }
    Ok(())
}

/// What holds on a set and in a cluster.
async fn check_unsharded(shop: &Database, shards: &[&str]) -> Result<()> {
    let listed = catalog(shop, doc! { "shards": true, "tracked": true }, vec![]).await?;
    let shards: Vec<Bson> = shards.iter().map(|shard| (*shard).into()).collect();
    for (ns, kind) in [
        ("shop.plain", "collection"),
        ("shop.seen", "view"),
        ("shop.measured", "timeseries"),
    ] {
        let one = named(&listed, ns)?;
        ensure!(
            one.get_str("db")? == "shop" && one.get_str("type")? == kind,
            "{one}"
        );
        ensure!(
            !one.get_bool("sharded")? && !one.get_bool("tracked")?,
            "{one}"
        );
        ensure!(one.get_array("shards")? == &shards, "{one}");
        ensure!(!one.contains_key("shardKey") && !one.contains_key("balancingEnabled"));
        one.get_document("info")?;
    }
    let plain = named(&listed, "shop.plain")?;
    ensure!(
        plain.get_document("options")?.get_bool("capped")?,
        "{plain}"
    );
    ensure!(
        plain.get_document("idIndex")?.get_str("name")? == "_id_",
        "{plain}"
    );
    let view = named(&listed, "shop.seen")?.get_document("options")?;
    ensure!(view.get_str("viewOn")? == "plain", "{view}");
    // What follows the stage runs over its documents.
    let views = vec![
        doc! { "$match": { "type": "view" } },
        doc! { "$count": "n" },
    ];
    let counted = catalog(shop, doc! {}, views).await?;
    ensure!(counted == [doc! { "n": 1 }], "{counted:?}");
    for (database, command) in [
        (
            "shop",
            doc! { "aggregate": "plain", "pipeline": [{ "$listClusterCatalog": {} }], "cursor": {} },
        ),
        (
            "shop",
            doc! { "aggregate": 1, "pipeline": [{ "$listClusterCatalog": { "x": true } }], "cursor": {} },
        ),
        (
            "shop",
            doc! { "aggregate": 1, "pipeline": [{ "$listClusterCatalog": { "shards": 1 } }], "cursor": {} },
        ),
        (
            "admin",
            doc! { "aggregate": 1, "pipeline": [{ "$listClusterCatalog": 1 }], "cursor": {} },
        ),
    ] {
        let outcome = shop
            .client()
            .database(database)
            .run_command(command.clone())
            .await;
        let code = match outcome.map_err(|error| *error.kind) {
            Err(ErrorKind::Command(error)) => error.code,
            other => anyhow::bail!("{command}: {other:?}"),
        };
        ensure!(matches!(code, 9 | 14 | 73 | 40_415), "{command}: {code}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_lists_its_collections() -> Result<()> {
    let set = ReplicaSet::start("listed", 1, &[]).await;
    let shop = set.client().await.database("shop");
    fill(&shop).await?;
    check_unsharded(&shop, &[]).await?;
    let other = shop.client().database("other");
    other.run_command(doc! { "create": "c" }).await?;
    let all = catalog(&shop.client().database("admin"), doc! {}, vec![]).await?;
    named(&all, "shop.plain")?;
    named(&all, "other.c")?;
    ensure!(
        all.iter()
            .all(|one| one.get_str("db").is_ok_and(|name| name != "local"))
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_lists_the_collections_of_all_shards() -> Result<()> {
    let cluster = Cluster::start(ClusterShape::default()).await;
    let client = cluster.client().await;
    let (admin, shop) = (client.database("admin"), client.database("shop"));
    for (database, home) in [("shop", "shard0"), ("other", "shard1")] {
        admin
            .run_command(doc! { "enableSharding": database, "primaryShard": home })
            .await?;
    }
    fill(&shop).await?;
    client
        .database("other")
        .run_command(doc! { "create": "c" })
        .await?;
    for (ns, key) in [
        ("shop.spread", doc! { "a": "hashed" }),
        ("shop.one", doc! { "b": 1 }),
    ] {
        admin
            .run_command(doc! { "shardCollection": ns, "key": key })
            .await?;
    }
    check_unsharded(&shop, &["shard0"]).await?;

    let config = client.database("config");
    let collections = config.collection::<Document>("collections");
    let (one, stays) = (doc! { "_id": "shop.one" }, doc! { "noBalance": true });
    collections.update_one(one, doc! { "$set": stays }).await?;
    let size = doc! { "_id": "chunksize", "value": 64 };
    config.collection("settings").insert_one(size).await?;
    let every = doc! { "shards": true, "tracked": true, "balancingConfiguration": true };
    let listed = catalog(&admin, every, vec![]).await?;
    let spread = named(&listed, "shop.spread")?;
    ensure!(
        spread.get_bool("sharded")? && spread.get_bool("tracked")?,
        "{spread}"
    );
    ensure!(
        spread.get_document("shardKey")? == &doc! { "a": "hashed" },
        "{spread}"
    );
    ensure!(spread.get_array("shards")?.len() == 2, "{spread}");
    ensure!(spread.get_bool("balancingEnabled")?, "{spread}");
    ensure!(spread.get_i32("chunkSize")? == 64, "{spread}");
    spread.get_document("options")?;
    let one = named(&listed, "shop.one")?;
    ensure!(one.get_array("shards")?.len() == 1, "{one}");
    ensure!(!one.get_bool("balancingEnabled")?, "{one}");
    let reason = one.get_document("balancingEnabledReason")?;
    ensure!(!reason.get_bool("enableBalancing")? && reason.get_bool("allowMigrations")?);
    let other = named(&listed, "other.c")?;
    ensure!(
        other.get_array("shards")? == &vec![Bson::from("shard1")],
        "{other}"
    );
    named(&listed, "config.collections")?;
    ensure!(
        listed
            .iter()
            .all(|one| one.get_str("db").is_ok_and(|name| name != "local"))
    );
    let none = catalog(&client.database("nowhere"), doc! {}, vec![]).await?;
    ensure!(none.is_empty(), "{none:?}");
    Ok(())
}
