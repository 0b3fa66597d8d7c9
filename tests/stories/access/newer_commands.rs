//! What commands and stages need that came after 6.0, which cannot be asked.

use anyhow::Result;
use bson::doc;

use super::*;

#[tokio::test]
async fn commands_of_later_versions_need_what_the_manual_says() -> Result<()> {
    let mongod = standalone().await;
    let root = make_root(&mongod).await?;
    for (name, granted) in [
        ("reader", role("read", "shop")),
        ("anywhere", role("readAnyDatabase", "admin")),
        ("host", role("hostManager", "admin")),
    ] {
        make_user(&root, name, vec![granted]).await?;
    }
    let list =
        || doc! { "aggregate": 1, "pipeline": [{ "$listClusterCatalog": {} }], "cursor": {} };
    let compact = || doc! { "autoCompact": false };
    for (user, database, command, expected) in [
        ("reader", "shop", list(), 0),
        ("reader", "other", list(), UNAUTHORIZED),
        ("reader", "admin", list(), UNAUTHORIZED),
        ("anywhere", "admin", list(), 0),
        ("host", "shop", list(), UNAUTHORIZED),
        ("host", "admin", compact(), 0),
        ("anywhere", "admin", compact(), UNAUTHORIZED),
        ("root", "shop", compact(), 0),
    ] {
        expect(&client(&mongod, user).await, database, command, expected).await?;
    }
    // None of it belongs to the stable API.
    for (database, mut command) in [("shop", list()), ("admin", compact())] {
        command.insert("apiVersion", "1");
        command.insert("apiStrict", true);
        expect(&root, database, command, 323).await?;
    }
    Ok(())
}
