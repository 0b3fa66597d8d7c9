//! What a write waits for and what a read has to see: write concerns with a member that does not
//! answer, a primary that is cut off, causal and snapshot reads on secondaries, defaults, and writes
//! that are sent again.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use banyan_tests::{Launch, Process, ReplicaSet, eventually};
use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Document, Timestamp, doc};
use nix::sys::signal::{Signal, kill};

/// A connection that sends what it is given and shows all that comes back: a driver would put its
/// own session and times in their place.
pub struct Wire(TcpStream);

impl Wire {
    pub fn connect(process: &Process) -> Result<Wire> {
        Wire::connect_to(&process.host())
    }

    pub fn connect_to(host: &str) -> Result<Wire> {
        let stream = TcpStream::connect(host)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        stream.set_nodelay(true)?;
        Ok(Wire(stream))
    }

    /// The same connection, for another thread.
    pub fn try_clone(&self) -> Result<Wire> {
        Ok(Wire(self.0.try_clone()?))
    }

    /// This end's address, by which the server knows its client.
    pub fn local_address(&self) -> Result<String> {
        Ok(self.0.local_addr()?.to_string())
    }

    pub fn shutdown(&self, how: std::net::Shutdown) -> Result<()> {
        Ok(self.0.shutdown(how)?)
    }

    pub fn run(&mut self, database: &str, command: Document) -> Result<Document> {
        self.send(database, command)?;
        self.receive()
    }

    pub fn send(&mut self, database: &str, mut command: Document) -> Result<()> {
        command.insert("$db", database);
        let body = command.to_vec()?;
        let mut message = Vec::new();
        for word in [21 + body.len() as i32, 1, 0, 2013, 0] {
            message.extend_from_slice(&word.to_le_bytes());
        }
        message.push(0);
        message.extend_from_slice(&body);
        self.0.write_all(&message)?;
        Ok(())
    }

    pub fn receive(&mut self) -> Result<Document> {
        let mut header = [0; 16];
        self.0.read_exact(&mut header)?;
        let length = i32::from_le_bytes(header[..4].try_into()?);
        let mut rest = vec![0; usize::try_from(length)? - 16];
        self.0.read_exact(&mut rest)?;
        Ok(Document::from_reader(&rest[5..])?)
    }

    /// A command that has to go well.
    pub fn ok(&mut self, database: &str, command: Document) -> Result<Document> {
        let reply = self.run(database, command.clone())?;
        ensure!(reply.get_f64("ok")? == 1.0, "{command}: {reply}");
        Ok(reply)
    }

    fn insert(&mut self, id: i32, concern: Document) -> Result<Document> {
        let insert = doc! { "insert": "c", "documents": [{ "_id": id }], "writeConcern": concern };
        let reply = self.ok("test", insert)?;
        ensure!(reply.get_i32("n")? == 1, "{reply}");
        Ok(reply)
    }
}

fn concern_code(reply: &Document) -> Option<i32> {
    reply
        .get_document("writeConcernError")
        .ok()?
        .get_i32("code")
        .ok()
}

/// Stopped for as long as it lives.
struct Stopped(nix::unistd::Pid);

impl Stopped {
    fn new(process: &Process) -> Result<Stopped> {
        kill(process.pid(), Signal::SIGSTOP)?;
        let stopped = Stopped(process.pid());
        // The other threads run on until the one that was signalled gets its turn.
        let asked = Instant::now();
        while !stopped.is_complete()? {
            ensure!(
                asked.elapsed() < Duration::from_secs(10),
                "it does not stop"
            );
            std::thread::yield_now();
        }
        Ok(stopped)
    }

    fn is_complete(&self) -> Result<bool> {
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.0))? {
            let status = std::fs::read_to_string(thread?.path().join("stat"))?;
            // After the name, which may hold anything but ends at the last parenthesis.
            let state = status
                .rsplit_once(") ")
                .and_then(|(_, rest)| rest.chars().next());
            if state != Some('T') {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

pub fn session() -> Document {
    let bytes = rand::random::<[u8; 16]>().to_vec();
    let subtype = BinarySubtype::Uuid;
    doc! { "id": Binary { subtype, bytes } }
}

/// The primary and the others, by index.
async fn roles(set: &ReplicaSet) -> (usize, Vec<usize>) {
    let primary = set.primary().await;
    let others = (0..set.members.len()).filter(|at| *at != primary);
    (primary, others.collect())
}

#[tokio::test]
async fn a_write_waits_for_the_members_that_it_names() -> Result<()> {
    let set = ReplicaSet::start("set_concerns", 3, &[]).await;
    let (primary, others) = roles(&set).await;
    let mut wire = Wire::connect(&set.members[primary])?;
    let got = wire.ok("admin", doc! { "replSetGetConfig": 1 })?;
    let mut config = got.get_document("config")?.clone();
    config.insert("version", config.get_i32("version")? + 1);
    for (member, dc) in config
        .get_array_mut("members")?
        .iter_mut()
        .zip(["a", "a", "b"])
    {
        let member = member.as_document_mut().context("a member")?;
        member.insert("tags", doc! { "dc": dc });
    }
    let modes = doc! { "both": { "dc": 2 } };
    config
        .get_document_mut("settings")?
        .insert("getLastErrorModes", modes);
    wire.ok("admin", doc! { "replSetReconfig": config })?;

    // With everybody there: what is acknowledged can be read everywhere.
    for id in 0..5 {
        let reply = wire.insert(id, doc! { "w": 3, "wtimeout": 20_000 })?;
        ensure!(concern_code(&reply).is_none(), "{reply}");
        for other in &others {
            let find = doc! {
                "find": "c", "filter": { "_id": id }, "$readPreference": { "mode": "secondary" },
            };
            let found = Wire::connect(&set.members[*other])?.ok("test", find)?;
            let batch = found.get_document("cursor")?.get_array("firstBatch")?;
            ensure!(batch.len() == 1, "{id} is not at member {other}: {found}");
        }
    }
    for concern in [
        doc! { "w": "both" },
        doc! { "w": { "dc": 2 } },
        doc! { "w": 2, "j": true },
    ] {
        let reply = wire.insert(rand::random(), concern.clone())?;
        ensure!(concern_code(&reply).is_none(), "{concern}: {reply}");
    }
    let reply = wire.insert(100, doc! { "w": 4 })?;
    ensure!(concern_code(&reply) == Some(100), "{reply}");
    let reply = wire.insert(101, doc! { "w": "nowhere" })?;
    ensure!(concern_code(&reply) == Some(79), "{reply}");

    let stopped = Stopped::new(&set.members[others[1]])?;
    let started = Instant::now();
    let reply = wire.insert(102, doc! { "w": 3, "wtimeout": 300 })?;
    ensure!(started.elapsed() >= Duration::from_millis(300));
    let error = reply.get_document("writeConcernError")?;
    ensure!(error.get_i32("code")? == 64, "{reply}");
    ensure!(error.get_str("errmsg")? == "waiting for replication timed out");
    let expected = doc! {
        "wtimeout": true,
        "writeConcern": { "w": 3, "wtimeout": 300, "provenance": "clientSupplied" },
    };
    ensure!(error.get_document("errInfo")? == &expected, "{reply}");
    let create = doc! { "create": "made", "writeConcern": { "w": 3, "wtimeout": 100 } };
    let reply = wire.ok("test", create.clone())?;
    ensure!(concern_code(&reply) == Some(64), "{reply}");
    let reply = wire.run("test", create)?;
    ensure!(
        reply.get_i32("code")? == 48 && concern_code(&reply) == Some(64),
        "{reply}"
    );
    let reply = wire.insert(103, doc! { "w": 2, "wtimeout": 20_000 })?;
    ensure!(concern_code(&reply).is_none(), "{reply}");
    // As a client of 2012 asks: after the write, on the same connection.
    wire.insert(105, doc! { "w": 1 })?;
    let asked = wire.ok(
        "test",
        doc! { "getlasterror": 1, "w": 2, "wtimeout": 20_000 },
    )?;
    ensure!(asked.get("err") == Some(&Bson::Null), "{asked}");
    let asked = wire.ok("test", doc! { "getlasterror": 1, "w": 3, "wtimeout": 100 })?;
    ensure!(
        asked.get_str("err")? == "timeout" && asked.get_bool("wtimeout")?,
        "{asked}"
    );
    let asked = wire.run("test", doc! { "getlasterror": 1, "w": "nowhere" })?;
    ensure!(asked.get_i32("code")? == 79, "{asked}");
    // One that waits is told as soon as the member has caught up.
    let waiting = std::thread::spawn(move || wire.insert(104, doc! { "w": 3 }));
    std::thread::sleep(Duration::from_millis(100));
    ensure!(!waiting.is_finished());
    drop(stopped);
    let reply = waiting.join().expect("no panic")?;
    ensure!(concern_code(&reply).is_none(), "{reply}");
    Ok(())
}

#[tokio::test]
async fn a_primary_that_is_cut_off_does_not_read_linearizably() -> Result<()> {
    let set = ReplicaSet::start("set_lin", 3, &[]).await;
    let (primary, others) = roles(&set).await;
    let mut wire = Wire::connect(&set.members[primary])?;
    wire.insert(1, doc! { "w": "majority" })?;
    let linearizable = doc! {
        "find": "c", "filter": { "_id": 1 }, "readConcern": { "level": "linearizable" },
    };
    let found = wire.ok("test", linearizable.clone())?;
    ensure!(
        found.get_document("cursor")?.get_array("firstBatch")?.len() == 1,
        "{found}"
    );
    let mut on_secondary = linearizable.clone();
    on_secondary.insert("$readPreference", doc! { "mode": "secondary" });
    let refused = Wire::connect(&set.members[others[0]])?.run("test", on_secondary)?;
    ensure!(refused.get_i32("code")? == 10_107, "{refused}");

    let _first = Stopped::new(&set.members[others[0]])?;
    let _second = Stopped::new(&set.members[others[1]])?;
    let mut limited = linearizable.clone();
    limited.insert("maxTimeMS", 200);
    let started = Instant::now();
    let refused = wire.run("test", limited)?;
    let code = refused.get_i32("code")?;
    ensure!(code == 50 || code == 10_107, "{refused}");
    ensure!(started.elapsed() < Duration::from_secs(5));
    // Without a limit it is told once it has noticed that nobody follows it.
    let refused = wire.run("test", linearizable)?;
    ensure!(refused.get_i32("code")? == 10_107, "{refused}");
    // Nor is a write acknowledged that nobody else has.
    let write = doc! { "insert": "c", "documents": [{ "_id": 2 }] };
    let refused = wire.run("test", write)?;
    ensure!(refused.get_f64("ok")? == 0.0, "{refused}");
    Ok(())
}

#[tokio::test]
async fn a_causal_read_on_a_secondary_sees_what_came_before() -> Result<()> {
    let set = ReplicaSet::start("set_causal", 3, &[]).await;
    let (primary, others) = roles(&set).await;
    let mut wire = Wire::connect(&set.members[primary])?;
    let after = |reply: &Document, id: i32| -> Result<Document> {
        Ok(doc! {
            "find": "c",
            "filter": { "_id": id },
            "$readPreference": { "mode": "secondary" },
            "readConcern": { "afterClusterTime": reply.get_timestamp("operationTime")? },
            "$clusterTime": reply.get_document("$clusterTime")?.clone(),
        })
    };
    let found = |reply: &Document| -> Result<usize> {
        Ok(reply.get_document("cursor")?.get_array("firstBatch")?.len())
    };
    for id in 0..20 {
        let written = wire.insert(id, doc! { "w": 1 })?;
        let other = &set.members[others[id as usize % 2]];
        let read = Wire::connect(other)?.ok("test", after(&written, id)?)?;
        ensure!(found(&read)? == 1, "{id}: {read}");
    }

    // A secondary that lags: the read waits until it has caught up, or until its time is over.
    let mut reader = Wire::connect(&set.members[others[0]])?;
    reader.ok("admin", doc! { "ping": 1 })?;
    let stopped = Stopped::new(&set.members[others[0]])?;
    let written = wire.insert(1000, doc! { "w": "majority" })?;
    let read = after(&written, 1000)?;
    let waiting = std::thread::spawn(move || reader.ok("test", read));
    drop(stopped);
    ensure!(found(&waiting.join().expect("no panic")?)? == 1);

    // A time that nobody has written at comes all the same, everywhere.
    let now = written.get_timestamp("operationTime")?;
    for (ahead, at) in [(3, primary), (6, others[0]), (9, others[1])] {
        let time = Timestamp {
            time: now.time + ahead,
            increment: 1,
        };
        let signature = written
            .get_document("$clusterTime")?
            .get_document("signature")?
            .clone();
        let read = doc! {
            "find": "c",
            "filter": { "_id": 1000 },
            "$readPreference": { "mode": "secondaryPreferred" },
            "readConcern": { "afterClusterTime": time },
            "$clusterTime": { "clusterTime": time, "signature": signature },
            "maxTimeMS": 15_000,
        };
        let reply = Wire::connect(&set.members[at])?.ok("test", read)?;
        ensure!(
            found(&reply)? == 1 && reply.get_timestamp("operationTime")? >= time,
            "{reply}"
        );
    }
    // One that nobody has heard of is refused.
    let time = Timestamp {
        time: now.time + 1000,
        increment: 1,
    };
    let read = doc! { "find": "c", "readConcern": { "afterClusterTime": time } };
    let refused = wire.run("test", read)?;
    ensure!(refused.get_i32("code")? == 72, "{refused}");
    Ok(())
}

#[tokio::test]
async fn a_secondary_has_the_primary_write_its_results() -> Result<()> {
    let set = ReplicaSet::start("set_out", 3, &[]).await;
    let (primary, others) = roles(&set).await;
    let mut wire = Wire::connect(&set.members[primary])?;
    let documents: Vec<Bson> = (0..1500).map(|id| doc! { "_id": id }.into()).collect();
    wire.ok("test", doc! { "insert": "c", "documents": documents })?;
    let existing = doc! { "insert": "out", "documents": [{ "_id": "old", "k": 1 }] };
    wire.ok("test", existing)?;
    let index = doc! { "key": { "k": 1 }, "name": "k_1" };
    wire.ok("test", doc! { "createIndexes": "out", "indexes": [index] })?;
    let now = wire.ok("admin", doc! { "ping": 1 })?;
    let after = doc! { "afterClusterTime": now.get("operationTime") };

    let mut secondary = Wire::connect(&set.members[others[0]])?;
    let reading = |mut command: Document| {
        command.insert("$readPreference", doc! { "mode": "secondary" });
        command
    };
    for stage in [doc! { "$out": "out" }, doc! { "$merge": "merged" }] {
        let aggregate = doc! { "aggregate": "c", "pipeline": [stage], "cursor": {} };
        let mut aggregate = reading(aggregate);
        aggregate.insert("readConcern", after.clone());
        aggregate.insert("$clusterTime", now.get("$clusterTime").cloned());
        secondary.ok("test", aggregate)?;
    }
    for (collection, rows) in [("out", 1500), ("merged", 1500)] {
        // Whoever asked sees it where it was asked for, and the primary has it.
        let counted = secondary.ok("test", reading(doc! { "count": collection }))?;
        ensure!(counted.get_i32("n")? == rows, "{collection}: {counted}");
        let counted = wire.ok("test", doc! { "count": collection })?;
        ensure!(counted.get_i32("n")? == rows, "{collection}: {counted}");
    }
    let indexes = wire.ok("test", doc! { "listIndexes": "out" })?;
    let indexes = indexes.get_document("cursor")?.get_array("firstBatch")?;
    ensure!(indexes.len() == 2, "{indexes:?}");

    // What the primary says against it is the answer, and so is its write concern.
    let fail = doc! { "into": "merged", "whenMatched": "fail" };
    let fail = doc! { "aggregate": "c", "pipeline": [{ "$merge": fail }], "cursor": {} };
    let reply = secondary.run("test", reading(fail))?;
    ensure!(reply.get_i32("code")? == 11000, "{reply}");
    let many = doc! {
        "aggregate": "c", "pipeline": [{ "$limit": 1 }, { "$merge": "merged" }], "cursor": {},
        "writeConcern": { "w": 4 },
    };
    let reply = secondary.run("test", reading(many))?;
    ensure!(reply.get_i32("code")? == 100, "{reply}");
    Ok(())
}

#[tokio::test]
async fn a_snapshot_is_the_same_at_every_member() -> Result<()> {
    let set = ReplicaSet::start("set_snapshot", 3, &[]).await;
    let (primary, _) = roles(&set).await;
    let mut wire = Wire::connect(&set.members[primary])?;
    let documents: Vec<Bson> = (0..50).map(|id| doc! { "_id": id }.into()).collect();
    let mut latest = wire.ok("test", doc! { "insert": "c", "documents": documents })?;
    let read = |concern: Document, command: Document| {
        let mut command = command;
        command.insert("readConcern", concern);
        command.insert("$readPreference", doc! { "mode": "secondaryPreferred" });
        command
    };
    let find = doc! { "find": "c", "batchSize": 10 };
    for first in 0..set.members.len() {
        // A member may lag, so it is told what it has to see.
        let after = latest.get_timestamp("operationTime")?;
        let concern = doc! { "level": "snapshot", "afterClusterTime": after };
        let mut begun = read(concern, find.clone());
        begun.insert("$clusterTime", latest.get_document("$clusterTime")?.clone());
        let mut opener = Wire::connect(&set.members[first])?;
        let opened = opener.ok("test", begun)?;
        let cursor = opened.get_document("cursor")?;
        let time = cursor.get_timestamp("atClusterTime")?;
        let before = 50 + 20 * first as i32;
        let more: Vec<Bson> = (0..20).map(|n| doc! { "_id": before + n }.into()).collect();
        wire.ok("test", doc! { "insert": "c", "documents": more })?;
        wire.ok(
            "test",
            doc! { "delete": "c", "deletes": [{ "q": { "_id": 0 }, "limit": 1 }] },
        )?;
        latest = wire.ok("test", doc! { "insert": "c", "documents": [{ "_id": 0 }] })?;
        let get_more = doc! { "getMore": cursor.get_i64("id")?, "collection": "c" };
        let rest = opener.ok("test", get_more)?;
        let rest = rest.get_document("cursor")?;
        ensure!(rest.get_timestamp("atClusterTime")? == time, "{rest}");
        ensure!(
            rest.get_array("nextBatch")?.len() as i32 == before - 10,
            "{rest}"
        );
        for member in &set.members {
            let concern = doc! { "level": "snapshot", "atClusterTime": time };
            let mut distinct = read(concern.clone(), doc! { "distinct": "c", "key": "_id" });
            // One that lags does not know of the time yet.
            distinct.insert("$clusterTime", latest.get_document("$clusterTime")?.clone());
            let reply = Wire::connect(member)?.ok("test", distinct)?;
            ensure!(reply.get_array("values")?.len() as i32 == before, "{reply}");
            let count = doc! { "aggregate": "c", "pipeline": [{ "$count": "n" }], "cursor": {} };
            let reply = Wire::connect(member)?.ok("test", read(concern, count))?;
            let batch = reply.get_document("cursor")?.get_array("firstBatch")?;
            ensure!(
                batch[0].as_document().context("a row")?.get_i32("n")? == before,
                "{reply}"
            );
        }
    }
    let old = Timestamp {
        time: 1,
        increment: 1,
    };
    let concern = doc! { "level": "snapshot", "atClusterTime": old };
    let refused = wire.run("test", read(concern, find))?;
    ensure!(refused.get_i32("code")? == 239, "{refused}");
    Ok(())
}

#[tokio::test]
async fn defaults_and_results_outlive_a_crash() -> Result<()> {
    let mut set = ReplicaSet::start("set_again", 3, &[]).await;
    let (primary, _) = roles(&set).await;
    let mut wire = Wire::connect(&set.members[primary])?;
    wire.ok(
        "admin",
        doc! { "setDefaultRWConcern": 1, "defaultWriteConcern": { "w": 3, "wtimeout": 400 } },
    )?;
    let sessions: Vec<Document> = (0..5).map(|_| session()).collect();
    let numbered = |at: usize, mut command: Document| {
        command.insert("lsid", sessions[at].clone());
        command.insert("txnNumber", 1_i64);
        command.insert("writeConcern", doc! { "w": "majority" });
        command
    };
    let seed: Vec<Bson> = ["u", "f", "d"]
        .map(|id| doc! { "_id": id, "n": 0 }.into())
        .into();
    wire.ok(
        "test",
        doc! { "insert": "c", "documents": seed, "writeConcern": { "w": 1 } },
    )?;
    let commands = [
        doc! { "insert": "c", "documents": [{ "_id": "i" }] },
        doc! { "update": "c", "updates": [
            { "q": { "_id": "u" }, "u": { "$inc": { "n": 1 } } },
            { "q": { "_id": "up" }, "u": { "$inc": { "n": 1 } }, "upsert": true },
        ] },
        doc! { "delete": "c", "deletes": [{ "q": { "_id": "d" }, "limit": 1 }] },
        doc! {
            "findAndModify": "c", "query": { "_id": "f" },
            "update": { "$inc": { "n": 1 } }, "new": true,
        },
    ];
    let mut first = Vec::new();
    for (at, command) in commands.iter().enumerate() {
        first.push(wire.ok("test", numbered(at, command.clone()))?);
    }
    let part = doc! { "insert": "p", "documents": [{ "_id": 0 }, { "_id": 2 }], "stmtIds": [0, 2] };
    wire.ok("test", numbered(4, part))?;

    set.members[primary].kill();
    let (next, _) = roles(&set).await;
    let mut wire = Wire::connect(&set.members[next])?;
    retried(&mut wire, &commands, &first, &numbered)?;
    let whole: Vec<Bson> = (0..4).map(|id| doc! { "_id": id }.into()).collect();
    let whole = doc! { "insert": "p", "documents": whole, "stmtIds": [0, 1, 2, 3] };
    let reply = wire.ok("test", numbered(4, whole))?;
    ensure!(reply.get_i32("n")? == 4, "{reply}");
    ensure!(
        reply.get_array("retriedStmtIds")? == &vec![Bson::Int32(0), Bson::Int32(2)],
        "{reply}"
    );
    // An insert's number has no document for a findAndModify to show.
    let modify = doc! { "findAndModify": "p", "query": { "_id": 0 }, "remove": true };
    let reply = wire.run("test", numbered(4, modify))?;
    ensure!(reply.get_i32("code")? == 40608, "{reply}");
    let mut older = numbered(4, doc! { "insert": "p", "documents": [{ "_id": 9 }] });
    older.insert("txnNumber", 0_i64);
    ensure!(wire.run("test", older)?.get_i32("code")? == 225);
    // The default asks for three, and one is gone.
    let reply = wire.ok("test", doc! { "insert": "p", "documents": [{ "_id": 10 }] })?;
    ensure!(concern_code(&reply) == Some(64), "{reply}");

    // All of them at once, from disk.
    for member in &mut set.members {
        member.kill();
    }
    for member in &mut set.members {
        member.spawn();
    }
    for member in &mut set.members {
        member.ready().await;
    }
    set.settled().await;
    let (primary, others) = roles(&set).await;
    let mut wire = Wire::connect(&set.members[primary])?;
    retried(&mut wire, &commands, &first, &numbered)?;
    let find = doc! { "find": "c", "filter": { "_id": { "$in": ["u", "f"] } } };
    let found = wire.ok("test", find)?;
    for row in found.get_document("cursor")?.get_array("firstBatch")? {
        ensure!(
            row.as_document().context("a row")?.get_i32("n")? == 1,
            "{found}"
        );
    }
    let shown = wire.ok("admin", doc! { "getDefaultRWConcern": 1 })?;
    ensure!(shown.get_document("defaultWriteConcern")? == &doc! { "w": 3, "wtimeout": 400 });
    let lists = doc! { "find": "transactions", "filter": { "_id.id": &sessions[1].get("id") } };
    let lists = |mode: &str| {
        let mut lists = lists.clone();
        lists.insert("$readPreference", doc! { "mode": mode });
        lists
    };
    eventually("a secondary shows the session", || async {
        let mut wire = Wire::connect(&set.members[others[0]])?;
        let listed = wire.ok("config", lists("secondary"))?;
        let rows = listed.get_document("cursor")?.get_array("firstBatch")?;
        let Some(row) = rows.first().and_then(Bson::as_document) else {
            bail!("{listed}")
        };
        ensure!(row.get_i64("txnNum")? == 1 && row.get_datetime("lastWriteDate").is_ok());
        let at = row.get_document("lastWriteOpTime")?;
        ensure!(
            at.get_timestamp("ts").is_ok() && at.get_i64("t").is_ok(),
            "{row}"
        );
        Ok(())
    })
    .await;
    Ok(())
}

/// The same commands get the same answers, and do nothing.
fn retried(
    wire: &mut Wire,
    commands: &[Document],
    first: &[Document],
    numbered: &impl Fn(usize, Document) -> Document,
) -> Result<()> {
    for (at, command) in commands.iter().enumerate() {
        let again = wire.ok("test", numbered(at, command.clone()))?;
        ensure!(
            again.contains_key("retriedStmtIds") || again.contains_key("retriedStmtId"),
            "{again}"
        );
        for field in ["n", "nModified", "upserted", "lastErrorObject", "value"] {
            ensure!(
                again.get(field) == first[at].get(field),
                "{}: {again}",
                first[at]
            );
        }
    }
    Ok(())
}

#[tokio::test]
async fn sessions_end_with_what_belongs_to_them() -> Result<()> {
    let mongod = Launch::mongod()
        .with(["--setParameter", "maxSessions=5"])
        .with(["--setParameter", "localLogicalSessionTimeoutMinutes=7"])
        .start()
        .await;
    let mut wire = Wire::connect(&mongod)?;
    // Drivers throw away what is nearly that old.
    for command in ["hello", "isMaster"] {
        let told = wire.ok("admin", doc! { command: 1 })?;
        ensure!(told.get_i32("logicalSessionTimeoutMinutes")? == 7, "{told}");
    }
    let documents: Vec<Bson> = (0..10).map(|id| doc! { "_id": id }.into()).collect();
    wire.ok("test", doc! { "insert": "c", "documents": documents })?;
    for end in ["endSessions", "killSessions"] {
        let lsid = session();
        let find = doc! { "find": "c", "batchSize": 2, "lsid": lsid.clone() };
        let found = wire.ok("test", find)?;
        let id = found.get_document("cursor")?.get_i64("id")?;
        // Nobody else goes on with it, and asking does not end it.
        let more = doc! { "getMore": id, "collection": "c", "batchSize": 2 };
        ensure!(wire.run("test", more.clone())?.get_i32("code")? == 50737);
        let mut other = more.clone();
        other.insert("lsid", session());
        ensure!(wire.run("test", other.clone())?.get_i32("code")? == 50738);
        wire.ok("admin", doc! { "endSessions": [other.get("lsid")] })?;
        let mut own = more;
        own.insert("lsid", lsid.clone());
        wire.ok("test", own)?;
        wire.ok("admin", doc! { end: [lsid.clone()] })?;
        let more = wire.run(
            "test",
            doc! { "getMore": id, "collection": "c", "lsid": lsid },
        )?;
        ensure!(more.get_i32("code")? == 43, "{end}: {more}");
    }
    wire.ok("admin", doc! { "killAllSessions": [] })?;
    let mut refused = None;
    for _ in 0..5 {
        let reply = wire.run("test", doc! { "ping": 1, "lsid": session() })?;
        if reply.get_f64("ok")? != 1.0 {
            refused = Some(reply.get_i32("code")?);
        }
    }
    ensure!(refused == Some(261), "{refused:?}");
    let write = doc! {
        "insert": "c", "documents": [{ "_id": 99 }], "lsid": session(), "txnNumber": 1_i64,
    };
    let reply = wire.run("test", write)?;
    ensure!([20, 261].contains(&reply.get_i32("code")?), "{reply}");
    Ok(())
}

#[tokio::test]
async fn a_write_that_came_late_is_not_done_again() -> Result<()> {
    let set = ReplicaSet::start("set_late", 3, &[]).await;
    let (primary, others) = roles(&set).await;
    let mut wire = Wire::connect(&set.members[primary])?;
    wire.insert(1, doc! { "w": 3, "wtimeout": 20_000 })?;
    let increment = doc! {
        "update": "c",
        "updates": [{ "q": { "_id": 1 }, "u": { "$inc": { "n": 1 } } }],
        "lsid": session(),
        "txnNumber": 1_i64,
        "writeConcern": { "w": "majority", "wtimeout": 100 },
    };
    let stopped = [
        Stopped::new(&set.members[others[0]])?,
        Stopped::new(&set.members[others[1]])?,
    ];
    let reply = wire.ok("test", increment.clone())?;
    ensure!(concern_code(&reply) == Some(64), "{reply}");
    drop(stopped);
    // Whoever leads by then: it was committed late or not at all, and happens once.
    eventually("the write is acknowledged", || async {
        let (primary, _) = roles(&set).await;
        let mut wire = Wire::connect(&set.members[primary])?;
        let reply = wire.ok("test", increment.clone())?;
        ensure!(concern_code(&reply).is_none(), "{reply}");
        let found = wire.ok("test", doc! { "find": "c" })?;
        let rows = found.get_document("cursor")?.get_array("firstBatch")?;
        assert_eq!(rows, &vec![Bson::from(doc! { "_id": 1, "n": 1 })]);
        Ok::<_, anyhow::Error>(())
    })
    .await;
    Ok(())
}
