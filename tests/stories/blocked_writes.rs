//! `setUserWriteBlockMode` in a cluster: all shards hold to it, whatever happens to the processes.

use anyhow::{Result, ensure};
use banyan_tests::{Cluster, ClusterShape, Launch, ReplicaSet, eventually};
use bson::{Document, doc};
use mongodb::Database;
use mongodb::error::ErrorKind;

const BLOCKED: i32 = 371;
const ILLEGAL_OPERATION: i32 = 20;

/// Of the command, or of its first write.
async fn code(database: &Database, command: Document) -> Option<i32> {
    match database.run_command(command).await {
        Ok(reply) => {
            let first = reply
                .get_array("writeErrors")
                .ok()?
                .first()?
                .as_document()?;
            first.get_i32("code").ok()
        }
        Err(error) => match *error.kind {
            ErrorKind::Command(error) => Some(error.code),
            _ => None,
        },
    }
}

fn block(global: bool) -> Document {
    doc! { "setUserWriteBlockMode": 1, "global": global }
}

/// Every write of users and every change of their collections.
fn writes() -> [Document; 12] {
    let key = || doc! { "key": { "a": 1 }, "name": "a_1" };
    [
        doc! { "insert": "items", "documents": [{ "_id": 100 }] },
        doc! { "insert": "plain", "documents": [{ "_id": 100 }] },
        doc! { "update": "items", "updates": [{ "q": { "_id": 1 }, "u": { "$set": { "a": 1 } } }] },
        doc! { "delete": "items", "deletes": [{ "q": {}, "limit": 0 }] },
        doc! { "findAndModify": "items", "query": { "_id": 1 }, "remove": true },
        doc! { "create": "more" },
        doc! { "createIndexes": "items", "indexes": [key()] },
        doc! { "createIndexes": "plain", "indexes": [key()] },
        doc! { "aggregate": "items", "pipeline": [{ "$out": "copy" }], "cursor": {} },
        doc! { "drop": "items" },
        doc! { "drop": "plain" },
        doc! { "dropDatabase": 1 },
    ]
}

/// A collection over both shards and one that is not sharded.
async fn shop(cluster: &Cluster) -> Result<Database> {
    let client = cluster.client().await;
    let admin = client.database("admin");
    admin.run_command(doc! { "enableSharding": "shop" }).await?;
    let shard = doc! { "shardCollection": "shop.items", "key": { "_id": "hashed" } };
    admin.run_command(shard).await?;
    let shop = client.database("shop");
    let items = shop.collection::<Document>("items");
    items
        .insert_many((0..20).map(|n| doc! { "_id": n }))
        .await?;
    let plain = shop.collection::<Document>("plain");
    plain.insert_one(doc! { "_id": 1 }).await?;
    Ok(shop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_blocks_the_writes_of_users_on_all_shards() -> Result<()> {
    let mut cluster = Cluster::start(ClusterShape::default()).await;
    let shop = shop(&cluster).await?;
    let admin = shop.client().database("admin");
    // Of one shard alone it is not to be had.
    for member in [&cluster.shards[0].members[0], &cluster.config.members[0]] {
        let own = member.direct().await.database("admin");
        ensure!(code(&own, block(true)).await == Some(ILLEGAL_OPERATION));
    }
    admin.run_command(block(true)).await?;
    admin.run_command(block(true)).await?;
    for command in writes() {
        let found = code(&shop, command.clone()).await;
        ensure!(found == Some(BLOCKED), "{command}: {found:?}");
    }
    for command in [
        doc! { "renameCollection": "shop.plain", "to": "shop.things" },
        doc! { "shardCollection": "shop.plain", "key": { "_id": 1 } },
    ] {
        let found = code(&admin, command.clone()).await;
        ensure!(found == Some(BLOCKED), "{command}: {found:?}");
    }
    let items = shop.collection::<Document>("items");
    ensure!(items.count_documents(doc! {}).await? == 20);
    // The server's own databases stay open, and so does what serves the cluster.
    let settings = shop.client().database("config").collection("settings");
    settings.insert_one(doc! { "_id": "mine" }).await?;
    let to = doc! { "moveChunk": "shop.items", "find": { "_id": 3 }, "to": "shard0" };
    admin.run_command(to).await?;

    for member in cluster
        .shards
        .iter_mut()
        .flat_map(|shard| &mut shard.members)
        .chain(&mut cluster.config.members)
    {
        member.kill();
        member.start().await;
    }
    eventually("all is refused after a restart", || async {
        for command in writes() {
            let found = code(&shop, command.clone()).await;
            ensure!(found == Some(BLOCKED), "{command}: {found:?}");
        }
        Ok(())
    })
    .await;

    // A shard that joins blocks them as well.
    let third = ReplicaSet::start("third", 1, &["--shardsvr"]).await;
    let add = doc! { "addShard": third.connection_string(), "name": "third" };
    admin.run_command(add).await?;
    let own = third.client().await.database("own");
    let insert = doc! { "insert": "items", "documents": [{ "_id": 1 }] };
    ensure!(code(&own, insert.clone()).await == Some(BLOCKED));

    admin.run_command(block(false)).await?;
    ensure!(code(&own, insert).await.is_none());
    for command in writes() {
        let found = code(&shop, command.clone()).await;
        ensure!(found.is_none(), "{command}: {found:?}");
    }
    Ok(())
}

/// What could not be done everywhere is finished once it can be, whoever leads the config servers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_that_was_cut_off_is_finished() -> Result<()> {
    let mut cluster = Cluster::start(ClusterShape::default()).await;
    let shop = shop(&cluster).await?;
    let admin = shop.client().database("admin");
    cluster.shards[1].members[0].kill();
    let mut asked = block(true);
    asked.insert("maxTimeMS", 3000);
    ensure!(admin.run_command(asked).await.is_err());
    cluster.config.members[0].kill();
    cluster.config.members[0].start().await;
    cluster.shards[1].members[0].start().await;
    let own = cluster.shards[1].client().await.database("own");
    eventually("the shard blocks them", || async {
        let delete = doc! { "delete": "none", "deletes": [{ "q": {}, "limit": 0 }] };
        ensure!(code(&own, delete).await == Some(BLOCKED));
        Ok(())
    })
    .await;
    let pending = cluster.config.client().await.database("config");
    let pending = pending.collection::<Document>("pendingUserWriteBlocks");
    eventually("nothing is left to do", || async {
        ensure!(pending.count_documents(doc! {}).await? == 0);
        Ok(())
    })
    .await;
    admin.run_command(block(false)).await?;
    ensure!(code(&shop, doc! { "drop": "items" }).await.is_none());
    // A router of its own learns nothing of it: it asks the shards.
    let router = Launch::mongos(&cluster.config.connection_string())
        .start()
        .await;
    let other = router.direct().await.database("shop");
    let insert = doc! { "insert": "plain", "documents": [{ "_id": 2 }] };
    ensure!(code(&other, insert).await.is_none());
    Ok(())
}
