//! A server and its clients over real sockets.

#![allow(clippy::unwrap_used)] // A test that can't go on has failed.

use std::sync::Arc;
use std::time::Duration;

use banyan_wire::message::{self, encode_msg};
use banyan_wire::{
    ClientError, CommandError, Compressor, Connection, ErrorCode, FrameReader, Options, Outgoing,
    Pool, PoolOptions, ReadMode, ReplicaSet, Reply, Request, RequestOptions, Server, Service,
};
use bson::{RawDocumentBuf, rawdoc};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

/// Answers a few commands, and remembers what was asked.
#[derive(Default)]
struct Echo {
    seen: Mutex<Vec<String>>,
    closed: Mutex<Vec<u64>>,
}

impl Service for Echo {
    async fn call(self: &Arc<Self>, _: &Arc<Connection>, request: Request) -> Reply {
        self.seen.lock().push(request.name.clone());
        self.reply(&request).into()
    }

    fn closed(&self, connection: &Connection) {
        self.closed.lock().push(connection.id);
    }
}

impl Echo {
    fn reply(&self, request: &Request) -> Result<RawDocumentBuf, CommandError> {
        match request.name.as_str() {
            "ping" => Ok(rawdoc! {"ok": 1.0}),
            "hello" | "isMaster" => {
                Ok(rawdoc! {"isWritablePrimary": true, "ismaster": true, "ok": 1.0})
            }
            "insert" => {
                let n = request.batch("documents")?.len() as i32;
                Ok(rawdoc! {"n": n, "ok": 1.0})
            }
            "update" => Ok(rawdoc! {"n": 1, "nModified": 1, "ok": 1.0}),
            "find" => Ok(rawdoc! {
                "cursor": {"id": 0i64, "ns": "test.posts", "firstBatch": [{"a": 1}, {"a": 2}]},
                "ok": 1.0,
            }),
            "listCollections" => Ok(rawdoc! {
                "cursor": {"id": 0i64, "ns": "test.$cmd.listCollections",
                    "firstBatch": [{"name": "posts", "type": "collection"}]},
                "ok": 1.0,
            }),
            "large" => Ok(rawdoc! {"text": "x".repeat(3_000_000), "ok": 1.0}),
            "delete" => Err(CommandError::new(
                ErrorCode::IllegalOperation,
                "no deleting here",
            )),
            other => Err(CommandError::new(ErrorCode::CommandNotFound, other)),
        }
    }
}

struct Running {
    service: Arc<Echo>,
    address: String,
    shutdown: CancellationToken,
    serving: tokio::task::JoinHandle<()>,
}

async fn start() -> Running {
    let server = Server::bind(&["localhost"], 0, Options::default())
        .await
        .unwrap();
    let address = server.addresses()[0].to_string();
    let (service, shutdown) = (Arc::new(Echo::default()), CancellationToken::new());
    let serving = tokio::spawn(server.serve(service.clone(), shutdown.clone()));
    Running {
        service,
        address,
        shutdown,
        serving,
    }
}

fn pool(running: &Running) -> Pool {
    Pool::new(&running.address, PoolOptions::default())
}

/// Sends bytes and returns the next message.
async fn ask(stream: &mut TcpStream, frames: &mut FrameReader, bytes: &[u8]) -> bytes::Bytes {
    stream.write_all(bytes).await.unwrap();
    frames.next(stream).await.unwrap().unwrap()
}

/// The message's header, opcode included, and what `legacy` opcodes carry after it.
fn legacy_message(opcode: i32, payload: &[&[u8]]) -> Vec<u8> {
    let length = 16 + payload.iter().map(|part| part.len()).sum::<usize>();
    let mut out = Vec::new();
    for n in [length as i32, 77, 0, opcode] {
        out.extend(n.to_le_bytes());
    }
    payload.iter().for_each(|part| out.extend(*part));
    out
}

fn reply_document(message: &[u8], offset: usize) -> RawDocumentBuf {
    let length = i32::from_le_bytes(message[offset..offset + 4].try_into().unwrap()) as usize;
    RawDocumentBuf::from_bytes(message[offset..offset + length].to_vec()).unwrap()
}

#[tokio::test]
async fn commands_are_answered_through_a_pool() {
    let running = start().await;
    let pool = pool(&running);
    for _ in 0..3 {
        let reply = pool
            .command("admin", &rawdoc! {"ping": 1}, None)
            .await
            .unwrap();
        assert_eq!(reply.get_f64("ok").unwrap(), 1.0);
    }
    let (a, b) = (rawdoc! {"_id": 1}, rawdoc! {"_id": 2});
    let body = rawdoc! {"insert": "posts"};
    let sequences: [(&str, &[&bson::RawDocument]); 1] = [("documents", &[&a, &b])];
    let reply = pool
        .command_with("test", &body, &sequences, None)
        .await
        .unwrap();
    assert_eq!(reply.get_i32("n").unwrap(), 2);
    let reply = pool
        .command("test", &rawdoc! {"large": 1}, None)
        .await
        .unwrap();
    assert_eq!(reply.get_str("text").unwrap().len(), 3_000_000);
    let error = pool
        .command("test", &rawdoc! {"frob": 1}, None)
        .await
        .unwrap_err();
    assert!(matches!(error, ClientError::Command(e) if e.code == ErrorCode::CommandNotFound));
    assert!(
        running.service.closed.lock().is_empty(),
        "one connection served them all"
    );
}

#[tokio::test]
async fn many_clients_at_once_stay_within_the_pool() {
    let running = start().await;
    let options = PoolOptions {
        connections_max: 3,
        ..PoolOptions::default()
    };
    let pool = Pool::new(&running.address, options);
    let tasks: Vec<_> = (0..50)
        .map(|_| {
            let pool = pool.clone();
            tokio::spawn(async move { pool.command("a", &rawdoc! {"ping": 1}, None).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    pool.clear();
}

#[tokio::test]
async fn shutdown_ends_idle_connections_and_returns() {
    let running = start().await;
    let mut stream = TcpStream::connect(&running.address).await.unwrap();
    let ping = Outgoing::command("admin", &rawdoc! {"ping": 1});
    ask(&mut stream, &mut FrameReader::default(), ping.bytes()).await;
    running.shutdown.cancel();
    running.serving.await.unwrap();
    assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0);
    assert_eq!(running.service.closed.lock().len(), 1);
    let error = pool_of(&running.address)
        .command("a", &rawdoc! {"ping": 1}, None)
        .await;
    assert!(matches!(error.unwrap_err(), ClientError::Connect { .. }));
}

fn pool_of(address: &str) -> Pool {
    Pool::new(address, PoolOptions::default())
}

#[tokio::test]
async fn lies_end_the_connection_and_not_the_server() {
    let running = start().await;
    let good = Outgoing::command("admin", &rawdoc! {"ping": 1})
        .bytes()
        .to_vec();
    let mut inner_lie = good.clone();
    inner_lie[21] = 200;
    let mut outer_lie = good.clone();
    outer_lie[0..4].copy_from_slice(&100_000_000i32.to_le_bytes());
    let mut opcode = good.clone();
    opcode[12] = 99;
    let mut section = good.clone();
    section[20] = 9;
    for bad in [inner_lie, outer_lie, opcode, section, vec![0; 64]] {
        let mut stream = TcpStream::connect(&running.address).await.unwrap();
        stream.write_all(&bad).await.unwrap();
        let mut rest = Vec::new();
        // The end may come as a reset, since the server leaves bytes unread.
        let _ = stream.read_to_end(&mut rest).await;
        assert!(rest.is_empty());
    }
    pool(&running)
        .command("admin", &rawdoc! {"ping": 1}, None)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_refused_message_is_answered_and_the_connection_lives() {
    let running = start().await;
    let mut stream = TcpStream::connect(&running.address).await.unwrap();
    let mut frames = FrameReader::default();
    let mut bytes = Vec::new();
    encode_msg(&mut bytes, 5, 0, 0, &rawdoc! {"ping": 1});
    let reply = ask(&mut stream, &mut frames, &bytes).await;
    assert_eq!(reply_document(&reply, 21).get_i32("code").unwrap(), 40571);
    let mut deep = rawdoc! {};
    for _ in 0..250 {
        deep = rawdoc! {"a": deep};
    }
    let body = rawdoc! {"insert": "posts", "documents": [deep], "$db": "test"};
    bytes.clear();
    encode_msg(&mut bytes, 6, 0, 0, &body);
    let reply = ask(&mut stream, &mut frames, &bytes).await;
    assert_eq!(
        reply_document(&reply, 21).get_str("codeName").unwrap(),
        "Overflow"
    );
    let ping = Outgoing::command("admin", &rawdoc! {"ping": 1});
    let reply = ask(&mut stream, &mut frames, ping.bytes()).await;
    assert_eq!(reply_document(&reply, 21).get_f64("ok").unwrap(), 1.0);
}

#[tokio::test]
async fn a_checksum_is_checked_and_returned() {
    let running = start().await;
    let mut stream = TcpStream::connect(&running.address).await.unwrap();
    let mut bytes = Vec::new();
    let body = rawdoc! {"ping": 1, "$db": "admin"};
    encode_msg(&mut bytes, 5, 0, message::FLAG_CHECKSUM, &body);
    let reply = ask(&mut stream, &mut FrameReader::default(), &bytes).await;
    let (signed, sum) = reply.split_at(reply.len() - 4);
    assert_eq!(reply[16] & 1, 1);
    assert_eq!(crc32c::crc32c(signed).to_le_bytes(), sum);
    *bytes.last_mut().unwrap() ^= 1;
    stream.write_all(&bytes).await.unwrap();
    assert_eq!(stream.read(&mut [0; 1]).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn compressed_requests_get_compressed_replies() {
    let running = start().await;
    for compressor in Compressor::ALL {
        let mut stream = TcpStream::connect(&running.address).await.unwrap();
        let mut frames = FrameReader::default();
        let hello = rawdoc! {"hello": 1, "compression": [compressor.name(), "lzma"]};
        let hello = Outgoing::command("admin", &hello);
        let reply = ask(&mut stream, &mut frames, hello.bytes()).await;
        let names = reply_document(&reply, 21);
        let names = names.get_array("compression").unwrap();
        assert_eq!(names.get_str(0).unwrap(), compressor.name());
        assert!(names.get(1).unwrap().is_none());

        let plain = Outgoing::command("admin", &rawdoc! {"ping": 1});
        let payload = &plain.bytes()[16..];
        let mut packed = Vec::new();
        compressor.compress(payload, &mut packed).unwrap();
        let head = [
            &message::OP_MSG.to_le_bytes()[..],
            &(payload.len() as i32).to_le_bytes(),
            &[compressor as u8],
        ]
        .concat();
        let bytes = legacy_message(message::OP_COMPRESSED, &[&head, &packed]);
        let reply = ask(&mut stream, &mut frames, &bytes).await;
        let (opcode, used, plain) = message::decompress(&reply).unwrap();
        assert_eq!((opcode, used), (message::OP_MSG, compressor));
        assert_eq!(reply_document(&plain, 5).get_f64("ok").unwrap(), 1.0);
    }
}

#[tokio::test]
async fn legacy_opcodes_are_commands_in_disguise() {
    let running = start().await;
    let mut stream = TcpStream::connect(&running.address).await.unwrap();
    let mut frames = FrameReader::default();
    let zero = 0i32.to_le_bytes();
    let doc = rawdoc! {"a": 1};
    let insert = legacy_message(
        message::OP_INSERT,
        &[&zero, b"test.posts\0", doc.as_bytes()],
    );
    stream.write_all(&insert).await.unwrap();
    let update = [
        &zero[..],
        b"test.posts\0",
        &zero,
        doc.as_bytes(),
        doc.as_bytes(),
    ];
    stream
        .write_all(&legacy_message(message::OP_UPDATE, &update))
        .await
        .unwrap();
    let command = |body: &RawDocumentBuf| {
        let head = [&zero[..], b"test.$cmd\0", &zero, &(-1i32).to_le_bytes()].concat();
        legacy_message(message::OP_QUERY, &[&head, body.as_bytes()])
    };
    let last_error = command(&rawdoc! {"getlasterror": 1, "w": 1});
    let reply = ask(&mut stream, &mut frames, &last_error).await;
    let answer = reply_document(&reply, 36);
    assert_eq!(answer.get_i32("n").unwrap(), 1);
    assert!(answer.get_bool("updatedExisting").unwrap());
    assert_eq!(answer.get("err").unwrap(), Some(bson::RawBsonRef::Null));

    let delete = [&zero[..], b"test.posts\0", &zero, doc.as_bytes()];
    stream
        .write_all(&legacy_message(message::OP_DELETE, &delete))
        .await
        .unwrap();
    let reply = ask(&mut stream, &mut frames, &last_error).await;
    assert_eq!(
        reply_document(&reply, 36).get_str("err").unwrap(),
        "no deleting here"
    );

    let find = [&zero[..], b"test.posts\0", &zero, &zero, doc.as_bytes()];
    let reply = ask(
        &mut stream,
        &mut frames,
        &legacy_message(message::OP_QUERY, &find),
    )
    .await;
    assert_eq!(reply[12..16], message::OP_REPLY.to_le_bytes());
    assert_eq!(reply[32..36], 2i32.to_le_bytes(), "two documents");
    assert_eq!(reply_document(&reply, 36), rawdoc! {"a": 1});

    let namespaces = [
        &zero[..],
        b"test.system.namespaces\0",
        &zero,
        &zero,
        doc.as_bytes(),
    ];
    let asked = legacy_message(message::OP_QUERY, &namespaces);
    let reply = ask(&mut stream, &mut frames, &asked).await;
    assert_eq!(reply_document(&reply, 36), rawdoc! {"name": "test.posts"});

    let wrapped = command(&rawdoc! {"$query": {"ping": 1}, "$readPreference": {"mode": "nearest"}});
    let reply = ask(&mut stream, &mut frames, &wrapped).await;
    assert_eq!(reply_document(&reply, 36).get_f64("ok").unwrap(), 1.0);
    let seen = running.service.seen.lock().clone();
    assert_eq!(
        seen,
        [
            "insert",
            "update",
            "delete",
            "find",
            "listCollections",
            "ping"
        ]
    );
}

#[tokio::test]
async fn one_way_messages_arrive_in_order() {
    let running = start().await;
    let pool = pool(&running);
    for n in 0..500 {
        let name = bson::raw::CString::try_from(format!("m{n}")).unwrap();
        let body = rawdoc! {name: 1};
        pool.send_one_way("admin", &body, &[]).unwrap();
    }
    tokio::time::timeout(Duration::from_secs(10), async {
        while running.service.seen.lock().len() < 500 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await
    .unwrap();
    let seen = running.service.seen.lock();
    assert!(
        seen.iter()
            .enumerate()
            .all(|(n, name)| *name == format!("m{n}"))
    );
}

#[tokio::test]
async fn a_set_client_finds_the_primary_again_after_a_restart() {
    let running = start().await;
    let set = ReplicaSet::parse(&running.address, PoolOptions::default()).unwrap();
    let ping = rawdoc! {"ping": 1};
    let read = RequestOptions::read(ReadMode::Primary);
    set.command(read.clone(), "admin", &ping).await.unwrap();
    running.shutdown.cancel();
    running.serving.await.unwrap();
    let impatient = read
        .clone()
        .server_selection_timeout(Duration::from_millis(100));
    let error = set.command(impatient, "admin", &ping).await.unwrap_err();
    assert_eq!(
        error.code(),
        ErrorCode::FailedToSatisfyReadPreference,
        "{error}"
    );

    let port = running.address.rsplit_once(':').unwrap().1.parse().unwrap();
    let server = Server::bind(&["localhost"], port, Options::default())
        .await
        .unwrap();
    tokio::spawn(server.serve(Arc::new(Echo::default()), CancellationToken::new()));
    set.command(read.clone(), "admin", &ping).await.unwrap();
}

/// Says hello as one of two members, and never answers anything else unless it is the primary.
struct Member {
    primary: std::sync::atomic::AtomicBool,
    hosts: Mutex<Vec<String>>,
}

impl Service for Member {
    async fn call(self: &Arc<Self>, _: &Arc<Connection>, request: Request) -> Reply {
        let primary = self.primary.load(std::sync::atomic::Ordering::SeqCst);
        if request.name == "hello" {
            let hosts = bson::RawArrayBuf::from_iter(self.hosts.lock().iter().map(String::as_str));
            let reply = rawdoc! {
                "setName": "s", "isWritablePrimary": primary, "secondary": !primary,
                "hosts": hosts, "ok": 1.0,
            };
            return reply.into();
        }
        if !primary {
            std::future::pending::<()>().await;
        }
        rawdoc! {"ok": 1.0}.into()
    }
}

#[tokio::test]
async fn a_primary_that_hangs_is_left_for_its_successor() {
    let (mut members, mut hosts) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let server = Server::bind(&["localhost"], 0, Options::default())
            .await
            .unwrap();
        hosts.push(server.addresses()[0].to_string());
        let member = Arc::new(Member {
            primary: true.into(),
            hosts: Mutex::default(),
        });
        tokio::spawn(server.serve(member.clone(), CancellationToken::new()));
        members.push(member);
    }
    let lead = |leader: usize| {
        for (index, member) in members.iter().enumerate() {
            member
                .primary
                .store(index == leader, std::sync::atomic::Ordering::SeqCst);
            *member.hosts.lock() = hosts.clone();
        }
    };
    lead(0);
    let set = ReplicaSet::parse(&format!("s/{}", hosts.join(",")), PoolOptions::default()).unwrap();
    let read = RequestOptions::read(ReadMode::Primary).ask_others_after(Duration::from_millis(20));
    set.command(read.clone(), "admin", &rawdoc! {"ping": 1})
        .await
        .unwrap();
    assert_eq!(set.primary().unwrap(), hosts[0]);
    // The first one hangs from now on, and its connection stays open.
    lead(1);
    set.command(read.clone(), "admin", &rawdoc! {"ping": 1})
        .await
        .unwrap();
    assert_eq!(set.primary().unwrap(), hosts[1]);
}
