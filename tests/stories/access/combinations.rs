//! Each client that people have, by each mechanism, in the clear and encrypted.

use std::process::Command;

use anyhow::{Result, ensure};
use banyan_tests::{Launch, connect, program, repository};
use bson::doc;

use super::certificates::{ALICE, asking, certificates, who_is};
use super::*;

const WHO: &str = "var status = db.getSiblingDB('admin').runCommand({connectionStatus: 1});
    print(status.authInfo.authenticatedUsers[0].user)";
const WHO_IN_PYTHON: &str = "import pymongo, sys
status = pymongo.MongoClient(sys.argv[1]).admin.command('connectionStatus')
print(status['authInfo']['authenticatedUsers'][0]['user'])";

/// Those that are programs; each says who it is.
fn programs(uri: &str) -> [Command; 3] {
    let mut shell = Command::new(program("mongo"));
    shell.args(["--quiet", uri, "--eval", WHO]);
    let mut mongosh = Command::new(repository().join(".node/node_modules/.bin/mongosh"));
    mongosh.env("HOME", std::env::temp_dir());
    mongosh.args(["--quiet", "--norc", uri, "--eval", WHO]);
    let mut pymongo = Command::new(repository().join(".venv/bin/python"));
    pymongo.args(["-c", WHO_IN_PYTHON, uri]);
    [shell, mongosh, pymongo]
}

#[tokio::test]
async fn each_client_logs_in_by_each_mechanism_in_the_clear_and_encrypted() -> Result<()> {
    let certificates = certificates();
    let (own, authority) = (certificates.at("server.pem"), certificates.at("ca.pem"));
    let launch = Launch::mongod().with(["--auth", "--tlsMode", "preferTLS"]);
    let launch = launch.with(["--tlsCertificateKeyFile", &own, "--tlsCAFile", &authority]);
    let launch = launch.with(["--tlsAllowConnectionsWithoutCertificates"]);
    let server = launch.start().await;
    let root = make_root(&server).await?;
    let alice = doc! { "createUser": ALICE, "roles": [] };
    root.database("$external").run_command(alice).await?;

    let encrypted = format!("&tls=true&tlsCAFile={authority}");
    let shown = format!("&{}", asking(&certificates, "alice"));
    let (host, password) = (server.host(), PASSWORD.replace(' ', "%20"));
    for (mechanism, tls) in [
        ("SCRAM-SHA-1", ""),
        ("SCRAM-SHA-256", ""),
        ("SCRAM-SHA-1", &encrypted),
        ("SCRAM-SHA-256", &encrypted),
        ("MONGODB-X509", &shown),
    ] {
        let (user, database, uri) = match mechanism {
            "MONGODB-X509" => (
                ALICE,
                "$external",
                format!("mongodb://{host}/?authSource=%24external"),
            ),
            _ => (
                "root",
                "admin",
                format!("mongodb://root:{password}@{host}/?authSource=admin"),
            ),
        };
        let uri = format!("{uri}&directConnection=true&authMechanism={mechanism}{tls}");
        let by_mechanism = format!(r#""mechanism":"{mechanism}""#);
        let logins = || server.log().matches(&by_mechanism).count();
        let mut before = logins();
        let mut is_logged = |client: &str| -> Result<()> {
            let after = logins();
            ensure!(after > before, "{client} {uri}: {}", server.log());
            before = after;
            Ok(())
        };
        let driver = connect(&uri).await;
        let found = who_is(&driver).await?;
        ensure!(found == [format!("{user}@{database}")], "{uri}: {found:?}");
        is_logged("the driver")?;
        for mut command in programs(&uri) {
            let client = format!("{:?}", command.get_program());
            let output = tokio::task::spawn_blocking(move || command.output()).await??;
            let said = String::from_utf8_lossy(&output.stdout);
            ensure!(said.trim() == user, "{client} {uri}: {output:?}");
            is_logged(&client)?;
        }
    }
    Ok(())
}
