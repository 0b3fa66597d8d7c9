//! Object mappers, file stores and a web interface that people have in front of a server, each with
//! its script in `tests/clients/`.

use std::process::Command;

use anyhow::{Result, ensure};
use banyan_tests::{Cluster, ClusterShape, Launch, ReplicaSet, repository};

use crate::clients::{python, run, script};

/// A script of Node.js, with what `scripts/setup --tests` has installed for it.
fn node(file: &str, uri: &str) -> Command {
    let mut command = Command::new("node");
    command.env("NODE_PATH", repository().join(".node/node_modules"));
    command.arg(script(file)).arg(uri);
    command
}

async fn completes(command: Command, last_line: &str) -> Result<()> {
    let told = run(command).await?;
    ensure!(told.ends_with(&format!("{last_line}\n")), "{told}");
    Ok(())
}

#[tokio::test]
async fn mongoose_works_against_a_set() -> Result<()> {
    let set = ReplicaSet::start("odms", 1, &[]).await;
    completes(node("mongoose_tour.js", &set.uri()), "mongoose complete").await
}

#[tokio::test]
async fn mongoengine_and_files_work_against_a_node_and_a_router() -> Result<()> {
    let mongod = Launch::mongod().start().await;
    let node = format!("mongodb://{}/", mongod.host());
    let cluster = Cluster::start(ClusterShape::default()).await;
    let router = format!("mongodb://{}/", cluster.router.host());
    for uri in [node, router] {
        completes(python("mongoengine_tour.py", &uri), "mongoengine complete").await?;
        completes(python("pymongo_files.py", &uri), "files complete").await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_node_driver_works_against_a_set() -> Result<()> {
    let set = ReplicaSet::start("odms", 1, &[]).await;
    completes(node("node_driver_tour.js", &set.uri()), "driver complete").await
}

#[tokio::test]
async fn mongo_express_shows_and_edits_a_database() -> Result<()> {
    let mongod = Launch::mongod().start().await;
    let uri = format!("mongodb://{}/", mongod.host());
    completes(
        node("mongo_express_tour.js", &uri),
        "mongo-express complete",
    )
    .await
}
