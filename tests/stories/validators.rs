//! Validators: what a collection takes, on a set, through a router and across migrations.

use anyhow::{Context, Result, ensure};
use banyan_tests::{Cluster, ClusterShape, Launch, ReplicaSet, eventually};
use bson::{Bson, Document, doc};
use mongodb::error::ErrorKind;
use mongodb::{Client, Database};

/// The code of a refused write; of a refused statement also what is told of it.
async fn refusal(test: &Database, command: Document) -> Result<(i32, Document)> {
    let reply = match test.run_command(command.clone()).await {
        Ok(reply) => reply,
        Err(error) => match *error.kind {
            ErrorKind::Command(error) => return Ok((error.code, Document::new())),
            kind => anyhow::bail!("{command}: {kind}"),
        },
    };
    let errors = reply.get_array("writeErrors");
    let first = errors.ok().and_then(|errors| errors.first());
    let first = first.and_then(Bson::as_document);
    let first = first.with_context(|| format!("{command} was done: {reply}"))?;
    let info = first.get_document("errInfo").cloned().unwrap_or_default();
    Ok((first.get_i32("code")?, info))
}

fn people() -> Document {
    doc! { "$jsonSchema": {
        "required": ["name"],
        "properties": { "name": { "bsonType": "string" }, "age": { "minimum": 0 } },
    } }
}

async fn options(test: &Database, name: &str) -> Result<Document> {
    let list = doc! { "listCollections": 1, "filter": { "name": name } };
    let listed = test.run_command(list).await?;
    let first = listed.get_document("cursor")?.get_array("firstBatch")?;
    let first = first.first().and_then(Bson::as_document);
    let first = first.context("the collection")?;
    Ok(first.get_document("options")?.clone())
}

fn rules(info: &Document) -> Result<&[Bson]> {
    let details = info.get_document("details")?;
    Ok(details.get_array("schemaRulesNotSatisfied")?)
}

#[tokio::test]
async fn whoever_leads_holds_documents_against_the_validator() -> Result<()> {
    let set = ReplicaSet::start("validators", 3, &[]).await;
    let client = set.client().await;
    let test = client.database("test");
    let create = doc! { "create": "people", "validator": people() };
    test.run_command(create).await?;
    let insert = |document: Document| doc! { "insert": "people", "documents": [document] };
    let nameless = insert(doc! { "_id": 1, "age": 5 });
    let others = test.collection::<Document>("others");
    for round in 0..2 {
        // It finds who leads.
        others.insert_one(doc! {}).await?;
        let (code, info) = refusal(&test, nameless.clone()).await?;
        ensure!(code == 121, "{code}");
        ensure!(info.get_i32("failingDocumentId")? == 1, "{info}");
        ensure!(rules(&info)?.len() == 1, "{info}");
        let document = doc! { "_id": 10 + round, "name": "x" };
        test.run_command(insert(document)).await?;
        let leader = set.primary().await;
        if round == 0 {
            let direct = set.members[leader].direct().await.database("admin");
            // It closes its connections.
            let _ = direct.run_command(doc! { "replSetStepDown": 60 }).await;
            eventually("another member leads", || async {
                ensure!(set.primary().await != leader);
                Ok(())
            })
            .await;
        }
    }
    let changes = [
        doc! { "update": "people", "updates": [{ "q": { "_id": 10 }, "u": { "$set": { "age": -1 } } }] },
        doc! { "update": "people", "updates": [{ "q": { "_id": 10 }, "u": { "age": 1 } }] },
        doc! { "update": "people", "updates": [{ "q": { "_id": 11 }, "u": [{ "$unset": "name" }] }] },
        doc! { "update": "people", "updates": [
            { "q": { "_id": 99 }, "u": { "$set": { "age": 1 } }, "upsert": true },
        ] },
        doc! { "findAndModify": "people", "query": { "_id": 10 }, "update": { "$set": { "name": 5 } } },
    ];
    for change in changes {
        let mut bypass = change.clone();
        let (code, _) = refusal(&test, change).await?;
        ensure!(code == 121, "{code}");
        bypass.insert("bypassDocumentValidation", true);
        let done = test.run_command(bypass).await?;
        ensure!(!done.contains_key("writeErrors"), "{done}");
    }
    let found = test.run_command(doc! { "validate": "people" }).await?;
    ensure!(found.get_i32("nNonCompliantDocuments")? == 3, "{found}");
    ensure!(!found.get_bool("valid")?, "{found}");

    // What did not match before may be changed all the same, and what is only warned of is written.
    let moderate = doc! { "collMod": "people", "validationLevel": "moderate" };
    test.run_command(moderate).await?;
    let update = |id: i32, change: Document| doc! { "update": "people", "updates": [{ "q": { "_id": id }, "u": change }] };
    let done = test
        .run_command(update(99, doc! { "$set": { "b": 1 } }))
        .await?;
    ensure!(done.get_i32("nModified")? == 1, "{done}");
    test.run_command(insert(doc! { "_id": 12, "name": "y" }))
        .await?;
    let worse = update(12, doc! { "$set": { "age": -1 } });
    ensure!(refusal(&test, worse.clone()).await?.0 == 121);
    let warn = doc! { "collMod": "people", "validationAction": "warn" };
    test.run_command(warn).await?;
    let done = test.run_command(worse).await?;
    ensure!(done.get_i32("nModified")? == 1, "{done}");
    let leader = &set.members[set.primary().await];
    ensure!(leader.log().contains("fails validation"));
    let found = test.run_command(doc! { "validate": "people" }).await?;
    ensure!(found.get_bool("valid")?, "{found}");
    ensure!(found.get_array("warnings")?.len() == 1, "{found}");
    let kept = options(&test, "people").await?;
    ensure!(kept.get_str("validationLevel")? == "moderate", "{kept}");
    ensure!(kept.get_document("validator")? == &people(), "{kept}");
    Ok(())
}

#[tokio::test]
async fn results_are_held_against_the_validator_of_where_they_go() -> Result<()> {
    let server = Launch::mongod().start().await;
    let test = server.direct().await.database("test");
    let create = doc! { "create": "kept", "validator": { "value": { "$gte": 2 } } };
    test.run_command(create).await?;
    let source = test.collection::<Document>("source");
    source
        .insert_many((0..6).map(|n| doc! { "_id": n, "k": n % 3, "value": 5 }))
        .await?;
    test.collection::<Document>("kept")
        .insert_one(doc! { "_id": 0, "value": 7 })
        .await?;
    let map = |out: Bson, reduce: &str| {
        doc! {
            "mapReduce": "source", "map": "function() { emit(this.k, 1) }", "reduce": reduce,
            "out": out,
        }
    };
    let too_low = "function(k, v) { return 1 }";
    for out in [Bson::from("kept"), doc! { "merge": "kept" }.into()] {
        let (code, _) = refusal(&test, map(out, too_low)).await?;
        ensure!(code == 121, "{code}");
    }
    let mut replace = map("kept".into(), too_low);
    replace.insert("bypassDocumentValidation", true);
    test.run_command(replace).await?;
    ensure!(
        test.collection::<Document>("kept")
            .count_documents(doc! {})
            .await?
            == 3
    );
    ensure!(options(&test, "kept").await?.contains_key("validator"));
    let out = |stage: Document| {
        doc! {
            "aggregate": "source", "cursor": {},
            "pipeline": [{ "$project": { "_id": { "$add": ["$_id", 100] }, "value": "$k" } }, stage],
        }
    };
    for stage in [doc! { "$merge": "kept" }, doc! { "$out": "kept" }] {
        let (code, _) = refusal(&test, out(stage.clone())).await?;
        ensure!(code == 121, "{code}");
        let mut bypass = out(stage);
        bypass.insert("bypassDocumentValidation", true);
        test.run_command(bypass).await?;
    }
    ensure!(options(&test, "kept").await?.contains_key("validator"));
    Ok(())
}

/// Both halves of `test.people`, each on its shard.
async fn shard(client: &Client) -> Result<()> {
    let admin = client.database("admin");
    admin.run_command(doc! { "balancerStop": 1 }).await?;
    let key = doc! { "shardCollection": "test.people", "key": { "k": 1 } };
    admin.run_command(key).await?;
    let split = doc! { "split": "test.people", "middle": { "k": 0 } };
    admin.run_command(split).await?;
    let databases = client
        .database("config")
        .collection::<Document>("databases");
    let entry = databases.find_one(doc! { "_id": "test" }).await?;
    let entry = entry.context("the database")?;
    let away = match entry.get_str("primary")? {
        "shard0" => "shard1",
        _ => "shard0",
    };
    let request = doc! { "moveChunk": "test.people", "find": { "k": 0 }, "to": away };
    admin.run_command(request).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_shards_hold_documents_against_it() -> Result<()> {
    let cluster = Cluster::start(ClusterShape::default()).await;
    let client = cluster.client().await;
    let test = client.database("test");
    let create = doc! { "create": "people", "validator": people() };
    test.run_command(create).await?;
    let index = doc! { "createIndexes": "people", "indexes": [{ "key": { "k": 1 }, "name": "k" }] };
    test.run_command(index).await?;
    // One that does not match moves like the others.
    let bypassed = doc! {
        "insert": "people", "bypassDocumentValidation": true,
        "documents": [{ "_id": 1, "k": 1 }, { "_id": 2, "k": -1 }],
    };
    test.run_command(bypassed).await?;
    shard(&client).await?;
    let people = test.collection::<Document>("people");
    ensure!(people.count_documents(doc! {}).await? == 2);
    for k in [-5, 5] {
        let insert = doc! { "insert": "people", "documents": [{ "_id": k, "k": k }] };
        let (code, info) = refusal(&test, insert).await?;
        ensure!(code == 121 && rules(&info)?.len() == 1, "{info}");
    }
    let off = doc! { "collMod": "people", "validationLevel": "off" };
    test.run_command(off).await?;
    for k in [-5, 5] {
        let insert = doc! { "insert": "people", "documents": [{ "_id": k, "k": k }] };
        let done = test.run_command(insert).await?;
        ensure!(done.get_i32("n")? == 1, "{done}");
    }
    Ok(())
}
