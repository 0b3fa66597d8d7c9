//! `scripts/cluster up --auth --tls`: a protected cluster in one command.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use banyan_tests::{connect, free_port, program, repository};
use bson::doc;

use super::*;

/// A cluster of the script's; its processes end with this.
struct Scripted {
    directory: tempfile::TempDir,
    port: u16,
}

impl Scripted {
    fn run(&self, arguments: &[&str]) -> Result<String> {
        let programs = program("mongod");
        let output = Command::new(repository().join("scripts/cluster"))
            .env("BANYAN_BIN", programs.parent().context("a folder")?)
            .args(arguments)
            .arg("--dir")
            .arg(self.directory.path())
            .output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{arguments:?}: {said}");
        Ok(said)
    }

    fn up(&self) -> Result<String> {
        let port = self.port.to_string();
        let shape = ["--shards", "1", "--replicas", "1", "--configs", "1"];
        let more = ["--base-port", &port, "--auth", "--tls"];
        self.run(&[&["up"], &shape[..], &more].concat())
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        if let Err(error) = self.run(&["down", "--wipe"]) {
            eprintln!("{error:#}");
        }
    }
}

/// One that is free, as are those of a config server and a shard beside it.
fn base_port() -> u16 {
    let is_free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    loop {
        let port = free_port();
        if is_free(port + 10) && is_free(port + 20) {
            return port;
        }
    }
}

/// With the certificate that was made for it, as it says: with this shell, `mongosh` and pymongo.
fn log_in_as_told(said: &str) -> Result<()> {
    let told = |client: &str| {
        let mut lines = said.lines().map(str::trim);
        let line = lines.find(|line| line.starts_with(&format!("{client} ")));
        line.map(str::to_owned)
            .with_context(|| format!("nothing about {client}: {said}"))
    };
    const WHO: &str =
        "print(db.runCommand({connectionStatus: 1}).authInfo.authenticatedUsers[0].user)";
    const OPERATOR: &str = "CN=operator,OU=people,O=Banyan";
    let shell = told("mongo")?;
    let mut words = shell.split_whitespace().skip(1).collect::<Vec<_>>();
    words.extend(["--quiet", "--eval", WHO]);
    let mut commands = vec![Command::new(program("mongo"))];
    commands[0].args(&words);
    let mongosh = told("mongosh")?;
    let mut command = Command::new(repository().join(".node/node_modules/.bin/mongosh"));
    command.args(mongosh.split_whitespace().skip(1));
    command.args(["--quiet", "--eval", WHO]);
    commands.push(command);
    let line = said.lines().find(|line| line.contains("pymongo."));
    let line = line.with_context(|| format!("nothing about pymongo: {said}"))?;
    let status = "admin.command('connectionStatus')['authInfo']['authenticatedUsers'][0]['user']";
    let script = format!("import pymongo\nprint({}.{status})", line.trim());
    let mut command = Command::new(repository().join(".venv/bin/python"));
    command.args(["-c", &script]);
    commands.push(command);
    for mut command in commands {
        let output = command.output()?;
        let name = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(name.trim() == OPERATOR, "{command:?}: {name} {error}");
    }
    Ok(())
}

fn is_private(path: &Path) -> Result<bool> {
    Ok(fs::metadata(path)?.permissions().mode() & 0o077 == 0)
}

#[tokio::test]
async fn the_script_starts_a_cluster_that_takes_nothing_from_strangers() -> Result<()> {
    let cluster = Scripted {
        directory: tempfile::tempdir()?,
        port: base_port(),
    };
    for _ in 0..2 {
        let said = cluster.up()?;
        ensure!(said.contains("ready: 1 shards"), "{said}");
        log_in_as_told(&said)?;
    }
    for secret in [
        "auth/key",
        "auth/password",
        "tls/ca.key",
        "tls/operator.pem",
        "tls/server.pem",
    ] {
        let path = cluster.directory.path().join(secret);
        ensure!(is_private(&path)?, "{secret} is for its owner alone");
    }
    let password = fs::read_to_string(cluster.path("auth/password"))?;
    let tls = format!(
        "directConnection=true&tls=true&tlsCAFile={}&tlsCertificateKeyFile={}",
        cluster.path("tls/ca.pem"),
        cluster.path("tls/operator.pem"),
    );
    for port in [cluster.port, cluster.port + 10, cluster.port + 20] {
        let nobody = connect(&format!("mongodb://127.0.0.1:{port}/?{tls}")).await;
        expect(&nobody, "admin", doc! { "serverStatus": 1 }, UNAUTHORIZED).await?;
        let login = format!(
            "root:{}@127.0.0.1:{port}/?authSource=admin",
            password.trim()
        );
        let root = connect(&format!("mongodb://{login}&{tls}")).await;
        expect(&root, "admin", doc! { "serverStatus": 1 }, 0).await?;
    }
    let plain = format!(
        "mongodb://127.0.0.1:{}/?serverSelectionTimeoutMS=2000",
        cluster.port
    );
    let mut options = ClientOptions::parse(plain).await?;
    options.direct_connection = Some(true);
    let plain = Client::with_options(options)?;
    let admin = plain.database("admin");
    let ping = admin.run_command(doc! { "ping": 1 }).await;
    ensure!(ping.is_err(), "without encryption there is no answer");
    cluster.run(&["status"])?;
    Ok(())
}
