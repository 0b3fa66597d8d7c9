//! What a server grants to clients that have not logged in, and how many it serves.

#![allow(clippy::unwrap_used)] // A test that can't go on has failed.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use banyan_wire::message::encode_msg;
use banyan_wire::{
    Connection, Counters, FrameReader, Options, Reply, Request, Server, Service, StrangerLimits,
};
use bson::rawdoc;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

const MESSAGE_TIME_MAX: Duration = Duration::from_millis(300);
const IDLE_TIME_MAX: Duration = Duration::from_millis(900);

/// Knows whoever has said `login`.
#[derive(Default)]
struct Gate {
    known: Mutex<HashSet<u64>>,
    /// Lets one go that has said `hold`.
    let_go: Notify,
}

impl Service for Gate {
    async fn call(self: &Arc<Self>, connection: &Arc<Connection>, request: Request) -> Reply {
        if request.name == "login" {
            self.known.lock().insert(connection.id);
        }
        if request.name == "hold" {
            self.let_go.notified().await;
        }
        rawdoc! { "ok": 1.0 }.into()
    }

    fn stranger_limits(&self, connection: &Connection) -> Option<StrangerLimits> {
        let known = self.known.lock().contains(&connection.id);
        (!known).then_some(StrangerLimits {
            message_bytes_max: 16 * 1024,
            message_time_max: MESSAGE_TIME_MAX,
            idle_time_max: IDLE_TIME_MAX,
        })
    }
}

struct Running {
    service: Arc<Gate>,
    address: String,
    counters: Arc<Counters>,
    shutdown: CancellationToken,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

async fn start(options: Options) -> Running {
    let server = Server::bind(&["localhost"], 0, options).await.unwrap();
    let running = Running {
        service: Arc::default(),
        address: server.addresses()[0].to_string(),
        counters: server.counters(),
        shutdown: CancellationToken::new(),
    };
    let service = running.service.clone();
    tokio::spawn(server.serve(service, running.shutdown.clone()));
    running
}

/// A message of at least so many bytes.
fn message(name: &str, bytes: usize) -> Vec<u8> {
    let name = bson::raw::CString::try_from(name).unwrap();
    let mut body = rawdoc! {};
    body.append(&name, 1);
    body.append(bson::raw::cstr!("$db"), "admin");
    body.append(bson::raw::cstr!("text"), "x".repeat(bytes));
    let mut out = Vec::new();
    encode_msg(&mut out, 1, 0, 0, &body);
    out
}

/// Whether it is answered; if not, the connection has ended.
async fn is_answered(stream: &mut TcpStream, bytes: &[u8]) -> bool {
    if stream.write_all(bytes).await.is_err() {
        return false;
    }
    matches!(FrameReader::default().next(stream).await, Ok(Some(_)))
}

/// How long it takes until the server ends the connection.
async fn ends_after(stream: &mut TcpStream) -> Duration {
    let started = Instant::now();
    let mut rest = Vec::new();
    // A connection that is reset has ended as well.
    let _ = stream.read_to_end(&mut rest).await;
    started.elapsed()
}

/// `bytes` as if they came to `claimed` when they are unpacked.
fn compressed(bytes: &[u8], claimed: i32) -> Vec<u8> {
    const OP_COMPRESSED: i32 = 2012;
    const OP_MSG: i32 = 2013;
    const NOT_AT_ALL: u8 = 0;
    let body = &bytes[16..];
    let mut out = Vec::new();
    for number in [25 + body.len() as i32, 1, 0, OP_COMPRESSED, OP_MSG, claimed] {
        out.extend(number.to_le_bytes());
    }
    out.push(NOT_AT_ALL);
    out.extend(body);
    out
}

#[tokio::test]
async fn a_message_of_a_stranger_is_small() {
    let running = start(Options::default()).await;
    let connect = || TcpStream::connect(running.address.clone());
    let mut small = connect().await.unwrap();
    assert!(is_answered(&mut small, &message("ping", 16_000)).await);
    let mut large = connect().await.unwrap();
    assert!(!is_answered(&mut large, &message("ping", 17_000)).await);
    // Said to be large, nothing of it sent.
    let mut announced = connect().await.unwrap();
    assert!(!is_answered(&mut announced, &message("ping", 17_000)[..16]).await);
    let mut packed = connect().await.unwrap();
    let claims = compressed(&message("ping", 10), 1_000_000);
    assert!(!is_answered(&mut packed, &claims).await);

    let mut known = connect().await.unwrap();
    assert!(is_answered(&mut known, &message("login", 10)).await);
    assert!(is_answered(&mut known, &message("ping", 3_000_000)).await);
}

#[tokio::test]
async fn a_stranger_has_to_say_something() {
    let running = start(Options::default()).await;
    let connect = || TcpStream::connect(running.address.clone());
    let late = Duration::from_secs(20);
    let mut silent = connect().await.unwrap();
    let took = ends_after(&mut silent).await;
    assert!(took >= MESSAGE_TIME_MAX && took < late, "{took:?}");
    let mut slow = connect().await.unwrap();
    slow.write_all(&message("ping", 100)[..50]).await.unwrap();
    let took = ends_after(&mut slow).await;
    assert!(took < late, "{took:?}");
    // Who watches a server speaks now and then.
    let mut watching = connect().await.unwrap();
    for _ in 0..3 {
        assert!(is_answered(&mut watching, &message("hello", 10)).await);
        tokio::time::sleep(IDLE_TIME_MAX / 2).await;
    }
    assert!(is_answered(&mut watching, &message("hello", 10)).await);
    let took = ends_after(&mut watching).await;
    assert!(took >= IDLE_TIME_MAX / 2 && took < late, "{took:?}");

    let mut known = connect().await.unwrap();
    assert!(is_answered(&mut known, &message("login", 10)).await);
    tokio::time::sleep(2 * IDLE_TIME_MAX).await;
    assert!(is_answered(&mut known, &message("ping", 10)).await);
}

#[tokio::test]
async fn one_connection_too_many_is_refused() {
    let options = Options {
        connections_max: 2,
        ..Options::default()
    };
    let running = start(options).await;
    let connect = || TcpStream::connect(running.address.clone());
    let mut open = Vec::new();
    for _ in 0..2 {
        let mut stream = connect().await.unwrap();
        assert!(is_answered(&mut stream, &message("login", 10)).await);
        open.push(stream);
    }
    let mut third = connect().await.unwrap();
    assert!(!is_answered(&mut third, &message("login", 10)).await);
    let count = |counter: &std::sync::atomic::AtomicUsize| counter.load(Ordering::Relaxed);
    let counters = &running.counters;
    assert_eq!(counters.rejected.load(Ordering::Relaxed), 1);
    assert_eq!(count(&counters.current), 2);
    assert_eq!(count(&counters.connections_max), 2);
    open.pop();
    let waiting = Instant::now();
    loop {
        let mut next = connect().await.unwrap();
        if is_answered(&mut next, &message("ping", 10)).await {
            break;
        }
        assert!(waiting.elapsed() < Duration::from_secs(20));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn messages_wait_for_the_memory_of_others() {
    let options = Options {
        in_flight_bytes_max: 2_000_000,
        ..Options::default()
    };
    let running = start(options).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(running.address.clone()).await.unwrap();
        assert!(is_answered(&mut stream, &message("login", 10)).await);
        clients.push(stream);
    }
    let mut last = clients.pop().unwrap();
    let mut holding = Vec::new();
    for mut stream in clients {
        // One takes nearly all there is, the other goes beyond.
        holding.push(tokio::spawn(async move {
            let held = is_answered(&mut stream, &message("hold", 1_900_000)).await;
            (held, stream)
        }));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    // Small ones need nothing of it.
    assert!(is_answered(&mut last, &message("ping", 10_000)).await);
    let large = tokio::spawn(async move {
        let answered = is_answered(&mut last, &message("ping", 1_900_000)).await;
        (answered, last)
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!large.is_finished(), "there is room for two");
    running.service.let_go.notify_one();
    assert!(large.await.unwrap().0);
    running.service.let_go.notify_waiters();
    for held in holding {
        assert!(held.await.unwrap().0);
    }
}
