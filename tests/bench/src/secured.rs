//! What protection costs: users and roles, encryption, logins, and connections that wait.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use banyan_tests::{Certificates, Launch, Process};
use bson::{doc, rawdoc};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::gettid;

use crate::bare::{self, Operation};
use crate::deployment::resident_mb;
use crate::door::{self, Door};
use crate::report::{Expected, Line, Report, at_percentile, median};
use crate::scenarios::{REFERENCE, Settings};

const USER: &str = "ann";
const PASSWORD: &str = "a long secret";
/// A round is cut into so many turns, each side in front of the others in half of them: what else the
/// machine does meets all sides alike, which are to be told apart by a few percent.
const TURNS: u32 = 4;
/// Bursts of logins, logins of a burst, and how many come at once.
const BURSTS: usize = 10;
const LOGINS: usize = 1_000;
const AT_ONCE: usize = 20;
/// Connections that say hello and wait.
const IDLE: usize = 10_000;
/// What one of them may cost.
const IDLE_KB_MAX: f64 = 16.0;
/// Between two point reads.
const PAUSE: Duration = Duration::from_micros(500);

/// A server and the way into it.
struct Peer {
    process: Process,
    door: Door,
}

#[derive(Clone, Copy, PartialEq)]
enum Protection {
    None,
    Users,
    Tls,
}

impl Peer {
    async fn start(
        settings: &Settings,
        is_reference: bool,
        protection: Protection,
        certificates: &Certificates,
    ) -> Result<Option<Peer>> {
        let launch = match (&settings.reference, is_reference) {
            (None, true) => return Ok(None),
            (Some(program), true) => Launch::other(program.clone()),
            (_, false) => Launch::mongod(),
        };
        let (own, authority) = (certificates.at("server.pem"), certificates.at("ca.pem"));
        let launch = match protection {
            Protection::None => launch,
            Protection::Users => launch.with(["--auth"]),
            Protection::Tls => launch
                .with(["--tlsMode", "requireTLS", "--tlsCertificateKeyFile", &own])
                .with([
                    "--tlsCAFile",
                    &authority,
                    "--tlsAllowConnectionsWithoutCertificates",
                ])
                .asked_with(&format!("tls=true&tlsCAFile={authority}")),
        };
        let process = launch.start().await;
        let nobody = process.direct().await;
        let mut door = Door::default();
        match protection {
            Protection::None => bare::prepare(&nobody).await?,
            Protection::Tls => {
                door = door.encrypted(&certificates.path("ca.pem"))?;
                bare::prepare(&nobody).await?;
            }
            Protection::Users => {
                let admin = nobody.database("admin");
                let root = doc! { "createUser": "root", "pwd": PASSWORD, "roles": ["root"] };
                admin.run_command(root).await?;
                let host = process.host();
                let uri = format!("mongodb://root:a%20long%20secret@{host}/?authSource=admin");
                let root = banyan_tests::connect(&format!("{uri}&directConnection=true")).await;
                let role = doc! { "role": "readWrite", "db": "bench" };
                let user = doc! { "createUser": USER, "pwd": PASSWORD, "roles": [role] };
                root.database("admin").run_command(user).await?;
                bare::prepare(&root).await?;
                door = door.user(USER, PASSWORD);
            }
        }
        Ok(Some(Peer { process, door }))
    }

    fn rate(&self, operation: Operation, connections: usize, settings: &Settings) -> Result<f64> {
        let (host, duration) = (self.process.host(), settings.duration / TURNS);
        tokio::task::block_in_place(|| {
            bare::rate_through(&self.door, &host, operation, connections, duration)
        })
    }
}

/// The rates of peers that take turns.
fn in_turns(
    peers: &[&Peer],
    operation: Operation,
    connections: usize,
    settings: &Settings,
) -> Result<Vec<Vec<f64>>> {
    let mut rates = vec![Vec::new(); peers.len()];
    for turn in 0..settings.rounds * TURNS as usize {
        for at in 0..peers.len() {
            let side = match turn % 2 {
                0 => at,
                _ => peers.len() - 1 - at,
            };
            rates[side].push(peers[side].rate(operation, connections, settings)?);
        }
    }
    Ok(rates)
}

pub async fn run(settings: &Settings, report: &mut Report) -> Result<()> {
    let certificates = Certificates::new();
    certificates.server("server.pem", "server");
    let start = async |is_reference, protection| {
        Peer::start(settings, is_reference, protection, &certificates).await
    };
    for (protection, name, least) in [
        (Protection::Users, "users", 0.95),
        (Protection::Tls, "TLS", 0.7),
    ] {
        let open = start(false, Protection::None).await?;
        let open = open.context("ours is there")?;
        let ours = start(false, protection).await?;
        let ours = ours.context("ours is there")?;
        let reference = start(true, protection).await?;
        let mut peers = vec![&open, &ours];
        peers.extend(&reference);
        for connections in [1, 16] {
            for (what, operation) in [
                ("point read", Operation::Find),
                ("insert", Operation::Insert),
            ] {
                let mut rates = in_turns(&peers, operation, connections, settings)?.into_iter();
                let mut next = || rates.next().unwrap_or_default();
                let (without, own, other) = (next(), next(), next());
                let line = |beside, other, expected| Line {
                    what: format!("{name}: {what}, {connections} conn"),
                    unit: "1/s",
                    ours: own.clone(),
                    beside,
                    other,
                    expected,
                };
                report.add(line("without", without, Expected::AtLeast(least)));
                report.add(line(REFERENCE, other, Expected::AtLeast(1.5)));
            }
        }
        drop(open);
        if protection == Protection::Users {
            tokio::task::block_in_place(|| bursts(&ours, reference.as_ref(), report))?;
        }
    }
    for (name, protection) in [("plain", Protection::None), ("TLS", Protection::Tls)] {
        let ours = start(false, protection).await?;
        let ours = ours.context("ours is there")?;
        tokio::task::block_in_place(|| idle(name, &ours, report))?;
    }
    Ok(())
}

/// How long point reads wait alone, beside clients of somebody else and beside logins, and how long a
/// burst of these takes.
struct Waits {
    quiet: f64,
    beside_others: f64,
    busy: f64,
    seconds: f64,
}

fn bursts(ours: &Peer, reference: Option<&Peer>, report: &mut Report) -> Result<()> {
    let own = waits(ours)?;
    let other = reference.map(waits).transpose()?;
    let read = format!("users: point read beside {LOGINS} logins, 99th percentile");
    let logins = format!("users: {LOGINS} logins, {AT_ONCE} at once");
    let of_other = |figure: fn(&Waits) -> f64| -> Vec<f64> { other.iter().map(figure).collect() };
    for (what, unit, ours, beside, other, expected) in [
        (
            &read,
            "ms",
            own.busy,
            "without",
            vec![own.quiet],
            Expected::AtMost(2.0),
        ),
        (
            &read,
            "ms",
            own.busy,
            "beside clients of somebody else",
            vec![own.beside_others],
            Expected::AtMost(2.0),
        ),
        (
            &read,
            "ms",
            own.busy,
            REFERENCE,
            of_other(|other| other.busy),
            Expected::Ahead,
        ),
        (
            &logins,
            "s",
            own.seconds,
            REFERENCE,
            of_other(|other| other.seconds),
            Expected::Ahead,
        ),
    ] {
        report.add(Line {
            what: what.clone(),
            unit,
            ours: vec![ours],
            beside,
            other,
            expected,
        });
    }
    Ok(())
}

fn waits(peer: &Peer) -> Result<Waits> {
    let host = peer.process.host();
    let mut reader = peer.door.open(&host)?;
    let mut reads = |waits: &mut Vec<f64>, while_so: &dyn Fn() -> bool| -> Result<()> {
        let read = rawdoc! {
            "find": "points", "filter": { "_id": 7 }, "limit": 1, "singleBatch": true,
            "$db": "bench",
        };
        while while_so() {
            let began = Instant::now();
            door::ask(&mut *reader, &read)?;
            waits.push(began.elapsed().as_secs_f64() * 1e3);
            std::thread::sleep(PAUSE);
        }
        Ok(())
    };
    let (mut quiet, mut beside_others, mut busy) = (Vec::new(), Vec::new(), Vec::new());
    let mut seconds = Vec::new();
    for _ in 0..BURSTS {
        let began = Instant::now();
        reads(&mut quiet, &|| began.elapsed() < Duration::from_millis(500))?;
        // To start the programs that change priorities holds up the whole process of the bench.
        let ready = Barrier::new(2);
        let over = AtomicBool::new(false);
        let (read, took) = std::thread::scope(|scope| {
            let logins = scope.spawn(|| {
                let took = burst(&peer.door, &host, &ready);
                over.store(true, Ordering::Relaxed);
                took
            });
            ready.wait();
            let read = reads(&mut busy, &|| !over.load(Ordering::Relaxed));
            (read, logins.join())
        });
        read?;
        let took = took.map_err(|_| anyhow::anyhow!("a login panicked"))??;
        let others = Elsewhere::start()?;
        let began = Instant::now();
        reads(&mut beside_others, &|| began.elapsed().as_secs_f64() < took)?;
        others.stop()?;
        seconds.push(took);
    }
    let at = |waits: &Vec<f64>| at_percentile(waits, 99.0).context("nothing was read");
    Ok(Waits {
        quiet: at(&quiet)?,
        beside_others: at(&beside_others)?,
        busy: at(&busy)?,
        seconds: median(seconds).context("nobody logged in")?,
    })
}

/// How long many logins take, once all clients and somebody else are ready. The keys of the password
/// are derived before, once.
fn burst(door: &Door, host: &str, other: &Barrier) -> Result<f64> {
    let ready = Barrier::new(AT_ONCE + 1);
    let go = Barrier::new(AT_ONCE + 1);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                scope.spawn(|| {
                    let stepped_back = step_back();
                    ready.wait();
                    go.wait();
                    stepped_back?;
                    (0..LOGINS / AT_ONCE).try_for_each(|_| door.open(host).map(drop))
                })
            })
            .collect();
        ready.wait();
        other.wait();
        go.wait();
        let began = Instant::now();
        for client in clients {
            let outcome = client.join();
            outcome.map_err(|_| anyhow::anyhow!("a login panicked"))??;
        }
        Ok(began.elapsed().as_secs_f64())
    })
}

/// As many clients as log in at once, which connect to somebody else, say as much and leave. They tell
/// what the machine costs the one that reads, whoever is logged in to: its kernel lets nobody run
/// before the call that it is in has ended.
struct Elsewhere {
    over: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Result<()>>>,
}

impl Elsewhere {
    /// What a client says, and is told.
    const SAID: [u8; 200] = [0; 200];
    const TURNS: usize = 3;

    fn start() -> Result<Elsewhere> {
        let over = Arc::new(AtomicBool::new(false));
        let ready = Arc::new(Barrier::new(AT_ONCE + 1));
        let clients = (0..AT_ONCE).map(|_| {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let (over, ready) = (over.clone(), ready.clone());
            Ok(std::thread::spawn(move || {
                let stepped_back = step_back();
                ready.wait();
                stepped_back?;
                while !over.load(Ordering::Relaxed) {
                    Elsewhere::visit(&listener)?;
                }
                Ok(())
            }))
        });
        let clients = clients.collect::<Result<Vec<_>>>()?;
        ready.wait();
        Ok(Elsewhere { over, clients })
    }

    fn visit(listener: &TcpListener) -> Result<()> {
        let mut client = TcpStream::connect(listener.local_addr()?)?;
        let (mut server, _) = listener.accept()?;
        let mut heard = Elsewhere::SAID;
        for _ in 0..Elsewhere::TURNS {
            client.write_all(&Elsewhere::SAID)?;
            server.read_exact(&mut heard)?;
            server.write_all(&Elsewhere::SAID)?;
            client.read_exact(&mut heard)?;
        }
        Ok(())
    }

    fn stop(self) -> Result<()> {
        self.over.store(true, Ordering::Relaxed);
        self.clients.into_iter().try_for_each(|client| {
            let outcome = client.join();
            outcome.map_err(|_| anyhow::anyhow!("a client panicked"))?
        })
    }
}

/// Clients that log in have cores of their own elsewhere. Here they take what the server and the one
/// that reads leave over, so that these wait for each other alone. A nice value does not suffice: the
/// scheduler lets also the nicest thread finish its time slice before it runs who has woken up.
fn step_back() -> Result<()> {
    let thread = gettid().to_string();
    let mut idle = Command::new("chrt");
    let done = idle.args(["--idle", "--pid", "0", &thread]).output();
    let done = done.context("chrt")?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "chrt: {said}");
    Ok(())
}

/// What connections cost that have said hello and nothing since.
fn idle(name: &str, peer: &Peer, report: &mut Report) -> Result<()> {
    let (_, files) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, files, files)?;
    let wanted = IDLE.min(usize::try_from(files)?.saturating_sub(500));
    let host = peer.process.host();
    let greeted = || -> Result<Box<dyn door::Stream>> {
        let mut stream = peer.door.open(&host)?;
        door::ask(&mut *stream, &door::hello())?;
        Ok(stream)
    };
    // What the first ones cost is the server's own.
    let first: Vec<_> = (0..100).map(|_| greeted()).collect::<Result<_>>()?;
    std::thread::sleep(Duration::from_secs(2));
    let before = resident_mb(&peer.process)?;
    let waiting: Vec<_> = (0..wanted).map(|_| greeted()).collect::<Result<_>>()?;
    std::thread::sleep(Duration::from_secs(2));
    let grown = resident_mb(&peer.process)? - before;
    #[expect(clippy::cast_precision_loss, reason = "there are not so many")]
    let each = grown * 1024.0 / waiting.len() as f64;
    drop((first, waiting));
    report.add(Line {
        what: format!("{name}: {wanted} idle connections, each"),
        unit: "KB",
        ours: vec![each],
        beside: "limit",
        other: vec![IDLE_KB_MAX],
        expected: Expected::AtMost(1.0),
    });
    Ok(())
}
