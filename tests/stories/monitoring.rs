//! How clients learn of what happens to a set: by being told, not by waiting until something fails.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use banyan_tests::{
    Cluster, ClusterShape, Launch, Process, ReplicaSet, connect, eventually, repository,
};
use bson::{Bson, Document, doc};
use mongodb::event::EventHandler;
use mongodb::event::sdam::SdamEvent;
use mongodb::options::ClientOptions;
use mongodb::{Client, ServerType};
use nix::sys::signal::{Signal, kill};
use tokio::sync::mpsc;

const OP_QUERY: i32 = 2004;
const OP_MSG: i32 = 2013;
const MORE_TO_COME: u32 = 1 << 1;
const EXHAUST_ALLOWED: u32 = 1 << 16;

/// Commands as they are, without a driver's additions.
struct Raw {
    socket: TcpStream,
    last_id: i32,
}

struct Answer {
    id: i32,
    response_to: i32,
    more_to_come: bool,
    body: Document,
}

impl Raw {
    fn connect(process: &Process) -> Result<Self> {
        let socket = TcpStream::connect(process.host())?;
        socket.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(Self { socket, last_id: 0 })
    }

    fn send(&mut self, opcode: i32, payload: &[u8]) -> Result<i32> {
        self.last_id += 1;
        let length = i32::try_from(16 + payload.len())?;
        let header = [length, self.last_id, 0, opcode].map(i32::to_le_bytes);
        self.socket
            .write_all(&[&header.concat(), payload].concat())?;
        Ok(self.last_id)
    }

    fn ask(&mut self, command: &Document, flags: u32) -> Result<i32> {
        let body = bson::serialize_to_vec(command)?;
        self.send(OP_MSG, &[&flags.to_le_bytes()[..], &[0], &body].concat())
    }

    fn message(&mut self) -> Result<(i32, i32, Vec<u8>)> {
        let mut head = [0; 16];
        self.socket.read_exact(&mut head)?;
        let int = |at: usize| i32::from_le_bytes(head[at..at + 4].try_into().unwrap());
        let mut payload = vec![0; usize::try_from(int(0) - 16)?];
        self.socket.read_exact(&mut payload)?;
        Ok((int(4), int(8), payload))
    }

    fn answer(&mut self) -> Result<Answer> {
        let (id, response_to, payload) = self.message()?;
        let flags = u32::from_le_bytes(payload[..4].try_into()?);
        Ok(Answer {
            id,
            response_to,
            more_to_come: flags & MORE_TO_COME != 0,
            body: bson::deserialize_from_slice(&payload[5..])?,
        })
    }

    fn run(&mut self, command: Document) -> Result<Document> {
        self.ask(&command, 0)?;
        Ok(self.answer()?.body)
    }

    fn query(&mut self, command: &Document) -> Result<Document> {
        let mut payload = [
            &[0; 4][..],
            b"admin.$cmd\0",
            &[0; 4],
            &(-1_i32).to_le_bytes(),
        ]
        .concat();
        payload.extend(bson::serialize_to_vec(command)?);
        self.send(OP_QUERY, &payload)?;
        Ok(bson::deserialize_from_slice(&self.message()?.2[20..])?)
    }
}

fn hello(process: &Process) -> Result<Document> {
    Raw::connect(process)?.run(doc! { "hello": 1, "$db": "admin" })
}

/// A `hello` that is answered once something has changed, or after a minute.
fn awaiting(process: &Process) -> Result<Document> {
    let version = hello(process)?.get_document("topologyVersion")?.clone();
    Ok(doc! { "hello": 1, "topologyVersion": version, "maxAwaitTimeMS": 60_000, "$db": "admin" })
}

async fn admin(process: &Process, command: Document) -> Result<Document> {
    let admin = process.direct().await.database("admin");
    Ok(admin.run_command(command).await?)
}

fn seconds_now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("the clock is past 1970").as_secs_f64()
}

/// The script that writes and reads without pause.
struct Failover {
    child: Child,
    input: Option<ChildStdin>,
    lines: mpsc::UnboundedReceiver<String>,
}

impl Failover {
    fn start(uri: &str) -> Result<Self> {
        let mut child = Command::new(repository().join(".venv/bin/python"))
            .arg(repository().join("tests/clients/pymongo_failover.py"))
            .arg(uri)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(child.stdout.take().context("its output")?);
        let (sender, lines) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let input = child.stdin.take();
        Ok(Self {
            child,
            input,
            lines,
        })
    }

    async fn line(&mut self) -> Result<String> {
        let line = tokio::time::timeout(Duration::from_secs(60), self.lines.recv()).await?;
        line.context("the script ended")
    }

    /// Waits until the client sees that host as the primary and works with it; when it saw it.
    async fn sees(&mut self, host: &str) -> Result<f64> {
        let mut at = None;
        loop {
            let line = self.line().await?;
            let words: Vec<&str> = line.split(' ').collect();
            match (words.as_slice(), at) {
                (["primary", seen, time], _) if *seen == host => at = Some(time.parse()?),
                (["working"], Some(at)) => return Ok(at),
                _ => {}
            }
        }
    }

    /// Ends the load; what it met.
    async fn end(mut self) -> Result<serde_json::Value> {
        drop(self.input.take());
        loop {
            let line = self.line().await?;
            if line.starts_with('{') {
                return Ok(serde_json::from_str(&line)?);
            }
        }
    }
}

impl Drop for Failover {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn a_default_pymongo_client_meets_no_error_when_primaries_end() -> Result<()> {
    let mut set = ReplicaSet::start("failover", 3, &[]).await;
    let mut load = Failover::start(&set.uri())?;
    while load.line().await? != "ready" {}

    let killed = set.primary().await;
    let at = seconds_now();
    set.members[killed].kill();
    let next = set.primary().await;
    let after_kill = load.sees(&set.members[next].host()).await? - at;
    set.members[killed].start().await;
    set.settled().await;

    let stepping = set.primary().await;
    let at = seconds_now();
    let _ = admin(&set.members[stepping], doc! { "replSetStepDown": 60 }).await;
    let next = set.primary().await;
    ensure!(next != stepping);
    // It may lead again: with one member less there is nobody to spare.
    admin(&set.members[stepping], doc! { "replSetFreeze": 0 }).await?;
    let after_step_down = load.sees(&set.members[next].host()).await? - at;

    let at = seconds_now();
    set.members[next].stop().await;
    let last = set.primary().await;
    let after_stop = load.sees(&set.members[last].host()).await? - at;

    let met = load.end().await?;
    eprintln!(
        "the client saw a new primary {after_kill:.3} s after kill -9, {after_step_down:.3} s \
         after a step down, {after_stop:.3} s after a stop; {met}"
    );
    ensure!(met["errors"].as_array().is_some_and(Vec::is_empty), "{met}");
    for nothing in ["lost", "unexpected", "miscounted"] {
        ensure!(met[nothing] == 0, "{nothing}: {met}");
    }
    ensure!(after_kill < 5.0 && after_step_down < 2.0 && after_stop < 3.0);
    Ok(())
}

/// A client of the whole set, and a word for every primary that it comes to see.
async fn watching(set: &ReplicaSet) -> Result<(Client, mpsc::UnboundedReceiver<String>)> {
    let (sender, seen) = mpsc::unbounded_channel();
    let mut options = ClientOptions::parse(set.uri()).await?;
    options.sdam_event_handler = Some(EventHandler::callback(move |event| {
        if let SdamEvent::TopologyDescriptionChanged(event) = event {
            for (address, server) in event.new_description.servers() {
                if server.server_type() == ServerType::RsPrimary {
                    // Nobody listens any more once the story is over.
                    let _ = sender.send(address.to_string());
                }
            }
        }
    }));
    Ok((Client::with_options(options)?, seen))
}

#[tokio::test]
async fn a_rust_client_is_told_of_a_new_primary() -> Result<()> {
    let set = ReplicaSet::start("told", 3, &[]).await;
    let (client, mut seen) = watching(&set).await?;
    let posts = client.database("test").collection("posts");
    posts.insert_one(doc! { "_id": 1 }).await?;
    let old = set.primary().await;
    let started = Instant::now();
    let _ = admin(&set.members[old], doc! { "replSetStepDown": 60 }).await;
    let former = set.members[old].host();
    let waiting = async {
        while let Some(primary) = seen.recv().await {
            if primary != former {
                return Some(started.elapsed());
            }
        }
        None
    };
    let took = tokio::time::timeout(Duration::from_secs(20), waiting).await?;
    let took = took.context("the client goes on watching")?;
    eprintln!("the Rust client saw a new primary {took:?} after a step down");
    // The driver's own interval is 10 s: it was told.
    ensure!(took < Duration::from_secs(3), "{took:?}");
    posts.insert_one(doc! { "_id": 2 }).await?;
    Ok(())
}

#[tokio::test]
async fn hello_tells_of_changes_and_of_the_end() -> Result<()> {
    let mut set = ReplicaSet::start("tells", 3, &[]).await;
    let primary = set.primary().await;
    let secondary = (primary + 1) % 3;
    let mut stream = Raw::connect(&set.members[secondary])?;
    let question = awaiting(&set.members[secondary])?;
    let mut before = stream.ask(&question, EXHAUST_ALLOWED)?;

    // A configuration is a change, and the stream goes on after it.
    let mut next = admin(&set.members[primary], doc! { "replSetGetConfig": 1 }).await?;
    let next = next.get_document_mut("config")?;
    next.insert("version", next.get_i32("version")? + 1);
    let members = next.get_array_mut("members")?;
    for member in members.iter_mut().filter_map(Bson::as_document_mut) {
        member.insert("tags", doc! { "host": member.get_str("host")?.to_owned() });
    }
    let next = doc! { "replSetReconfig": next.clone() };
    admin(&set.members[primary], next).await?;
    let host = set.members[secondary].host();
    loop {
        let answer = stream.answer()?;
        ensure!(answer.more_to_come && answer.response_to == before);
        before = answer.id;
        ensure!(answer.body.get_bool("secondary")?, "{}", answer.body);
        let tags = answer.body.get_document("tags");
        if tags.is_ok_and(|tags| tags.get_str("host").is_ok_and(|tag| tag == host)) {
            break;
        }
    }

    // So is the end of the member, which says that it ends, to all who wait.
    let mut waiting = Raw::connect(&set.members[secondary])?;
    waiting.ask(&awaiting(&set.members[secondary])?, 0)?;
    kill(set.members[secondary].pid(), Signal::SIGTERM)?;
    let mut last = stream.answer()?;
    while last.body.get_f64("ok")? == 1.0 {
        last = stream.answer()?;
    }
    ensure!(!last.more_to_come);
    for end in [last.body, waiting.answer()?.body] {
        ensure!(end.get_i32("code")? == 91, "{end}");
        ensure!(end.get_str("codeName")? == "ShutdownInProgress", "{end}");
        let counter = end.get_document("topologyVersion")?.get_i64("counter")?;
        let asked = question
            .get_document("topologyVersion")?
            .get_i64("counter")?;
        ensure!(counter > asked, "{end}");
    }
    ensure!(set.members[secondary].ended().await.success());
    Ok(())
}

#[tokio::test]
async fn a_primary_that_is_stopped_hands_over_first() -> Result<()> {
    let mut set = ReplicaSet::start("handed", 3, &[]).await;
    let old = set.primary().await;
    let third = (old + 1) % 3;
    set.members[third].stop().await;
    let started = Instant::now();
    set.members[old].stop().await;
    let heir = 3 - old - third;
    // It leads already, though it could not be elected any more: two of three are gone.
    ensure!(set.members[old].log().contains("left the lead"));
    ensure!(started.elapsed() < Duration::from_secs(8));
    let log = set.members[old].log();
    ensure!(
        log.contains("given=true") || log.contains("\"given\":true"),
        "{log}"
    );

    // The last one cannot give the lead to anybody, and `shutdown` says so unless it's forced.
    set.members[old].start().await;
    let leader = set.primary().await;
    let other = if leader == heir { old } else { heir };
    set.members[other].kill();
    let mut raw = Raw::connect(&set.members[leader])?;
    let command = doc! { "shutdown": 1, "timeoutSecs": 0, "$db": "admin" };
    let refused = raw.run(command.clone())?;
    ensure!(refused.get_i32("code")? == 262, "{refused}");
    let mut forced = command;
    forced.insert("force", true);
    let _ = raw.run(forced);
    ensure!(set.members[leader].ended().await.success());
    Ok(())
}

fn keys(document: &Document) -> Vec<&str> {
    document.keys().map(String::as_str).collect()
}

#[tokio::test]
async fn hello_has_the_fields_of_each_state() -> Result<()> {
    const LIMITS: [&str; 10] = [
        "maxBsonObjectSize",
        "maxMessageSizeBytes",
        "maxWriteBatchSize",
        "localTime",
        "logicalSessionTimeoutMinutes",
        "connectionId",
        "minWireVersion",
        "maxWireVersion",
        "readOnly",
        "ok",
    ];
    // The times that every reply of a member carries come after all this.
    let fields = |answer: &Document, expected: &[&str]| {
        let expected = [expected, &LIMITS].concat();
        let found = keys(answer);
        ensure!(found.starts_with(&expected), "{found:?}\nnot {expected:?}");
        Ok(())
    };
    let alone = Launch::mongod().start().await;
    fields(&hello(&alone)?, &["isWritablePrimary", "topologyVersion"])?;
    let fresh = Launch::mongod().with(["--replSet", "s"]).start().await;
    let not_yet = [
        "topologyVersion",
        "isWritablePrimary",
        "secondary",
        "info",
        "isreplicaset",
    ];
    fields(&hello(&fresh)?, &not_yet)?;

    let set = ReplicaSet::start("s", 2, &[]).await;
    let primary = set.primary().await;
    let known = ["topologyVersion", "hosts", "setName", "setVersion"];
    let of_primary = [
        "isWritablePrimary",
        "secondary",
        "primary",
        "me",
        "electionId",
        "lastWrite",
    ];
    let answer = hello(&set.members[primary])?;
    fields(&answer, &[&known[..], &of_primary].concat())?;
    let times = [
        "opTime",
        "lastWriteDate",
        "majorityOpTime",
        "majorityWriteDate",
    ];
    ensure!(keys(answer.get_document("lastWrite")?) == times);
    let of_secondary = [
        "isWritablePrimary",
        "secondary",
        "primary",
        "me",
        "lastWrite",
    ];
    let secondary = &set.members[1 - primary];
    let answer = hello(secondary)?;
    fields(&answer, &[&known[..], &of_secondary].concat())?;
    ensure!(answer.get_str("primary")? == set.members[primary].host());
    ensure!(answer.get_str("me")? == secondary.host());

    // As drivers asked before there was OP_MSG.
    let mut old = Raw::connect(secondary)?;
    let answer = old.query(&doc! { "isMaster": 1, "helloOk": true })?;
    let of_old = ["ismaster", "secondary", "primary", "me", "lastWrite"];
    fields(&answer, &[&["helloOk"][..], &known, &of_old].concat())?;
    Ok(())
}

#[tokio::test]
async fn refusals_of_a_secondary_are_labelled_for_drivers() -> Result<()> {
    let set = ReplicaSet::start("labels", 2, &[]).await;
    let secondary = &set.members[1 - set.primary().await];
    let session = doc! { "id": bson::Uuid::new() };
    let insert = doc! { "insert": "posts", "documents": [{ "_id": 1 }], "$db": "test" };
    let mut numbered = insert.clone();
    numbered.extend(doc! { "lsid": session, "txnNumber": 1_i64 });
    let find = doc! { "find": "posts", "$db": "test" };
    for (command, code, old, new, labels) in [
        (insert, 10107, "not master", "not primary", None),
        (
            numbered,
            10107,
            "not master",
            "not primary",
            Some("RetryableWriteError"),
        ),
        (
            find.clone(),
            13435,
            "not master and slaveOk=false",
            "not primary and secondaryOk=false",
            None,
        ),
    ] {
        let mut raw = Raw::connect(secondary)?;
        let refused = raw.run(command.clone())?;
        ensure!(refused.get_i32("code")? == code, "{refused}");
        ensure!(refused.get_str("errmsg")? == old, "{refused}");
        ensure!(refused.get_document("topologyVersion").is_ok(), "{refused}");
        let found = refused.get_array("errorLabels").ok();
        let found = found.and_then(|labels| labels.first()?.as_str());
        ensure!(found == labels, "{refused}");
        raw.run(doc! { "hello": 1, "helloOk": true, "$db": "admin" })?;
        ensure!(raw.run(command)?.get_str("errmsg")? == new);
    }
    let mut raw = Raw::connect(secondary)?;
    for (preference, code) in [
        (Bson::from(doc! { "mode": "secondary" }), None),
        (
            doc! { "mode": "nearest", "tags": [{ "a": "b" }] }.into(),
            None,
        ),
        (
            doc! { "mode": "secondary", "maxStalenessSeconds": 10 }.into(),
            Some(160),
        ),
        (doc! { "mode": "sometimes" }.into(), Some(2)),
        (doc! {}.into(), Some(4)),
        (3.into(), Some(14)),
    ] {
        let mut command = find.clone();
        command.insert("$readPreference", preference);
        let reply = raw.run(command.clone())?;
        ensure!(reply.get_i32("code").ok() == code, "{command}: {reply}");
    }
    Ok(())
}

/// How many times a member has run `find`.
async fn finds(process: &Process) -> Result<i64> {
    let status = admin(process, doc! { "serverStatus": 1 }).await?;
    let queries = status.get_document("opcounters")?.get("query");
    match queries {
        Some(Bson::Int64(n)) => Ok(*n),
        Some(Bson::Int32(n)) => Ok((*n).into()),
        other => bail!("{other:?}"),
    }
}

#[tokio::test]
async fn a_router_reads_from_the_members_that_are_asked_for() -> Result<()> {
    let shape = ClusterShape {
        shards: 1,
        members_per_shard: 3,
        configs: 1,
    };
    let mut cluster = Cluster::start(shape).await;
    let primary = cluster.shards[0].primary().await;
    let tagged = (primary + 1) % 3;
    let shard = &cluster.shards[0];
    let mut next = admin(&shard.members[primary], doc! { "replSetGetConfig": 1 }).await?;
    let next = next.get_document_mut("config")?;
    next.insert("version", next.get_i32("version")? + 1);
    let members = next.get_array_mut("members")?;
    let chosen = members[tagged].as_document_mut().context("a member")?;
    chosen.insert("tags", doc! { "use": "reports" });
    let next = doc! { "replSetReconfig": next.clone() };
    admin(&shard.members[primary], next).await?;

    let client = connect(&format!("mongodb://{}/", cluster.router.host())).await;
    let posts = client.database("test").collection::<Document>("posts");
    let everywhere = mongodb::options::WriteConcern::nodes(3);
    posts
        .insert_one(doc! { "_id": 1 })
        .write_concern(everywhere)
        .await?;
    let router = Arc::new(client.database("test"));
    let read = |preference: Document| {
        let router = router.clone();
        async move {
            let find = doc! { "find": "posts", "$readPreference": preference };
            let mut raw = router.run_cursor_command(find).await?;
            anyhow::Ok(raw.advance().await?)
        }
    };
    let counts = || async {
        let mut counts = Vec::new();
        for member in &cluster.shards[0].members {
            counts.push(finds(member).await?);
        }
        anyhow::Ok(counts)
    };
    // A secondary may still have to learn that it belongs to a cluster.
    eventually("the secondaries serve the router", || async {
        for _ in 0..6 {
            ensure!(read(doc! { "mode": "secondary" }).await?);
        }
        Ok(())
    })
    .await;
    let before = counts().await?;
    for _ in 0..10 {
        ensure!(read(doc! { "mode": "secondary" }).await?);
    }
    let after = counts().await?;
    for member in 0..3 {
        let served = after[member] - before[member];
        ensure!((served > 0) == (member != primary), "{before:?} {after:?}");
    }
    // The tag is known once the member has told of it.
    let reports = doc! { "mode": "secondary", "tags": [{ "use": "reports" }] };
    eventually(
        "reads with the tag reach the tagged member alone",
        || async {
            let before = counts().await?;
            for _ in 0..5 {
                ensure!(read(reports.clone()).await?);
            }
            let after = counts().await?;
            ensure!(after[tagged] - before[tagged] == 5, "{before:?} {after:?}");
            Ok(())
        },
    )
    .await;
    ensure!(read(doc! { "mode": "sometimes" }).await.is_err());

    cluster.shards[0].members[tagged].kill();
    for _ in 0..10 {
        ensure!(read(doc! { "mode": "secondary" }).await?);
    }
    // A failover behind the router: a read waits for the next primary and no longer.
    cluster.shards[0].members[tagged].start().await;
    cluster.shards[0].settled().await;
    let leader = cluster.shards[0].primary().await;
    let started = Instant::now();
    cluster.shards[0].members[leader].kill();
    ensure!(read(doc! { "mode": "primary" }).await?);
    eprintln!(
        "a read through the router went on {:?} later",
        started.elapsed()
    );
    Ok(())
}
