//! Commands that say by its id which collection they are for.

use anyhow::{Result, ensure};
use banyan_tests::Launch;
use bson::{Bson, Document, doc};

use crate::operating::{admin, refusal, uuid_of};

#[tokio::test]
async fn a_rename_is_for_the_collection_with_its_id() -> Result<()> {
    let mongod = Launch::mongod().start().await;
    let database = mongod.direct().await.database("test");
    for name in ["one", "other"] {
        database
            .run_command(doc! { "insert": name, "documents": [{ "_id": name }] })
            .await?;
    }
    let (one, other) = (
        uuid_of(&database, "one").await?,
        uuid_of(&database, "other").await?,
    );
    let rename = |id: &Bson| {
        doc! { "renameCollection": "test.one", "to": "test.new", "collectionUUID": id }
    };
    let (code, said) = refusal(&mongod, rename(&other)).await?;
    ensure!(code == 361, "{code}: {said}");
    admin(&mongod, rename(&one)).await?;
    let (code, said) = refusal(&mongod, rename(&one)).await?;
    ensure!(code == 361, "{code}: {said}");
    ensure!(uuid_of(&database, "new").await? == one);
    Ok(())
}

#[tokio::test]
async fn operations_of_a_bulk_write_are_for_the_collections_with_their_ids() -> Result<()> {
    let mongod = Launch::mongod().start().await;
    let database = mongod.direct().await.database("test");
    for name in ["one", "other"] {
        database
            .run_command(doc! { "insert": name, "documents": [{ "_id": name }] })
            .await?;
    }
    let (one, other) = (
        uuid_of(&database, "one").await?,
        uuid_of(&database, "other").await?,
    );
    let write = |id: &Bson| {
        doc! {
            "bulkWrite": 1,
            "ops": [
                { "insert": 0, "document": { "_id": 1 } },
                { "update": 0, "filter": { "_id": "one" }, "updateMods": { "$set": { "a": 1 } } },
                { "delete": 1, "filter": { "_id": "other" } },
            ],
            "nsInfo": [{ "ns": "test.one", "collectionUUID": id }, { "ns": "test.other" }],
            "ordered": false,
        }
    };
    let codes = |reply: &Document| -> Result<Vec<i32>> {
        let batch = reply
            .get_document("cursor")?
            .get_array("firstBatch")?
            .iter();
        let code = |item: &Document| item.get_i32("code").unwrap_or(0);
        Ok(batch.filter_map(Bson::as_document).map(code).collect())
    };
    let reply = admin(&mongod, write(&other)).await?;
    ensure!(codes(&reply)? == [361, 361, 0], "{reply}");
    let reply = admin(&mongod, write(&one)).await?;
    ensure!(codes(&reply)? == [0, 0, 0], "{reply}");
    let (code, said) = refusal(&mongod, write(&Bson::Int32(5))).await?;
    ensure!(code == 14, "{code}: {said}");
    Ok(())
}
