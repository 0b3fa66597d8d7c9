//! TLS between clients, members, routers and shards, as operators turn it on.

use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use banyan_tests::{
    Certificates, Launch, Process, ReplicaSet, connect, eventually, program, repository,
};
use bson::{Bson, Document, doc};
use mongodb::Client;
use mongodb::options::ClientOptions;

use crate::operating::{admin, refusal};

/// Certificates of one authority: `server.pem`, and `client.pem` for whoever asks.
fn certificates() -> Certificates {
    let certificates = Certificates::new();
    certificates.server("server.pem", "server");
    certificates.client("client.pem", "client");
    certificates
}

fn encrypted(launch: Launch, mode: &str, certificates: &Certificates) -> Launch {
    let (own, authority) = (certificates.at("server.pem"), certificates.at("ca.pem"));
    let files = ["--tlsCertificateKeyFile", &own, "--tlsCAFile", &authority];
    launch.with(["--tlsMode", mode]).with(files)
}

/// What addresses say for a client of theirs.
fn asking(certificates: &Certificates) -> String {
    let (authority, own) = (certificates.at("ca.pem"), certificates.at("client.pem"));
    format!("tls=true&tlsCAFile={authority}&tlsCertificateKeyFile={own}")
}

/// A ping of a client that does not wait for long.
async fn ping(uri: &str) -> Result<Document> {
    let mut options = ClientOptions::parse(uri).await?;
    options.server_selection_timeout = Some(Duration::from_millis(1500));
    let admin = Client::with_options(options)?.database("admin");
    Ok(admin.run_command(doc! { "ping": 1 }).await?)
}

async fn run(mut command: Command) -> Result<Output> {
    Ok(tokio::task::spawn_blocking(move || command.output()).await??)
}

async fn succeeds(command: Command) -> Result<String> {
    let output = run(command).await?;
    ensure!(output.status.success(), "{output:?}");
    Ok(String::from_utf8(output.stdout)?)
}

fn script(name: &str) -> String {
    let path = repository().join("tests/clients").join(name);
    path.to_string_lossy().into_owned()
}

fn pymongo(uri: &str) -> Command {
    let mut command = Command::new(repository().join(".venv/bin/python"));
    command.args([&*script("pymongo_tour.py"), uri]);
    command
}

fn mongosh(uri: &str) -> Command {
    let mut command = Command::new(repository().join(".node/node_modules/.bin/mongosh"));
    command.env("HOME", std::env::temp_dir());
    command.args(["--quiet", "--norc", uri, &script("shell_tour.js")]);
    command
}

fn shell(arguments: &[&str]) -> Command {
    let mut command = Command::new(program("mongo"));
    command.arg("--quiet").args(arguments);
    command
}

#[tokio::test]
async fn each_client_tours_an_encrypted_server() -> Result<()> {
    let certificates = certificates();
    let launch = encrypted(Launch::mongod(), "requireTLS", &certificates);
    let server = launch.asked_with(&asking(&certificates)).start().await;
    let (uri, host) = (server.uri(), server.host());
    ensure!(succeeds(pymongo(&uri)).await?.ends_with("tour complete\n"));
    ensure!(succeeds(mongosh(&uri)).await?.ends_with("tour complete\n"));
    let (authority, own) = (certificates.at("ca.pem"), certificates.at("client.pem"));
    let flags = [
        "--tls",
        "--tlsCAFile",
        &authority,
        "--tlsCertificateKeyFile",
        &own,
    ];
    let tour = script("shell_tour.js");
    let by_flags = succeeds(shell(&[&flags[..], &[&*host, &*tour]].concat())).await?;
    ensure!(by_flags.ends_with("tour complete\n"));
    let by_address = succeeds(shell(&[&*uri, "--eval", "db.stats().ok"])).await?;
    ensure!(by_address.trim() == "1", "{by_address}");

    // In the clear, without a certificate, with one of somebody else, not believing the server.
    let others = self::certificates();
    let plain = format!("mongodb://{host}/?directConnection=true");
    let nameless = format!("{plain}&tls=true&tlsCAFile={authority}");
    let stranger = format!(
        "{nameless}&tlsCertificateKeyFile={}",
        others.at("client.pem")
    );
    let suspicious = format!("{plain}&{}", asking(&others));
    for uri in [&plain, &nameless, &stranger, &suspicious] {
        ensure!(ping(uri).await.is_err(), "{uri}");
    }
    // Whoever is refused is refused again and again until this is over.
    let hasty = format!("{plain}&serverSelectionTimeoutMS=1000");
    for arguments in [
        &[&*hasty, "--eval", "1"][..],
        &["--tls", "--tlsCAFile", &authority, &hasty, "--eval", "1"],
        &["--tlsCAFile", &authority, &host, "--eval", "1"],
        &["--tls", "--tlsAllowInvalidHostnames", &host, "--eval", "1"],
    ] {
        let output = run(shell(arguments)).await?;
        ensure!(!output.status.success(), "{arguments:?}: {output:?}");
    }
    let any = [
        "--tls",
        "--tlsCertificateKeyFile",
        &own,
        "--tlsAllowInvalidCertificates",
    ];
    succeeds(shell(
        &[&any[..], &[&*host, "--eval", "db.stats().ok"]].concat(),
    ))
    .await?;
    ensure!(server.log().contains("only allow SSL connections"));
    Ok(())
}

#[tokio::test]
async fn a_server_takes_both_kinds_where_it_may() -> Result<()> {
    let certificates = certificates();
    for (mode, old) in [("allowTLS", "allowSSL"), ("preferTLS", "preferSSL")] {
        let server = encrypted(Launch::mongod(), mode, &certificates)
            .start()
            .await;
        let both = format!("{}&{}", server.uri(), asking(&certificates));
        ping(&server.uri()).await?;
        ping(&both).await?;
        let asked = admin(
            &server,
            doc! { "getParameter": 1, "tlsMode": 1, "sslMode": 1 },
        )
        .await?;
        ensure!(asked.get_str("tlsMode")? == mode && asked.get_str("sslMode")? == old);
        let status = admin(&server, doc! { "serverStatus": 1 }).await?;
        let versions = status.get_document("transportSecurity")?;
        ensure!(versions.get_i64("1.3")? > 0 && versions.get_i64("1.2")? == 0);
        let security = status.get_document("security")?;
        ensure!(security.get_str("SSLServerSubjectName")? == "CN=server,O=Banyan");
        ensure!(security.get_bool("SSLServerHasCertificateAuthority")?);
        security.get_datetime("SSLServerCertificateExpirationDate")?;
    }
    let server = Launch::mongod().start().await;
    let both = format!("{}&{}", server.uri(), asking(&certificates));
    ensure!(ping(&both).await.is_err());
    ensure!(server.log().contains("started without SSL support"));
    let raised = refusal(&server, doc! { "setParameter": 1, "tlsMode": "allowTLS" }).await?;
    ensure!(raised.0 == 2, "{raised:?}");
    Ok(())
}

#[tokio::test]
async fn documents_of_16_mb_are_whole() -> Result<()> {
    let certificates = certificates();
    let launch = encrypted(Launch::mongod(), "requireTLS", &certificates);
    let server = launch.asked_with(&asking(&certificates)).start().await;
    let posts = server
        .direct()
        .await
        .database("test")
        .collection::<Document>("posts");
    let texts: Vec<String> = (0..3)
        .map(|n| {
            (0..15_900_000)
                .map(|at| char::from(b'a' + ((at * 7 + n) % 26) as u8))
                .collect()
        })
        .collect();
    for (n, text) in (0..).zip(&texts) {
        posts.insert_one(doc! { "_id": n, "text": text }).await?;
    }
    for (n, text) in (0..).zip(&texts) {
        let found = posts
            .find_one(doc! { "_id": n })
            .await?
            .context("it is there")?;
        ensure!(found.get_str("text")? == text, "document {n} differs");
    }
    Ok(())
}

#[tokio::test]
async fn an_encrypted_set_elects_and_replicates() -> Result<()> {
    let certificates = certificates();
    certificates.server("member.pem", "member");
    let member = certificates.at("member.pem");
    let launch = encrypted(Launch::mongod(), "requireTLS", &certificates)
        .with(["--tlsClusterFile", &member])
        .asked_with(&asking(&certificates));
    let mut set = ReplicaSet::start_as(launch, "sealed", 3, &[]).await;
    let posts = set
        .client()
        .await
        .database("test")
        .collection::<Document>("posts");
    let on_all = mongodb::options::WriteConcern::nodes(3);
    for n in 0..20 {
        posts
            .insert_one(doc! { "_id": n })
            .write_concern(on_all.clone())
            .await?;
    }
    let primary = set.primary().await;
    set.members[primary].kill();
    eventually("a write after the failover", || async {
        posts
            .insert_one(doc! { "_id": 100 + primary as i32 })
            .await?;
        Ok::<_, anyhow::Error>(())
    })
    .await;
    set.members[primary].start().await;
    set.settled().await;
    for n in 200..210 {
        posts
            .insert_one(doc! { "_id": n })
            .write_concern(on_all.clone())
            .await?;
    }
    ensure!(posts.count_documents(doc! {}).await? == 31);
    for member in &set.members {
        let plain = format!("mongodb://{}/?directConnection=true", member.host());
        ensure!(ping(&plain).await.is_err());
    }
    Ok(())
}

#[tokio::test]
async fn a_set_is_taken_to_tls_member_by_member() -> Result<()> {
    let certificates = certificates();
    let launch = encrypted(Launch::mongod(), "allowTLS", &certificates);
    let set = ReplicaSet::start_as(launch, "turning", 3, &[]).await;
    let plain = set.client().await;
    let sealed = connect(&format!("{}&{}", set.uri(), asking(&certificates))).await;
    let write = async |client: &Client, id: i32| {
        let posts = client.database("test").collection::<Document>("posts");
        let on_all = mongodb::options::WriteConcern::nodes(3);
        posts
            .insert_one(doc! { "_id": id })
            .write_concern(on_all)
            .await
    };
    write(&plain, 0).await?;
    write(&sealed, 1).await?;
    for (step, mode) in [(10, "preferTLS"), (20, "requireTLS")] {
        for (id, member) in (step..).zip(&set.members) {
            let both = connect(&format!("{}&{}", member.uri(), asking(&certificates))).await;
            let command = doc! { "setParameter": 1, "tlsMode": mode };
            let was = both.database("admin").run_command(command).await?;
            ensure!(was.get_str("was")? != mode);
            write(&sealed, id).await?;
        }
    }
    for member in &set.members {
        ensure!(ping(&member.uri()).await.is_err());
        ping(&format!("{}&{}", member.uri(), asking(&certificates))).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_router_speaks_tls_with_shards_and_clients() -> Result<()> {
    let certificates = certificates();
    let sealed = |launch| {
        let launch = encrypted(launch, "requireTLS", &certificates);
        launch.asked_with(&asking(&certificates))
    };
    let config = ReplicaSet::start_as(sealed(Launch::configsvr()), "config", 1, &[]).await;
    let mut shards = Vec::new();
    for name in ["a", "b"] {
        shards.push(ReplicaSet::start_as(sealed(Launch::mongod()), name, 1, &["--shardsvr"]).await);
    }
    let router = sealed(Launch::mongos(&config.connection_string()))
        .start()
        .await;
    for shard in &shards {
        admin(&router, doc! { "addShard": shard.connection_string() }).await?;
    }
    admin(&router, doc! { "enableSharding": "test" }).await?;
    let key = doc! { "shardCollection": "test.posts", "key": { "_id": "hashed" } };
    admin(&router, key).await?;
    let posts = router
        .direct()
        .await
        .database("test")
        .collection::<Document>("posts");
    let all: Vec<Document> = (0..500)
        .map(|n| doc! { "_id": n, "even": n % 2 == 0 })
        .collect();
    posts.insert_many(all).await?;
    ensure!(posts.count_documents(doc! { "even": true }).await? == 250);
    let function = doc! {
        "mapReduce": "posts", "map": "function() { emit(this.even, 1) }",
        "reduce": "function(key, values) { return Array.sum(values) }", "out": { "inline": 1 },
    };
    let counted = router
        .direct()
        .await
        .database("test")
        .run_command(function)
        .await?;
    ensure!(counted.get_array("results")?.len() == 2, "{counted}");
    for shard in &shards {
        let status = admin(&shard.members[0], doc! { "serverStatus": 1 }).await?;
        let versions = status.get_document("transportSecurity")?;
        ensure!(versions.get_i64("1.3")? > 2, "{versions}");
    }
    let status = admin(&router, doc! { "serverStatus": 1 }).await?;
    let security = status.get_document("security")?;
    ensure!(security.get_str("SSLServerSubjectName")? == "CN=server,O=Banyan");
    let members = shards.iter().flat_map(|shard| &shard.members);
    for process in members.chain(&config.members).chain([&router]) {
        let plain = format!("mongodb://{}/?directConnection=true", process.host());
        ensure!(ping(&plain).await.is_err());
    }
    Ok(())
}

#[tokio::test]
async fn certificates_are_rotated_without_a_restart() -> Result<()> {
    let certificates = certificates();
    let launch = encrypted(Launch::mongod(), "requireTLS", &certificates);
    let server = launch.asked_with(&asking(&certificates)).start().await;
    let open = server.direct().await.database("admin");
    let rotate = doc! { "rotateCertificates": 1, "message": "by hand" };
    open.run_command(rotate.clone()).await?;
    let subject = async || {
        let status = open.run_command(doc! { "serverStatus": 1 }).await?;
        let security = status.get_document("security")?;
        anyhow::Ok(security.get_str("SSLServerSubjectName")?.to_owned())
    };
    ensure!(subject().await? == "CN=server,O=Banyan");

    certificates.write("server.pem", "not a certificate");
    let (code, said) = refusal(&server, rotate.clone()).await?;
    ensure!(code == 140 && said.contains("server.pem"), "{code} {said}");
    let (code, _) = refusal(&server, doc! { "rotateCertificates": 1, "message": 3 }).await?;
    ensure!(code == 14, "{code}");
    let (code, _) = refusal(&server, doc! { "rotateCertificates": 1, "other": 3 }).await?;
    ensure!(code == 40415, "{code}");

    let others = self::certificates();
    others.server("server.pem", "successor");
    for file in ["ca.pem", "server.pem"] {
        std::fs::copy(others.path(file), certificates.path(file))?;
    }
    open.run_command(rotate).await?;
    // Who was connected goes on; who comes is shown the new one, and has to show one.
    ensure!(subject().await? == "CN=successor,O=Banyan");
    let address = format!("mongodb://{}/?directConnection=true", server.host());
    ping(&format!("{address}&{}", asking(&others))).await?;
    ensure!(
        ping(&format!("{address}&{}", asking(&certificates)))
            .await
            .is_err()
    );
    Ok(())
}

/// How a program ends that is given these flags, and what it says.
async fn start(program_name: &str, arguments: &[&str]) -> Result<(Option<i32>, String)> {
    let mut command = Command::new(program(program_name));
    command.args(arguments);
    let output = run(command).await?;
    let said = [output.stdout, output.stderr].concat();
    Ok((
        output.status.code(),
        String::from_utf8_lossy(&said).into_owned(),
    ))
}

#[tokio::test]
async fn what_cannot_be_used_is_said_at_the_start() -> Result<()> {
    let certificates = certificates();
    certificates.write("empty.pem", "");
    let (good, empty) = (certificates.at("server.pem"), certificates.at("empty.pem"));
    let ca = certificates.at("ca.pem");
    let on = ["--tlsMode", "requireTLS", "--tlsCertificateKeyFile"];
    for (flags, said) in [
        (
            &["--tlsMode", "requireTLS"][..],
            "need tlsCertificateKeyFile",
        ),
        (&["--tlsCAFile", &*ca][..], "need to enable TLS"),
        (&["--tlsMode", "sometimes"][..], "sometimes"),
        (
            &[&on[..], &["/nowhere.pem"]].concat()[..],
            "cannot read the certificate key file /nowhere.pem",
        ),
        (&[&on[..], &[&*empty]].concat()[..], "holds no private key"),
        (
            &[&on[..], &[&*good, "--tlsCAFile", &*empty]].concat()[..],
            "holds no certificate",
        ),
        (
            &[&on[..], &[&*good, "--tlsCRLFile", &*empty]].concat()[..],
            "need tlsCAFile with tlsCRLFile",
        ),
    ] {
        for (name, more) in [
            ("mongod", ["--dbpath", "/nowhere"]),
            ("mongos", ["--configdb", "c/127.0.0.1:1"]),
        ] {
            let (code, text) = start(name, &[&more[..], flags].concat()).await?;
            ensure!(
                code == Some(2) && text.contains(said),
                "{name} {flags:?}: {code:?} {text}"
            );
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_configuration_file_has_names_for_all_of_it() -> Result<()> {
    let certificates = certificates();
    let (own, authority) = (certificates.at("server.pem"), certificates.at("ca.pem"));
    for (section, mode) in [("tls", "requireTLS"), ("ssl", "requireSSL")] {
        let (key_file, password) = match section {
            "tls" => ("certificateKeyFile", "certificateKeyFilePassword"),
            _ => ("PEMKeyFile", "PEMKeyPassword"),
        };
        let text = format!(
            "net:\n  {section}:\n    mode: {mode}\n    {key_file}: {own}\n    CAFile: {authority}\n    \
             {password}: sesame\n    allowConnectionsWithoutCertificates: true\n"
        );
        certificates.write("mongod.yaml", &text);
        let file = certificates.at("mongod.yaml");
        let launch = Launch::mongod().with(["--config", &file]);
        let asking = format!("tls=true&tlsCAFile={authority}");
        let server: Process = launch.asked_with(&asking).start().await;
        let shown = admin(&server, doc! { "getCmdLineOpts": 1 }).await?;
        let parsed = shown.get_document("parsed")?.get_document("net")?;
        let parsed = parsed.get_document("tls")?;
        ensure!(parsed.get_str("certificateKeyFilePassword")? == "<password>");
        ensure!(parsed.get("allowConnectionsWithoutCertificates") == Some(&Bson::Boolean(true)));
        ensure!(!server.log().contains("sesame"));
    }
    Ok(())
}
