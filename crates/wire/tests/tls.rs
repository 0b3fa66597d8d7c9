//! Encrypted connections over real sockets.

#![allow(clippy::unwrap_used)] // A test that can't go on has failed.

#[allow(dead_code)] // The stories need more of it.
#[path = "../../../tests/src/certificates.rs"]
mod certificates;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use banyan_process::{TlsFlags, TlsMode};
use banyan_wire::tls::Tls;
use banyan_wire::{
    Apart, ClientError, Connection, Options, Pool, PoolOptions, Reply, Request, Runtimes, Server,
    Service,
};
use bson::{RawDocumentBuf, rawdoc};
use certificates::{Certificates, for_hosts, named};
use parking_lot::Mutex;
use rcgen::{KeyPair, SerialNumber, date_time_ymd};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

/// Says who asks, and gives back what it was sent.
#[derive(Default)]
struct Mirror {
    one_way: Mutex<Vec<i32>>,
    left: AtomicUsize,
}

impl Service for Mirror {
    async fn call(self: &Arc<Self>, connection: &Arc<Connection>, request: Request) -> Reply {
        let name = request.name.as_str();
        let body = match name {
            "who" => {
                let peer = connection.tls();
                let subject = peer.and_then(|peer| peer.subject.clone());
                rawdoc! {
                    "encrypted": peer.is_some(),
                    "subject": subject.unwrap_or_default(),
                    "certificates": peer.map_or(0, |peer| peer.certificates as i32),
                    "version": peer.map(|peer| format!("{:?}", peer.version)).unwrap_or_default(),
                    "host": peer.and_then(|peer| peer.server_name.clone()).unwrap_or_default(),
                    "ok": 1.0,
                }
            }
            "mirror" => rawdoc! {
                "seen": request.body.get_str("text").unwrap_or_default(),
                "ok": 1.0,
            },
            "note" => {
                self.one_way
                    .lock()
                    .push(request.body.get_i32("note").unwrap());
                rawdoc! {"ok": 1.0}
            }
            "forever" => {
                connection.left().cancelled().await;
                rawdoc! {"ok": 1.0}
            }
            _ => rawdoc! {"ok": 1.0},
        };
        body.into()
    }

    fn is_vital(&self, name: &str) -> bool {
        name == "ping"
    }

    fn left(&self, _: &Connection) {
        self.left.fetch_add(1, Ordering::Relaxed);
    }
}

struct Running {
    service: Arc<Mirror>,
    address: String,
    shutdown: CancellationToken,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

async fn serve(tls: Option<Arc<Tls>>, apart: Option<Apart>) -> Running {
    let options = Options {
        tls,
        apart,
        ..Options::default()
    };
    let server = Server::bind(&["localhost"], 0, options).await.unwrap();
    let address = server.addresses()[0].to_string();
    let (service, shutdown) = (Arc::new(Mirror::default()), CancellationToken::new());
    tokio::spawn(server.serve(service.clone(), shutdown.clone()));
    Running {
        service,
        address,
        shutdown,
    }
}

/// Certificates `ca.pem`, `server.pem` and `client.pem`.
fn certificates() -> Certificates {
    let certificates = Certificates::new();
    certificates.server("server.pem", "server");
    certificates.client("client.pem", "client");
    certificates
}

fn flags(certificates: &Certificates, mode: TlsMode, file: &str) -> TlsFlags {
    TlsFlags {
        mode: Some(mode),
        certificate_key_file: Some(certificates.path(file)),
        ca_file: Some(certificates.path("ca.pem")),
        ..TlsFlags::default()
    }
}

fn open(flags: &TlsFlags) -> Arc<Tls> {
    Tls::open(flags).unwrap().unwrap()
}

fn server(certificates: &Certificates, mode: TlsMode) -> Arc<Tls> {
    open(&flags(certificates, mode, "server.pem"))
}

/// A client that encrypts, with the certificate in the file.
fn client(certificates: &Certificates, file: &str) -> Arc<Tls> {
    open(&flags(certificates, TlsMode::Prefer, file))
}

fn pool(address: &str, tls: Option<Arc<Tls>>) -> Pool {
    let options = PoolOptions {
        tls,
        connect_timeout: Duration::from_secs(5),
        ..PoolOptions::default()
    };
    Pool::new(address, options)
}

async fn ask(pool: &Pool, command: &str) -> Result<RawDocumentBuf, ClientError> {
    let mut body = RawDocumentBuf::new();
    body.append(bson::raw::CString::try_from(command).unwrap(), 1);
    pool.command("admin", &body, Some(Duration::from_secs(20)))
        .await
}

async fn subject(pool: &Pool) -> String {
    let who = ask(pool, "who").await.unwrap();
    assert!(who.get_bool("encrypted").unwrap());
    who.get_str("subject").unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_mode_takes_whom_it_should() {
    let certificates = certificates();
    for (mode, plain, encrypted) in [
        (TlsMode::Disabled, true, false),
        (TlsMode::Allow, true, true),
        (TlsMode::Prefer, true, true),
        (TlsMode::Require, false, true),
    ] {
        let tls = match mode {
            TlsMode::Disabled => None,
            mode => Some(server(&certificates, mode)),
        };
        let running = serve(tls.clone(), None).await;
        let asked = ask(&pool(&running.address, None), "who").await;
        assert_eq!(asked.is_ok(), plain, "{mode:?}: {asked:?}");
        assert!(asked.is_err() || !asked.unwrap().get_bool("encrypted").unwrap());
        let with = Some(client(&certificates, "client.pem"));
        let asked = ask(&pool(&running.address, with), "who").await;
        assert_eq!(asked.is_ok(), encrypted, "{mode:?}: {asked:?}");
        if let Ok(who) = asked {
            assert_eq!(who.get_str("subject").unwrap(), "CN=client,O=Banyan");
            assert_eq!(who.get_str("version").unwrap(), "Some(TLSv1_3)");
        }
        if let Some(tls) = tls {
            assert_eq!((tls.versions().v1_2, tls.versions().v1_3), (0, 1));
        }
        // What a process connects to others with follows from its own mode.
        let outgoing = match mode {
            TlsMode::Disabled => None,
            mode => Some(server(&certificates, mode)),
        };
        let running = serve(Some(server(&certificates, TlsMode::Allow)), None).await;
        let who = ask(&pool(&running.address, outgoing), "who").await.unwrap();
        let expected = matches!(mode, TlsMode::Prefer | TlsMode::Require);
        assert_eq!(who.get_bool("encrypted").unwrap(), expected, "{mode:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mode_is_raised_step_by_step() {
    let certificates = certificates();
    let tls = server(&certificates, TlsMode::Allow);
    let running = serve(Some(tls.clone()), None).await;
    assert!(!tls.advance(TlsMode::Require) && !tls.advance(TlsMode::Allow));
    assert!(tls.advance(TlsMode::Prefer));
    ask(&pool(&running.address, None), "who").await.unwrap();
    assert!(tls.advance(TlsMode::Require) && !tls.advance(TlsMode::Prefer));
    assert_eq!(tls.mode(), TlsMode::Require);
    ask(&pool(&running.address, None), "who").await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_are_negotiated() {
    let certificates = certificates();
    let mut only = flags(&certificates, TlsMode::Require, "server.pem");
    only.disabled_protocols = Some("TLS1_3".to_owned());
    let tls = open(&only);
    let running = serve(Some(tls.clone()), None).await;
    let with = client(&certificates, "client.pem");
    let who = ask(&pool(&running.address, Some(with)), "who")
        .await
        .unwrap();
    assert_eq!(who.get_str("version").unwrap(), "Some(TLSv1_2)");
    assert_eq!((tls.versions().v1_2, tls.versions().v1_3), (1, 0));
    let mut other = flags(&certificates, TlsMode::Require, "client.pem");
    other.disabled_protocols = Some("TLS1_0,TLS1_2".to_owned());
    let asked = ask(&pool(&running.address, Some(open(&other))), "who").await;
    assert!(
        matches!(asked, Err(ClientError::Connect { .. })),
        "{asked:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_16_mb_are_whole_both_ways() {
    let certificates = certificates();
    let running = serve(Some(server(&certificates, TlsMode::Require)), None).await;
    let pool = pool(&running.address, Some(client(&certificates, "client.pem")));
    for bytes in [1, 16_000, 16_384, 70_000, 1_000_000, 16_000_000] {
        let text: String = (0..bytes)
            .map(|at| char::from(b'a' + (at % 23) as u8))
            .collect();
        let body = rawdoc! {"mirror": 1, "text": text.as_str()};
        let command = pool.command("admin", &body, Some(Duration::from_secs(60)));
        let reply = command.await.unwrap();
        assert!(reply.get_str("seen").unwrap() == text, "{bytes} bytes");
    }
    let mut all = Vec::new();
    for n in 0..16 {
        let pool = pool.clone();
        all.push(tokio::spawn(async move {
            let text = n.to_string().repeat(400_000);
            let body = rawdoc! {"mirror": 1, "text": text.as_str()};
            let reply = pool.command("admin", &body, Some(Duration::from_secs(60)));
            assert!(reply.await.unwrap().get_str("seen").unwrap() == text);
        }));
    }
    for one in all {
        one.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_prove_who_they_are() {
    let (certificates, others) = (certificates(), certificates_of_others());
    // Believes the server, and shows a certificate of somebody else.
    let mut strange = flags(&others, TlsMode::Prefer, "client.pem");
    strange.ca_file = Some(certificates.path("ca.pem"));
    let strange = open(&strange);
    let known = client(&certificates, "client.pem");

    let strict = serve(Some(server(&certificates, TlsMode::Require)), None).await;
    let with_known = pool(&strict.address, Some(known.clone()));
    assert_eq!(subject(&with_known).await, "CN=client,O=Banyan");
    ask(&pool(&strict.address, Some(strange.clone())), "who")
        .await
        .unwrap_err();

    let mut lenient = flags(&certificates, TlsMode::Require, "server.pem");
    lenient.allow_invalid_certificates = true;
    let lenient = serve(Some(open(&lenient)), None).await;
    let with_known = pool(&lenient.address, Some(known.clone()));
    assert_eq!(subject(&with_known).await, "CN=client,O=Banyan");
    // Let in, and yet nobody.
    let who = ask(&pool(&lenient.address, Some(strange.clone())), "who")
        .await
        .unwrap();
    assert_eq!(who.get_str("subject").unwrap(), "");
    assert_eq!(who.get_i32("certificates").unwrap(), 1);

    // Another authority for clients than for servers.
    let mut apart = flags(&certificates, TlsMode::Require, "server.pem");
    apart.cluster_ca_file = Some(others.path("ca.pem"));
    let apart = serve(Some(open(&apart)), None).await;
    let with_strange = pool(&apart.address, Some(strange));
    assert_eq!(subject(&with_strange).await, "CN=stranger,O=Banyan");
    ask(&pool(&apart.address, Some(known)), "who")
        .await
        .unwrap_err();
}

fn certificates_of_others() -> Certificates {
    let certificates = Certificates::new();
    certificates.server("server.pem", "server");
    certificates.client("client.pem", "stranger");
    certificates
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_without_certificates_need_leave() {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, ServerName};
    let certificates = certificates();
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(certificates.path("ca.pem")).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let config = Arc::new(config);
    for leave in [false, true] {
        let mut given = flags(&certificates, TlsMode::Require, "server.pem");
        given.allow_connections_without_certificates = leave;
        let running = serve(Some(open(&given)), None).await;
        let (address, config) = (running.address.clone(), config.clone());
        let talk = tokio::task::spawn_blocking(move || -> std::io::Result<String> {
            use std::io::{Read, Write};
            let name = ServerName::try_from("localhost").unwrap();
            let session = rustls::ClientConnection::new(config, name).unwrap();
            let socket = std::net::TcpStream::connect(address)?;
            let mut stream = rustls::StreamOwned::new(session, socket);
            let body = rawdoc! {"who": 1};
            stream.write_all(banyan_wire::Outgoing::command("admin", &body).bytes())?;
            let mut reply = [0; 400];
            let read = stream.read(&mut reply)?;
            Ok(String::from_utf8_lossy(&reply[..read]).into_owned())
        });
        let said = talk.await.unwrap();
        assert_eq!(said.is_ok(), leave, "{said:?}");
        assert!(!leave || said.unwrap().contains("localhost"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_prove_who_they_are() {
    let (certificates, others) = (certificates(), certificates_of_others());
    certificates.issue(
        "elsewhere.pem",
        for_hosts("elsewhere", &["db9.example.net"]),
    );
    certificates.issue("old.pem", named("127.0.0.1"));
    certificates.issue("old_elsewhere.pem", named("127.0.0.2"));
    let client_flags = flags(&certificates, TlsMode::Prefer, "client.pem");
    let with = |change: fn(&mut TlsFlags)| {
        let mut given = client_flags.clone();
        change(&mut given);
        open(&given)
    };
    let strict = with(|_| {});
    let any_host = with(|flags| flags.allow_invalid_hostnames = true);
    let anybody = with(|flags| flags.allow_invalid_certificates = true);
    let trusts_nobody = with(|flags| flags.ca_file = None);
    for (authority, file, passes) in [
        (&certificates, "server.pem", [true, true, true, false]),
        (&certificates, "elsewhere.pem", [false, true, true, false]),
        (&certificates, "old.pem", [true, true, true, false]),
        (
            &certificates,
            "old_elsewhere.pem",
            [false, true, true, false],
        ),
        (&others, "server.pem", [false, false, true, false]),
    ] {
        let mut served = flags(authority, TlsMode::Require, file);
        served.ca_file = Some(certificates.path("ca.pem"));
        let running = serve(Some(open(&served)), None).await;
        let clients = [&strict, &any_host, &anybody, &trusts_nobody];
        for (at, (client, passes)) in clients.into_iter().zip(passes).enumerate() {
            let asked = ask(&pool(&running.address, Some(client.clone())), "who").await;
            assert_eq!(asked.is_ok(), passes, "{file} to client {at}: {asked:?}");
            assert!(passes || matches!(asked, Err(ClientError::Connect { .. })));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn revoked_certificates_count_no_longer() {
    let certificates = certificates();
    for (file, serial) in [("good.pem", 7u64), ("bad.pem", 8)] {
        let mut parameters = for_hosts(file, &["127.0.0.1"]);
        parameters.serial_number = Some(SerialNumber::from(serial));
        certificates.issue(file, parameters);
    }
    certificates.revoke("crl.pem", &[8]);
    let with_list = |file: &str| {
        let mut given = flags(&certificates, TlsMode::Require, file);
        given.crl_file = Some(certificates.path("crl.pem"));
        open(&given)
    };
    let running = serve(Some(with_list("good.pem")), None).await;
    let good = client(&certificates, "good.pem");
    for _ in 0..3 {
        let pool = pool(&running.address, Some(good.clone()));
        assert_eq!(subject(&pool).await, "CN=good.pem,O=Banyan");
    }
    let bad = client(&certificates, "bad.pem");
    ask(&pool(&running.address, Some(bad)), "who")
        .await
        .unwrap_err();
    let running = serve(Some(server_with(&certificates, "bad.pem")), None).await;
    let asked = ask(&pool(&running.address, Some(with_list("good.pem"))), "who").await;
    assert!(asked.unwrap_err().to_string().contains("Revoked"));
}

fn server_with(certificates: &Certificates, file: &str) -> Arc<Tls> {
    open(&flags(certificates, TlsMode::Require, file))
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_rotated_while_connections_go_on() {
    let (certificates, others) = (certificates(), certificates_of_others());
    let tls = server(&certificates, TlsMode::Require);
    let running = serve(Some(tls.clone()), None).await;
    let before = pool(&running.address, Some(client(&certificates, "client.pem")));
    assert_eq!(subject(&before).await, "CN=client,O=Banyan");
    assert_eq!(tls.certificate().subject, "CN=server,O=Banyan");

    certificates.write("server.pem", "nothing");
    let error = tls.rotate().unwrap_err().to_string();
    assert!(error.contains("no private key"), "{error}");
    assert_eq!(tls.certificate().subject, "CN=server,O=Banyan");
    ask(
        &pool(&running.address, Some(client(&certificates, "client.pem"))),
        "who",
    )
    .await
    .unwrap();

    for file in ["ca.pem", "server.pem"] {
        std::fs::copy(others.path(file), certificates.path(file)).unwrap();
    }
    tls.rotate().unwrap();
    let with = client(&others, "client.pem");
    assert_eq!(
        subject(&pool(&running.address, Some(with))).await,
        "CN=stranger,O=Banyan"
    );
    // The one that is open goes on; a new one would not be believed.
    assert_eq!(subject(&before).await, "CN=client,O=Banyan");
    before.clear();
    ask(&before, "who").await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_way_messages_arrive_in_order() {
    let certificates = certificates();
    let running = serve(Some(server(&certificates, TlsMode::Require)), None).await;
    let pool = pool(&running.address, Some(client(&certificates, "client.pem")));
    const COUNT: i32 = 600;
    for n in 0..COUNT {
        // Some that a socket does not take at once among many that it does.
        let bytes = if n % 50 == 0 { 900_000 } else { 200 };
        let body = rawdoc! {"note": n, "text": "x".repeat(bytes)};
        while pool.send_one_way("admin", &body, &[]).is_err() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        if n % 97 == 0 {
            tokio::time::sleep(Duration::from_millis(15)).await;
        }
    }
    let started = Instant::now();
    while running.service.one_way.lock().len() < COUNT as usize {
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "messages are missing"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(
        *running.service.one_way.lock(),
        (0..COUNT).collect::<Vec<_>>()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_ends_its_command() {
    let certificates = certificates();
    let running = serve(Some(server(&certificates, TlsMode::Require)), None).await;
    let pool = pool(&running.address, Some(client(&certificates, "client.pem")));
    ask(&pool, "who").await.unwrap();
    let body = rawdoc! {"forever": 1};
    let asked = pool.command("admin", &body, Some(Duration::from_millis(200)));
    assert!(matches!(asked.await, Err(ClientError::Timeout { .. })));
    let started = Instant::now();
    while running.service.left.load(Ordering::Relaxed) == 0 {
        assert!(
            started.elapsed() < Duration::from_secs(10),
            "nobody noticed"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn a_connection_moves_to_the_ordinary_threads_with_its_session() {
    let runtimes = Runtimes::start().unwrap();
    let certificates = certificates();
    runtimes.block_on(async {
        let tls = server(&certificates, TlsMode::Require);
        let running = serve(Some(tls.clone()), Some(runtimes.apart())).await;
        let pool = pool(&running.address, Some(client(&certificates, "client.pem")));
        for command in ["ping", "ping", "who", "ping", "who"] {
            ask(&pool, command).await.unwrap();
        }
        assert_eq!(tls.versions().v1_3, 1, "one connection carried them all");
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_handshakes_hold_up_nobody() {
    let certificates = certificates();
    let running = serve(Some(server(&certificates, TlsMode::Allow)), None).await;
    // The beginning of a handshake whose rest does not come.
    let hello = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 0x55, 0x55];
    let mut slow = Vec::new();
    for n in 0..200 {
        let mut stream = TcpStream::connect(&running.address).await.unwrap();
        stream
            .write_all(&hello[..1 + n % hello.len()])
            .await
            .unwrap();
        slow.push(stream);
    }
    let with = client(&certificates, "client.pem");
    let started = Instant::now();
    ask(&pool(&running.address, Some(with)), "who")
        .await
        .unwrap();
    ask(&pool(&running.address, None), "who").await.unwrap();
    assert!(
        started.elapsed() < Duration::from_secs(3),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn handshakes_that_do_not_end_are_ended() {
    let certificates = certificates();
    let hello = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 0x55, 0x55];
    for (mode, begun, ended) in [
        (TlsMode::Allow, 0, false),
        (TlsMode::Allow, 1, true),
        (TlsMode::Allow, 13, true),
        (TlsMode::Require, 0, true),
        (TlsMode::Require, 1, true),
        (TlsMode::Require, 13, true),
    ] {
        let options = Options {
            tls: Some(server(&certificates, mode)),
            handshake_time_max: Duration::from_millis(100),
            ..Options::default()
        };
        let server = Server::bind(&["localhost"], 0, options).await.unwrap();
        let address = server.addresses()[0];
        let shutdown = CancellationToken::new();
        tokio::spawn(server.serve(Arc::new(Mirror::default()), shutdown.clone()));
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&hello[..begun]).await.unwrap();
        let mut byte = [0];
        let read = tokio::time::timeout(Duration::from_secs(1), stream.read(&mut byte)).await;
        assert_eq!(read.is_ok(), ended, "{mode:?} after {begun} bytes");
        shutdown.cancel();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_ends_the_connection_it_came_on() {
    let certificates = certificates();
    let running = serve(Some(server(&certificates, TlsMode::Require)), None).await;
    let whole = [0x16, 3, 1, 0, 8, 1, 0, 0, 4, 9, 9, 9, 9];
    for garbage in [
        &whole[..],
        &[0x16; 64],
        &[0xff; 64],
        &[0x15, 3, 1, 0, 2, 1, 0, 0, 0, 0, 0, 0],
    ] {
        let mut stream = TcpStream::connect(&running.address).await.unwrap();
        stream.write_all(garbage).await.unwrap();
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut rest));
        // Ended, or broken: nothing is answered but an alert.
        assert!(
            ended.await.is_ok() && rest.len() <= 7,
            "{garbage:?}: {rest:?}"
        );
    }
    let with = client(&certificates, "client.pem");
    ask(&pool(&running.address, Some(with)), "who")
        .await
        .unwrap();
}

const KEY: &str = "\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg+VMalizQ1PwtEjr8
XDbHK02Eh8Vtkk7m0bfcJR5qxNqhRANCAAREMhAb8yefEcKOu8qEXyYqDj6RSDv0
UN2a//ZwWgRK8y38oqp2UltEBERE+wLSKls+2cFrFOtqvNqEI5GmSabT
-----END PRIVATE KEY-----
";

/// The same key; the password is `sesame`.
const ENCRYPTED_KEY: &str = "\
-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAi2ZfegC3wRLgICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEPx3Ht35I4KO7UDjVu1TPsUEgZBG
DETSMtO2qgWOKxbdj8bbENR4SzFmbO6m4/XQ4n5Ji0bMkZ0cs2E8vx4dwPqiOciM
Jy756k8iVTABCWeOG7zPrURfL+LNYK5GtXoMG+9hMwEG6kvkr2QKSyZSfKqKzhUO
elC0xBgWztYQZJfV+68uGMiBe2QmVsebFs6rw4pC7bZKVOFTvq75hhljomd0LEU=
-----END ENCRYPTED PRIVATE KEY-----
";

#[test]
fn an_encrypted_key_needs_its_password() {
    let certificates = certificates();
    let key = KeyPair::from_pem(KEY).unwrap();
    let certificate = certificates.certify(&key, for_hosts("locked", &["localhost"]));
    certificates.write("locked.pem", &(certificate + ENCRYPTED_KEY));
    let with = |password: Option<&str>| {
        let mut given = flags(&certificates, TlsMode::Require, "locked.pem");
        given.certificate_key_file_password = password.map(|text| text.to_owned().into());
        Tls::open(&given).map_err(|error| error.to_string())
    };
    let tls = with(Some("sesame")).unwrap().unwrap();
    assert_eq!(tls.certificate().subject, "CN=locked,O=Banyan");
    assert!(
        with(Some("simsim"))
            .unwrap_err()
            .contains("the password is wrong")
    );
    assert!(
        with(None)
            .unwrap_err()
            .contains("--tlsCertificateKeyFilePassword")
    );
}

#[test]
fn files_that_cannot_be_used_are_told_in_a_sentence() {
    let certificates = certificates();
    certificates.write("empty.pem", "");
    certificates.write("broken.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n");
    let text = std::fs::read_to_string(certificates.path("server.pem")).unwrap();
    let key_at = text.find("-----BEGIN PRIVATE KEY").unwrap();
    let (certificate, key) = text.split_at(key_at);
    certificates.write("certificate.pem", certificate);
    certificates.write("key.pem", key);
    certificates.write("other_key.pem", &(certificate.to_owned() + KEY));
    certificates.write(
        "old_key.pem",
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n",
    );
    let mut over = for_hosts("over", &["localhost"]);
    over.not_after = date_time_ymd(2020, 1, 1);
    certificates.issue("over.pem", over);
    let mut early = for_hosts("early", &["localhost"]);
    early.not_before = date_time_ymd(3000, 1, 1);
    certificates.issue("early.pem", early);
    for (file, said) in [
        ("none.pem", "cannot read the certificate key file"),
        ("empty.pem", "holds no private key"),
        ("key.pem", "holds no certificate"),
        ("certificate.pem", "holds no private key"),
        ("broken.pem", "is not PEM"),
        ("other_key.pem", "is not that of the certificate"),
        ("old_key.pem", "openssl pkcs8 -topk8"),
        (
            "over.pem",
            "is expired or not yet valid: it is valid from 1975-01-01",
        ),
        ("early.pem", "is expired or not yet valid"),
    ] {
        let error = Tls::open(&flags(&certificates, TlsMode::Require, file)).unwrap_err();
        assert!(error.to_string().contains(said), "{file}: {error}");
        let mut member = flags(&certificates, TlsMode::Require, "server.pem");
        member.cluster_file = Some(certificates.path(file));
        let error = Tls::open(&member).unwrap_err();
        assert!(error.to_string().contains(said), "{file}: {error}");
    }
    for file in ["none.pem", "empty.pem", "broken.pem", "key.pem"] {
        let mut trusting = flags(&certificates, TlsMode::Require, "server.pem");
        trusting.ca_file = Some(certificates.path(file));
        let error = Tls::open(&trusting).unwrap_err().to_string();
        assert!(
            error.contains("certificate authority file"),
            "{file}: {error}"
        );
        trusting.ca_file = Some(certificates.path("ca.pem"));
        trusting.crl_file = Some(certificates.path(file));
        let error = Tls::open(&trusting).unwrap_err().to_string();
        assert!(error.contains("revocation list file"), "{file}: {error}");
    }
    assert!(Tls::open(&TlsFlags::default()).unwrap().is_none());
}
