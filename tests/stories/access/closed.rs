//! Every command, in every form that a message can have, on every port of a protected cluster, from a
//! client that has not logged in: nothing of what is there is told or changed.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use banyan_tests::{ClusterShape, Process};
use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Document, doc};

use super::cluster::Protected;
use super::roles::FOR_ANYONE;
use super::*;
use crate::opcodes::{
    OP_DELETE, OP_GET_MORE, OP_INSERT, OP_KILL_CURSORS, OP_UPDATE, RawClient, bytes, text, word,
};

const COMMAND_NOT_FOUND: i32 = 59;
const QUERY_FAILURE: i32 = 1 << 1;
const DOCUMENTS: i32 = 20;
/// What no reply may hold.
const MARK: &str = "UNSEEN";

/// A process, and what it knows.
struct Port<'a> {
    what: &'static str,
    process: &'a Process,
    /// Whoever may do everything there.
    root: Client,
    /// What it has commands for, in every spelling.
    own: BTreeSet<String>,
}

impl<'a> Port<'a> {
    async fn of(what: &'static str, process: &'a Process) -> Result<Port<'a>> {
        let nobody = process.direct().await.database("admin");
        let listed = nobody.run_command(doc! { "listCommands": 1 }).await?;
        let mut own = BTreeSet::new();
        for (name, about) in listed.get_document("commands")? {
            own.insert(name.clone());
            let about = about.as_document().context("what it is")?;
            for alias in about.get_array("aliases").into_iter().flatten() {
                own.insert(alias.as_str().context("a name")?.to_owned());
            }
        }
        ensure!(own.len() > 80, "{what}: {}", own.len());
        Ok(Port {
            what,
            process,
            root: client(process, "root").await,
            own,
        })
    }

    /// What the reference answers without a login, and what a router adds to it.
    fn is_open(&self, name: &str) -> bool {
        let spellings = [
            "isMaster",
            "ismaster",
            "buildinfo",
            "listcommands",
            "getNonce",
        ];
        FOR_ANYONE.contains(&name)
            || spellings.contains(&name)
            || (self.what == "router" && matches!(name, "isdbgrid" | "isDbGrid"))
    }

    /// Whether a reply gives nothing away.
    fn check(&self, command: &Document, reply: &Document) -> Result<()> {
        let name = command.keys().next().map_or("", String::as_str);
        let code = reply.get_i32("code").unwrap_or(0);
        let refused = match self.own.contains(name) {
            true => code == UNAUTHORIZED,
            false => matches!(code, UNAUTHORIZED | COMMAND_NOT_FOUND),
        };
        ensure!(refused, "{} answers {command} with {reply}", self.what);
        ensure!(!reply.to_string().contains(MARK), "{}: {reply}", self.what);
        Ok(())
    }

    /// A cursor of root's, which strangers do not get at.
    async fn cursor(&self) -> Result<i64> {
        let find = doc! { "find": "c", "batchSize": 2 };
        let opened = self.root.database("test").run_command(find).await?;
        let id = opened.get_document("cursor")?.get_i64("id")?;
        ensure!(id != 0, "{opened}");
        Ok(id)
    }

    /// Everything is as it was.
    async fn is_untouched(&self, cursor: i64) -> Result<()> {
        let test = self.root.database("test");
        let more = doc! { "getMore": cursor, "collection": "c" };
        let rest = test.run_command(more).await?;
        let rest = rest.get_document("cursor")?.get_array("nextBatch")?;
        let expected = usize::try_from(DOCUMENTS)? - 2;
        ensure!(rest.len() == expected, "{}: {}", self.what, rest.len());
        let counted = doc! { "count": "c", "query": { "mark": MARK } };
        let counted = test.run_command(counted).await?;
        ensure!(
            counted.get_i32("n")? == DOCUMENTS,
            "{}: {counted}",
            self.what
        );
        let users = doc! { "usersInfo": { "forAllDBs": true } };
        let users = self.root.database("admin").run_command(users).await?;
        ensure!(users.get_array("users")?.len() == 1, "{users}");
        Ok(())
    }
}

/// Commands with something in them.
fn in_full(cursor: i64) -> Vec<Document> {
    let everything = doc! { "q": {}, "u": { "$set": { "mark": 1 } }, "multi": true };
    let audit = doc! { "$impersonatedUsers": [{ "user": "root", "db": "admin" }],
    "$impersonatedRoles": [{ "role": "root", "db": "admin" }] };
    let root = doc! { "user": "root", "db": "admin" };
    let mut frame = vec![1, 0, 0];
    // A heartbeat of a term that nobody was elected in.
    frame.extend([
        8, 8, 16, 1, 24, 2, 32, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f,
    ]);
    let frame = Binary {
        subtype: BinarySubtype::Generic,
        bytes: frame,
    };
    vec![
        doc! { "find": "c" },
        doc! { "find": "c", "$audit": audit },
        doc! { "find": "c", "lsid": { "id": Binary { subtype: BinarySubtype::Uuid,
        bytes: vec![7; 16] } } },
        doc! { "aggregate": "c", "pipeline": [], "cursor": {} },
        doc! { "aggregate": 1, "pipeline": [{ "$currentOp": {} }], "cursor": {} },
        doc! { "getMore": cursor, "collection": "c" },
        doc! { "killCursors": "c", "cursors": [cursor] },
        doc! { "insert": "c", "documents": [{ "mark": MARK }] },
        doc! { "update": "c", "updates": [everything] },
        doc! { "delete": "c", "deletes": [{ "q": {}, "limit": 0 }] },
        doc! { "drop": "c" },
        doc! { "dropDatabase": 1 },
        doc! { "explain": { "find": "c" } },
        doc! { "createUser": "eve", "pwd": "x", "roles": ["root"] },
        doc! { "createIndexes": "c", "indexes": [{ "key": { "a": 1 }, "name": "a" }] },
        doc! { "usersInfo": root, "showCredentials": true },
        doc! { "setParameter": 1, "enableLocalhostAuthBypass": true },
        doc! { "getLog": "global" },
        doc! { "shutdown": 1, "force": true },
        doc! { "replSetHeartbeat": "shard0", "from": "x:1", "term": 1_i64 << 60 },
        doc! { "replSetReconfig": { "_id": "shard0", "members": [] }, "force": true },
        doc! { "replSetStepDown": 1, "force": true },
        doc! { "_raftMessages": 1, "to": 1, "messages": [frame] },
        doc! { "_fetchSnapshot": 1 },
        doc! { "_configsvrAddShard": "x/127.0.0.1:1" },
        doc! { "_configsvrRemoveShard": "shard0" },
        doc! { "_recvChunkStart": "test.c", "from": "127.0.0.1:1" },
        doc! { "_shardsvrDropCollection": "test.c" },
        doc! { "logout": 1 },
    ]
}

/// In OP_MSG, in OP_COMPRESSED and in OP_QUERY.
fn ask(port: &Port<'_>, driver: &mut RawClient, database: &str, command: &Document) -> Result<()> {
    let mut named = command.clone();
    named.insert("$db", database);
    for reply in [
        driver.message(&named),
        driver.compressed(&named),
        driver.command_on(database, command),
    ] {
        let reply = reply.with_context(|| format!("{}: {command}", port.what))?;
        port.check(command, &reply)?;
    }
    Ok(())
}

fn commands(port: &Port<'_>, all: &BTreeSet<String>, cursor: i64) -> Result<usize> {
    let mut driver = RawClient::connect(port.process)?;
    let mut tried = 0;
    for name in all {
        if port.is_open(name) {
            continue;
        }
        for database in ["admin", "test", "config", "local"] {
            for argument in [Bson::Int32(1), Bson::from("c")] {
                ask(port, &mut driver, database, &doc! { name: argument })?;
                tried += 1;
            }
        }
    }
    for command in in_full(cursor) {
        for database in ["test", "admin"] {
            ask(port, &mut driver, database, &command)?;
            tried += 1;
        }
    }
    for open in [doc! { "ping": 1 }, doc! { "hello": 1 }] {
        let reply = driver.command_on("admin", &open)?;
        ensure!(reply.get_f64("ok")? == 1.0, "{reply}");
    }
    Ok(tried)
}

/// The forms of OP_MSG beside a body that is answered: documents that follow it, and commands that
/// nobody waits for.
fn bulks(port: &Port<'_>, cursor: i64) -> Result<()> {
    let mut driver = RawClient::connect(port.process)?;
    let change = doc! { "q": {}, "u": { "$set": { "mark": 1 } }, "multi": true };
    for (name, field, document) in [
        ("insert", "documents", doc! { "mark": MARK }),
        ("update", "updates", change),
        ("delete", "deletes", doc! { "q": {}, "limit": 0 }),
    ] {
        let command = doc! { name: "c", "$db": "test" };
        let reply = driver.sequence(&command, field, &[document])?;
        port.check(&command, &reply)?;
    }
    for mut command in in_full(cursor) {
        command.insert("$db", "test");
        driver.tell(&command)?;
    }
    // Behind them: they were taken.
    let reply = driver.command_on("admin", &doc! { "ping": 1 })?;
    ensure!(reply.get_f64("ok")? == 1.0, "{reply}");
    Ok(())
}

/// Who has tried to log in and failed, or has logged out, is a stranger.
async fn half_way_in(port: &Port<'_>) -> Result<()> {
    let mut driver = RawClient::connect(port.process)?;
    let payload = |text: &str| Binary {
        subtype: BinarySubtype::Generic,
        bytes: text.as_bytes().to_vec(),
    };
    let find = doc! { "find": "c" };
    for user in ["root", "nobody"] {
        let first = payload(&format!("n,,n={user},r=nonce"));
        let start = doc! { "saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": first };
        let mut within = start.clone();
        within.insert("db", "admin");
        let hello = doc! { "hello": 1, "speculativeAuthenticate": within,
        "saslSupportedMechs": format!("admin.{user}") };
        let told = driver.command_on("admin", &hello)?;
        // Whether there is such a user is not told.
        ensure!(told.contains_key("speculativeAuthenticate"), "{told}");
        ensure!(told.get_array("saslSupportedMechs")?.len() == 2, "{told}");
        ask(port, &mut driver, "test", &find)?;
        let told = driver.command_on("admin", &start)?;
        ensure!(!told.get_bool("done")?, "{told}");
        ask(port, &mut driver, "test", &find)?;
        let proof = payload("c=biws,r=nonce,p=AAAA");
        let proof = doc! { "saslContinue": 1, "conversationId": 1, "payload": proof };
        let failed = driver.command_on("admin", &proof)?;
        let code = failed.get_i32("code")?;
        ensure!(code == AUTHENTICATION_FAILED, "{}: {failed}", port.what);
        ask(port, &mut driver, "test", &find)?;
    }
    let leaving = client(port.process, "root").await;
    expect(&leaving, "test", find.clone(), 0).await?;
    expect(&leaving, "admin", doc! { "logout": 1 }, 0).await?;
    expect(&leaving, "test", find, UNAUTHORIZED).await
}

/// The opcodes of 2012. Writes are not answered: `getLastError` tells.
fn legacy(port: &Port<'_>, cursor: i64) -> Result<()> {
    let mut driver = RawClient::connect(port.process)?;
    for (namespace, filter) in [
        ("test.c", doc! {}),
        ("test.c", doc! { "$query": {}, "$explain": true }),
        ("test.system.namespaces", doc! {}),
        ("test.system.indexes", doc! { "ns": "test.c" }),
        ("admin.system.users", doc! {}),
        ("admin.$cmd.sys.inprog", doc! {}),
        ("admin.$cmd.sys.killop", doc! { "op": 1 }),
        ("admin.$cmd.sys.unlock", doc! {}),
    ] {
        let reply = driver.query(namespace, &filter, 10)?;
        let first = reply.documents.first();
        let first = first.with_context(|| format!("{namespace}: nothing"))?;
        let code = first.get_i32("code").unwrap_or(0);
        let is_command = namespace.contains("$cmd") || filter.contains_key("$explain");
        ensure!(
            matches!(code, UNAUTHORIZED | COMMAND_NOT_FOUND)
                && (is_command || reply.flags & QUERY_FAILURE != 0)
                && reply.documents.len() == 1
                && reply.cursor == 0,
            "{}: {namespace}: {first}",
            port.what
        );
    }
    let collection = [word(0), text("test.c")].concat();
    let change = [bytes(&doc! {}), bytes(&doc! { "$set": { "mark": 1 } })].concat();
    for (opcode, rest) in [
        (OP_INSERT, bytes(&doc! { "mark": MARK })),
        (OP_UPDATE, [word(2), change].concat()),
        (OP_DELETE, [word(0), bytes(&doc! {})].concat()),
    ] {
        driver.send(opcode, &[collection.clone(), rest])?;
        let outcome = driver.command(&doc! { "getlasterror": 1 })?;
        let code = outcome.get_i32("code").unwrap_or(0);
        ensure!(code == UNAUTHORIZED, "{}: {opcode}: {outcome}", port.what);
    }
    let id = cursor.to_le_bytes().to_vec();
    let sent = driver.send(OP_GET_MORE, &[collection, word(10), id.clone()])?;
    let more = driver.reply(sent)?;
    let told: Vec<String> = more.documents.iter().map(Document::to_string).collect();
    ensure!(!told.concat().contains(MARK), "{}: {told:?}", port.what);
    driver.send(OP_KILL_CURSORS, &[word(0), word(1), id])?;
    // Behind it: it was taken.
    driver.command(&doc! { "ping": 1 })?;
    Ok(())
}

#[tokio::test]
async fn a_stranger_can_say_hello_and_log_in_and_nothing_else() -> Result<()> {
    let shape = ClusterShape {
        shards: 1,
        ..ClusterShape::default()
    };
    let protected = Protected::start(shape).await?;
    let cluster = &protected.cluster;
    let (shard, config) = (&cluster.shards[0].members[0], &cluster.config.members[0]);
    // A shard has users of its own: none yet, so that whoever sits beside it may make the first.
    make_root(shard).await?;
    let ports = [
        Port::of("router", &cluster.router).await?,
        Port::of("shard", shard).await?,
        Port::of("config server", config).await?,
    ];
    let all: BTreeSet<String> = ports.iter().flat_map(|port| port.own.clone()).collect();
    ensure!(all.iter().filter(|name| name.starts_with('_')).count() > 30);
    let documents: Vec<Document> = (0..DOCUMENTS)
        .map(|n| doc! { "_id": n, "mark": MARK })
        .collect();
    for port in &ports {
        // What the router stores is on the shard.
        if port.what != "shard" {
            let insert = doc! { "insert": "c", "documents": documents.clone() };
            port.root.database("test").run_command(insert).await?;
        }
        let cursor = port.cursor().await?;
        let tried = commands(port, &all, cursor)?;
        ensure!(tried > 800, "{}: {tried}", port.what);
        bulks(port, cursor)?;
        legacy(port, cursor)?;
        half_way_in(port).await?;
        port.is_untouched(cursor).await?;
    }
    super::strangers::takes_small_messages_alone(&cluster.router)
}
