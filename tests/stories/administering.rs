//! Commands of administrators: locks, connections to others, disk space, blocked writes, and what
//! belongs to the stable API.

use anyhow::{Context, Result, ensure};
use banyan_tests::{Cluster, ClusterShape, Launch, ReplicaSet, eventually};
use bson::{Bson, Document, doc};
use mongodb::Database;
use mongodb::error::ErrorKind;

fn code<T>(outcome: mongodb::error::Result<T>) -> Option<i32> {
    match *outcome.err()?.kind {
        ErrorKind::Command(error) => Some(error.code),
        _ => None,
    }
}

/// A lock that is held, and one that waits for it, are told of by name.
#[tokio::test]
async fn locks_are_told_of() -> Result<()> {
    let launch = Launch::mongod().with(["--setParameter", "enableTestCommands=1"]);
    let server = launch.start().await;
    let client = server.direct().await;
    let admin = client.database("admin");
    let shop = client.database("shop");
    shop.collection("items")
        .insert_one(doc! { "_id": 1 })
        .await?;
    let idle = admin.run_command(doc! { "lockInfo": 1 }).await?;
    ensure!(idle.get_array("lockInfo")?.is_empty(), "{idle}");
    ensure!(code(shop.run_command(doc! { "lockInfo": 1 }).await) == Some(13));

    // A conversion holds the collection for as long as it copies.
    let many: Vec<_> = (10..20_000)
        .map(|n| doc! { "_id": n, "s": "x".repeat(50) })
        .collect();
    shop.collection("items").insert_many(many).await?;
    let converting = tokio::spawn({
        let shop = shop.clone();
        async move {
            for _ in 0..6 {
                let convert = doc! { "convertToCapped": "items", "size": 100 << 20 };
                shop.run_command(convert).await?;
            }
            Ok::<_, mongodb::error::Error>(())
        }
    });
    let held = eventually("the lock is listed", || async {
        let told = admin.run_command(doc! { "lockInfo": 1 }).await?;
        let locks = told.get_array("lockInfo")?.clone();
        let locks: Vec<Document> = locks
            .into_iter()
            .filter_map(|one| one.as_document().cloned())
            .collect();
        let own = locks.into_iter().find(|one| {
            let name = one.get_str("resourceId").unwrap_or_default();
            name.contains("Collection") && name.contains("shop.items")
        });
        own.context("not yet")
    })
    .await;
    let granted = held.get_array("granted")?;
    let first = granted.first().and_then(Bson::as_document);
    ensure!(first.context("a holder")?.get_str("mode")? == "X", "{held}");
    converting.await??;
    Ok(())
}

/// What was removed gives its space back when the tables are merged.
#[tokio::test]
async fn compaction_frees_what_is_not_used() -> Result<()> {
    let server = Launch::mongod().start().await;
    let shop = server.direct().await.database("shop");
    let items = shop.collection::<Document>("items");
    for part in 0..40 {
        let part = (0..100).map(|n| {
            let text: String = (0..500)
                .map(|at| format!("{:x}", (part * 7919 + n * 31 + at * at) % 65_521))
                .collect();
            doc! { "_id": part * 100 + n, "text": text }
        });
        items.insert_many(part.collect::<Vec<_>>()).await?;
    }
    let compact = || shop.run_command(doc! { "compact": "items" });
    compact().await?;
    items.delete_many(doc! { "_id": { "$gte": 100 } }).await?;
    let freed = compact().await?;
    let bytes = freed.get_i32("bytesFreed")?;
    ensure!(bytes > 500_000, "{freed}");
    ensure!(items.count_documents(doc! {}).await? == 100);
    let valid = shop
        .run_command(doc! { "validate": "items", "full": true })
        .await?;
    ensure!(valid.get_bool("valid")?, "{valid}");
    ensure!(code(shop.run_command(doc! { "compact": "nowhere" }).await) == Some(26));
    Ok(())
}

/// What was removed gives its space back by itself while that is wanted.
#[tokio::test]
async fn compaction_goes_on_in_the_background() -> Result<()> {
    const BUSY: i32 = 316;
    const NOT_IN_RANGE: i32 = 51_024;
    let server = Launch::mongod().start().await;
    let shop = server.direct().await.database("shop");
    let items = shop.collection::<Document>("items");
    let fill = async |from: i32| {
        for part in 0..30 {
            let part = (0..100).map(|n| {
                let bytes = (0..1500_u32).map(|at| (at * at + at * 7919 * n + part * 31) as u8);
                let bytes: Vec<u8> = bytes.map(|byte| byte.rotate_left(n)).collect();
                let bytes = bson::Binary {
                    subtype: bson::spec::BinarySubtype::Generic,
                    bytes,
                };
                doc! { "_id": from + (part * 100 + n) as i32, "bytes": bytes }
            });
            items.insert_many(part.collect::<Vec<_>>()).await?;
        }
        Ok::<(), anyhow::Error>(())
    };
    let run = |command: Document| shop.run_command(command);
    let used = async || -> Result<i64> {
        let stats = run(doc! { "collStats": "items" }).await?;
        Ok(stats
            .get_i64("storageSize")
            .or_else(|_| stats.get_i32("storageSize").map(i64::from))?)
    };
    fill(0).await?;
    run(doc! { "compact": "items" }).await?;
    let full = used().await?;
    items.delete_many(doc! { "_id": { "$gte": 100 } }).await?;
    // Once, and if it is worth it.
    run(doc! { "autoCompact": true, "freeSpaceTargetMB": 100_000, "runOnce": true }).await?;
    eventually("it is off again", || async {
        run(doc! { "autoCompact": true, "freeSpaceTargetMB": 1 }).await?;
        anyhow::Ok(())
    })
    .await;
    eventually("space is given back", || async {
        let left = used().await?;
        ensure!(left < full / 2, "{left} of {full} bytes");
        Ok(())
    })
    .await;
    ensure!(code(run(doc! { "autoCompact": true }).await) == Some(BUSY));
    run(doc! { "autoCompact": false }).await?;
    run(doc! { "autoCompact": false }).await?;
    run(doc! { "autoCompact": true, "runOnce": false }).await?;
    run(doc! { "autoCompact": false }).await?;
    let wrong = doc! { "autoCompact": true, "freeSpaceTargetMB": 0 };
    ensure!(code(run(wrong).await) == Some(NOT_IN_RANGE));
    ensure!(items.count_documents(doc! {}).await? == 100);
    Ok(())
}

/// What does not belong to the stable API is found.
#[tokio::test]
async fn what_is_not_stable_is_found() -> Result<()> {
    let server = Launch::mongod().start().await;
    let shop = server.direct().await.database("shop");
    let index = doc! { "key": { "s": "text" }, "name": "s_text" };
    shop.run_command(doc! { "createIndexes": "items", "indexes": [index] })
        .await?;
    let pipeline = vec![doc! { "$indexStats": {} }];
    shop.run_command(doc! { "create": "seen", "viewOn": "items", "pipeline": pipeline })
        .await?;
    let validate = |parameters: Document| {
        let shop: Database = shop.clone();
        async move {
            let command =
                doc! { "validateDBMetadata": 1, "db": "shop", "apiParameters": parameters };
            let reply = shop.run_command(command).await?;
            Ok::<_, anyhow::Error>(reply.get_array("apiVersionErrors")?.clone())
        }
    };
    ensure!(validate(doc! { "version": "1" }).await?.is_empty());
    let found = validate(doc! { "version": "1", "strict": true }).await?;
    let found: Vec<_> = found.iter().filter_map(Bson::as_document).collect();
    let names: Vec<_> = found.iter().flat_map(|one| one.get_str("ns")).collect();
    ensure!(names == ["shop.items", "shop.seen"], "{found:?}");
    for one in found {
        ensure!(one.get_i32("code")? == 323, "{one}");
    }
    Ok(())
}

/// Nobody writes while writes are blocked, whoever becomes the primary; the server's own databases are
/// left out.
#[tokio::test]
async fn writes_of_users_are_blocked() -> Result<()> {
    const BLOCKED: i32 = 371;
    let set = ReplicaSet::start("blocked", 3, &[]).await;
    let client = set.client().await;
    let (admin, shop) = (client.database("admin"), client.database("shop"));
    let items = shop.collection::<Document>("items");
    items.insert_one(doc! { "_id": 1 }).await?;
    let block =
        |global: bool| admin.run_command(doc! { "setUserWriteBlockMode": 1, "global": global });
    block(true).await?;
    let refused =
        doc! { "insert": "items", "documents": [{ "_id": 2 }, { "_id": 3 }], "ordered": false };
    let refused = shop.run_command(refused).await?;
    let errors = refused.get_array("writeErrors")?;
    ensure!(errors.len() == 2, "{refused}");
    let first = errors.first().and_then(Bson::as_document);
    ensure!(
        first.context("an error")?.get_i32("code")? == BLOCKED,
        "{refused}"
    );
    for command in [
        doc! { "create": "more" },
        doc! { "drop": "items" },
        doc! { "dropDatabase": 1 },
        doc! { "findAndModify": "items", "query": { "_id": 1 }, "remove": true },
        doc! { "aggregate": "items", "pipeline": [{ "$out": "copy" }], "cursor": {} },
    ] {
        let found = code(shop.run_command(command.clone()).await);
        ensure!(found == Some(BLOCKED), "{command}: {found:?}");
    }
    let rename = doc! { "renameCollection": "shop.items", "to": "shop.things" };
    ensure!(code(admin.run_command(rename).await) == Some(BLOCKED));
    ensure!(items.count_documents(doc! {}).await? == 1);
    let own = client.database("config").collection("mine");
    own.insert_one(doc! { "_id": 1 }).await?;

    // The next primary knows.
    let before = set.primary().await;
    let down = doc! { "replSetStepDown": 30, "force": true };
    let _ = set.members[before]
        .direct()
        .await
        .database("admin")
        .run_command(down)
        .await;
    eventually("another primary refuses", || async {
        let insert = doc! { "insert": "items", "documents": [{ "_id": 9 }] };
        let reply = shop.run_command(insert).await?;
        let errors = reply.get_array("writeErrors")?;
        ensure!(errors.len() == 1, "{reply}");
        Ok(())
    })
    .await;
    block(false).await?;
    items.insert_one(doc! { "_id": 2 }).await?;
    Ok(())
}

/// A standalone has nothing to replicate such a mode with; there is one feature version.
#[tokio::test]
async fn what_cannot_be_set_is_refused() -> Result<()> {
    let server = Launch::mongod().start().await;
    let admin = server.direct().await.database("admin");
    let block = doc! { "setUserWriteBlockMode": 1, "global": true };
    ensure!(code(admin.run_command(block).await) == Some(20));
    let version = |version: &str| {
        admin.run_command(doc! { "setFeatureCompatibilityVersion": version, "confirm": true })
    };
    ensure!(code(version("4.4").await) == Some(4_926_900));
    let known = doc! { "getParameter": 1, "featureCompatibilityVersion": 1 };
    let known = admin.run_command(known).await?;
    let known = known.get_document("featureCompatibilityVersion")?;
    version(known.get_str("version")?).await?;
    Ok(())
}

/// A standalone makes indexes anew while it is written to, and goes on to hold to them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn indexes_are_made_anew() -> Result<()> {
    let mut server = Launch::mongod().start().await;
    let client = server.direct().await;
    let shop = client.database("shop");
    let items = shop.collection::<Document>("items");
    let indexes = vec![
        doc! { "key": { "sku": 1 }, "name": "sku", "unique": true },
        doc! { "key": { "tags": 1, "sku": -1 }, "name": "tags" },
        doc! { "key": { "text": "text" }, "name": "text" },
    ];
    shop.run_command(doc! { "createIndexes": "items", "indexes": indexes })
        .await?;
    let item = |n: i32| {
        doc! { "_id": n, "sku": n, "tags": [n % 7, n % 11], "text": format!("number {n}") }
    };
    items.insert_many((0..20_000).map(item)).await?;
    let writing = tokio::spawn({
        let items = items.clone();
        async move {
            for n in 20_000..20_400 {
                items.insert_one(item(n)).await?;
                let (old, set) = (
                    doc! { "_id": n - 20_000 },
                    doc! { "tags": [n], "text": "new" },
                );
                items.update_one(old, doc! { "$set": set }).await?;
                items.delete_one(doc! { "_id": n - 15_000 }).await?;
            }
            Ok::<_, mongodb::error::Error>(())
        }
    });
    let reply = shop.run_command(doc! { "reIndex": "items" }).await?;
    ensure!(reply.get_i32("nIndexes")? == 4 && reply.get_i32("nIndexesWas")? == 4);
    writing.await??;
    let check = || async {
        let listed = items.list_index_names().await?;
        ensure!(listed == ["_id_", "sku", "tags", "text"], "{listed:?}");
        let valid = shop
            .run_command(doc! { "validate": "items", "full": true })
            .await?;
        ensure!(valid.get_bool("valid")?, "{valid}");
        ensure!(items.count_documents(doc! { "tags": 20_100 }).await? == 1);
        ensure!(items.find_one(doc! { "_id": 20_399 }).await?.is_some());
        ensure!(
            items
                .insert_one(doc! { "_id": "x", "sku": 5 })
                .await
                .is_err()
        );
        ensure!(items.insert_one(item(20_399)).await.is_err());
        Ok::<_, anyhow::Error>(())
    };
    check().await?;
    server.kill();
    server.start().await;
    check().await?;

    // One without documents, and what is none.
    let empty = doc! { "createIndexes": "empty", "indexes": [{ "key": { "a": 1 }, "name": "a" }] };
    shop.run_command(empty).await?;
    let reply = shop.run_command(doc! { "reIndex": "empty" }).await?;
    ensure!(reply.get_i32("nIndexes")? == 2, "{reply}");
    ensure!(code(shop.run_command(doc! { "reIndex": "nowhere" }).await) == Some(26));
    let set = ReplicaSet::start("alone", 1, &[]).await;
    let shop = set.client().await.database("shop");
    ensure!(code(shop.run_command(doc! { "reIndex": "items" }).await) == Some(20));
    Ok(())
}

/// A router tells of its connections to the members of the cluster, and drops them when told to; it
/// goes on all the same.
#[tokio::test]
async fn connections_are_told_of_and_dropped() -> Result<()> {
    let cluster = Cluster::start(ClusterShape::default()).await;
    let client = cluster.client().await;
    let admin = client.database("admin");
    let items = client.database("shop").collection::<Document>("items");
    items.insert_one(doc! { "_id": 1 }).await?;
    let stats = || admin.run_command(doc! { "connPoolStats": 1 });
    let told = stats().await?;
    ensure!(told.get_i32("totalCreated")? > 0, "{told}");
    let hosts = told.get_document("hosts")?;
    let (host, figures) = hosts
        .iter()
        .filter_map(|(host, figures)| Some((host.clone(), figures.as_document()?.clone())))
        .max_by_key(|(_, figures)| figures.get_i32("available").unwrap_or(0))
        .context("a host")?;
    let made = figures.get_i32("created")?;
    ensure!(made > 0, "{told}");
    admin
        .run_command(doc! { "dropConnections": 1, "hostAndPort": [&host] })
        .await?;
    items.insert_one(doc! { "_id": 2 }).await?;
    ensure!(items.count_documents(doc! {}).await? == 2);
    eventually("new connections", || async {
        items.find_one(doc! {}).await?;
        let told = stats().await?;
        let now = told.get_document("hosts")?.get_document(&host)?;
        ensure!(now.get_i32("created")? > made, "{told}");
        Ok(())
    })
    .await;
    let shop = client.database("shop");
    let size = doc! { "dataSize": "shop.items" };
    let size = client.database("other").run_command(size).await?;
    ensure!(size.get_i64("numObjects")? == 2, "{size}");
    let chunk = bson::Binary {
        subtype: bson::spec::BinarySubtype::Generic,
        bytes: b"abc".to_vec(),
    };
    let chunks = client.database("shop").collection::<Document>("fs.chunks");
    chunks
        .insert_one(doc! { "files_id": 1, "n": 0, "data": chunk })
        .await?;
    let sum = doc! { "filemd5": 1, "root": "fs" };
    let sum = client.database("shop").run_command(sum).await?;
    ensure!(
        sum.get_str("md5")? == "900150983cd24fb0d6963f7d28e17f72",
        "{sum}"
    );
    let version = doc! { "setFeatureCompatibilityVersion": "4.4" };
    ensure!(code(admin.run_command(version).await) == Some(4_926_900));
    let parameters = doc! { "version": "1", "strict": true };
    let validated = doc! { "validateDBMetadata": 1, "apiParameters": parameters };
    let validated = admin.run_command(validated).await?;
    ensure!(
        validated.get_array("apiVersionErrors")?.is_empty(),
        "{validated}"
    );
    let search = doc! { "listSearchIndexes": "items" };
    ensure!(code(client.database("shop").run_command(search).await) == Some(31_082));
    let compact = shop.run_command(doc! { "compact": "items" });
    ensure!(code(compact.await) == Some(115));
    Ok(())
}
