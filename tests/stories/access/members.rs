//! Sets whose members share a key file.

use std::process::Command;

use anyhow::{Result, ensure};
use banyan_tests::{ReplicaSet, eventually, program};
use bson::{DateTime, doc};

use super::*;

const FIRST: &str = "bmVpdGhlciBvbGQ=";
const SECOND: &str = "bm9yIG5ldyBrZXk=";

#[tokio::test]
async fn members_know_each_other_and_strangers_can_send_them_nothing() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let key = key_file(directory.path(), "key", FIRST)?;
    let key = key.display().to_string();
    let set = ReplicaSet::start("keyed", 3, &["--keyFile", &key]).await;
    let primary = set.primary().await;
    let root = make_root(&set.members[primary]).await?;
    make_user(&root, "alice", vec![role("readWrite", "test")]).await?;
    let alice = client(&set.members[primary], "alice").await;
    let insert = doc! { "insert": "c", "documents": [{ "_id": 1 }],
    "writeConcern": { "w": 3, "wtimeout": 20_000 } };
    alice.database("test").run_command(insert).await?;

    // Secondaries know the users, and what has changed since somebody logged in.
    let secondary = (primary + 1) % 3;
    let there = client(&set.members[secondary], "alice").await;
    let read = doc! { "find": "c" };
    expect(&there, "test", read.clone(), 0).await?;
    let revoke = doc! { "revokeRolesFromUser": "alice", "roles": [role("readWrite", "test")],
    "writeConcern": { "w": 3, "wtimeout": 20_000 } };
    root.database("admin").run_command(revoke).await?;
    expect(&there, "test", read, UNAUTHORIZED).await?;

    // Root may much, but is no member.
    for user in [root.clone(), set.members[primary].direct().await] {
        for command in [
            doc! { "replSetHeartbeat": "keyed", "from": "x:1", "term": 1_i64 << 60 },
            doc! { "_raftMessages": 1, "to": 1, "messages": [] },
            doc! { "_fetchSnapshot": 1 },
            doc! { "_appliedProgress": 1, "after": 0 },
            doc! { "_giveLead": 1 },
            doc! { "_expireDocuments": "c", "index": "at", "before": DateTime::now(), "most": 1 },
            doc! { "voteCommitIndexBuild": "x" },
            doc! { "replSetGetRBID": 1 },
        ] {
            expect(&user, "admin", command, UNAUTHORIZED).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn keys_are_exchanged_one_member_after_the_other() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = key_file(directory.path(), "key", FIRST)?;
    let key = path.display().to_string();
    let mut set = ReplicaSet::start("rotated", 3, &["--keyFile", &key]).await;
    let both = format!("- {FIRST}\n- {SECOND}\n");
    let turned = format!("- {SECOND}\n- {FIRST}\n");
    let primary = set.primary().await;
    make_root(&set.members[primary]).await?;
    for text in [&both, &turned, SECOND] {
        fs::write(&path, text)?;
        for member in 0..3 {
            set.members[member].stop().await;
            set.members[member].start().await;
            let root = client(&set.members[member], "root").await;
            eventually("the member is back", || async {
                let admin = root.database("admin");
                let status = admin.run_command(doc! { "replSetGetStatus": 1 }).await?;
                let states = banyan_tests::states(&status);
                ensure!(
                    states.iter().all(|state| matches!(state, 1 | 2)),
                    "{states:?}"
                );
                Ok(())
            })
            .await;
        }
    }
    // One with the old key alone is let in by nobody, and lets nobody in.
    fs::write(&path, FIRST)?;
    set.members[0].stop().await;
    set.members[0].start().await;
    let root = client(&set.members[1], "root").await;
    eventually("the member is missed", || async {
        let status = root
            .database("admin")
            .run_command(doc! { "replSetGetStatus": 1 })
            .await?;
        let states = banyan_tests::states(&status);
        ensure!(!matches!(states[0], 1 | 2), "{states:?}");
        ensure!(
            states.iter().filter(|state| **state == 1).count() == 1,
            "{states:?}"
        );
        Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn a_set_is_changed_over_to_access_control_while_it_runs() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let key = key_file(directory.path(), "key", FIRST)?
        .display()
        .to_string();
    let set = ReplicaSet::start("changed", 2, &["--keyFile", &key, "--transitionToAuth"]).await;
    let primary = set.primary().await;
    let root = make_root(&set.members[primary]).await?;
    let nobody = set.members[primary].direct().await;
    expect(
        &nobody,
        "test",
        doc! { "insert": "c", "documents": [{}] },
        0,
    )
    .await?;
    expect(&root, "test", doc! { "find": "c" }, 0).await?;
    Ok(())
}

#[test]
fn what_would_not_protect_ends_the_start() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let data = directory.path().display().to_string();
    let good = key_file(directory.path(), "good", FIRST)?
        .display()
        .to_string();
    let open = key_file(directory.path(), "open", FIRST)?;
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644))?;
    let open = open.display().to_string();
    let short = key_file(directory.path(), "short", "abc")?
        .display()
        .to_string();
    let node = |arguments: &[&str]| {
        let all = ["--dbpath", &data]
            .into_iter()
            .chain(arguments.iter().copied());
        ("mongod", all.map(str::to_owned).collect::<Vec<_>>())
    };
    let router = |arguments: &[&str]| {
        let all = ["--configdb", "x:1"]
            .into_iter()
            .chain(arguments.iter().copied());
        ("mongos", all.map(str::to_owned).collect::<Vec<_>>())
    };
    let cases = [
        (node(&["--keyFile", &open]), "permissions are too open"),
        (node(&["--keyFile", &short]), "between 6 and 1024"),
        (node(&["--keyFile", "/no/such/file"]), "keyFile"),
        (node(&["--transitionToAuth"]), "must be used with --keyFile"),
        (node(&["--auth", "--noauth"]), "cannot be used with"),
        (node(&["--noauth", "--keyFile", &good]), "implies --auth"),
        (node(&["--auth", "--replSet", "r"]), "keyFile is required"),
        (router(&["--keyFile", &open]), "permissions are too open"),
        (router(&["--keyFile", "/no/such/file"]), "keyFile"),
        (
            router(&["--transitionToAuth"]),
            "must be used with --keyFile",
        ),
    ];
    for ((name, arguments), expected) in cases {
        let output = Command::new(program(name)).args(&arguments).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(
            output.status.code() == Some(2) && said.contains(expected),
            "{arguments:?}: {said}"
        );
    }
    Ok(())
}
