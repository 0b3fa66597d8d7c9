//! Cursors that lie idle behind a router: the shards hold no state for them, and what they count on
//! moves away and comes back meanwhile.

use anyhow::{Context, Result, ensure};
use banyan_tests::{Cluster, ClusterShape, eventually};
use bson::{Document, doc};
use mongodb::options::{ReadPreference, ReadPreferenceOptions, SelectionCriteria, WriteConcern};
use mongodb::{Client, ClientSession, Database};

const DOCUMENTS: i32 = 400;
const MIDDLE: i32 = 200;

/// A cursor of the router that has been read from once.
struct Opened {
    what: Document,
    preference: ReadPreference,
    /// A cursor belongs to its session, and the driver has several at hand.
    session: ClientSession,
    seen: Vec<i32>,
    id: i64,
}

impl Opened {
    async fn open(test: &Database, what: &Document, preference: &ReadPreference) -> Result<Opened> {
        let mut opened = Opened {
            what: what.clone(),
            preference: preference.clone(),
            session: test.client().start_session().await?,
            seen: Vec::new(),
            id: 0,
        };
        let mut command = what.clone();
        match command.contains_key("find") {
            true => command.insert("batchSize", 20),
            false => command.insert("cursor", doc! { "batchSize": 20 }),
        };
        opened.run(test, command).await?;
        ensure!(opened.id != 0, "{what}: everything is read");
        Ok(opened)
    }

    async fn run(&mut self, test: &Database, command: Document) -> Result<()> {
        let criteria = SelectionCriteria::ReadPreference(self.preference.clone());
        let reply = test
            .run_command(command)
            .selection_criteria(criteria)
            .session(&mut self.session);
        let reply = reply.await.with_context(|| format!("{}", self.what))?;
        let cursor = reply.get_document("cursor")?;
        let batch = cursor.get_array("firstBatch");
        for document in batch.or_else(|_| cursor.get_array("nextBatch"))? {
            let document = document.as_document().context("no document")?;
            self.seen.push(document.get_i32("_id")?);
        }
        self.id = cursor.get_i64("id")?;
        Ok(())
    }

    async fn more(&mut self, test: &Database, batch: i32) -> Result<()> {
        let more = doc! { "getMore": self.id, "collection": "c", "batchSize": batch };
        self.run(test, more).await
    }

    /// Reads everything: nothing twice, nothing left out.
    async fn finish(mut self, test: &Database) -> Result<()> {
        while self.id != 0 {
            self.more(test, 30).await?;
        }
        let count = self.seen.len();
        self.seen.sort_unstable();
        self.seen.dedup();
        let all: Vec<i32> = (0..DOCUMENTS).collect();
        ensure!(
            count == all.len() && self.seen == all,
            "{} of {:?}: {count} documents, {} different ones",
            self.what,
            self.preference,
            self.seen.len()
        );
        Ok(())
    }
}

fn secondary() -> ReadPreference {
    ReadPreference::Secondary {
        options: Some(ReadPreferenceOptions::default()),
    }
}

async fn holding(member: &Client) -> Result<i64> {
    let status = member.database("admin");
    let status = status.run_command(doc! { "serverStatus": 1 }).await?;
    let metrics = status.get_document("metrics")?;
    let open = metrics.get_document("cursor")?.get_document("open")?;
    Ok(open.get_i64("holdingSnapshots")?)
}

/// A collection in two chunks, both on the database's primary shard, and the names of this one and
/// of the other.
async fn shard(cluster: &Cluster, client: &Client) -> Result<[usize; 2]> {
    let (admin, test) = (client.database("admin"), client.database("test"));
    admin.run_command(doc! { "balancerStop": 1 }).await?;
    let other = test.collection("other");
    // Secondaries are read as well.
    let everywhere = WriteConcern::nodes(cluster.shards[0].members.len() as u32);
    other
        .insert_many((0..DOCUMENTS).map(|i| doc! { "_id": i }))
        .write_concern(everywhere.clone())
        .await?;
    shard_collection(client).await?;
    let documents = (0..DOCUMENTS).map(|i| doc! { "_id": i, "k": i, "round": 0 });
    test.collection::<Document>("c")
        .insert_many(documents)
        .write_concern(everywhere)
        .await?;
    let databases = client
        .database("config")
        .collection::<Document>("databases");
    let entry = databases.find_one(doc! { "_id": "test" }).await?;
    let primary = entry.context("the database")?;
    let primary = primary.get_str("primary")?;
    let home = cluster.shards.iter().position(|set| set.name == primary);
    let home = home.context("its primary")?;
    Ok([home, 1 - home])
}

async fn shard_collection(client: &Client) -> Result<()> {
    let admin = client.database("admin");
    let key = doc! { "shardCollection": "test.c", "key": { "k": 1 } };
    admin.run_command(key).await?;
    let split = doc! { "split": "test.c", "middle": { "k": MIDDLE } };
    admin.run_command(split).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_routed_cursor_holds_no_state_and_sees_what_moves_once() -> Result<()> {
    let shape = ClusterShape {
        members_per_shard: 2,
        ..ClusterShape::default()
    };
    let cluster = Cluster::start(shape).await;
    let client = cluster.client().await;
    let [home, away] = shard(&cluster, &client).await?;
    let (admin, test) = (client.database("admin"), client.database("test"));
    let mut members = Vec::new();
    for set in &cluster.shards {
        for member in &set.members {
            members.push(member.direct().await);
        }
    }
    let nobody_holds = || async {
        for member in &members {
            let holding = holding(member).await?;
            ensure!(holding == 0, "{holding} hold a snapshot");
        }
        anyhow::Ok(())
    };
    let move_to = |shard: usize| {
        doc! {
            "moveChunk": "test.c", "find": { "k": MIDDLE }, "to": &cluster.shards[shard].name,
            "_waitForDelete": true,
        }
    };
    let reads = [
        doc! { "find": "c", "sort": { "$natural": 1 } },
        doc! { "find": "c", "sort": { "k": -1 } },
        doc! { "aggregate": "c", "pipeline": [
            { "$lookup": { "from": "other", "localField": "_id", "foreignField": "_id", "as": "x" } },
            { "$match": { "x._id": { "$exists": true } } },
        ] },
    ];
    let open_all = || async {
        let mut opened = Vec::new();
        for read in &reads {
            for preference in [ReadPreference::Primary, secondary()] {
                opened.push(Opened::open(&test, read, &preference).await?);
            }
        }
        anyhow::Ok(opened)
    };
    let rewrite = |round: i32| {
        let collection = test.collection::<Document>("c");
        async move {
            let written = doc! { "$set": { "round": round } };
            collection.update_many(doc! {}, written).await
        }
    };

    let (mut early, mut passed) = (open_all().await?, open_all().await?);
    eventually("the cursors rest", nobody_holds).await;
    rewrite(1).await?;
    // They go on in a state of now, and rest again: the ones before what is going to move, the
    // others in the midst of it.
    for cursor in &mut early {
        cursor.more(&test, 30).await?;
    }
    for cursor in &mut passed {
        cursor.more(&test, 240).await?;
    }
    eventually("the cursors rest again", nobody_holds).await;

    // A range goes, with its documents. Only those who count on it hold the state before.
    admin.run_command(move_to(away)).await?;
    for (number, member) in cluster.shards[home].members.iter().enumerate() {
        let member = member.direct().await;
        eventually("the documents go on every member", || async {
            let stored = member.database("test").collection::<Document>("c");
            let stored = stored.count_documents(doc! {}).await?;
            ensure!(stored == MIDDLE as u64, "{number} stores {stored}");
            let holding = holding(&member).await?;
            ensure!(holding == 6, "{holding} cursors hold a snapshot");
            anyhow::Ok(())
        })
        .await;
    }
    for member in &cluster.shards[away].members {
        let holding = holding(&member.direct().await).await?;
        ensure!(
            holding == 0,
            "{holding} hold a snapshot of what they do not count on"
        );
    }
    rewrite(2).await?;
    for cursor in early {
        cursor.finish(&test).await?;
    }
    let late = open_all().await?;
    // It comes back, as other records of the same member.
    admin.run_command(move_to(home)).await?;
    rewrite(3).await?;
    for cursor in passed.into_iter().chain(late) {
        cursor.finish(&test).await?;
    }
    eventually("nothing is held for cursors that are read", nobody_holds).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_routed_cursor_never_reads_another_collection() -> Result<()> {
    let cluster = Cluster::start(ClusterShape::default()).await;
    let client = cluster.client().await;
    let [home, away] = shard(&cluster, &client).await?;
    let (admin, test) = (client.database("admin"), client.database("test"));
    let member = cluster.shards[home].client().await;
    let hold = |count: i64| {
        let member = &member;
        eventually("the cursors rest", move || async move {
            let holding = holding(member).await?;
            ensure!(holding == count, "{holding} hold a snapshot");
            anyhow::Ok(())
        })
    };
    let read = doc! { "find": "c" };
    // For this one a state is kept, and for the other one none.
    let mut kept = Opened::open(&test, &read, &ReadPreference::Primary).await?;
    hold(0).await;
    let go = doc! {
        "moveChunk": "test.c", "find": { "k": MIDDLE }, "to": &cluster.shards[away].name,
        "_waitForDelete": true,
    };
    admin.run_command(go).await?;
    let mut resting = Opened::open(&test, &read, &ReadPreference::Primary).await?;
    hold(1).await;
    let collection = test.collection::<Document>("c");
    collection.drop().await?;
    shard_collection(&client).await?;
    let documents = (0..DOCUMENTS).map(|i| doc! { "_id": i, "k": i, "again": true });
    collection.insert_many(documents).await?;
    for cursor in [&mut resting, &mut kept] {
        let error = loop {
            match cursor.more(&test, 30).await {
                Ok(()) => ensure!(cursor.id != 0, "the cursor came to an end"),
                Err(error) => break error,
            }
        };
        let error = error.downcast::<mongodb::error::Error>()?;
        let mongodb::error::ErrorKind::Command(error) = &*error.kind else {
            anyhow::bail!("{error}");
        };
        ensure!(error.code == 175, "{error}");
    }
    Ok(())
}
