//! The audit log: who did what, and which of it is kept.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use banyan_tests::{Cluster, ClusterShape, Launch, connect, eventually, free_port, program};
use bson::{Document, doc};
use mongodb::options::AuthMechanism;

use super::certificates::{ALICE, USER_NOT_FOUND, certificates, logging_in, sealed, shows};
use super::*;

/// A line of the log, as a document.
fn parse(line: &str) -> Result<Document> {
    let value: serde_json::Value = serde_json::from_str(line)?;
    let event = bson::serialize_to_document(&value)?;
    Ok(event)
}

pub(super) fn events(path: &Path) -> Result<Vec<Document>> {
    fs::read_to_string(path)?.lines().map(parse).collect()
}

/// The events of a kind, with their results.
fn of<'a>(events: &'a [Document], action: &str) -> Vec<(&'a Document, i64)> {
    let of_kind = events
        .iter()
        .filter(|event| event.get_str("atype").ok() == Some(action));
    of_kind
        .map(|event| {
            let result = event.get_i64("result").unwrap_or(-1);
            (event.get_document("param").expect("a param"), result)
        })
        .collect()
}

#[tokio::test]
async fn what_is_done_is_in_the_audit_log() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("audit.json");
    let at = path.to_str().context("a path in UTF-8")?;
    let launch = Launch::mongod().with(["--auth", "--auditDestination", "file"]);
    let launch = launch.with(["--auditFormat", "JSON", "--auditPath", at]);
    let launch = launch.with(["--setParameter", "auditAuthorizationSuccess=true"]);
    let mut mongod = launch.start().await;
    let root = make_root(&mongod).await?;
    let (admin, test) = (root.database("admin"), root.database("test"));
    make_user(&root, "alice", vec![role("read", "test")]).await?;
    let alice = client(&mongod, "alice").await;
    expect(
        &alice,
        "test",
        doc! { "insert": "c", "documents": [{}] },
        UNAUTHORIZED,
    )
    .await?;
    let wrong = login(&mongod, "alice", "wrong", Some(AuthMechanism::ScramSha256)).await;
    expect(&wrong, "test", doc! { "find": "c" }, AUTHENTICATION_FAILED).await?;
    for command in [
        doc! { "insert": "c", "documents": [{ "a": 1 }] },
        doc! { "createIndexes": "c", "indexes": [{ "key": { "a": 1 }, "name": "a_1" }] },
        doc! { "dropIndexes": "c", "index": "a_1" },
        doc! { "create": "d" },
        doc! { "aggregate": "c", "pipeline": [{ "$out": "made" }], "cursor": {} },
        doc! { "drop": "d" },
        doc! { "createRole": "r", "roles": ["read"], "privileges": [] },
        doc! { "grantRolesToRole": "r", "roles": ["readWrite"] },
        doc! { "dropRole": "r" },
        doc! { "createUser": "bob", "pwd": PASSWORD, "roles": [] },
        doc! { "updateUser": "bob", "pwd": "another" },
        doc! { "grantRolesToUser": "bob", "roles": ["read"] },
        doc! { "revokeRolesFromUser": "bob", "roles": ["read"] },
        doc! { "dropUser": "bob" },
    ] {
        test.run_command(command).await?;
    }
    expect(&root, "test", doc! { "create": "c" }, 48).await?;
    let renamed = doc! { "renameCollection": "test.c", "to": "test.e" };
    admin.run_command(renamed).await?;
    test.run_command(doc! { "dropDatabase": 1 }).await?;
    let message = doc! { "logApplicationMessage": "a word of ours" };
    admin.run_command(message).await?;
    let credentials = doc! { "SCRAM-SHA-256": { "storedKey": "a secret" } };
    let zoe = doc! { "_id": "test.zoe", "user": "zoe", "db": "test", "roles": [],
    "credentials": credentials };
    let own = doc! { "_id": "test.zoe" };
    let change = doc! { "q": own.clone(), "u": { "$set": { "customData": { "a": 1 } } } };
    for command in [
        doc! { "insert": "system.users", "documents": [zoe.clone()] },
        doc! { "update": "system.users", "updates": [change] },
        doc! { "delete": "system.users", "deletes": [{ "q": own, "limit": 1 }] },
    ] {
        admin.run_command(command).await?;
    }
    admin.run_command(doc! { "logRotate": "audit" }).await?;
    expect(&root, "test", doc! { "find": "after" }, 0).await?;
    mongod.stop().await;

    let after = events(&path)?;
    ensure!(of(&after, "rotateLog").len() == 1, "{after:?}");
    ensure!(of(&after, "shutdown").len() == 1, "{after:?}");
    let [(rotation, 0)] = of(&after, "rotateLog")[..] else {
        anyhow::bail!("{after:?}");
    };
    let moved = rotation
        .get_document("logRotationStatus")?
        .get_str("rotatedLogPath")?;
    let all = events(Path::new(moved))?;
    for event in all.iter().chain(&after) {
        let names: Vec<&str> = event.keys().map(String::as_str).collect();
        let expected = [
            "atype", "ts", "local", "remote", "users", "roles", "param", "result",
        ];
        let missing = expected.iter().find(|name| !names.contains(name));
        ensure!(missing.is_none(), "{missing:?} is missing in {event}");
    }
    ensure!(of(&all, "startup").len() == 1);
    ensure!(!of(&all, "clientMetadata").is_empty());
    let first = |action: &str| -> Result<(Document, i64)> {
        let found = of(&all, action);
        let (param, result) = found
            .first()
            .with_context(|| format!("there is no {action}"))?;
        Ok(((*param).clone(), *result))
    };
    for (action, param) in [
        (
            "createUser",
            doc! { "user": "root", "db": "admin",
            "roles": [{ "role": "root", "db": "admin" }] },
        ),
        ("createDatabase", doc! { "ns": "test" }),
        ("createCollection", doc! { "ns": "test.c" }),
        ("dropIndex", doc! { "ns": "test.c", "indexName": "a_1" }),
        ("dropCollection", doc! { "ns": "test.d" }),
        (
            "renameCollection",
            doc! { "old": "test.c", "new": "test.e" },
        ),
        ("dropDatabase", doc! { "ns": "test" }),
        (
            "createRole",
            doc! { "role": "r", "db": "test", "privileges": [],
            "roles": [{ "role": "read", "db": "test" }] },
        ),
        (
            "grantRolesToRole",
            doc! { "role": "r", "db": "test",
            "roles": [{ "role": "readWrite", "db": "test" }] },
        ),
        ("dropRole", doc! { "role": "r", "db": "test" }),
        (
            "updateUser",
            doc! { "user": "bob", "db": "test", "passwordChanged": true },
        ),
        (
            "grantRolesToUser",
            doc! { "user": "bob", "db": "test",
            "roles": [{ "role": "read", "db": "test" }] },
        ),
        (
            "revokeRolesFromUser",
            doc! { "user": "bob", "db": "test",
            "roles": [{ "role": "read", "db": "test" }] },
        ),
        ("dropUser", doc! { "user": "bob", "db": "test" }),
        ("applicationMessage", doc! { "msg": "a word of ours" }),
    ] {
        ensure!(
            first(action)? == (param, 0),
            "{action}: {:?}",
            first(action)?
        );
    }
    let (index, _) = first("createIndex")?;
    ensure!(index.get_str("indexName").ok() == Some("a_1"), "{index}");
    let created: Vec<_> = of(&all, "createCollection");
    let made = doc! { "ns": "test.made" };
    ensure!(
        created.iter().any(|(param, _)| **param == made),
        "{created:?}"
    );
    let refused = doc! { "ns": "test.c" };
    ensure!(created.contains(&(&refused, 48)), "{created:?}");
    let direct = of(&all, "directAuthMutation");
    let mut document = zoe;
    document.insert("credentials", "xxx");
    let mut changed = document.clone();
    changed.insert("customData", doc! { "a": 1_i64 });
    let ns = "admin.system.users";
    for (operation, document) in [
        ("insert", &document),
        ("update", &changed),
        ("remove", &changed),
    ] {
        let param = doc! { "document": document, "ns": ns, "operation": operation };
        ensure!(direct.contains(&(&param, 0)), "{operation}: {direct:?}");
    }
    ensure!(direct.len() == 3, "{direct:?}");
    let logins = of(&all, "authenticate");
    let as_alice = doc! { "user": "alice", "db": "admin", "mechanism": "SCRAM-SHA-256" };
    ensure!(logins.contains(&(&as_alice, 0)), "{logins:?}");
    ensure!(logins.contains(&(&as_alice, 18)), "{logins:?}");
    let checks = of(&all, "authCheck");
    let checked = |command: &str, result: i64| {
        checks
            .iter()
            .any(|(param, code)| param.get_str("command").ok() == Some(command) && *code == result)
    };
    ensure!(checked("insert", 13) && checked("insert", 0), "{checks:?}");
    let by_alice = all.iter().find(|event| {
        let param = event.get_document("param").expect("a param");
        event.get_i64("result").ok() == Some(13) && param.get_str("command").ok() == Some("insert")
    });
    let by_alice = by_alice.context("a refusal")?;
    let users = vec![bson::Bson::from(doc! { "user": "alice", "db": "admin" })];
    ensure!(by_alice.get_array("users")? == &users, "{by_alice}");
    Ok(())
}

#[tokio::test]
async fn a_signal_begins_a_new_audit_log_that_says_where_the_old_one_is() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("audit.json");
    let at = path.to_str().context("a path in UTF-8")?;
    let launch = Launch::mongod().with(["--auditDestination", "file"]);
    let launch = launch.with(["--auditFormat", "JSON", "--auditPath", at]);
    let mongod = launch.start().await;
    nix::sys::signal::kill(mongod.pid(), nix::sys::signal::Signal::SIGUSR1)?;
    let rotation = eventually("the new file has begun", || async {
        let all = events(&path)?;
        let first = all.first().context("not yet")?;
        ensure!(first.get_str("atype")? == "rotateLog", "{first}");
        let by = first.get_document("remote")?;
        ensure!(by == &doc! { "isSystemUser": true }, "{by}");
        Ok::<_, anyhow::Error>(first.get_document("param")?.clone())
    })
    .await;
    let status = rotation.get_document("logRotationStatus")?;
    let before = events(Path::new(status.get_str("rotatedLogPath")?))?;
    ensure!(of(&before, "startup").len() == 1, "{before:?}");
    Ok(())
}

/// What a process has said of a kind on its standard output.
fn told(process: &Process, action: &str) -> Result<Vec<Document>> {
    let log = process.log();
    let kind = format!(r#"{{"atype":"{action}""#);
    log.lines()
        .filter(|line| line.starts_with(&kind))
        .map(parse)
        .collect()
}

#[tokio::test]
async fn a_router_notes_what_clients_do_and_other_processes_whom_it_speaks_for() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let key = key_file(folder.path(), "key", "Y2x1c3RlciBrZXk=")?;
    let key = key.to_str().context("a path in UTF-8")?;
    let shape = ClusterShape {
        shards: 1,
        ..ClusterShape::default()
    };
    let every = ["--keyFile", key, "--auditDestination", "console"];
    let cluster = Cluster::start_with(shape, &every).await;
    let root = make_root(&cluster.router).await?;
    make_user(&root, "alice", vec![role("readWrite", "test")]).await?;

    let path = folder.path().join("audit.json");
    let at = path.to_str().context("a path in UTF-8")?;
    let launch = Launch::mongos(&cluster.config.connection_string());
    let launch = launch.with(["--keyFile", key, "--auditDestination", "file"]);
    let launch = launch.with(["--auditFormat", "JSON", "--auditPath", at]);
    let launch = launch.with(["--setParameter", "auditAuthorizationSuccess=true"]);
    let mut router = launch.start().await;
    let alice = client(&router, "alice").await;
    let insert = doc! { "insert": "c", "documents": [{ "a": 1 }] };
    expect(&alice, "test", insert.clone(), 0).await?;
    expect(&alice, "other", insert, UNAUTHORIZED).await?;
    let wrong = login(&router, "alice", "wrong", Some(AuthMechanism::ScramSha256)).await;
    expect(&wrong, "test", doc! { "find": "c" }, AUTHENTICATION_FAILED).await?;
    let leaving = client(&router, "alice").await;
    expect(&leaving, "admin", doc! { "logout": 1 }, 0).await?;
    let root = client(&router, "root").await;
    for command in [
        doc! { "logApplicationMessage": "a word of ours" },
        doc! { "logRotate": "audit" },
    ] {
        expect(&root, "admin", command, 0).await?;
    }
    let off = doc! { "setParameter": 1, "auditAuthorizationSuccess": false };
    expect(&root, "admin", off, 0).await?;
    expect(&root, "test", doc! { "find": "unseen" }, 0).await?;
    router.stop().await;

    let after = events(&path)?;
    let [(rotation, 0)] = of(&after, "rotateLog")[..] else {
        anyhow::bail!("{after:?}");
    };
    ensure!(of(&after, "shutdown").len() == 1, "{after:?}");
    let unseen = after
        .iter()
        .find(|event| event.to_string().contains("unseen"));
    ensure!(unseen.is_none(), "{unseen:?}");
    let moved = rotation
        .get_document("logRotationStatus")?
        .get_str("rotatedLogPath")?;
    let all = events(Path::new(moved))?;
    ensure!(of(&all, "startup").len() == 1, "{all:?}");
    ensure!(!of(&all, "clientMetadata").is_empty(), "{all:?}");
    let said = of(&all, "applicationMessage");
    ensure!(said == [(&doc! { "msg": "a word of ours" }, 0)], "{said:?}");
    let logins = of(&all, "authenticate");
    let as_alice = doc! { "user": "alice", "db": "admin", "mechanism": "SCRAM-SHA-256" };
    ensure!(logins.contains(&(&as_alice, 0)), "{logins:?}");
    ensure!(logins.contains(&(&as_alice, 18)), "{logins:?}");
    let users = vec![bson::Bson::from(doc! { "user": "alice", "db": "admin" })];
    let roles = vec![bson::Bson::from(role("readWrite", "test"))];
    let left = of(&all, "logout").into_iter().find(|(param, _)| {
        param.get_str("reason").ok() == Some("Logging out on user request")
            && param.get_array("initialUsers").ok() == Some(&users)
            && param.get_array("updatedUsers").is_ok_and(Vec::is_empty)
    });
    ensure!(left.is_some(), "{all:?}");
    for result in [0, 13] {
        let check = all.iter().find(|event| {
            let command = event
                .get_document("param")
                .and_then(|p| p.get_str("command"));
            event.get_str("atype").ok() == Some("authCheck")
                && command.ok() == Some("insert")
                && event.get_i64("result").ok() == Some(result)
        });
        let check = check.with_context(|| format!("no check with {result}: {all:?}"))?;
        ensure!(check.get_array("users")? == &users, "{check}");
        ensure!(check.get_array("roles")? == &roles, "{check}");
    }

    // Elsewhere the router logs in as a member, and what is done is its client's.
    let shard = &cluster.shards[0].members[0];
    let created = told(shard, "createCollection")?;
    let made = doc! { "ns": "test.c" };
    let by_alice = created
        .iter()
        .find(|event| event.get_document("param").ok() == Some(&made))
        .with_context(|| format!("{created:?}"))?;
    ensure!(by_alice.get_array("users")? == &users, "{by_alice}");
    ensure!(by_alice.get_array("roles")? == &roles, "{by_alice}");
    let created = told(&cluster.config.members[0], "createUser")?;
    let root = vec![bson::Bson::from(doc! { "user": "root", "db": "admin" })];
    let by_root = created
        .iter()
        .find(|event| event.to_string().contains("alice"))
        .with_context(|| format!("{created:?}"))?;
    ensure!(by_root.get_array("users")? == &root, "{by_root}");
    // The first user was made by somebody who had not logged in.
    let first = created.first().context("the first user")?;
    let param = first.get_document("param")?;
    ensure!(param.get_str("user").ok() == Some("root"), "{first}");
    for named in ["users", "roles"] {
        ensure!(first.get_array(named)?.is_empty(), "{first}");
    }
    Ok(())
}

#[tokio::test]
async fn a_login_by_certificate_is_in_the_audit_log() -> Result<()> {
    let certificates = certificates();
    let launch = sealed(Launch::mongod(), &certificates);
    let launch = launch.with(["--auth", "--auditDestination", "console"]);
    let server = launch.start().await;
    let nobody = server.direct().await;
    let root = doc! { "createUser": "root", "pwd": PASSWORD, "roles": ["root"] };
    nobody.database("admin").run_command(root).await?;
    let uri = server.uri();
    let uri = uri.replacen("mongodb://", "mongodb://root:a%20long%20secret@", 1);
    let root = connect(&format!("{uri}&authSource=admin")).await;
    let create = doc! { "createUser": ALICE, "roles": [role("readWrite", "test")] };
    root.database("$external").run_command(create).await?;
    let alice = connect(&logging_in(&server, &certificates, "alice")).await;
    expect(&alice, "test", doc! { "find": "c" }, 0).await?;
    let bob = shows(&server, &certificates, "bob").await;
    let authenticate = doc! { "authenticate": 1, "mechanism": "MONGODB-X509" };
    expect(&bob, "$external", authenticate, USER_NOT_FOUND).await?;
    let logins = told(&server, "authenticate")?;
    let logins = of(&logins, "authenticate");
    let mechanism = "MONGODB-X509";
    let of_user = |user: &str| doc! { "user": user, "db": "$external", "mechanism": mechanism };
    ensure!(logins.contains(&(&of_user(ALICE), 0)), "{logins:?}");
    let bob = of_user(&ALICE.replace("alice", "bob"));
    let refused = i64::from(USER_NOT_FOUND);
    ensure!(logins.contains(&(&bob, refused)), "{logins:?}");
    Ok(())
}

#[tokio::test]
async fn a_filter_says_what_is_kept_and_bson_holds_it_whole() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("audit.bson");
    let config = folder.path().join("config.yaml");
    let at = path.display();
    let text = format!(
        "auditLog:\n  destination: file\n  format: BSON\n  path: {at}\n  \
         filter: '{{ atype: {{ $in: [ \"createCollection\", \"dropCollection\" ] }}, \
         \"param.ns\": {{ $regex: \"^kept\\\\.\" }} }}'\n"
    );
    fs::write(&config, text)?;
    let config = config.to_str().context("a path in UTF-8")?;
    let mut mongod = Launch::mongod().with(["--config", config]).start().await;
    let client = mongod.direct().await;
    for database in ["other", "kept"] {
        let database = client.database(database);
        database.run_command(doc! { "create": "c" }).await?;
        database.run_command(doc! { "drop": "c" }).await?;
    }
    mongod.stop().await;
    let bytes = fs::read(&path)?;
    let mut rest = &bytes[..];
    let mut kept = Vec::new();
    while !rest.is_empty() {
        let event = Document::from_reader(&mut rest)?;
        kept.push(event.get_str("atype")?.to_owned());
        ensure!(
            matches!(event.get("ts"), Some(bson::Bson::DateTime(_))),
            "{event}"
        );
    }
    ensure!(kept == ["createCollection", "dropCollection"], "{kept:?}");
    Ok(())
}

#[test]
fn flags_that_make_no_audit_log_are_refused() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("audit");
    let at = path.to_str().context("a path in UTF-8")?;
    let file = ["--auditDestination", "file"];
    for (flags, said) in [
        (&["--auditPath", at][..], "auditDestination"),
        (&[file[0], file[1]], "auditFormat"),
        (&[file[0], file[1], "--auditFormat", "JSON"], "auditPath"),
        (
            &["--auditDestination", "console", "--auditFilter", "{"],
            "auditFilter",
        ),
        (
            &[
                "--auditDestination",
                "console",
                "--auditFilter",
                "{a: {$no: 1}}",
            ],
            "$no",
        ),
        (&["--auditDestination", "nowhere"], "nowhere"),
    ] {
        let port = free_port().to_string();
        let data = folder.path().join("data");
        fs::create_dir_all(&data)?;
        let mut command = Command::new(program("mongod"));
        command.args(["--port", &port, "--dbpath"]).arg(&data);
        let output = command.args(flags).output()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(
            output.status.code() == Some(2),
            "{flags:?}: {}\n{text}",
            output.status
        );
        ensure!(text.contains(said), "{flags:?}: {text}");
    }
    Ok(())
}
