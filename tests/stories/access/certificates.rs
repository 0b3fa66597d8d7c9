//! Users and members that prove who they are by a certificate.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use banyan_tests::{
    Certificates, Launch, Process, ReplicaSet, connect, eventually, for_hosts, program, repository,
};
use bson::{Bson, doc};
use mongodb::Client;

use super::*;

pub(super) const ALICE: &str = "CN=alice,OU=people,O=Acme";
pub(super) const PROTOCOL_ERROR: i32 = 17;
pub(super) const USER_NOT_FOUND: i32 = 11;

/// Members are those of `OU=db`.
pub(super) fn certificates() -> Certificates {
    let certificates = Certificates::new();
    for (file, unit, name) in [
        ("server", "db", "server"),
        ("member", "db", "member"),
        ("alice", "people", "alice"),
        ("bob", "people", "bob"),
    ] {
        let mut parameters = for_hosts(name, &["localhost", "127.0.0.1"]);
        let mut subject = rcgen::DistinguishedName::new();
        subject.push(rcgen::DnType::OrganizationName, "Acme");
        subject.push(rcgen::DnType::OrganizationalUnitName, unit);
        subject.push(rcgen::DnType::CommonName, name);
        parameters.distinguished_name = subject;
        certificates.issue(&format!("{file}.pem"), parameters);
    }
    certificates
}

fn encrypted(certificates: &Certificates) -> Launch {
    sealed(Launch::mongod(), certificates)
}

/// Takes encrypted connections alone.
pub(super) fn sealed(launch: Launch, certificates: &Certificates) -> Launch {
    let (own, authority) = (certificates.at("server.pem"), certificates.at("ca.pem"));
    let launch = launch.with(["--tlsMode", "requireTLS"]);
    let launch = launch.with(["--tlsCertificateKeyFile", &own, "--tlsCAFile", &authority]);
    launch.asked_with(&asking(certificates, "bob"))
}

pub(super) fn asking(certificates: &Certificates, who: &str) -> String {
    let (authority, own) = (
        certificates.at("ca.pem"),
        certificates.at(&format!("{who}.pem")),
    );
    format!("tls=true&tlsCAFile={authority}&tlsCertificateKeyFile={own}")
}

/// A client that shows a certificate.
pub(super) async fn shows(process: &Process, certificates: &Certificates, who: &str) -> Client {
    let uri = format!("mongodb://{}/?directConnection=true", process.host());
    connect(&format!("{uri}&{}", asking(certificates, who))).await
}

pub(super) fn logging_in(process: &Process, certificates: &Certificates, who: &str) -> String {
    let host = process.host();
    let asking = asking(certificates, who);
    format!(
        "mongodb://{host}/?directConnection=true&{asking}&authMechanism=MONGODB-X509\
         &authSource=%24external"
    )
}

pub(super) async fn who_is(client: &Client) -> Result<Vec<String>> {
    let status = client.database("admin");
    let status = status.run_command(doc! { "connectionStatus": 1 }).await?;
    let users = status
        .get_document("authInfo")?
        .get_array("authenticatedUsers")?;
    let name = |user: &Bson| {
        let user = user.as_document().expect("a user");
        let part = |name| user.get_str(name).unwrap_or_default().to_owned();
        format!("{}@{}", part("user"), part("db"))
    };
    Ok(users.iter().map(name).collect())
}

/// A login as if it took several messages.
pub(super) fn conversation() -> Document {
    let payload = bson::Binary {
        subtype: bson::spec::BinarySubtype::Generic,
        bytes: Vec::new(),
    };
    doc! { "saslStart": 1, "mechanism": "MONGODB-X509", "payload": payload }
}

/// Another driver logs in, and finds so many documents in `test.c`.
pub(super) async fn counted_by_pymongo(uri: String, expected: u32) -> Result<()> {
    let python = repository().join(".venv/bin/python");
    let text =
        "import sys, pymongo; print(pymongo.MongoClient(sys.argv[1]).test.c.count_documents({}))";
    let counted =
        tokio::task::spawn_blocking(move || Command::new(python).args(["-c", text, &uri]).output());
    let counted = counted.await??;
    ensure!(
        String::from_utf8_lossy(&counted.stdout).trim() == expected.to_string(),
        "{counted:?}"
    );
    Ok(())
}

#[tokio::test]
async fn a_user_logs_in_with_a_certificate() -> Result<()> {
    let certificates = certificates();
    let server = encrypted(&certificates).with(["--auth"]).start().await;
    let nobody = server.direct().await;
    let external = "$external";
    let create = doc! { "createUser": ALICE, "roles": [role("readWrite", "test")] };
    let root = doc! { "createUser": "root", "pwd": PASSWORD, "roles": ["root"] };
    nobody.database("admin").run_command(root).await?;
    let admin = {
        let uri = server
            .uri()
            .replacen("mongodb://", "mongodb://root:a%20long%20secret@", 1);
        connect(&format!("{uri}&authSource=admin")).await
    };
    admin.database(external).run_command(create).await?;
    let member = doc! { "createUser": "CN=x,OU=db,O=Acme", "roles": [] };
    expect(&admin, external, member, 2).await?;

    let alice = connect(&logging_in(&server, &certificates, "alice")).await;
    let insert = doc! { "insert": "c", "documents": [{ "a": 1 }] };
    expect(&alice, "test", insert.clone(), 0).await?;
    expect(&alice, "other", insert.clone(), UNAUTHORIZED).await?;
    ensure!(who_is(&alice).await? == [format!("{ALICE}@$external")]);
    ensure!(
        server.log().contains(r#""mechanism":"MONGODB-X509""#),
        "{}",
        server.log()
    );
    let bob = connect(&logging_in(&server, &certificates, "bob")).await;
    ensure!(
        bob.database("test")
            .run_command(insert.clone())
            .await
            .is_err()
    );

    counted_by_pymongo(logging_in(&server, &certificates, "alice"), 1).await?;

    // Said by hand, as the reference answers.
    let claim = |user: Option<&str>| {
        let mut claim = doc! { "authenticate": 1, "mechanism": "MONGODB-X509" };
        claim.extend(user.map(|user| ("user".to_owned(), Bson::from(user))));
        claim
    };
    let alice = shows(&server, &certificates, "alice").await;
    expect(
        &alice,
        external,
        claim(Some("CN=bob")),
        AUTHENTICATION_FAILED,
    )
    .await?;
    expect(&alice, "admin", claim(None), PROTOCOL_ERROR).await?;
    let bob = shows(&server, &certificates, "bob").await;
    expect(&bob, external, claim(None), USER_NOT_FOUND).await?;
    let member = shows(&server, &certificates, "member").await;
    expect(&member, external, claim(None), AUTHENTICATION_FAILED).await?;
    for (mechanism, code) in [("SCRAM-SHA-1", 2), ("PLAIN", 334), ("MONGODB-CR", 334)] {
        let command = doc! { "authenticate": 1, "mechanism": mechanism, "user": "root" };
        expect(&bob, "admin", command, code).await?;
    }
    expect(&bob, external, conversation(), 334).await?;
    let asked = doc! { "getParameter": 1, "authenticationMechanisms": 1, "clusterAuthMode": 1 };
    let asked = admin.database("admin").run_command(asked).await?;
    let mechanisms = asked.get_array("authenticationMechanisms")?;
    ensure!(mechanisms.contains(&Bson::from("MONGODB-X509")), "{asked}");
    ensure!(asked.get_str("clusterAuthMode")? == "undefined", "{asked}");
    Ok(())
}

#[tokio::test]
async fn a_login_comes_along_with_hello() -> Result<()> {
    let certificates = certificates();
    let server = encrypted(&certificates).with(["--auth"]).start().await;
    let nobody = server.direct().await;
    let create = doc! { "createUser": ALICE, "roles": [role("root", "admin")] };
    nobody.database("$external").run_command(create).await?;
    logs_in_with_hello(&server, &certificates).await
}

/// `hello` carries alice's login, and one that does not fit her certificate.
pub(super) async fn logs_in_with_hello(
    server: &Process,
    certificates: &Certificates,
) -> Result<()> {
    let hello = |user: &str| {
        let login = doc! { "authenticate": 1, "mechanism": "MONGODB-X509", "user": user,
        "db": "$external" };
        doc! { "hello": 1, "speculativeAuthenticate": login }
    };
    let mut options = mongodb::options::ClientOptions::parse(format!(
        "mongodb://{}/?directConnection=true&{}",
        server.host(),
        asking(certificates, "alice")
    ))
    .await?;
    // One connection, so that the next command finds who has logged in.
    options.max_pool_size = Some(1);
    let alice = Client::with_options(options)?;
    let admin = alice.database("admin");
    let wrong = admin.run_command(hello("CN=bob")).await?;
    ensure!(!wrong.contains_key("speculativeAuthenticate"), "{wrong}");
    ensure!(who_is(&alice).await?.is_empty());
    let right = admin.run_command(hello(ALICE)).await?;
    let said = right.get_document("speculativeAuthenticate")?;
    ensure!(
        *said == doc! { "dbname": "$external", "user": ALICE },
        "{right}"
    );
    ensure!(who_is(&alice).await? == [format!("{ALICE}@$external")]);
    Ok(())
}

async fn write_everywhere(client: &Client, id: &str) -> Result<()> {
    let insert = doc! { "insert": "c", "documents": [{ "_id": id }],
    "writeConcern": { "w": 3, "wtimeout": 30_000 } };
    let reply = client.database("test").run_command(insert).await?;
    ensure!(!reply.contains_key("writeConcernError"), "{reply}");
    Ok(())
}

/// Makes a user who may do everything, and logs in at the whole set.
async fn root_of(set: &ReplicaSet, certificates: &Certificates) -> Result<Client> {
    let primary = set.primary().await;
    let nobody = set.members[primary].direct().await;
    let create = doc! { "createUser": ALICE, "roles": [role("root", "admin")],
    "writeConcern": { "w": 3, "wtimeout": 30_000 } };
    nobody.database("$external").run_command(create).await?;
    let hosts: Vec<String> = set.members.iter().map(Process::host).collect();
    let (hosts, asking) = (hosts.join(","), asking(certificates, "alice"));
    let uri = format!("mongodb://{hosts}/?replicaSet={}&{asking}", set.name);
    Ok(connect(&format!(
        "{uri}&authMechanism=MONGODB-X509&authSource=%24external"
    ))
    .await)
}

#[tokio::test]
async fn members_know_each_other_by_their_certificates() -> Result<()> {
    let certificates = certificates();
    let member = certificates.at("member.pem");
    let launch = encrypted(&certificates).with(["--tlsClusterFile", &member]);
    let mut set = ReplicaSet::start_as(launch, "shown", 3, &["--clusterAuthMode", "x509"]).await;
    let root = root_of(&set, &certificates).await?;
    write_everywhere(&root, "first").await?;

    // A certificate of the cluster is a member's, others are not.
    let own = shows(&set.members[0], &certificates, "member").await;
    let claim = doc! { "authenticate": 1, "mechanism": "MONGODB-X509" };
    let raft = doc! { "_raftMessages": 1, "to": 1, "messages": [] };
    expect(&own, "admin", raft.clone(), UNAUTHORIZED).await?;
    let entered = connect(&logging_in(&set.members[0], &certificates, "member")).await;
    expect(&entered, "admin", raft.clone(), 0).await?;
    ensure!(who_is(&entered).await? == ["__system@local"]);
    let bob = shows(&set.members[0], &certificates, "bob").await;
    expect(&bob, "$external", claim, USER_NOT_FOUND).await?;
    expect(&bob, "admin", raft, UNAUTHORIZED).await?;

    let primary = set.primary().await;
    set.members[primary].kill();
    set.members[primary].start().await;
    eventually("a write after the failover", || {
        write_everywhere(&root, "second")
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn a_set_with_a_key_goes_over_to_certificates() -> Result<()> {
    let certificates = certificates();
    let key = key_file(certificates.path("").as_path(), "key", "bmVpdGhlciBvbGQ=")?;
    let key = key.display().to_string();
    let flags = ["--keyFile", &key, "--clusterAuthMode", "sendKeyFile"];
    let set = ReplicaSet::start_as(encrypted(&certificates), "keyed", 3, &flags).await;
    let root = root_of(&set, &certificates).await?;
    write_everywhere(&root, "by the key").await?;
    for (mode, before) in [("sendX509", "sendKeyFile"), ("x509", "sendX509")] {
        for member in &set.members {
            let admin = connect(&logging_in(member, &certificates, "alice")).await;
            let admin = admin.database("admin");
            let change = doc! { "setParameter": 1, "clusterAuthMode": mode };
            let was = admin.run_command(change).await?;
            ensure!(was.get_str("was")? == before, "{was}");
            write_everywhere(&root, &format!("{mode} {}", member.port)).await?;
        }
    }
    // From now on the key opens nothing; new connections are made with certificates.
    let primary = set.primary().await;
    let step_down = doc! { "replSetStepDown": 30, "force": true };
    let admin = connect(&logging_in(&set.members[primary], &certificates, "alice")).await;
    admin.database("admin").run_command(step_down).await?;
    eventually("a write under another primary", || {
        write_everywhere(&root, "by certificates")
    })
    .await;
    Ok(())
}

/// TLS, and a key file beside: the two know nothing of each other.
#[tokio::test]
async fn an_encrypted_set_shares_a_key() -> Result<()> {
    let certificates = certificates();
    let key = key_file(certificates.path("").as_path(), "key", "bmVpdGhlciBvbGQ=")?;
    let key = key.display().to_string();
    let mut set =
        ReplicaSet::start_as(encrypted(&certificates), "both", 3, &["--keyFile", &key]).await;
    let root = root_of(&set, &certificates).await?;
    write_everywhere(&root, "first").await?;
    // No certificate is a member's here.
    let member = shows(&set.members[0], &certificates, "member").await;
    let claim = doc! { "authenticate": 1, "mechanism": "MONGODB-X509" };
    expect(&member, "$external", claim, AUTHENTICATION_FAILED).await?;
    let primary = set.primary().await;
    set.members[primary].kill();
    set.members[primary].start().await;
    eventually("a write after the failover", || {
        write_everywhere(&root, "second")
    })
    .await;
    Ok(())
}

#[test]
fn flags_that_do_not_go_together_are_refused() -> Result<()> {
    let certificates = certificates();
    let (own, authority) = (certificates.at("server.pem"), certificates.at("ca.pem"));
    let data = certificates.at("");
    let key = key_file(certificates.path("").as_path(), "key", "bmVpdGhlciBvbGQ=")?;
    let key = key.display().to_string();
    let files = ["--tlsCertificateKeyFile", &own, "--tlsCAFile", &authority];
    for (flags, with_files, said) in [
        (
            &["--clusterAuthMode", "x509"][..],
            false,
            "need to enable TLS",
        ),
        (&["--clusterAuthMode", "nonsense"], false, "sendX509"),
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
        (
            &[
                "--clusterAuthMode",
                "x509",
                "--tlsMode",
                "requireTLS",
                "--noauth",
            ],
            true,
            "--noauth",
        ),
        (&["--clusterAuthMode", "keyFile"], false, "--keyFile"),
        (
            &["--clusterAuthMode", "sendX509", "--keyFile", &key],
            false,
            "need to enable TLS",
        ),
        (&["--maxConns", "2"], false, "at least 5"),
    ] {
        let mut command = Command::new(program("mongod"));
        command.args(["--dbpath", &data]).args(flags);
        if with_files {
            command.args(files);
        }
        let output = command.output().context("mongod runs")?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned()
            + &String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.code() == Some(2), "{flags:?}: {output:?}");
        ensure!(text.contains(said), "{flags:?}: {text}");
    }
    Ok(())
}
