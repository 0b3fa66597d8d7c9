//! Clusters whose processes share a key file.

use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use banyan_tests::{Cluster, ClusterShape, Launch, Process, eventually, repository};
use bson::{Bson, Document, doc};

use super::*;

const KEY: &str = "Y2x1c3RlciBrZXk=";
const OTHER_KEY: &str = "b3RoZXIga2V5IHRvbw==";

pub(super) struct Protected {
    pub cluster: Cluster,
    /// May do everything.
    pub root: Client,
    key: String,
    _directory: tempfile::TempDir,
}

impl Protected {
    pub async fn start(shape: ClusterShape) -> Result<Protected> {
        let directory = tempfile::tempdir()?;
        let key = key_file(directory.path(), "key", KEY)?
            .display()
            .to_string();
        let cluster = Cluster::start_with(shape, &["--keyFile", &key]).await;
        let root = make_root(&cluster.router).await?;
        Ok(Protected {
            cluster,
            root,
            key,
            _directory: directory,
        })
    }

    async fn small() -> Result<Protected> {
        let shape = ClusterShape {
            shards: 1,
            ..ClusterShape::default()
        };
        Protected::start(shape).await
    }

    fn router(&self) -> &Process {
        &self.cluster.router
    }

    async fn another_router(&self) -> Process {
        self.router_with(&["--keyFile", &self.key]).start().await
    }

    fn router_with(&self, flags: &[&str]) -> Launch {
        Launch::mongos(&self.cluster.config.connection_string()).with_all(flags)
    }
}

#[tokio::test]
async fn root_is_no_member_and_speaks_for_nobody_else() -> Result<()> {
    let protected = Protected::small().await?;
    let cluster = &protected.cluster;
    // A shard has users of its own: none yet, so that whoever sits beside it may make the first.
    let shard = &cluster.shards[0].members[0];
    make_root(shard).await?;
    let config = client(&cluster.config.members[0], "root").await;
    let own_of_shard = client(shard, "root").await;
    for command in [
        doc! { "_configsvrRemoveShard": "shard0" },
        doc! { "_configsvrCommitChunkSplit": "test.c" },
        doc! { "_getUserCacheGeneration": 1 },
    ] {
        expect(&config, "admin", command, UNAUTHORIZED).await?;
    }
    for command in [
        doc! { "_shardsvrDropCollection": "test.c" },
        doc! { "_recvChunkStart": "test.c" },
        doc! { "_addShard": 1 },
    ] {
        expect(&own_of_shard, "admin", command, UNAUTHORIZED).await?;
    }
    let audit = doc! { "$impersonatedUsers": [{ "user": "root", "db": "admin" }] };
    let speaking = doc! { "find": "c", "$audit": audit };
    for client in [&protected.root, &config, &own_of_shard] {
        expect(client, "test", speaking.clone(), UNAUTHORIZED).await?;
        expect(client, "test", doc! { "find": "c" }, 0).await?;
    }
    Ok(())
}

#[tokio::test]
async fn users_are_the_clusters_and_every_router_knows_what_has_changed() -> Result<()> {
    let protected = Protected::small().await?;
    let (root, first) = (&protected.root, protected.router());
    let second = protected.another_router().await;

    // Made through one router, known to the other, and to the config servers, who keep them.
    make_user(root, "alice", vec![role("readWrite", "test")]).await?;
    let alice = client(&second, "alice").await;
    let insert = doc! { "insert": "c", "documents": [{ "_id": 1 }] };
    expect(&alice, "test", insert.clone(), 0).await?;
    expect(&alice, "other", insert.clone(), UNAUTHORIZED).await?;
    expect(&alice, "admin", doc! { "listShards": 1 }, UNAUTHORIZED).await?;
    let there = client(&protected.cluster.config.members[0], "alice").await;
    expect(&there, "admin", doc! { "connectionStatus": 1 }, 0).await?;
    expect(&there, "test", doc! { "find": "c" }, 0).await?;
    let wrong = login(first, "alice", "a wrong secret", None).await;
    expect(&wrong, "test", insert.clone(), AUTHENTICATION_FAILED).await?;
    for mechanism in [AuthMechanism::ScramSha1, AuthMechanism::ScramSha256] {
        let known = login(first, "alice", PASSWORD, Some(mechanism)).await;
        expect(&known, "test", doc! { "find": "c" }, 0).await?;
    }
    // Shards have users of their own.
    let shard = &protected.cluster.shards[0].members[0];
    let unknown = client(shard, "alice").await;
    expect(
        &unknown,
        "test",
        doc! { "find": "c" },
        AUTHENTICATION_FAILED,
    )
    .await?;

    // What changes through one router holds for who has logged in on another, long before that one
    // would ask by itself.
    let began = Instant::now();
    let admin = root.database("admin");
    let revoke = doc! { "revokeRolesFromUser": "alice", "roles": [role("readWrite", "test")] };
    admin.run_command(revoke).await?;
    let until = async |expected: i32| {
        eventually("the change is known", || async {
            expect(&alice, "test", doc! { "find": "c" }, expected).await
        })
        .await
    };
    until(UNAUTHORIZED).await;
    let privilege = doc! { "resource": { "db": "test", "collection": "c" }, "actions": ["find"] };
    let create = doc! { "createRole": "finder", "privileges": [privilege], "roles": [] };
    admin.run_command(create).await?;
    let grant = doc! { "grantRolesToUser": "alice", "roles": ["finder"] };
    admin.run_command(grant).await?;
    until(0).await;
    expect(&alice, "test", insert, UNAUTHORIZED).await?;
    admin.run_command(doc! { "dropRole": "finder" }).await?;
    until(UNAUTHORIZED).await;
    admin.run_command(doc! { "dropUser": "alice" }).await?;
    eventually("she has left", || async {
        let status = doc! { "connectionStatus": 1 };
        let status = alice.database("admin").run_command(status).await?;
        let users = status.get_document("authInfo")?;
        ensure!(users.get_array("authenticatedUsers")?.is_empty(), "{users}");
        Ok(())
    })
    .await;
    ensure!(began.elapsed().as_secs() < 25, "{:?}", began.elapsed());
    let gone = client(first, "alice").await;
    expect(&gone, "test", doc! { "find": "c" }, AUTHENTICATION_FAILED).await?;

    // The names of users are the same everywhere, and their passwords nowhere to be seen.
    let shown = admin.run_command(doc! { "usersInfo": 1 }).await?;
    let users = shown.get_array("users")?;
    ensure!(users.len() == 1, "{shown}");
    ensure!(!format!("{shown}").contains("storedKey"), "{shown}");
    let count = doc! { "count": "system.users" };
    let counted = admin.run_command(count).await?;
    ensure!(
        counted.get("n").and_then(Bson::as_i32) == Some(1),
        "{counted}"
    );
    Ok(())
}

#[tokio::test]
async fn what_a_user_opens_through_a_router_is_its_own_on_shards_as_well() -> Result<()> {
    let protected = Protected::start(ClusterShape::default()).await?;
    let root = &protected.root;
    let admin = root.database("admin");
    for name in ["alice", "bob"] {
        make_user(root, name, vec![role("readWrite", "test")]).await?;
    }
    let (alice, bob) = (
        client(protected.router(), "alice").await,
        client(protected.router(), "bob").await,
    );
    admin.run_command(doc! { "enableSharding": "test" }).await?;
    let shard = doc! { "shardCollection": "test.spread", "key": { "_id": "hashed" } };
    admin.run_command(shard).await?;
    for collection in ["spread", "whole"] {
        let documents: Vec<Document> = (0..400).map(|n| doc! { "_id": n }).collect();
        let insert = doc! { "insert": collection, "documents": documents };
        expect(&alice, "test", insert, 0).await?;
        let find = doc! { "find": collection, "batchSize": 2 };
        let opened = alice.database("test").run_command(find).await?;
        let id = opened.get_document("cursor")?.get_i64("id")?;
        let session = opened.get("lsid").cloned();
        ensure!(id != 0, "{opened}");
        let more = |batch: i32| {
            let mut more = doc! { "getMore": id, "collection": collection, "batchSize": batch };
            more.extend(session.clone().map(|session| ("lsid".to_owned(), session)));
            more
        };
        let kill = doc! { "killCursors": collection, "cursors": [id] };
        expect(&bob, "test", more(2), UNAUTHORIZED).await?;
        expect(&bob, "test", kill.clone(), UNAUTHORIZED).await?;
        expect(&alice, "test", kill, 0).await?;
        expect(&alice, "test", more(2), 43).await?;
    }

    // A cursor goes to its end, over both shards.
    use futures::TryStreamExt;
    let spread = alice.database("test").collection::<Document>("spread");
    let all: Vec<Document> = spread
        .find(doc! {})
        .batch_size(7)
        .await?
        .try_collect()
        .await?;
    ensure!(all.len() == 400, "{}", all.len());

    // However many requests at once open new connections for her, it is the router that logs in.
    let busy = "function () { var end = Date.now() + 20; while (Date.now() < end); return true; }";
    let find = doc! { "find": "spread", "filter": { "$where": busy }, "limit": 1 };
    let test = alice.database("test");
    let all = (0..24).map(|_| async { test.run_command(find.clone()).await });
    futures::future::try_join_all(all).await?;

    // What runs on a shard is known by the user's name there.
    let slow = alice.clone();
    let running = tokio::spawn(async move {
        let sleep =
            "function () { var end = Date.now() + 50; while (Date.now() < end); return true; }";
        let find = doc! { "find": "spread", "filter": { "$where": sleep } };
        code(&slow, "test", find).await
    });
    let own = doc! { "currentOp": 1, "$ownOps": true, "command.find": "spread" };
    let listed = async |client: &Client| -> Result<Vec<Document>> {
        let reply = client.database("admin").run_command(own.clone()).await?;
        let operations = reply.get_array("inprog")?.iter();
        Ok(operations
            .filter_map(|operation| operation.as_document().cloned())
            .collect())
    };
    let operations = eventually("the operation is listed", || async {
        let operations = listed(&alice).await?;
        ensure!(!operations.is_empty(), "none");
        Ok(operations)
    })
    .await;
    for operation in &operations {
        let users = operation.get_array("effectiveUsers")?;
        let expected = Bson::from(doc! { "user": "alice", "db": "admin" });
        ensure!(users == &[expected], "{operation}");
        let kill = doc! { "killOp": 1, "op": operation.get_str("opid")? };
        expect(&bob, "admin", kill, UNAUTHORIZED).await?;
    }
    ensure!(listed(&bob).await?.is_empty(), "they are not bob's");
    for operation in &operations {
        let kill = doc! { "killOp": 1, "op": operation.get_str("opid")? };
        expect(&alice, "admin", kill, 0).await?;
    }
    let ended = running.await??;
    ensure!(ended == 11_601, "{ended}");

    // Each is told of what it may see.
    make_user(root, "carl", vec![role("read", "elsewhere")]).await?;
    let carl = client(protected.router(), "carl").await;
    for (client, expected) in [(&alice, vec!["test"]), (&carl, vec![])] {
        let names = doc! { "listDatabases": 1, "nameOnly": true };
        let names = client.database("admin").run_command(names).await?;
        let names: Vec<&str> = names
            .get_array("databases")?
            .iter()
            .filter_map(|database| database.as_document()?.get_str("name").ok())
            .collect();
        ensure!(names == expected, "{names:?}");
    }
    let privilege =
        doc! { "resource": { "db": "test", "collection": "whole" }, "actions": ["find"] };
    let create = doc! { "createRole": "whole", "privileges": [privilege], "roles": [] };
    admin.run_command(create).await?;
    make_user(root, "dora", vec![role("whole", "admin")]).await?;
    let dora = client(protected.router(), "dora").await;
    let list = doc! { "listCollections": 1, "nameOnly": true };
    expect(&dora, "test", list.clone(), UNAUTHORIZED).await?;
    let mut list = list;
    list.insert("authorizedCollections", true);
    let listed = dora.database("test").run_command(list).await?;
    let batch = listed.get_document("cursor")?.get_array("firstBatch")?;
    let names: Vec<_> = batch.iter().map(|one| one.as_document()).collect();
    ensure!(
        names.len() == 1 && names[0].context("a name")?.get_str("name")? == "whole",
        "{listed}"
    );
    Ok(())
}

/// What processes of a cluster ask of each other, they ask as members.
#[tokio::test]
async fn a_protected_cluster_does_what_any_other_does() -> Result<()> {
    let protected = Protected::start(ClusterShape::default()).await?;
    let root = &protected.root;
    let (admin, test) = (root.database("admin"), root.database("test"));
    let run = async |database: &mongodb::Database, command: Document| {
        let answer = database.run_command(command.clone()).await;
        answer.with_context(|| format!("{command}"))
    };
    run(&admin, doc! { "enableSharding": "test" }).await?;
    run(
        &admin,
        doc! { "shardCollection": "test.c", "key": { "k": 1 } },
    )
    .await?;
    let documents: Vec<Document> = (0..200)
        .map(|n| doc! { "_id": n, "k": n, "tag": n % 7 })
        .collect();
    run(&test, doc! { "insert": "c", "documents": documents }).await?;
    run(&admin, doc! { "split": "test.c", "middle": { "k": 100 } }).await?;
    let owner = async || -> Result<String> {
        let find = doc! { "find": "chunks", "filter": { "max.k": { "$type": "maxKey" } } };
        let found = run(&root.database("config"), find).await?;
        let batch = found.get_document("cursor")?.get_array("firstBatch")?;
        let chunk = batch.first().and_then(Bson::as_document);
        Ok(chunk.context("a chunk")?.get_str("shard")?.to_owned())
    };
    let to = match &*owner().await? {
        "shard0" => "shard1",
        _ => "shard0",
    };
    let moved = doc! { "moveChunk": "test.c", "find": { "k": 150 }, "to": to };
    run(&admin, moved).await?;
    ensure!(owner().await? == to, "the chunk has moved");

    let indexes =
        doc! { "createIndexes": "c", "indexes": [{ "key": { "tag": 1 }, "name": "tag" }] };
    run(&test, indexes).await?;
    let counted = run(
        &test,
        doc! { "count": "c", "query": { "k": { "$gte": 50 } } },
    )
    .await?;
    ensure!(counted.get_i32("n")? == 150, "{counted}");
    let lookup = doc! { "from": "c", "localField": "tag", "foreignField": "k", "as": "found" };
    let out = run(
        &test,
        doc! { "aggregate": "c", "cursor": {}, "pipeline": [
            { "$group": { "_id": "$tag", "tag": { "$first": "$tag" }, "n": { "$sum": 1 } } },
            { "$lookup": lookup },
            { "$out": "tags" },
        ] },
    );
    out.await?;
    let counted = run(&test, doc! { "count": "tags" }).await?;
    ensure!(counted.get_i32("n")? == 7, "{counted}");
    // What the optimizer makes of these is sent to the shards in words of its own.
    let found = doc! { "from": "tags", "localField": "tag", "foreignField": "_id", "as": "f" };
    let range = doc! { "step": 1, "bounds": "full" };
    for stages in [
        vec![doc! { "$lookup": found }, doc! { "$unwind": "$f" }],
        vec![doc! { "$densify": { "field": "k", "range": range } }],
    ] {
        let pipeline = doc! { "aggregate": "c", "cursor": {}, "pipeline": stages };
        run(&test, pipeline).await?;
    }
    let map = "function () { emit(this.tag, 1) }";
    let reduce = "function (key, values) { return Array.sum(values) }";
    let job = |out: Document| doc! { "mapReduce": "c", "map": map, "reduce": reduce, "out": out };
    let reduced = run(&test, job(doc! { "inline": 1 })).await?;
    ensure!(reduced.get_array("results")?.len() == 7, "{reduced}");
    run(&test, job(doc! { "replace": "reduced" })).await?;
    let counted = run(&test, doc! { "count": "reduced" }).await?;
    ensure!(counted.get_i32("n")? == 7, "{counted}");
    let change =
        doc! { "findAndModify": "c", "query": { "k": 3 }, "update": { "$set": { "x": 1 } } };
    run(&test, change).await?;
    let update = doc! { "q": {}, "u": { "$inc": { "y": 1 } }, "multi": true };
    let updated = run(&test, doc! { "update": "c", "updates": [update] }).await?;
    ensure!(updated.get_i32("n")? == 200, "{updated}");
    for command in [
        doc! { "explain": { "find": "c", "filter": { "tag": 1 } } },
        doc! { "collStats": "c" },
        doc! { "listIndexes": "c" },
        doc! { "validate": "c" },
        doc! { "distinct": "c", "key": "tag" },
        doc! { "delete": "c", "deletes": [{ "q": { "tag": 6 }, "limit": 0 }] },
        doc! { "drop": "c" },
    ] {
        run(&test, command).await?;
    }
    for command in [
        doc! { "currentOp": 1 },
        doc! { "listDatabases": 1 },
        doc! { "balancerStatus": 1 },
        doc! { "addShardToZone": "shard0", "zone": "z" },
        doc! { "serverStatus": 1 },
    ] {
        run(&admin, command).await?;
    }

    // A stage that the router answers itself.
    let spread = doc! { "$shardedDataDistribution": {} };
    let spread = doc! { "aggregate": 1, "cursor": {}, "pipeline": [spread] };
    run(&admin, spread.clone()).await?;

    // A session is known on shards as the user's who has it here.
    make_user(root, "alice", vec![role("readWrite", "test")]).await?;
    let alice = client(protected.router(), "alice").await;
    expect(&alice, "admin", spread, UNAUTHORIZED).await?;
    let mut session = alice.start_session().await?;
    let own = alice.database("test").collection::<Document>("own");
    let insert = own.insert_one(doc! { "_id": 1 });
    insert.session(&mut session).await?;
    let mut found = 0;
    for shard in &protected.cluster.shards {
        let own = make_root(&shard.members[0]).await?;
        let hers = doc! { "users": [{ "user": "alice", "db": "admin" }] };
        let list = doc! {
            "aggregate": 1, "cursor": {}, "pipeline": [{ "$listLocalSessions": hers }],
        };
        let listed = run(&own.database("admin"), list).await?;
        let batch = listed.get_document("cursor")?.get_array("firstBatch")?;
        let mut sessions = batch.iter().filter_map(Bson::as_document);
        found += usize::from(sessions.any(|listed| {
            let id = listed.get_document("_id").ok();
            id.is_some_and(|id| id.get("id") == session.id().get("id"))
        }));
    }
    ensure!(found == 1, "her session is known on {found} shards");
    Ok(())
}

#[tokio::test]
async fn who_has_another_key_is_let_in_by_nobody() -> Result<()> {
    let protected = Protected::small().await?;
    let directory = tempfile::tempdir()?;
    let other = key_file(directory.path(), "other", OTHER_KEY)?;
    let other = other.display().to_string();
    for (flags, said) in [
        (vec!["--keyFile", &*other], "does not share a key"),
        (vec![], "requires authentication"),
    ] {
        let mut router = protected.router_with(&flags).prepare();
        router.spawn();
        eventually("the router says why it waits", || async {
            ensure!(router.log().contains(said), "{}", router.log());
            Ok(())
        })
        .await;
    }
    // A shard with another key is not taken in, and takes nothing.
    let launch = Launch::mongod().with(["--shardsvr", "--replSet", "late", "--selfInitiate"]);
    let shard = launch.with(["--keyFile", &other]).start().await;
    let add = doc! { "addShard": format!("late/{}", shard.host()), "name": "late" };
    let refused = code(&protected.root, "admin", add).await?;
    ensure!(refused != 0, "it was taken in");
    let shards = doc! { "listShards": 1 };
    let shards = protected.root.database("admin").run_command(shards).await?;
    ensure!(shards.get_array("shards")?.len() == 1, "{shards}");
    Ok(())
}

#[tokio::test]
async fn a_cluster_is_changed_over_to_access_control_while_it_runs() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let key = key_file(directory.path(), "key", KEY)?
        .display()
        .to_string();
    let shape = ClusterShape {
        shards: 1,
        ..ClusterShape::default()
    };
    let flags = ["--keyFile", &key, "--transitionToAuth"];
    let cluster = Cluster::start_with(shape, &flags).await;
    let nobody = cluster.router.direct().await;
    let insert = doc! { "insert": "c", "documents": [{ "_id": 1 }] };
    expect(&nobody, "test", insert, 0).await?;
    let root = make_root(&cluster.router).await?;
    expect(&root, "test", doc! { "find": "c" }, 0).await?;
    expect(&nobody, "test", doc! { "find": "c" }, 0).await?;
    let wrong = login(&cluster.router, "root", "a wrong secret", None).await;
    expect(&wrong, "test", doc! { "find": "c" }, AUTHENTICATION_FAILED).await?;
    Ok(())
}

/// Built-in roles mean through a router what they mean on the reference.
#[tokio::test]
async fn through_a_router_each_built_in_role_may_do_what_it_may_elsewhere() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let key = key_file(directory.path(), "key", KEY)?
        .display()
        .to_string();
    let shape = ClusterShape {
        shards: 1,
        ..ClusterShape::default()
    };
    let cluster = Cluster::start_with(shape, &["--keyFile", &key]).await;
    let folder = repository().join("tests/stories/access");
    let known = fs::read_to_string(folder.join("roles.known"))?;
    let known: BTreeSet<&str> = known
        .lines()
        .filter_map(|line| Some(line.split_once(" -- ")?.0))
        .collect();
    let names = cluster.router.direct().await.database("admin");
    let names = names.run_command(doc! { "listCommands": 1 }).await?;
    let names = names.get_document("commands")?.clone();
    let mut rows = super::roles::read_rows(&fs::read_to_string(folder.join("roles.golden"))?)?;
    rows.retain(|row| {
        let command = row.parse().ok();
        command.is_some_and(|command| {
            command
                .keys()
                .next()
                .is_some_and(|name| names.contains_key(name))
        })
    });
    ensure!(rows.len() > 60, "{}", rows.len());
    let mut wrong = Vec::new();
    for (row, own) in rows
        .iter()
        .zip(super::roles::ask(&cluster.router, &rows).await?)
    {
        for (more, less, word) in [
            (&own, &row.allowed, "allows"),
            (&row.allowed, &own, "denies"),
        ] {
            for column in more.difference(less) {
                let line = format!("{word} {column} {} {}", row.database, row.command);
                if !known.contains(line.as_str()) {
                    wrong.push(line);
                }
            }
        }
    }
    ensure!(
        wrong.is_empty(),
        "unlike the reference:\n{}",
        wrong.join("\n")
    );
    Ok(())
}
