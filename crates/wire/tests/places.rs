//! On which threads a connection is served, and what is noticed of its client meanwhile.

#![allow(clippy::unwrap_used)] // A test that can't go on has failed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use banyan_wire::message::{encode_msg, peek_name};
use banyan_wire::{
    Connection, Options, Pool, PoolOptions, Reply, Request, Runtimes, Server, Service,
};
use bson::{RawDocumentBuf, rawdoc};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

/// Says on which thread it was asked; `compute` keeps that thread until the client has left.
#[derive(Default)]
struct Where {
    computes: AtomicBool,
    left: AtomicBool,
}

impl Service for Where {
    fn is_vital(&self, name: &str) -> bool {
        matches!(name, "ping" | "hello")
    }

    async fn call(self: &Arc<Self>, _: &Arc<Connection>, request: Request) -> Reply {
        if request.name == "compute" {
            self.computes.store(true, Ordering::SeqCst);
            let began = Instant::now();
            while !self.left.load(Ordering::SeqCst) && began.elapsed() < Duration::from_secs(30) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let thread = std::thread::current();
        rawdoc! {"thread": thread.name().unwrap_or_default(), "ok": 1.0}.into()
    }

    fn left(&self, _: &Connection) {
        self.left.store(true, Ordering::SeqCst);
    }
}

/// Runs a test against a server that has both runtimes.
fn with_server<F: Future<Output = ()>>(test: impl FnOnce(Arc<Where>, String) -> F) {
    let runtimes = Runtimes::start().unwrap();
    runtimes.block_on(async {
        let options = Options {
            apart: Some(runtimes.apart()),
            ..Options::default()
        };
        let server = Server::bind(&["localhost"], 0, options).await.unwrap();
        let address = server.addresses()[0].to_string();
        let (service, shutdown) = (Arc::<Where>::default(), CancellationToken::new());
        let serving = tokio::spawn(server.serve(service.clone(), shutdown.clone()));
        test(service, address).await;
        shutdown.cancel();
        serving.await.unwrap();
    });
    runtimes.shut_down();
}

async fn thread(pool: &Pool, body: RawDocumentBuf) -> String {
    let reply = pool.command("admin", &body, None).await.unwrap();
    reply.get_str("thread").unwrap().to_owned()
}

#[test]
fn a_connection_leaves_the_vital_threads_with_its_first_ordinary_command() {
    with_server(|_, address| async move {
        // One connection, used again and again.
        let pool = Pool::new(&address, PoolOptions::default());
        for _ in 0..3 {
            assert_eq!(thread(&pool, rawdoc! {"ping": 1}).await, "vital");
        }
        assert_eq!(thread(&pool, rawdoc! {"find": "c"}).await, "worker");
        assert_eq!(thread(&pool, rawdoc! {"ping": 1}).await, "worker");
        let other = Pool::new(&address, PoolOptions::default());
        assert_eq!(thread(&other, rawdoc! {"ping": 1}).await, "vital");
        // Larger than what is read at once.
        let large = rawdoc! {"insert": "c", "text": "x".repeat(3_000_000)};
        assert_eq!(thread(&other, large).await, "worker");
    });
}

#[test]
fn who_arrives_is_served_apart_until_it_has_logged_in() {
    with_server(|_, address| async move {
        let client = Pool::new(&address, PoolOptions::default());
        for step in [
            rawdoc! {"hello": 1},
            rawdoc! {"saslStart": 1},
            rawdoc! {"saslContinue": 1},
            rawdoc! {"saslContinue": 1},
        ] {
            assert_eq!(thread(&client, step).await, "login");
        }
        assert_eq!(thread(&client, rawdoc! {"find": "c"}).await, "worker");
        assert_eq!(thread(&client, rawdoc! {"saslStart": 1}).await, "worker");
        let monitor = Pool::new(&address, PoolOptions::default());
        assert_eq!(thread(&monitor, rawdoc! {"hello": 1}).await, "login");
        for _ in 0..3 {
            assert_eq!(thread(&monitor, rawdoc! {"hello": 1}).await, "vital");
        }
    });
}

#[test]
fn a_client_that_leaves_is_noticed_while_its_command_computes() {
    with_server(|service, address| async move {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        let mut message = Vec::new();
        let body = rawdoc! {"compute": 1, "$db": "test"};
        encode_msg(&mut message, 1, 0, 0, &body);
        stream.write_all(&message).await.unwrap();
        while !service.computes.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // Who waits for the reply is left alone.
        tokio::time::sleep(Duration::from_millis(400)).await;
        assert!(!service.left.load(Ordering::SeqCst));
        drop(stream);
        let began = Instant::now();
        while !service.left.load(Ordering::SeqCst) {
            assert!(began.elapsed() < Duration::from_secs(20), "nobody noticed");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
}

#[test]
fn the_name_of_a_command_is_read_without_the_rest() {
    let mut message = Vec::new();
    encode_msg(&mut message, 1, 0, 0, &rawdoc! {"find": "c", "filter": {}});
    assert_eq!(peek_name(&message), Some("find"));
    assert_eq!(peek_name(&message[..20]), None);
    let body = rawdoc! {"isMaster": 1, "helloOk": true};
    let query = |namespace: &str| {
        let mut query = Vec::new();
        for n in [0, 1, 0, 2004, 0] {
            query.extend(i32::to_le_bytes(n));
        }
        query.extend(namespace.as_bytes());
        query.extend([0; 9]);
        query.extend(body.as_bytes());
        query
    };
    assert_eq!(peek_name(&query("admin.$cmd")), Some("isMaster"));
    assert_eq!(peek_name(&query("admin.c")), None);
}
