//! Passwords, and what they are proved by, are shown nowhere: in no log, reply or list.

use std::fs;

use anyhow::{Context, Result, ensure};
use banyan_tests::{Cluster, ClusterShape, Launch, Process, eventually};
use bson::spec::BinarySubtype;
use bson::{Binary, doc};

use super::audit::events;
use super::*;

/// What no file and no reply may hold.
const MARK: &str = "MARKED-SECRET";

/// Says secrets in every command that has any, also in wrong ones; what is answered.
async fn say_secrets(process: &Process, root: &Client, alice: &Client) -> Result<Vec<String>> {
    let mut said = Vec::new();
    let secret = |text: &str| format!("{MARK}-{text}");
    let payload = Binary {
        subtype: BinarySubtype::Generic,
        bytes: format!("\0alice\0{MARK}").into_bytes(),
    };
    let create = doc! { "createUser": "carol", "pwd": secret("1"), "roles": [] };
    let explained = doc! { "explain": create.clone(), "verbosity": "queryPlanner" };
    let stored = doc! { "SCRAM-SHA-256": { "storedKey": secret("13") } };
    let direct = doc! { "_id": "test.dora", "user": "dora", "db": "test", "roles": [],
    "credentials": stored.clone() };
    let set = doc! { "$set": { "credentials": stored } };
    for command in [
        create.clone(),
        create,
        doc! { "updateUser": "carol", "pwd": secret("2") },
        doc! { "createUser": "dave", "pwd": secret("3"), "roles": ["nothing"] },
        doc! { "createUser": "dave", "pwd": secret("4"), "roles": [], "unknown": 1 },
        doc! { "createUser": "dave", "pwd": { "a": secret("5") }, "roles": [] },
        doc! { "createUser": "dave", "pwd": secret("6"), "roles": [], "mechanisms": ["x"] },
        doc! { "createuser": "dave", "pwd": secret("7"), "roles": [] },
        doc! { "saslStart": 1, "mechanism": "PLAIN", "payload": payload.clone() },
        doc! { "saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": payload },
        doc! { "saslContinue": 1, "conversationId": 1, "payload": secret("8") },
        doc! { "authenticate": 1, "user": "alice", "nonce": secret("9"), "key": secret("10") },
        explained,
        doc! { "aggregate": 1, "cursor": {}, "pipeline": [{ "$queryStats": {
            "transformIdentifiers": { "algorithm": "hmac-sha-256", "hmacKey": secret("14") },
        } }] },
        doc! { "insert": "system.users", "documents": [direct.clone()] },
        doc! { "insert": "system.users", "documents": [direct] },
        doc! { "update": "system.users", "updates": [{ "q": { "user": "dora" }, "u": set.clone() }] },
        doc! { "findAndModify": "system.users", "query": { "user": "dora" }, "update": set,
        "fields": { "_id": 1 } },
        doc! { "delete": "system.users", "deletes": [{ "q": { "user": "dora" }, "limit": 1 }] },
    ] {
        let is_direct = command.values().next() == Some(&"system.users".into());
        let database = if is_direct { "admin" } else { "test" };
        for client in [root, alice] {
            let answer = client.database(database).run_command(command.clone()).await;
            said.push(format!("{answer:?}"));
        }
    }
    let wrong = login(process, "carol", &secret("11"), None).await;
    let answer = wrong.database("test").run_command(doc! { "ping": 1 }).await;
    said.push(format!("{answer:?}"));
    let admin = root.database("admin");
    for ask in [
        doc! { "getLog": "global" },
        doc! { "getLog": "startupWarnings" },
        doc! { "getCmdLineOpts": 1 },
        doc! { "currentOp": 1, "$all": true },
        doc! { "serverStatus": 1 },
    ] {
        said.push(admin.run_command(ask).await?.to_string());
    }
    Ok(said)
}

/// The mark is in none of these.
fn hold_no_secret(said: &[String]) -> Result<()> {
    let Some(text) = said.iter().find(|text| text.contains(MARK)) else {
        return Ok(());
    };
    let at = text.find(MARK).unwrap_or(0);
    let from = text[..at].char_indices().rev().nth(300);
    let from = from.map_or(0, |(at, _)| at);
    anyhow::bail!("…{}", &text[from..(at + MARK.len())]);
}

#[tokio::test]
async fn a_secret_is_shown_nowhere() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("audit.json");
    let at = path.to_str().context("a path in UTF-8")?;
    let launch = Launch::mongod().with(["--auth", "--auditDestination", "file", "-vv"]);
    let launch = launch.with(["--auditFormat", "JSON", "--auditPath", at, "--slowms", "0"]);
    let launch = launch.with(["--setParameter", "auditAuthorizationSuccess=true"]);
    let mongod = launch.start().await;
    let root = make_root(&mongod).await?;
    let admin = root.database("admin");
    let profiled = root
        .database("test")
        .run_command(doc! { "profile": 2 })
        .await;
    drop(profiled);
    make_user(&root, "alice", vec![]).await?;
    let alice = client(&mongod, "alice").await;
    let mut said = say_secrets(&mongod, &root, &alice).await?;

    // One that takes long enough to be seen.
    let slow = doc! { "setParameter": 1, "scramSHA256IterationCount": 6_000_000 };
    admin.run_command(slow).await?;
    let running = tokio::spawn({
        let test = root.database("test");
        async move {
            let create = doc! { "createUser": "eve", "pwd": format!("{MARK}-12"), "roles": [] };
            test.run_command(create).await
        }
    });
    let operation = eventually("the command is listed", || async {
        let running = admin
            .run_command(doc! { "currentOp": 1, "command.createUser": "eve" })
            .await?;
        let operations = running.get_array("inprog")?;
        Ok::<_, anyhow::Error>(operations.first().context("not yet")?.clone())
    })
    .await;
    ensure!(operation.to_string().contains("eve"), "{operation}");
    said.push(operation.to_string());
    running.abort();
    let profile = doc! { "find": "system.profile" };
    let profile = root.database("test").run_command(profile).await?;
    said.push(profile.to_string());
    // They are what is looked through, and not empty.
    let (log, audit) = (mongod.log(), fs::read_to_string(&path)?);
    for (text, name) in [(&log, "log"), (&audit, "audit log")] {
        ensure!(
            text.contains("carol") && text.contains("createUser"),
            "the {name} is silent"
        );
    }
    said.extend([log, audit]);
    hold_no_secret(&said)
}

#[tokio::test]
async fn a_router_keeps_what_its_filter_says_and_shows_no_secret_either() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let key = key_file(folder.path(), "key", "Y2x1c3RlciBrZXk=")?;
    let key = key.to_str().context("a path in UTF-8")?;
    let shape = ClusterShape {
        shards: 1,
        ..ClusterShape::default()
    };
    let every = ["--keyFile", key, "--auditDestination", "console", "-vv"];
    let cluster = Cluster::start_with(shape, &every).await;
    let root = make_root(&cluster.router).await?;
    make_user(&root, "alice", vec![]).await?;
    let path = folder.path().join("audit.json");
    let at = path.to_str().context("a path in UTF-8")?;
    let launch =
        Launch::mongos(&cluster.config.connection_string()).with(["--keyFile", key, "-vv"]);
    let launch = launch.with(["--auditDestination", "file", "--auditFormat", "JSON"]);
    let filter = "{ atype: { $in: ['authenticate', 'authCheck'] } }";
    let launch = launch.with(["--auditPath", at, "--auditFilter", filter]);
    let launch = launch.with(["--setParameter", "auditAuthorizationSuccess=true"]);
    let router = launch.with(["--redactClientLogData"]).start().await;
    let root = client(&router, "root").await;
    let alice = client(&router, "alice").await;
    let mut said = say_secrets(&router, &root, &alice).await?;

    let insert = doc! { "insert": "c", "documents": [{ "_id": "hidden-mark" }] };
    let wrong = doc! { "find": "c", "filter": { "$nothing": "hidden-mark" } };
    let test = root.database("test");
    test.run_command(insert).await?;
    ensure!(test.run_command(wrong).await.is_err());
    let log = router.log();
    ensure!(
        log.contains("Successfully authenticated") && !log.contains("hidden-mark"),
        "{log}"
    );
    let parameter = doc! { "getParameter": 1, "redactClientLogData": 1 };
    let parameter = root.database("admin").run_command(parameter).await?;
    ensure!(parameter.get_bool("redactClientLogData")?, "{parameter}");

    let kept = events(&path)?;
    let kinds: Vec<&str> = kept
        .iter()
        .filter_map(|e| e.get_str("atype").ok())
        .collect();
    let wanted = ["authenticate", "authCheck"];
    ensure!(kinds.iter().all(|kind| wanted.contains(kind)), "{kinds:?}");
    ensure!(wanted.iter().all(|kind| kinds.contains(kind)), "{kinds:?}");
    let audit = fs::read_to_string(&path)?;
    ensure!(audit.contains("carol"), "the audit log is silent");
    let (config, shard) = (&cluster.config.members[0], &cluster.shards[0].members[0]);
    ensure!(
        config.log().contains("carol"),
        "the config server is silent"
    );
    said.extend([log, audit, cluster.router.log(), config.log(), shard.log()]);
    hold_no_secret(&said)
}

#[tokio::test]
async fn a_log_that_is_redacted_holds_nothing_of_clients() -> Result<()> {
    let launch = Launch::mongod().with(["--redactClientLogData", "--slowms", "0"]);
    let mongod = launch.start().await;
    let client = mongod.direct().await;
    let (admin, test) = (client.database("admin"), client.database("test"));
    let ask = |mark: &'static str| {
        let test = test.clone();
        async move {
            test.run_command(doc! { "insert": "c", "documents": [{ "_id": mark }] })
                .await?;
            test.run_command(doc! { "find": "c", "filter": { "a": mark } })
                .await?;
            let stage = doc! { "$project": { "v": { "$toInt": mark } } };
            let wrong = doc! { "aggregate": "c", "pipeline": [stage], "cursor": {} };
            ensure!(test.run_command(wrong).await.is_err());
            let script = format!("function() {{ print('{mark}'); return true; }}");
            test.run_command(doc! { "find": "c", "filter": { "$where": script } })
                .await?;
            Ok::<_, anyhow::Error>(())
        }
    };
    ask("hidden-mark").await?;
    let shown = mongod.log();
    ensure!(
        shown.contains("Slow query") && shown.contains("###"),
        "{shown}"
    );
    ensure!(!shown.contains("hidden-mark"), "{shown}");
    let off = doc! { "setParameter": 1, "redactClientLogData": false };
    let was = admin.run_command(off).await?;
    ensure!(was.get_bool("was").ok() == Some(true), "{was}");
    ask("shown-mark").await?;
    eventually("the log shows it", || async {
        match mongod.log().contains("shown-mark") {
            true => Ok(()),
            false => Err("not yet"),
        }
    })
    .await;
    Ok(())
}
