//! The proof that roles mean what they mean elsewhere: for each command and each built-in role,
//! allowed or denied as the reference answers.
//!
//! `roles.golden` holds a command a line, and below it whom the reference lets run it. With
//! `BANYAN_RECORD_ACCESS=<a mongod 6.0>` the commands are asked of that one and the file is
//! written anew. What differs and may is in `roles.known`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use banyan_tests::{Launch, Process, eventually, repository};
use bson::{Bson, Document, doc};

use super::*;

/// What a client that has not logged in may run.
pub const FOR_ANYONE: &[&str] = &[
    "authenticate",
    "buildInfo",
    "connectionStatus",
    "getnonce",
    "hello",
    "listCommands",
    "ping",
    "saslContinue",
    "saslStart",
    "whatsmyuri",
];

/// Roles of the database `test`.
const OF_TEST: &[&str] = &[
    "read",
    "readWrite",
    "dbAdmin",
    "dbOwner",
    "userAdmin",
    "enableSharding",
];
/// Roles of `admin`.
const OF_ADMIN: &[&str] = &[
    "__queryableBackup",
    "__system",
    "backup",
    "clusterAdmin",
    "clusterManager",
    "clusterMonitor",
    "dbAdminAnyDatabase",
    "dbOwner",
    "hostManager",
    "readAnyDatabase",
    "readWrite",
    "readWriteAnyDatabase",
    "restore",
    "root",
    "userAdmin",
    "userAdminAnyDatabase",
];

/// These are not among the commands that are compared: they end the process or the login, only
/// MongoDB's Enterprise has them, or they are younger than the reference.
const NOT_COMPARED: &[&str] = &[
    "shutdown",
    "saslStart",
    "saslContinue",
    "authenticate",
    "getnonce",
    "logout",
    "logApplicationMessage",
    "getAuditConfig",
    "setAuditConfig",
    "autoCompact",
    "bulkWrite",
    "setQuerySettings",
    "removeQuerySettings",
    "createSearchIndexes",
    "dropSearchIndex",
    "listSearchIndexes",
    "updateSearchIndex",
];

pub struct Row {
    pub database: String,
    pub command: String,
    pub allowed: BTreeSet<String>,
}

impl Row {
    pub fn parse(&self) -> Result<Document> {
        let value: serde_json::Value = serde_json::from_str(&self.command)?;
        match Bson::try_from(value)? {
            Bson::Document(command) => Ok(command),
            other => bail!("{other} is no command"),
        }
    }
}

pub fn read_rows(text: &str) -> Result<Vec<Row>> {
    let mut rows: Vec<Row> = Vec::new();
    for line in text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
    {
        match line.strip_prefix("  ") {
            Some(names) => {
                let row = rows.last_mut().context("a command comes first")?;
                row.allowed
                    .extend(names.split_whitespace().map(str::to_owned));
            }
            None => {
                let (database, command) =
                    line.split_once(' ').context("a database and a command")?;
                rows.push(Row {
                    database: database.to_owned(),
                    command: command.to_owned(),
                    allowed: BTreeSet::new(),
                });
            }
        }
    }
    Ok(rows)
}

/// A client for each column: no login, no role, each role.
async fn columns(process: &Process) -> Result<BTreeMap<String, Client>> {
    let root = make_root(process).await?;
    make_user(&root, "none", vec![]).await?;
    let mut clients = BTreeMap::new();
    clients.insert("nobody".to_owned(), process.direct().await);
    clients.insert("none".to_owned(), client(process, "none").await);
    let all = OF_TEST.iter().map(|name| (*name, "test"));
    for (name, database) in all.chain(OF_ADMIN.iter().map(|name| (*name, "admin"))) {
        let column = format!("{name}@{database}");
        make_user(&root, &column, vec![role(name, database)]).await?;
        clients.insert(column.clone(), client(process, &column).await);
    }
    let test = root.database("test");
    for n in 0..5 {
        test.run_command(doc! { "insert": "c", "documents": [{ "a": n }] })
            .await?;
    }
    Ok(clients)
}

/// Whom the process lets run each command.
pub async fn ask(process: &Process, rows: &[Row]) -> Result<Vec<BTreeSet<String>>> {
    let clients = columns(process).await?;
    let mut answers = Vec::new();
    for row in rows {
        let command = row.parse()?;
        let mut allowed = BTreeSet::new();
        for (column, client) in &clients {
            let found = code(client, &row.database, command.clone()).await;
            if found.with_context(|| format!("{column}: {command}"))? != UNAUTHORIZED {
                allowed.insert(column.clone());
            }
        }
        answers.push(allowed);
    }
    Ok(answers)
}

async fn started(launch: Launch, key: &str) -> Result<Process> {
    let process = launch
        .with(["--replSet", "roles", "--keyFile", key])
        .start()
        .await;
    let admin = process.direct().await.database("admin");
    let members = doc! { "_id": "roles", "members": [{ "_id": 0, "host": process.host() }] };
    admin
        .run_command(doc! { "replSetInitiate": members })
        .await?;
    eventually("a primary", || async {
        let hello = admin.run_command(doc! { "hello": 1 }).await?;
        ensure!(hello.get_bool("isWritablePrimary")?, "{hello}");
        Ok(())
    })
    .await;
    Ok(process)
}

#[tokio::test]
async fn each_built_in_role_may_do_what_it_may_elsewhere() -> Result<()> {
    let folder = repository().join("tests/stories/access");
    let golden = folder.join("roles.golden");
    let text = fs::read_to_string(&golden)?;
    let rows = read_rows(&text)?;
    let directory = tempfile::tempdir()?;
    let key = key_file(directory.path(), "key", "aGVsbG8gd29ybGQ=")?
        .display()
        .to_string();

    if let Some(reference) = std::env::var_os("BANYAN_RECORD_ACCESS") {
        let process = started(Launch::other(reference.into()), &key).await?;
        let answers = ask(&process, &rows).await?;
        let head = text.lines().take_while(|line| line.starts_with('#'));
        let mut out: String = head.map(|line| format!("{line}\n")).collect();
        for (row, allowed) in rows.iter().zip(answers) {
            out += &format!("\n{} {}\n", row.database, row.command);
            let names: Vec<String> = allowed.into_iter().collect();
            for names in names.chunks(6) {
                out += &format!("  {}\n", names.join(" "));
            }
        }
        fs::write(&golden, out)?;
        return Ok(());
    }

    let process = started(Launch::mongod(), &key).await?;
    let known = fs::read_to_string(folder.join("roles.known"))?;
    let known: BTreeSet<&str> = known
        .lines()
        .filter_map(|line| Some(line.split_once(" -- ")?.0))
        .collect();
    let mut wrong = Vec::new();
    let mut used = BTreeSet::new();
    for (row, own) in rows.iter().zip(ask(&process, &rows).await?) {
        for (more, less, word) in [
            (&own, &row.allowed, "allows"),
            (&row.allowed, &own, "denies"),
        ] {
            for column in more.difference(less) {
                let line = format!("{word} {column} {} {}", row.database, row.command);
                match known.get(line.as_str()) {
                    Some(line) => {
                        used.insert(*line);
                    }
                    None => wrong.push(line),
                }
            }
        }
    }
    let gone: Vec<_> = known.difference(&used).collect();
    ensure!(
        wrong.is_empty(),
        "unlike the reference:\n{}",
        wrong.join("\n")
    );
    ensure!(gone.is_empty(), "known, and no longer so: {gone:#?}");

    let listed = process.direct().await.database("admin");
    let listed = listed.run_command(doc! { "listCommands": 1 }).await?;
    let compared: BTreeSet<String> = rows
        .iter()
        .map(|row| {
            let command = row.parse()?;
            Ok::<_, anyhow::Error>(command.keys().next().context("a name")?.clone())
        })
        .collect::<Result<_>>()?;
    let missing: Vec<&String> = listed
        .get_document("commands")?
        .keys()
        .filter(|name| !name.starts_with('_') && !NOT_COMPARED.contains(&name.as_str()))
        .filter(|name| !compared.contains(*name))
        .collect();
    ensure!(
        missing.is_empty(),
        "commands that are not compared: {missing:?}"
    );
    Ok(())
}
