//! Clusters whose clients and processes prove who they are by certificates.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use banyan_tests::{
    Certificates, Cluster, ClusterShape, Launch, Process, connect, eventually, program,
};
use bson::{Bson, Document, doc};
use mongodb::Client;

use super::certificates::*;
use super::*;

const BOB: &str = "CN=bob,OU=people,O=Acme";
const KEY: &str = "Y2x1c3RlciBrZXk=";

/// Every process of it shows a certificate of `OU=db` to the others.
fn proving(launch: Launch, certificates: &Certificates, mode: &[&str]) -> Launch {
    let member = certificates.at("member.pem");
    sealed(launch, certificates)
        .with(["--tlsClusterFile", &member])
        .with_all(mode)
}

const BY_CERTIFICATES: &[&str] = &["--clusterAuthMode", "x509"];

async fn logged_in(process: &Process, certificates: &Certificates, who: &str) -> Client {
    connect(&logging_in(process, certificates, who)).await
}

/// Alice may do everything; she is made through the router, by whoever sits beside it.
async fn make_alice(cluster: &Cluster, certificates: &Certificates) -> Result<Client> {
    let create = doc! { "createUser": ALICE, "roles": [role("root", "admin")] };
    let nobody = cluster.client().await;
    nobody.database("$external").run_command(create).await?;
    Ok(logged_in(&cluster.router, certificates, "alice").await)
}

#[tokio::test]
async fn users_and_processes_of_a_cluster_show_certificates() -> Result<()> {
    let certificates = certificates();
    let proving = |launch| proving(launch, &certificates, BY_CERTIFICATES);
    let cluster = Cluster::start_as(ClusterShape::default(), proving).await;
    let router = &cluster.router;
    let alice = make_alice(&cluster, &certificates).await?;
    ensure!(who_is(&alice).await? == [format!("{ALICE}@$external")]);
    ensure!(
        router.log().contains(r#""mechanism":"MONGODB-X509""#),
        "{}",
        router.log()
    );

    // Router, config server and shards talk to each other.
    let admin = alice.database("admin");
    for command in [
        doc! { "enableSharding": "test" },
        doc! { "shardCollection": "test.c", "key": { "_id": "hashed" } },
    ] {
        admin.run_command(command).await?;
    }
    let documents: Vec<Document> = (0..100).map(|n| doc! { "_id": n }).collect();
    let insert = doc! { "insert": "c", "documents": documents };
    expect(&alice, "test", insert, 0).await?;
    for shard in &cluster.shards {
        let member = logged_in(&shard.members[0], &certificates, "member").await;
        let test = member.database("test");
        let counted = test.run_command(doc! { "count": "c" }).await?;
        ensure!(counted.get_i32("n")? > 0, "{counted}");
    }
    counted_by_pymongo(logging_in(router, &certificates, "alice"), 100).await?;
    logs_in_with_hello(router, &certificates).await?;

    // A user may what its roles say, and its cursors on the shards are its own.
    let external = alice.database("$external");
    let create = doc! { "createUser": BOB, "roles": [role("readWrite", "test")] };
    external.run_command(create).await?;
    let bob = logged_in(router, &certificates, "bob").await;
    let find = doc! { "find": "c", "batchSize": 2 };
    let opened = bob.database("test").run_command(find.clone()).await?;
    expect(&bob, "other", find, UNAUTHORIZED).await?;
    let id = opened.get_document("cursor")?.get_i64("id")?;
    ensure!(id != 0, "{opened}");
    let kill = doc! { "killCursors": "c", "cursors": [id] };
    make_user(&alice, "carl", vec![role("readWrite", "test")]).await?;
    let carl = {
        let uri = router.uri();
        let uri = uri.replacen("mongodb://", "mongodb://carl:a%20long%20secret@", 1);
        connect(&format!("{uri}&authSource=admin")).await
    };
    expect(&carl, "test", kill.clone(), UNAUTHORIZED).await?;
    expect(&bob, "test", kill, 0).await?;

    // One that is dropped has left, on every router.
    external.run_command(doc! { "dropUser": BOB }).await?;
    eventually("bob has left", || async {
        let users = who_is(&bob).await?;
        ensure!(users.is_empty(), "{users:?}");
        Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn a_router_believes_certificates_as_data_nodes_do() -> Result<()> {
    let certificates = certificates();
    let proving = |launch| proving(launch, &certificates, BY_CERTIFICATES);
    let shape = ClusterShape {
        shards: 1,
        ..ClusterShape::default()
    };
    let cluster = Cluster::start_as(shape, proving).await;
    let router = &cluster.router;
    let alice = make_alice(&cluster, &certificates).await?;

    let external = "$external";
    let claim = |user: Option<&str>| {
        let mut claim = doc! { "authenticate": 1, "mechanism": "MONGODB-X509" };
        claim.extend(user.map(|user| ("user".to_owned(), Bson::from(user))));
        claim
    };
    let shown = shows(router, &certificates, "alice").await;
    expect(&shown, external, claim(Some(BOB)), AUTHENTICATION_FAILED).await?;
    expect(&shown, "admin", claim(None), PROTOCOL_ERROR).await?;
    let bob = shows(router, &certificates, "bob").await;
    expect(&bob, external, claim(None), USER_NOT_FOUND).await?;
    for (mechanism, code) in [("SCRAM-SHA-1", 2), ("PLAIN", 334), ("MONGODB-CR", 334)] {
        let command = doc! { "authenticate": 1, "mechanism": mechanism, "user": "root" };
        expect(&bob, "admin", command, code).await?;
    }
    expect(&bob, external, conversation(), 334).await?;
    let list = doc! { "listShards": 1 };
    expect(&bob, "admin", list.clone(), UNAUTHORIZED).await?;

    // A certificate of the cluster is a member's, once it is meant.
    let member = shows(router, &certificates, "member").await;
    expect(&member, "admin", list.clone(), UNAUTHORIZED).await?;
    let entered = logged_in(router, &certificates, "member").await;
    expect(&entered, "admin", list, 0).await?;
    ensure!(who_is(&entered).await? == ["__system@local"]);
    let create = doc! { "createUser": "CN=x,OU=db,O=Acme", "roles": [] };
    expect(&alice, external, create, 2).await?;

    let admin = alice.database("admin");
    let asked = doc! { "getParameter": 1, "authenticationMechanisms": 1, "clusterAuthMode": 1 };
    let asked = admin.run_command(asked).await?;
    let mechanisms = asked.get_array("authenticationMechanisms")?;
    ensure!(mechanisms.contains(&Bson::from("MONGODB-X509")), "{asked}");
    ensure!(asked.get_str("clusterAuthMode")? == "x509", "{asked}");
    let back = doc! { "setParameter": 1, "clusterAuthMode": "sendX509" };
    expect(&alice, "admin", back, 2).await?;

    // A router that shows a user's certificate is none of the cluster.
    let stranger = certificates.at("bob.pem");
    let launch = Launch::mongos(&cluster.config.connection_string());
    let launch = sealed(launch, &certificates).with_all(BY_CERTIFICATES);
    let mut stranger = launch.with(["--tlsClusterFile", &stranger]).prepare();
    stranger.spawn();
    eventually("the router says why it waits", || async {
        let log = stranger.log();
        ensure!(log.contains("take this process's certificate"), "{log}");
        Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn a_cluster_with_a_key_goes_over_to_certificates() -> Result<()> {
    let certificates = certificates();
    let key = key_file(certificates.path("").as_path(), "key", KEY)?;
    let key = key.display().to_string();
    let mode = ["--keyFile", &key, "--clusterAuthMode", "sendKeyFile"];
    let shape = ClusterShape {
        shards: 1,
        ..ClusterShape::default()
    };
    let cluster = Cluster::start_as(shape, |launch| proving(launch, &certificates, &mode)).await;
    let alice = make_alice(&cluster, &certificates).await?;
    let write = async |id: &str| -> Result<()> {
        let insert = doc! { "insert": "c", "documents": [{ "_id": id }] };
        expect(&alice, "test", insert, 0).await
    };
    write("by the key").await?;
    let members = [&cluster.config, &cluster.shards[0]];
    let members = members.into_iter().flat_map(|set| &set.members);
    let all: Vec<&Process> = members.chain([&cluster.router]).collect();
    for (mode, before) in [("sendX509", "sendKeyFile"), ("x509", "sendX509")] {
        for process in &all {
            let member = logged_in(process, &certificates, "member").await;
            let change = doc! { "setParameter": 1, "clusterAuthMode": mode };
            let was = member.database("admin").run_command(change).await?;
            ensure!(was.get_str("was")? == before, "{was}");
            write(&format!("{mode} {}", process.port)).await?;
        }
    }
    // From now on the key opens nothing; a router with a certificate needs none.
    let other = |mode: &[&str]| {
        let launch = Launch::mongos(&cluster.config.connection_string());
        proving(launch, &certificates, mode)
    };
    let mut keyed = other(&["--keyFile", &key]).prepare();
    keyed.spawn();
    eventually("the router says why it waits", || async {
        ensure!(
            keyed.log().contains("does not share a key"),
            "{}",
            keyed.log()
        );
        Ok(())
    })
    .await;
    let second = other(BY_CERTIFICATES).start().await;
    let alice = logged_in(&second, &certificates, "alice").await;
    let test = alice.database("test");
    let counted = test.run_command(doc! { "count": "c" }).await?;
    ensure!(counted.get_i32("n")? == 7, "{counted}");
    Ok(())
}

#[test]
fn a_router_refuses_flags_that_do_not_go_together() -> Result<()> {
    let certificates = certificates();
    let (own, authority) = (certificates.at("server.pem"), certificates.at("ca.pem"));
    let files = ["--tlsCertificateKeyFile", &own, "--tlsCAFile", &authority];
    for (flags, with_files, said) in [
        (BY_CERTIFICATES, false, "need to enable TLS"),
        (
            &["--clusterAuthMode", "sendX509", "--tlsMode", "requireTLS"],
            true,
            "--keyFile",
        ),
        (
            &["--clusterAuthMode", "x509", "--tlsMode", "allowTLS"],
            true,
            "allowTLS mode",
        ),
        (&["--transitionToAuth"], false, "--clusterAuthMode x509"),
    ] {
        let mut command = Command::new(program("mongos"));
        command.args(["--configdb", "c/127.0.0.1:1"]).args(flags);
        if with_files {
            command.args(files);
        }
        let output = command.output().context("mongos runs")?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned()
            + &String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.code() == Some(2), "{flags:?}: {output:?}");
        ensure!(text.contains(said), "{flags:?}: {text}");
    }
    Ok(())
}
