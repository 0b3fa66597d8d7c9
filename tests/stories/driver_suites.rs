//! The tests that a driver has of itself, as its authors wrote them, against a node and a set. Which fail
//! and may is in `tests/clients/pymongo_suite.txt`.

use anyhow::{Result, ensure};
use banyan_tests::{Launch, ReplicaSet};

use crate::clients::{python, run};

const TESTS: [&str; 2] = ["--setParameter", "enableTestCommands=1"];

async fn pymongo_suite(uri: &str) -> Result<()> {
    let told = run(python("pymongo_suite.py", uri)).await?;
    ensure!(told.ends_with("suite complete\n"), "{told}");
    Ok(())
}

#[tokio::test]
async fn pymongo_passes_its_own_tests_against_a_node() -> Result<()> {
    let mongod = Launch::mongod().with(TESTS).start().await;
    pymongo_suite(&format!("mongodb://{}/", mongod.host())).await
}

#[tokio::test]
async fn pymongo_passes_its_own_tests_against_a_set() -> Result<()> {
    let set = ReplicaSet::start("suite", 1, &TESTS).await;
    pymongo_suite(&set.uri()).await
}
