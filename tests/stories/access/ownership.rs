//! What belongs to a user: cursors, sessions and operations; and every collection a pipeline names.

use anyhow::{Result, ensure};
use bson::{Bson, Document, doc};

use super::*;

#[tokio::test]
async fn cursors_belong_to_who_opened_them() -> Result<()> {
    let mongod = standalone().await;
    let root = make_root(&mongod).await?;
    for name in ["alice", "bob"] {
        make_user(&root, name, vec![role("readWrite", "test")]).await?;
    }
    make_user(&root, "manager", vec![role("hostManager", "admin")]).await?;
    let (alice, bob) = (client(&mongod, "alice").await, client(&mongod, "bob").await);
    let documents: Vec<Document> = (0..20).map(|n| doc! { "_id": n }).collect();
    let insert = doc! { "insert": "c", "documents": documents };
    alice.database("test").run_command(insert).await?;
    let find = doc! { "find": "c", "batchSize": 2 };
    let found = alice.database("test").run_command(find).await?;
    let id = found.get_document("cursor")?.get_i64("id")?;
    let kill = doc! { "killCursors": "c", "cursors": [id] };
    expect(
        &bob,
        "test",
        doc! { "getMore": id, "collection": "c" },
        UNAUTHORIZED,
    )
    .await?;
    expect(&bob, "test", kill.clone(), UNAUTHORIZED).await?;
    let unknown = doc! { "killCursors": "c", "cursors": [7_i64] };
    expect(&bob, "test", unknown, 0).await?;
    let manager = client(&mongod, "manager").await;
    let killed = manager.database("test").run_command(kill).await?;
    ensure!(
        killed.get_array("cursorsKilled")? == &vec![Bson::Int64(id)],
        "{killed}"
    );
    Ok(())
}

#[tokio::test]
async fn operations_and_sessions_belong_to_their_users() -> Result<()> {
    let mongod = standalone().await;
    let root = make_root(&mongod).await?;
    for name in ["alice", "bob"] {
        make_user(&root, name, vec![role("readWrite", "test")]).await?;
    }
    let (alice, bob) = (client(&mongod, "alice").await, client(&mongod, "bob").await);
    alice
        .database("test")
        .run_command(doc! { "insert": "c", "documents": [{}, {}, {}, {}, {}] })
        .await?;
    let (asks, slow) = (bob.clone(), alice.clone());
    let mine = |all: bool| {
        doc! { "aggregate": 1, "pipeline": [{ "$currentOp": { "allUsers": all } }], "cursor": {} }
    };
    expect(&bob, "admin", mine(true), UNAUTHORIZED).await?;
    expect(&bob, "admin", mine(false), 0).await?;
    expect(&bob, "admin", doc! { "currentOp": 1 }, UNAUTHORIZED).await?;
    expect(&bob, "admin", doc! { "currentOp": 1, "$ownOps": true }, 0).await?;

    // Alice's command runs for long; Bob cannot see it, nor end it.
    let wait = "let until = Date.now() + 4000; while (Date.now() < until) {} return true;";
    let running = tokio::spawn(async move {
        let filter = doc! { "$where": format!("function() {{ {wait} }}") };
        let find = doc! { "find": "c", "filter": filter, "comment": "slow" };
        slow.database("test").run_command(find).await
    });
    let mut id = None;
    for _ in 0..100 {
        let all = root
            .database("admin")
            .run_command(doc! { "currentOp": 1 })
            .await?;
        let found = all
            .get_array("inprog")?
            .iter()
            .filter_map(Bson::as_document);
        let mut found = found.filter(|one| {
            let command = one.get_document("command");
            command.is_ok_and(|command| command.get_str("comment").ok() == Some("slow"))
        });
        if let Some(found) = found.next() {
            let users = vec![Bson::from(doc! { "user": "alice", "db": "admin" })];
            ensure!(found.get_array("effectiveUsers")? == &users, "{found}");
            id = Some(found.get_i32("opid")?);
            break;
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    let id = id.expect("the operation is seen");
    let own = asks
        .database("admin")
        .run_command(doc! { "currentOp": 1, "$ownOps": true })
        .await?;
    let ids = own
        .get_array("inprog")?
        .iter()
        .filter_map(Bson::as_document);
    ensure!(
        ids.map(|one| one.get_i32("opid"))
            .all(|own| own.ok() != Some(id)),
        "{own}"
    );
    let kill = doc! { "killOp": 1, "op": id };
    expect(&bob, "admin", kill.clone(), UNAUTHORIZED).await?;
    expect(&alice, "admin", kill, 0).await?;
    ensure!(running.await?.is_err(), "it was ended");

    // Nobody ends another's session: the cursor in it goes on.
    let mut session = alice.start_session().await?;
    let lsid = session.id().clone();
    let find = doc! { "find": "c", "batchSize": 1 };
    let test = alice.database("test");
    let found = test.run_command(find).session(&mut session).await?;
    let id = found.get_document("cursor")?.get_i64("id")?;
    let kill = doc! { "killSessions": [lsid.clone()] };
    expect(&bob, "admin", kill.clone(), 0).await?;
    expect(&bob, "admin", doc! { "killSessions": [] }, 0).await?;
    expect(&bob, "admin", doc! { "endSessions": [lsid.clone()] }, 0).await?;
    let more = doc! { "getMore": id, "collection": "c", "batchSize": 1 };
    test.run_command(more.clone()).session(&mut session).await?;
    expect(&bob, "admin", doc! { "killAllSessions": [] }, UNAUTHORIZED).await?;
    let list = |options: Document| {
        doc! { "aggregate": 1, "pipeline": [{ "$listLocalSessions": options }], "cursor": {} }
    };
    expect(&bob, "admin", list(doc! { "allUsers": true }), UNAUTHORIZED).await?;
    let owned = |reply: &Document| {
        let cursor = reply.get_document("cursor").expect("a cursor");
        let batch = cursor.get_array("firstBatch").expect("a batch");
        batch.iter().filter_map(Bson::as_document).any(|session| {
            let id = session.get_document("_id").expect("an _id");
            id.get("id") == lsid.get("id")
        })
    };
    let alices = alice.database("admin").run_command(list(doc! {})).await?;
    ensure!(owned(&alices), "{alices}");
    let bobs = bob.database("admin").run_command(list(doc! {})).await?;
    ensure!(!owned(&bobs), "{bobs}");
    // What he calls by the same id is a session of his own.
    let refresh = doc! { "refreshSessions": [lsid.clone()] };
    expect(&bob, "admin", refresh, 0).await?;
    let bobs = bob.database("admin").run_command(list(doc! {})).await?;
    ensure!(owned(&bobs), "{bobs}");
    test.run_command(more.clone()).session(&mut session).await?;
    expect(&alice, "admin", kill, 0).await?;
    let read = test.run_command(more).session(&mut session).await;
    let gone = read.expect_err("it was killed");
    ensure!(code_of(&gone) == Some(43), "{gone}");
    Ok(())
}

/// Pipelines over `test.c` that also touch what the user must not.
#[tokio::test]
async fn every_collection_that_a_pipeline_names_is_checked() -> Result<()> {
    let mongod = standalone().await;
    let root = make_root(&mongod).await?;
    let test = root.database("test");
    test.run_command(doc! { "insert": "c", "documents": [{ "a": 1 }] })
        .await?;
    test.run_command(doc! { "insert": "secret", "documents": [{ "a": 1 }] })
        .await?;
    let only_c = doc! {
        "createRole": "onlyC", "roles": [],
        "privileges": [{ "resource": { "db": "test", "collection": "c" },
                         "actions": ["find", "collStats"] }],
    };
    test.run_command(only_c).await?;
    make_user(&root, "alice", vec![role("onlyC", "test")]).await?;
    let alice = client(&mongod, "alice").await;
    let lookup = |from: &str| {
        doc! { "$lookup": { "from": from, "localField": "a", "foreignField": "a", "as": "x" } }
    };
    let graph = |from: &str| {
        doc! { "$graphLookup": { "from": from, "startWith": "$a", "connectFromField": "a",
        "connectToField": "a", "as": "x" } }
    };
    let within = |stage: Document| {
        doc! { "$lookup": { "from": "c", "pipeline": [stage], "as": "x" } }
    };
    let allowed = [
        doc! { "$match": {} },
        lookup("c"),
        graph("c"),
        doc! { "$unionWith": "c" },
        doc! { "$facet": { "a": [lookup("c")] } },
        doc! { "$collStats": { "count": {} } },
        within(doc! { "$unionWith": { "coll": "c", "pipeline": [lookup("c")] } }),
    ];
    let denied = [
        lookup("secret"),
        graph("secret"),
        doc! { "$unionWith": "secret" },
        doc! { "$unionWith": { "coll": "secret" } },
        doc! { "$unionWith": { "coll": "c", "pipeline": [lookup("secret")] } },
        doc! { "$facet": { "a": [{ "$match": {} }], "b": [lookup("secret")] } },
        within(lookup("secret")),
        within(within(doc! { "$unionWith": "secret" })),
        doc! { "$lookup": { "from": { "db": "admin", "coll": "system.users" }, "as": "x",
        "localField": "a", "foreignField": "a" } },
        doc! { "$out": "d" },
        doc! { "$out": { "db": "other", "coll": "d" } },
        doc! { "$merge": "d" },
        doc! { "$merge": { "into": "c" } },
        doc! { "$indexStats": {} },
        doc! { "$planCacheStats": {} },
        doc! { "$changeStream": {} },
        doc! { "$notAStage": {} },
    ];
    for (stages, expected) in [(&allowed[..], 0), (&denied[..], UNAUTHORIZED)] {
        for stage in stages {
            let pipeline = doc! { "aggregate": "c", "pipeline": [stage.clone()], "cursor": {} };
            expect(&alice, "test", pipeline.clone(), expected).await?;
            if expected != 0 {
                expect(&alice, "test", doc! { "explain": pipeline }, expected).await?;
            }
        }
    }
    // Two values under one name: whichever is taken, both are looked at.
    let mut twice = bson::RawDocumentBuf::new();
    for from in ["c", "secret"] {
        twice.append(bson::cstr!("from"), from);
    }
    twice.append(bson::cstr!("pipeline"), bson::RawArrayBuf::new());
    twice.append(bson::cstr!("as"), "x");
    {
        let stage = bson::rawdoc! { "$lookup": twice };
        let pipeline = bson::RawArrayBuf::from_iter([stage]);
        let command = bson::rawdoc! { "aggregate": "c", "pipeline": pipeline, "cursor": {} };
        let error = alice.database("test").run_raw_command(command).await;
        let error = error.expect_err("it names what must not be read");
        ensure!(code_of(&error) == Some(UNAUTHORIZED), "{error}");
    }
    let out = doc! { "mapReduce": "c", "map": "function() {}", "reduce": "function() {}",
    "out": "d" };
    expect(&alice, "test", out, UNAUTHORIZED).await?;
    Ok(())
}
