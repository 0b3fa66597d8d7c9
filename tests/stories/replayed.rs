//! `applyOps`: what a set's oplog tells, done again elsewhere, as a tool does that brings a dump with
//! its oplog back.

use anyhow::{Context, Result, ensure};
use banyan_tests::{Launch, Process, eventually};
use bson::{Bson, Document, doc};
use futures::TryStreamExt;

use crate::operating::{admin, refusal};

async fn run(process: &Process, command: Document) -> Result<Document> {
    let database = process.direct().await.database("src");
    Ok(database.run_command(command).await?)
}

async fn documents(process: &Process, collection: &str) -> Result<Vec<Document>> {
    let client = process.direct().await;
    let collection = client.database("src").collection::<Document>(collection);
    let found = collection.find(doc! {}).sort(doc! { "_id": 1 }).await?;
    Ok(found.try_collect().await?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_oplog_is_done_again_elsewhere() -> Result<()> {
    let set = Launch::mongod()
        .with(["--replSet", "told", "--selfInitiate"])
        .start()
        .await;
    eventually("a primary", || async {
        let hello = admin(&set, doc! { "hello": 1 }).await?;
        ensure!(hello.get_bool("isWritablePrimary")?, "{hello}");
        Ok(())
    })
    .await;
    let update = |q: Document, u: Bson| doc! { "update": "c", "updates": [{ "q": q, "u": u }] };
    for command in [
        doc! { "create": "gone" },
        doc! { "create": "before" },
        doc! { "insert": "c", "documents": (0..20).map(|id| doc! {
            "_id": id, "n": id, "s": { "x": 1, "deep": { "y": id } }, "list": [1, { "q": id }, 3, 4],
        }).collect::<Vec<_>>() },
        update(doc! { "_id": 1 }, doc! { "$set": { "s.deep.y": "new", "added": [1] } }.into()),
        update(doc! { "_id": 2 }, doc! { "$unset": { "n": 1 }, "$push": { "list": 5 } }.into()),
        update(doc! { "_id": 3 }, doc! { "$set": { "list.1.q": { "z": 1 }, "list.7": 8 } }.into()),
        update(doc! { "_id": 4 }, doc! { "$pop": { "list": 1 }, "$inc": { "n": 10 } }.into()),
        update(doc! { "_id": 5 }, doc! { "replaced": true }.into()),
        update(doc! { "_id": 6 }, vec![
            doc! { "$set": { "s.x": { "$add": ["$n", 1] }, "list": { "$slice": ["$list", 2] } } },
            doc! { "$unset": "s.deep" },
        ].into()),
        doc! { "delete": "c", "deletes": [{ "q": { "n": { "$gt": 15 } }, "limit": 0 }] },
        doc! { "insert": "before", "documents": [{ "_id": { "a": 1 } }, { "_id": "x" }] },
        doc! { "drop": "gone" },
    ] {
        run(&set, command).await?;
    }
    let rename = doc! { "renameCollection": "src.before", "to": "src.after" };
    admin(&set, rename).await?;

    let client = set.direct().await;
    let oplog = client.database("local").collection::<Document>("oplog.rs");
    let told = oplog.find(doc! { "ns": { "$regex": "^src\\." } }).await?;
    let mut told: Vec<Document> = told.try_collect().await?;
    for entry in &mut told {
        // Elsewhere the collections are others.
        entry.remove("ui");
    }
    ensure!(told.len() > 30, "{}", told.len());

    let other = Launch::mongod().start().await;
    // What was applied once may be applied again from the start.
    for _ in 0..2 {
        let reply = admin(&other, doc! { "applyOps": told.clone() }).await?;
        ensure!(reply.get_i32("applied")? == told.len() as i32, "{reply}");
        let results = reply.get_array("results")?;
        ensure!(
            results.iter().all(|one| *one == Bson::Boolean(true)),
            "{reply}"
        );
        for collection in ["c", "after"] {
            let (here, there) = (
                documents(&set, collection).await?,
                documents(&other, collection).await?,
            );
            ensure!(
                !here.is_empty() && here == there,
                "{collection}: {here:?}\n{there:?}"
            );
        }
        run(&other, doc! { "drop": "after" }).await?;
    }
    let names = other
        .direct()
        .await
        .database("src")
        .list_collection_names()
        .await?;
    ensure!(names == ["c"], "{names:?}");
    Ok(())
}

#[tokio::test]
async fn operations_that_cannot_be_done_say_why() -> Result<()> {
    let mongod = Launch::mongod().start().await;
    run(
        &mongod,
        doc! { "insert": "c", "documents": [{ "_id": 1, "a": 1 }] },
    )
    .await?;
    let entry = |op: &str, o: Document| doc! { "op": op, "ns": "src.c", "o": o };
    let update = |o: Document| {
        let mut entry = entry("u", o);
        entry.insert("o2", doc! { "_id": 1 });
        entry
    };
    for (operation, expected) in [
        (doc! { "op": "i" }, 20),
        (doc! { "ns": "src.c", "o": {} }, 4),
        (doc! { "op": "i", "ns": "src.none", "o": { "_id": 1 } }, 26),
        (doc! { "op": "i", "ns": "src", "o": { "_id": 1 } }, 73),
        (doc! { "op": "i", "ns": "src.c" }, 40414),
        (doc! { "op": "i", "ns": "src.c", "o": 5 }, 14),
        (
            doc! { "op": "i", "ns": "src.c", "o": { "_id": 1 }, "more": 1 },
            40415,
        ),
        (entry("x", doc! {}), 2),
        (entry("i", doc! { "a": 1 }), 4),
        (entry("d", doc! { "a": 1 }), 4),
        (entry("u", doc! { "$set": { "a": 1 } }), 4),
        (update(doc! { "$v": 2, "diff": {} }), 4770500),
        (update(doc! { "$v": 2, "diff": { "x": 1 } }), 4770503),
        (update(doc! { "$v": 2 }), 4772601),
        (
            update(doc! { "$v": 3, "diff": { "u": { "a": 2 } } }),
            4772600,
        ),
        (
            entry(
                "c",
                doc! { "createIndexes": "c", "key": { "a": 1 }, "name": "a_1" },
            ),
            115,
        ),
        (entry("c", doc! { "ping": 1 }), 2),
        (entry("db", doc! {}), 2),
        (doc! { "op": "c", "ns": "src.$cmd" }, 4),
        (
            doc! { "op": "c", "ns": "src", "o": { "create": "made" } },
            73,
        ),
        // Whatever has no `_id` is no whole document.
        (update(doc! { "z": 1 }), 9),
        (update(doc! { "$v": 1, "diff": { "u": { "a": 2 } } }), 9),
        (update(doc! { "$v": "2", "$set": { "a": 2 } }), 4772600),
        (
            update(doc! { "$v": 2, "diff": { "i": { "n": 1 }, "u": { "a": 2 } } }),
            4770503,
        ),
        (
            update(doc! { "$v": 2, "diff": { "u": { "a": 1 }, "i": { "a": 2 } } }),
            4728000,
        ),
        (
            update(doc! { "$v": 2, "diff": { "sl": { "a": false } } }),
            4770520,
        ),
        (update(doc! { "_id": 5, "z": 1 }), 13596),
        (
            doc! { "op": "u", "ns": "src.c", "o": { "$set": { "a": 1 } }, "o2": 5 },
            14,
        ),
        (
            doc! { "op": "i", "ns": "src.c", "o": { "_id": 1 }, "b": 1 },
            14,
        ),
        (
            doc! { "op": "i", "ns": "src.c", "o": { "_id": 1 }, "t": 1 },
            14,
        ),
        (entry("c", doc! { "applyOps": [], "prepare": true }), 51145),
    ] {
        let (code, message) = refusal(&mongod, doc! { "applyOps": [operation.clone()] }).await?;
        ensure!(code == expected, "{operation}: {code} {message}");
    }
    // The first that fails is the last.
    let several = doc! { "applyOps": [
        entry("i", doc! { "_id": 2 }), { "op": "i", "ns": "src.none", "o": { "_id": 3 } },
        entry("i", doc! { "_id": 4 }),
    ] };
    refusal(&mongod, several).await?;
    let there = documents(&mongod, "c").await?;
    let ids: Vec<i32> = there
        .iter()
        .map(|one| one.get_i32("_id"))
        .collect::<Result<_, _>>()?;
    ensure!(ids == [1, 2], "{ids:?}");
    // An update of what is not there inserts it, unless that is not wanted.
    let missing =
        doc! { "op": "u", "ns": "src.c", "o2": { "_id": 9 }, "o": { "$set": { "b": 1 } } };
    let refused = doc! { "applyOps": [missing.clone()], "alwaysUpsert": false };
    let (code, _) = refusal(&mongod, refused).await?;
    ensure!(code == 218, "{code}");
    admin(&mongod, doc! { "applyOps": [missing] }).await?;
    let there = documents(&mongod, "c").await?;
    let last = there.last().context("a document")?;
    ensure!(*last == doc! { "_id": 9, "b": 1 }, "{last}");
    let reply = admin(
        &mongod,
        doc! { "applyOps": [{ "op": "n", "ns": "", "o": {} }] },
    )
    .await?;
    ensure!(reply.get_i32("applied")? == 0, "{reply}");
    Ok(())
}

#[tokio::test]
async fn nothing_is_done_unless_documents_are_as_they_have_to_be() -> Result<()> {
    let mongod = Launch::mongod().start().await;
    let insert = doc! { "insert": "c", "documents": [{ "_id": 1, "a": 1 }, { "_id": 2, "a": 2 }] };
    run(&mongod, insert).await?;
    let asked = |conditions: Bson| {
        doc! {
            "applyOps": [{ "op": "i", "ns": "src.c", "o": { "_id": 3 } }],
            "preCondition": conditions,
        }
    };
    let condition = |ns: &str, q: Document, res: Document| doc! { "ns": ns, "q": q, "res": res };
    for (conditions, expected) in [
        (
            vec![condition("src.c", doc! { "_id": 1 }, doc! { "a": 2 })].into(),
            2,
        ),
        (
            vec![
                condition("src.c", doc! { "_id": 1 }, doc! { "a": 1 }),
                condition("src.c", doc! { "_id": 7 }, doc! { "a": 1 }),
            ]
            .into(),
            2,
        ),
        (vec![condition("src.none", doc! {}, doc! {})].into(), 26),
        (vec![doc! { "q": {}, "res": {} }].into(), 73),
        (
            vec![doc! { "ns": "src.c", "q": 5, "res": {} }].into(),
            10065,
        ),
        (vec![doc! { "ns": "src.c", "q": {} }].into(), 10065),
        (Bson::from(5), 14),
        (Bson::from(vec![5]), 14),
    ] {
        let command = asked(conditions);
        let (code, message) = refusal(&mongod, command.clone()).await?;
        ensure!(code == expected, "{command}: {code} {message}");
        ensure!(documents(&mongod, "c").await?.len() == 2, "{command}");
    }
    let last = doc! { "query": {}, "orderby": { "_id": -1 } };
    let holds = vec![
        condition("src.c", doc! { "_id": 1 }, doc! { "a": { "$gt": 0 } }),
        condition("src.c", last, doc! { "a": 2 }),
        condition("src.c", doc! { "_id": 7 }, doc! { "a": null }),
    ];
    admin(&mongod, asked(holds.into())).await?;
    ensure!(documents(&mongod, "c").await?.len() == 3);
    Ok(())
}
