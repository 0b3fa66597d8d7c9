//! Statistics and settings of queries: who may see and set them.

use anyhow::Result;
use bson::spec::BinarySubtype;
use bson::{Binary, Document, doc};

use super::*;

fn stage(stage: &str, argument: Document) -> Document {
    let mut named = Document::new();
    named.insert(stage, argument);
    doc! { "aggregate": 1, "pipeline": [named], "cursor": {} }
}

#[tokio::test]
async fn statistics_and_settings_of_queries_have_privileges_of_their_own() -> Result<()> {
    let mongod = standalone().await;
    let root = make_root(&mongod).await?;
    for (name, action) in [
        ("plain", "queryStatsRead"),
        ("hashed", "queryStatsReadTransformed"),
        ("setter", "querySettings"),
    ] {
        let privilege = doc! { "resource": { "cluster": true }, "actions": [action] };
        let create = doc! { "createRole": name, "privileges": [privilege], "roles": [] };
        root.database("admin").run_command(create).await?;
        make_user(&root, name, vec![role(name, "admin")]).await?;
    }
    make_user(&root, "monitor", vec![role("clusterMonitor", "admin")]).await?;
    make_user(&root, "manager", vec![role("clusterManager", "admin")]).await?;
    make_user(&root, "reader", vec![role("readAnyDatabase", "admin")]).await?;
    let key = Binary {
        subtype: BinarySubtype::Sensitive,
        bytes: vec![3; 32],
    };
    let hashed = doc! { "transformIdentifiers": { "algorithm": "hmac-sha-256", "hmacKey": key } };
    let stats = || stage("$queryStats", doc! {});
    let transformed = || stage("$queryStats", hashed.clone());
    let settings = || stage("$querySettings", doc! {});
    let set = || doc! { "setQuerySettings": "00".repeat(32), "settings": { "reject": true } };
    let remove = || doc! { "removeQuerySettings": "00".repeat(32) };
    // What a server alone says to who may.
    let alone = 20;
    for (user, sees, sees_hashed, sets) in [
        ("plain", true, false, false),
        ("hashed", false, true, false),
        ("setter", false, false, true),
        ("monitor", true, true, false),
        ("manager", false, false, true),
        ("reader", false, false, false),
        ("root", true, true, true),
    ] {
        let user = client(&mongod, user).await;
        let may = |may: bool, answer: i32| if may { answer } else { UNAUTHORIZED };
        expect(&user, "admin", stats(), may(sees, 0)).await?;
        expect(&user, "admin", transformed(), may(sees_hashed, 0)).await?;
        expect(&user, "admin", settings(), may(sets, 0)).await?;
        expect(&user, "admin", set(), may(sets, alone)).await?;
        expect(&user, "admin", remove(), may(sets, alone)).await?;
    }
    Ok(())
}
