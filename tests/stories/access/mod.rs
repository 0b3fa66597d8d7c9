//! Who a client is and what it may do: with `--auth`, and in sets and clusters that share a key file or
//! certificates.

mod audit;
mod audit_config;
mod blocked_writes;
mod bulk_write;
mod certificates;
mod closed;
mod cluster;
mod cluster_certificates;
mod cluster_time;
mod combinations;
mod members;
mod newer_commands;
mod ownership;
mod query_shapes;
mod roles;
mod script;
mod secrets;
mod strangers;
mod users;
mod views;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use banyan_tests::{Launch, Process};
use bson::{Document, doc};
use mongodb::Client;
use mongodb::error::ErrorKind;
use mongodb::options::{AuthMechanism, ClientOptions, Credential};

const PASSWORD: &str = "a long secret";
const UNAUTHORIZED: i32 = 13;
const AUTHENTICATION_FAILED: i32 = 18;

/// A client of this process alone that logs in as a user of `admin`.
async fn client(process: &Process, user: &str) -> Client {
    login(process, user, PASSWORD, None).await
}

async fn login(
    process: &Process,
    user: &str,
    password: &str,
    mechanism: Option<AuthMechanism>,
) -> Client {
    let uri = format!("mongodb://{}/?directConnection=true", process.host());
    let mut options = ClientOptions::parse(uri).await.expect("a good address");
    options.server_selection_timeout = Some(Duration::from_secs(20));
    let mut credential = Credential::builder()
        .username(user.to_owned())
        .password(password.to_owned())
        .source("admin".to_owned())
        .build();
    credential.mechanism = mechanism;
    options.credential = Some(credential);
    Client::with_options(options).expect("good options")
}

/// Makes the first user, who may do everything, through the localhost exception.
async fn make_root(process: &Process) -> Result<Client> {
    let admin = process.direct().await.database("admin");
    let create = doc! { "createUser": "root", "pwd": PASSWORD, "roles": ["root"] };
    admin.run_command(create).await?;
    Ok(client(process, "root").await)
}

/// A user of `admin` with these roles.
async fn make_user(root: &Client, name: &str, roles: Vec<Document>) -> Result<()> {
    let create = doc! { "createUser": name, "pwd": PASSWORD, "roles": roles };
    root.database("admin").run_command(create).await?;
    Ok(())
}

fn role(role: &str, database: &str) -> Document {
    doc! { "role": role, "db": database }
}

/// The code of the error that a command is answered with; 0 if there is none.
async fn code(client: &Client, database: &str, command: Document) -> Result<i32> {
    match client.database(database).run_command(command.clone()).await {
        Ok(_) => Ok(0),
        Err(error) => code_of(&error).ok_or_else(|| anyhow::anyhow!("{command}: {error}")),
    }
}

fn code_of(error: &mongodb::error::Error) -> Option<i32> {
    match &*error.kind {
        ErrorKind::Command(command) => Some(command.code),
        ErrorKind::Authentication { .. } => Some(AUTHENTICATION_FAILED),
        _ => None,
    }
}

async fn expect(client: &Client, database: &str, command: Document, expected: i32) -> Result<()> {
    let found = code(client, database, command.clone()).await?;
    ensure!(found == expected, "{command}: {found}, not {expected}");
    Ok(())
}

/// A key file that its owner alone may read.
fn key_file(directory: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let path = directory.join(name);
    fs::write(&path, text)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    Ok(path)
}

async fn standalone() -> Process {
    Launch::mongod().with(["--auth"]).start().await
}

/// The message of the error that a command is answered with.
async fn refusal(client: &Client, database: &str, command: Document) -> Result<String> {
    match client.database(database).run_command(command.clone()).await {
        Ok(reply) => bail!("{command} is answered with {reply}"),
        Err(error) => match &*error.kind {
            ErrorKind::Command(command) => Ok(command.message.clone()),
            _ => Ok(error.to_string()),
        },
    }
}
