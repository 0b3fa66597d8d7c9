//! A sharded cluster: built by hand, loaded, counted, killed and back.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use banyan_tests::{Cluster, ClusterShape, Launch, ReplicaSet, connect, eventually};
use bson::{Bson, Document, doc};
use futures::TryStreamExt;
use futures::future::try_join_all;
use mongodb::Client;

const TAGS: usize = 43;

/// A post and its tags, the same for the same number.
fn post(number: u32) -> (Document, Vec<String>) {
    let mut state = number.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    let mut random = |below: u32| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state % below
    };
    let count = 2 + random(4);
    let tags: Vec<String> = (0..count)
        .map(|_| format!("tag{}", random(TAGS as u32)))
        .collect();
    let content = format!("data for content {number}");
    (
        doc! { "id": number.to_string(), "content": content, "tags": tags.clone() },
        tags,
    )
}

fn tag_count() -> Document {
    doc! {
        "mapreduce": "posts",
        "map": Bson::JavaScriptCode(
            "function() { for (index in this.tags) { emit(this.tags[index], 1); } }".into()
        ),
        "reduce": Bson::JavaScriptCode(
            "function(key, values) { var sum = 0; for (var i = 0; i < values.length; i++) sum += values[i]; return sum; }".into()
        ),
        "out": "tags",
    }
}

async fn shard_posts(client: &Client) -> Result<()> {
    let admin = client.database("admin");
    admin.run_command(doc! { "enablesharding": "test" }).await?;
    let sharded = admin
        .run_command(doc! { "shardcollection": "test.posts", "key": { "id": 1 } })
        .await?;
    ensure!(
        sharded.get_str("collectionsharded")? == "test.posts",
        "{sharded}"
    );
    Ok(())
}

/// Loads posts with batches and with single inserts, from several clients; counts their tags.
async fn load(client: &Client, count: u32) -> Result<BTreeMap<String, f64>> {
    let posts = client.database("test").collection::<Document>("posts");
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let posts = posts.clone();
            tokio::spawn(async move {
                let mine: Vec<Document> = (0..count)
                    .filter(|n| n % 4 == writer)
                    .map(|n| post(n).0)
                    .collect();
                for (at, batch) in mine.chunks(500).enumerate() {
                    if at % 10 == 9 {
                        for single in batch {
                            posts.insert_one(single).await?;
                        }
                    } else {
                        posts.insert_many(batch).await?;
                    }
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for outcome in try_join_all(writers).await? {
        outcome?;
    }
    let mut expected = BTreeMap::new();
    for tag in (0..count).flat_map(|number| post(number).1) {
        *expected.entry(tag).or_default() += 1.0;
    }
    Ok(expected)
}

async fn tags(client: &Client) -> Result<BTreeMap<String, f64>> {
    let mut rows = BTreeMap::new();
    let mut cursor = client
        .database("test")
        .collection::<Document>("tags")
        .find(doc! {})
        .await?;
    while let Some(row) = cursor.try_next().await? {
        rows.insert(row.get_str("_id")?.to_owned(), row.get_f64("value")?);
    }
    Ok(rows)
}

async fn counts_by_shard(cluster: &Cluster) -> Result<Vec<u64>> {
    let mut counts = Vec::new();
    for shard in &cluster.shards {
        let posts = shard
            .client()
            .await
            .database("test")
            .collection::<Document>("posts");
        counts.push(posts.count_documents(doc! {}).await?);
    }
    Ok(counts)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_spreads_and_its_tags_are_counted() -> Result<()> {
    let mut cluster = Cluster::start(ClusterShape::default()).await;
    let client = cluster.client().await;
    shard_posts(&client).await?;
    let count = 60_000;
    let expected = load(&client, count).await?;
    let posts = client.database("test").collection::<Document>("posts");
    ensure!(posts.count_documents(doc! {}).await? == u64::from(count));

    eventually("both shards hold at least a third", || async {
        let counts = counts_by_shard(&cluster).await?;
        let spread = counts.iter().all(|&part| part * 3 >= u64::from(count));
        if spread && counts.iter().sum::<u64>() == u64::from(count) {
            return Ok(());
        }
        bail!("{counts:?}")
    })
    .await;

    let reply = client.database("test").run_command(tag_count()).await?;
    ensure!(reply.get_str("result")? == "tags", "{reply}");
    let shards = reply.get_document("shardCounts")?;
    ensure!(shards.len() == 2, "{reply}");
    let counts = reply.get_document("counts")?;
    ensure!(counts.get_i64("input")? == i64::from(count), "{counts}");
    ensure!(counts.get_i64("output")? == TAGS as i64, "{counts}");
    ensure!(tags(&client).await? == expected);

    // Everything is killed at once and started again.
    cluster.router.kill();
    let members = cluster
        .shards
        .iter_mut()
        .flat_map(|shard| &mut shard.members);
    let mut all: Vec<_> = members.chain(&mut cluster.config.members).collect();
    for process in &mut all {
        process.kill();
    }
    for process in &mut all {
        process.spawn();
    }
    for process in &mut all {
        process.ready().await;
    }
    cluster.router.start().await;
    let client = cluster.client().await;
    let posts = client.database("test").collection::<Document>("posts");
    eventually("all posts are back", || async {
        let found = posts.count_documents(doc! {}).await?;
        if found == u64::from(count) {
            Ok(())
        } else {
            bail!("{found} posts")
        }
    })
    .await;
    let chunks = client.database("config").collection::<Document>("chunks");
    ensure!(chunks.count_documents(doc! {}).await? >= 2);
    ensure!(posts.find_one(doc! { "id": "4711" }).await?.is_some());
    ensure!(tags(&client).await? == expected);
    Ok(())
}

#[tokio::test]
async fn a_cluster_is_made_by_hand_as_in_2012() -> Result<()> {
    // Config servers without a set name: the first router that lists them makes them a set.
    let configs = [
        Launch::mongod().with(["--configsvr"]).start().await,
        Launch::mongod().with(["--configsvr"]).start().await,
    ];
    let list = configs
        .iter()
        .map(|config| config.host())
        .collect::<Vec<_>>()
        .join(",");
    let router = Launch::mongos(&list).start().await;
    let client = connect(&format!("mongodb://{}/", router.host())).await;
    let admin = client.database("admin");

    let set = ReplicaSet::start("set_a", 2, &["--shardsvr"]).await;
    let added = admin
        .run_command(doc! { "addshard": set.connection_string(), "name": "shard1" })
        .await?;
    ensure!(added.get_str("shardAdded")? == "shard1", "{added}");
    let alone = Launch::mongod().with(["--shardsvr"]).start().await;
    let added = admin.run_command(doc! { "addShard": alone.host() }).await?;
    let second = added.get_str("shardAdded")?.to_owned();

    let listed = admin.run_command(doc! { "listshards": 1 }).await?;
    ensure!(listed.get_array("shards")?.len() == 2, "{listed}");
    let hello = admin.run_command(doc! { "isMaster": 1 }).await?;
    ensure!(hello.get_str("msg")? == "isdbgrid", "{hello}");

    // The chunks are moved by hand here: the balancer would move one of them at the same time.
    admin.run_command(doc! { "balancerStop": 1 }).await?;
    shard_posts(&client).await?;
    let posts = client.database("test").collection::<Document>("posts");
    posts
        .insert_many((0..100_i32).map(|n| doc! { "id": format!("{n:03}"), "n": n }))
        .await?;
    admin
        .run_command(doc! { "split": "test.posts", "middle": { "id": "050" } })
        .await?;
    let chunk = client.database("config").collection::<Document>("chunks");
    let upper = chunk
        .find_one(doc! { "min": { "id": "050" } })
        .await?
        .context("the upper half")?;
    let to = if upper.get_str("shard")? == "shard1" {
        second.as_str()
    } else {
        "shard1"
    };
    admin
        .run_command(doc! { "movechunk": "test.posts", "find": { "id": "070" }, "to": to })
        .await?;

    ensure!(posts.count_documents(doc! {}).await? == 100);
    ensure!(
        posts
            .count_documents(doc! { "id": { "$gte": "045", "$lt": "055" } })
            .await?
            == 10
    );
    let mut cursor = posts
        .find(doc! {})
        .sort(doc! { "id": -1 })
        .batch_size(7)
        .await?;
    let mut last = 100;
    while let Some(found) = cursor.try_next().await? {
        ensure!(found.get_i32("n")? == last - 1, "{found} after {last}");
        last -= 1;
    }
    ensure!(last == 0);
    posts
        .update_many(
            doc! { "n": { "$lt": 60 } },
            doc! { "$set": { "small": true } },
        )
        .await?;
    ensure!(posts.count_documents(doc! { "small": true }).await? == 60);
    let deleted = posts.delete_many(doc! { "n": { "$gte": 90 } }).await?;
    ensure!(deleted.deleted_count == 10);

    let stats = client
        .database("test")
        .run_command(doc! { "collStats": "posts" })
        .await?;
    let shards = stats.get_document("shards")?;
    ensure!(shards.len() == 2, "{stats}");
    for (_, of) in shards {
        let of = of.as_document().context("a shard's stats")?;
        for field in [
            "count",
            "size",
            "avgObjSize",
            "storageSize",
            "nindexes",
            "indexSizes",
            "totalIndexSize",
        ] {
            ensure!(of.contains_key(field), "{field} is missing: {of}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_router_waits_for_its_config_servers_and_says_so() -> Result<()> {
    let mut config = Launch::mongod().with(["--configsvr"]).prepare();
    let mut router = Launch::mongos(&config.host()).prepare();
    router.spawn();
    eventually("the log names the config server", || async {
        let log = router.log();
        let told = log.contains("waiting for the config servers") && log.contains(&config.host());
        if told { Ok(()) } else { bail!("{log}") }
    })
    .await;
    config.start().await;
    router.ready().await;
    let admin = router.direct().await.database("admin");
    let listed = admin.run_command(doc! { "listShards": 1 }).await?;
    ensure!(listed.get_array("shards")?.is_empty(), "{listed}");
    Ok(())
}
