//! Users: the first one, how they log in, what they are refused, and how that changes.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use banyan_tests::{Launch, connect, program, repository};
use bson::{Bson, doc};
use mongodb::options::AuthMechanism;

use super::*;

#[tokio::test]
async fn the_first_user_is_made_at_the_machine_itself_and_asks_for_a_login() -> Result<()> {
    let mongod = standalone().await;
    let nobody = mongod.direct().await;
    expect(&nobody, "test", doc! { "find": "c" }, UNAUTHORIZED).await?;
    let elsewhere = doc! { "createUser": "a", "pwd": "x", "roles": [] };
    expect(&nobody, "test", elsewhere, UNAUTHORIZED).await?;
    let root = make_root(&mongod).await?;
    let second = doc! { "createUser": "b", "pwd": "x", "roles": [] };
    let said = refusal(&nobody, "admin", second).await?;
    ensure!(
        said == "command createUser requires authentication",
        "{said}"
    );

    for mechanism in [AuthMechanism::ScramSha1, AuthMechanism::ScramSha256] {
        let good = login(&mongod, "root", PASSWORD, Some(mechanism.clone())).await;
        expect(&good, "test", doc! { "find": "c" }, 0).await?;
        let wrong = login(&mongod, "root", "wrong", Some(mechanism.clone())).await;
        expect(&wrong, "test", doc! { "find": "c" }, AUTHENTICATION_FAILED).await?;
        let unknown = login(&mongod, "nobody", PASSWORD, Some(mechanism)).await;
        expect(
            &unknown,
            "test",
            doc! { "find": "c" },
            AUTHENTICATION_FAILED,
        )
        .await?;
    }
    let log = mongod.log();
    ensure!(
        log.contains("Authentication failed") && log.contains("127.0.0.1"),
        "{log}"
    );
    ensure!(!log.contains(PASSWORD), "a password is in the log");

    let status = doc! { "connectionStatus": 1, "showPrivileges": true };
    let status = root.database("admin").run_command(status).await?;
    let info = status.get_document("authInfo")?;
    let users = vec![Bson::from(doc! { "user": "root", "db": "admin" })];
    ensure!(info.get_array("authenticatedUsers")? == &users, "{info}");
    let roles = vec![Bson::from(role("root", "admin"))];
    ensure!(
        info.get_array("authenticatedUserRoles")? == &roles,
        "{info}"
    );
    ensure!(
        info.get_array("authenticatedUserPrivileges")?.len() > 10,
        "{info}"
    );
    Ok(())
}

#[tokio::test]
async fn what_is_given_and_taken_holds_for_who_is_logged_in() -> Result<()> {
    let mongod = standalone().await;
    let root = make_root(&mongod).await?;
    let admin = root.database("admin");
    make_user(&root, "alice", vec![]).await?;
    let alice = client(&mongod, "alice").await;
    let (find, insert) = (
        doc! { "find": "c" },
        doc! { "insert": "c", "documents": [{ "a": 1 }] },
    );
    let said = refusal(&alice, "test", find.clone()).await?;
    ensure!(
        said.starts_with("not authorized on test to execute command {\"find\":\"c\""),
        "{said}"
    );
    let grant = |what: &str| doc! { "grantRolesToUser": "alice", "roles": [role(what, "test")] };
    admin.run_command(grant("read")).await?;
    expect(&alice, "test", find.clone(), 0).await?;
    expect(&alice, "test", insert.clone(), UNAUTHORIZED).await?;

    // Through a role of one's own, too.
    let test = root.database("test");
    let writes = doc! {
        "createRole": "writes", "roles": [],
        "privileges": [{ "resource": { "db": "test", "collection": "c" }, "actions": ["insert"] }],
    };
    test.run_command(writes).await?;
    admin.run_command(grant("writes")).await?;
    expect(&alice, "test", insert.clone(), 0).await?;
    let other = doc! { "insert": "d", "documents": [{ "a": 1 }] };
    expect(&alice, "test", other, UNAUTHORIZED).await?;
    let take = doc! {
        "revokePrivilegesFromRole": "writes",
        "privileges": [{ "resource": { "db": "test", "collection": "c" }, "actions": ["insert"] }],
    };
    test.run_command(take).await?;
    expect(&alice, "test", insert.clone(), UNAUTHORIZED).await?;
    test.run_command(doc! { "dropRole": "writes" }).await?;
    let shown = admin.run_command(doc! { "usersInfo": "alice" }).await?;
    let shown = shown.get_array("users")?[0]
        .as_document()
        .expect("a user")
        .clone();
    ensure!(
        shown.get_array("roles")? == &vec![Bson::from(role("read", "test"))],
        "{shown}"
    );
    ensure!(!shown.contains_key("credentials"), "{shown}");

    // A password that is changed is asked for at the next login; who is gone is gone at once.
    let change = doc! { "updateUser": "alice", "pwd": "another one" };
    admin.run_command(change).await?;
    expect(&alice, "test", find.clone(), 0).await?;
    let old = client(&mongod, "alice").await;
    expect(&old, "test", find.clone(), AUTHENTICATION_FAILED).await?;
    admin.run_command(doc! { "dropUser": "alice" }).await?;
    let said = refusal(&alice, "test", find.clone()).await?;
    ensure!(said == "command find requires authentication", "{said}");
    make_user(&root, "alice", vec![role("read", "test")]).await?;
    let said = refusal(&alice, "test", find).await?;
    ensure!(
        said == "command find requires authentication",
        "another user: {said}"
    );
    Ok(())
}

#[tokio::test]
async fn users_survive_a_restart_and_dropping_them_all_locks_nobody_out_for_good() -> Result<()> {
    let mut mongod = standalone().await;
    let root = make_root(&mongod).await?;
    root.database("test")
        .run_command(doc! { "insert": "c", "documents": [{}] })
        .await?;
    mongod.stop().await;
    mongod.start().await;
    let root = client(&mongod, "root").await;
    expect(&root, "test", doc! { "find": "c" }, 0).await?;
    make_user(&root, "keeper", vec![role("__system", "admin")]).await?;
    let keeper = client(&mongod, "keeper").await;
    let (from, to) = ("admin.system.users", "admin.others");
    for command in [
        doc! { "drop": "system.users" },
        doc! { "dropDatabase": 1 },
        doc! { "renameCollection": from, "to": to },
        doc! { "renameCollection": to, "to": from, "dropTarget": true },
    ] {
        expect(&keeper, "admin", command, 20).await?;
    }
    let admin = root.database("admin");
    let dropped = admin
        .run_command(doc! { "dropAllUsersFromDatabase": 1 })
        .await?;
    ensure!(dropped.get_i32("n")? == 2);
    expect(&root, "test", doc! { "find": "c" }, UNAUTHORIZED).await?;
    make_root(&mongod).await?;
    Ok(())
}

#[tokio::test]
async fn a_user_may_come_from_the_addresses_that_its_restrictions_name() -> Result<()> {
    let mongod = standalone().await;
    let root = make_root(&mongod).await?;
    for (name, address, expected) in [
        ("near", "127.0.0.0/8", 0),
        ("far", "192.0.2.0/24", AUTHENTICATION_FAILED),
    ] {
        let create = doc! {
            "createUser": name, "pwd": PASSWORD, "roles": [role("read", "test")],
            "authenticationRestrictions": [{ "clientSource": [address] }],
        };
        root.database("admin").run_command(create).await?;
        let user = client(&mongod, name).await;
        expect(&user, "test", doc! { "find": "c" }, expected).await?;
    }
    Ok(())
}

#[tokio::test]
async fn names_cannot_be_probed() -> Result<()> {
    let mongod = standalone().await;
    make_root(&mongod).await?;
    let admin = mongod.direct().await.database("admin");
    let mut salts = Vec::new();
    for user in ["root", "nobody", "nobody", "somebody"] {
        let payload = bson::Binary {
            subtype: bson::spec::BinarySubtype::Generic,
            bytes: format!("n,,n={user},r=abcdefgh").into_bytes(),
        };
        let start = doc! { "saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": payload };
        let reply = admin.run_command(start).await?;
        ensure!(!reply.get_bool("done")?, "{reply}");
        let text = String::from_utf8(reply.get_binary_generic("payload")?.clone())?;
        let parts: Vec<&str> = text.split(',').collect();
        ensure!(parts[2] == "i=15000" && parts[1].len() == 42, "{text}");
        salts.push(parts[1].to_owned());
        let hello = doc! { "hello": 1, "saslSupportedMechs": format!("admin.{user}") };
        let hello = admin.run_command(hello).await?;
        ensure!(hello.get_array("saslSupportedMechs")?.len() == 2, "{hello}");
    }
    ensure!(salts[1] == salts[2] && salts[1] != salts[3] && salts[0] != salts[1]);
    let old = doc! { "authenticate": 1, "user": "root", "nonce": "a", "key": "b" };
    let said = refusal(&mongod.direct().await, "admin", old).await?;
    ensure!(said.contains("MONGODB-CR is not supported"), "{said}");
    Ok(())
}

#[tokio::test]
async fn without_auth_nobody_is_asked_and_who_wants_to_may_log_in() -> Result<()> {
    let mongod = Launch::mongod().start().await;
    let nobody = mongod.direct().await;
    expect(&nobody, "test", doc! { "find": "c" }, 0).await?;
    let root = make_root(&mongod).await?;
    expect(&nobody, "test", doc! { "find": "c" }, 0).await?;
    let status = root
        .database("admin")
        .run_command(doc! { "connectionStatus": 1 })
        .await?;
    ensure!(
        status
            .get_document("authInfo")?
            .get_array("authenticatedUsers")?
            .len()
            == 1
    );
    Ok(())
}

#[tokio::test]
async fn pymongo_and_mongosh_make_users_and_log_in() -> Result<()> {
    let mongod = standalone().await;
    let host = mongod.host();
    let clients = repository().join("tests/clients");
    let mut python = std::process::Command::new(repository().join(".venv/bin/python"));
    python.arg(clients.join("pymongo_access.py")).arg(&host);
    let mut mongosh =
        std::process::Command::new(repository().join(".node/node_modules/.bin/mongosh"));
    mongosh.env("HOME", std::env::temp_dir());
    let uri = format!(
        "mongodb://root:{}@{host}/admin",
        PASSWORD.replace(' ', "%20")
    );
    mongosh
        .args(["--quiet", "--norc", &uri])
        .arg(clients.join("mongosh_access.js"));
    for mut command in [python, mongosh] {
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success() && said.ends_with("access complete\n"),
            "{said}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let uri = format!("mongodb://{host}/?directConnection=true");
    expect(
        &connect(&uri).await,
        "test",
        doc! { "find": "c" },
        UNAUTHORIZED,
    )
    .await?;
    Ok(())
}

/// What the shell prints for a script, with something typed at it.
fn shell(server: &Process, flags: &[&str], script: &str, typed: &str) -> Result<String> {
    let mut command = Command::new(program("mongo"));
    command.args(flags).arg(format!("{}/admin", server.host()));
    command.args(["--quiet", "--eval", script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut running = command.stderr(Stdio::piped()).spawn()?;
    let mut input = running.stdin.take().context("its input")?;
    input.write_all(typed.as_bytes())?;
    drop(input);
    let output = running.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    ensure!(!said.contains(PASSWORD), "{said}");
    Ok(said)
}

#[tokio::test]
async fn the_shell_makes_users_and_logs_in() -> Result<()> {
    let server = standalone().await;
    let typed = format!("{PASSWORD}\n");
    let create =
        r#"print(db.createUser({user: "root", pwd: passwordPrompt(), roles: ["root"]}).ok)"#;
    let made = shell(&server, &[], create, &typed)?;
    ensure!(made.lines().any(|line| line == "1"), "{made}");
    let who = "print(db.runCommand({connectionStatus: 1}).authInfo.authenticatedUsers[0].user)";
    for (flags, typed) in [
        (&["-u", "root", "-p", PASSWORD][..], ""),
        (&["-u", "root"], &typed),
        (
            &["-u", "root", "--authenticationMechanism", "SCRAM-SHA-1"],
            &typed,
        ),
    ] {
        let said = shell(&server, flags, who, typed)?;
        ensure!(said.contains("root\n"), "{flags:?}: {said}");
    }
    let roles = "var shop = db.getSiblingDB('shop');
        shop.createRole({role: 'clerk', privileges: [], roles: ['read']});
        shop.createUser({user: 'tom', pwd: 'pw', roles: ['clerk']});
        shop.grantRolesToUser('tom', 'readWrite');
        print(shop.getRole('clerk').roles[0].role, shop.getUser('tom').roles.length, shop.getUsers().length);
        shop.dropUser('tom'); shop.dropRole('clerk');
        print(shop.getUser('tom'), shop.getRoles().length)";
    let said = shell(&server, &["-u", "root", "-p", PASSWORD], roles, "")?;
    ensure!(said.contains("read 2 1\nnull 0\n"), "{said}");
    let refused = shell(&server, &["-u", "root", "-p", "wrong"], who, "")?;
    ensure!(refused.contains("Authentication failed"), "{refused}");
    Ok(())
}
