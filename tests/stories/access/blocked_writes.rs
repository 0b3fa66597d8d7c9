//! Who writes in a cluster while the writes of users are blocked.

use anyhow::{Result, ensure};
use banyan_tests::ClusterShape;
use bson::{Document, doc};

use super::cluster::Protected;
use super::*;

const BLOCKED: i32 = 371;
const NO_MEMBER: i32 = 6_317_500;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_go_by_blocked_writes_does_so_through_a_router() -> Result<()> {
    let protected = Protected::start(ClusterShape::default()).await?;
    let (root, router) = (&protected.root, &protected.cluster.router);
    make_user(
        root,
        "writer",
        vec![role("readWrite", "shop"), role("dbAdmin", "shop")],
    )
    .await?;
    make_user(root, "syncer", vec![role("restore", "admin")]).await?;
    let admin = root.database("admin");
    admin.run_command(doc! { "enableSharding": "shop" }).await?;
    let shard = doc! { "shardCollection": "shop.items", "key": { "_id": "hashed" } };
    admin.run_command(shard).await?;
    let writer = client(router, "writer").await;
    let syncer = client(router, "syncer").await;
    let block = |global: bool| doc! { "setUserWriteBlockMode": 1, "global": global };
    expect(&writer, "admin", block(true), UNAUTHORIZED).await?;
    syncer.database("admin").run_command(block(true)).await?;

    let insert = |n: i32| doc! { "insert": "items", "documents": [{ "_id": n }] };
    let refused = writer.database("shop").run_command(insert(1)).await?;
    let errors = refused.get_array("writeErrors")?;
    let first = errors.first().and_then(|error| error.as_document());
    let first = first.and_then(|error| error.get_i32("code").ok());
    ensure!(first == Some(BLOCKED), "{refused}");
    expect(&writer, "shop", doc! { "drop": "items" }, BLOCKED).await?;
    let index = doc! { "key": { "a": 1 }, "name": "a_1" };
    let create = || doc! { "createIndexes": "items", "indexes": [&index] };
    expect(&writer, "shop", create(), BLOCKED).await?;
    // It is the router who says so, and nobody else.
    let mut pretended = insert(1);
    pretended.insert("mayBypassWriteBlocking", true);
    expect(&writer, "shop", pretended.clone(), NO_MEMBER).await?;
    let shard = &protected.cluster.shards[0].members[0];
    let own = make_root(shard).await?;
    make_user(&own, "writer", vec![role("readWrite", "shop")]).await?;
    expect(&client(shard, "writer").await, "shop", pretended, NO_MEMBER).await?;

    for (n, open) in [(1, &syncer), (2, root)] {
        let reply = open.database("shop").run_command(insert(n)).await?;
        ensure!(reply.get_i32("n")? == 1, "{reply}");
    }
    root.database("shop").run_command(create()).await?;
    let items = writer.database("shop").collection::<Document>("items");
    ensure!(items.count_documents(doc! {}).await? == 2);
    root.database("shop")
        .run_command(doc! { "drop": "items" })
        .await?;
    syncer.database("admin").run_command(block(false)).await?;
    items.insert_one(doc! { "_id": 3 }).await?;
    Ok(())
}
