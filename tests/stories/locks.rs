//! Who changes a collection waits for those who write to it, and holds up nobody else; the wait ends
//! when its operation has to.

use std::thread::JoinHandle;

use anyhow::{Result, bail, ensure};
use banyan_tests::{Launch, eventually};
use bson::{Document, doc};

use crate::concerns::Wire;

fn aside(host: &str, command: Document) -> JoinHandle<Result<Document>> {
    let host = host.to_owned();
    std::thread::spawn(move || Wire::connect_to(&host)?.run("test", command))
}

/// The number of an operation that `currentOp` lists with these fields.
async fn listed(host: &str, wanted: Document) -> i32 {
    eventually(&format!("{wanted} is listed"), || async {
        let current = Wire::connect_to(host)?.ok("admin", doc! { "currentOp": 1 })?;
        let operations = current.get_array("inprog")?.iter();
        let mut operations = operations.filter_map(|operation| operation.as_document());
        let is_it = |operation: &&Document| {
            wanted
                .iter()
                .all(|(name, value)| operation.get(name) == Some(value))
        };
        match operations.find(is_it) {
            Some(operation) => Ok(operation.get_i32("opid")?),
            None => bail!("{current}"),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_a_collection_waits_for_its_own_writers_alone() -> Result<()> {
    let mongod = Launch::mongod().start().await;
    let host = mongod.host();
    let mut wire = Wire::connect(&mongod)?;
    let documents: Vec<_> = (0..10_000).map(|id| doc! { "_id": id }).collect();
    wire.ok("test", doc! { "insert": "busy", "documents": documents })?;
    let slow = "for (const began = Date.now(); Date.now() < began + 10;) {} return true";
    let update = doc! { "q": { "$where": slow }, "u": { "$inc": { "n": 1 } }, "multi": true };
    let writing = aside(&host, doc! { "update": "busy", "updates": [update] });
    let writer = listed(&host, doc! { "ns": "test.busy", "waitingForLock": false }).await;

    let change = doc! {
        "collMod": "busy", "index": { "name": "_id_", "hidden": false }, "maxTimeMS": 50,
    };
    // The writer is listed before it holds what the change has to wait for.
    eventually("the change waits for the writer", || async {
        let reply = Wire::connect_to(&host)?.run("test", change.clone())?;
        match reply.get_i32("code") {
            Ok(50) => Ok(()),
            _ => bail!("{reply}"),
        }
    })
    .await;
    // Had it stayed in the line, this would wait behind it.
    let by_id = doc! { "q": { "_id": "new" }, "u": { "$inc": { "n": 1 } }, "upsert": true };
    wire.ok(
        "test",
        doc! { "update": "busy", "updates": [&by_id], "maxTimeMS": 10_000 },
    )?;

    let dropping = aside(&host, doc! { "drop": "busy" });
    let waiting = doc! { "ns": "test.busy", "waitingForLock": true };
    let drop = listed(&host, waiting.clone()).await;
    wire.ok(
        "test",
        doc! { "update": "other", "updates": [by_id], "maxTimeMS": 10_000 },
    )?;
    let index = doc! { "key": { "n": 1 }, "name": "n" };
    wire.ok(
        "test",
        doc! { "createIndexes": "other", "indexes": [index], "maxTimeMS": 10_000 },
    )?;
    ensure!(listed(&host, waiting).await == drop, "it still waits");

    wire.ok("admin", doc! { "killOp": 1, "op": drop })?;
    let reply = dropping.join().expect("no panic")?;
    ensure!(reply.get_i32("code")? == 11_601, "{reply}");
    wire.ok("admin", doc! { "killOp": 1, "op": writer })?;
    writing.join().expect("no panic")?;
    wire.ok("test", doc! { "drop": "busy" })?;
    Ok(())
}
