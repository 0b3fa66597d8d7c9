//! The listener: what a server does, and on which threads its connections are served.
//!
//! The tasks run on tokio's multi-threaded runtime with one worker per core (see
//! [`runtime`]): a command that computes or has to wait for a disk says so with `block_in_place`,
//! and the connections of that worker go on elsewhere. Runtimes pinned to a core each would save
//! some wake-ups, and one slow read would then hold up every connection that shares its core.
//!
//! What holds a cluster together must not wait for any of that. Every connection begins on a small
//! runtime of its own (see [`vital_runtime`]), and stays there while all it carries is vital (see
//! [`Service::is_vital`]): consensus, heartbeats, `hello`, `ping`. With its first other command it
//! moves to the ordinary threads, for good.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::busy_poll::Requesters;
use crate::connection::Connection;
use crate::in_flight::{self, InFlight};
use crate::presence::Presence;
use crate::service::{Counters, Service};
use crate::serving::Serving;
use crate::stream::prepare;
use crate::tls::{self, Encryption, Tls};

#[derive(Clone, Debug)]
pub struct Options {
    pub connections_max: usize,
    /// How long a shutdown waits for commands that are running.
    pub drain: Duration,
    /// Where connections are accepted, and served while they carry vital commands only. Without
    /// one, that happens where everything else does.
    pub vital: Option<Handle>,
    /// Certificates and mode; without them nothing is encrypted.
    pub tls: Option<Arc<Tls>>,
    /// Who has not finished its handshake after this does not mean to.
    pub handshake_time_max: Duration,
    /// So much memory takes what is being read and answered of large messages, once for vital
    /// commands and once for all others; one message at a time may go beyond it.
    pub in_flight_bytes_max: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            connections_max: 20_000,
            drain: Duration::from_secs(5),
            vital: None,
            tls: tls::process(),
            handshake_time_max: Duration::from_secs(10),
            in_flight_bytes_max: in_flight::of_machine(banyan_process::limits::machine_bytes()),
        }
    }
}

/// Listening sockets, bound and not yet served.
pub struct Server {
    listeners: Vec<TcpListener>,
    options: Options,
    counters: Arc<Counters>,
}

/// How many connections may wait to be accepted.
const BACKLOG: u32 = 1024;
/// Threads that compute or wait for a disk, most of them parked until it is their turn. A worker
/// that hands its connections over must find one: were there none, nobody would serve them.
const BLOCKING_THREADS_MAX: usize = 4096;
/// Two, so that one that waits for a lock holds nobody up.
const VITAL_WORKERS: usize = 2;

/// The runtime that the programs serve on.
pub fn runtime() -> io::Result<tokio::runtime::Runtime> {
    let workers = std::thread::available_parallelism()
        .map_or(2, usize::from)
        .max(2);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .thread_name("worker")
        .enable_all()
        .build()
}

/// The runtime for what must not wait for any query: see the module's head.
pub fn vital_runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(VITAL_WORKERS)
        .thread_name("vital")
        .enable_all()
        .build()
}

impl Server {
    /// Binds every host on the port; port 0 takes a free one (see [`Server::addresses`]). Must be
    /// called on a runtime.
    pub async fn bind(hosts: &[&str], port: u16, options: Options) -> io::Result<Server> {
        let vital = options.vital.clone().unwrap_or_else(Handle::current);
        let mut listeners = Vec::new();
        for host in hosts {
            let addresses = tokio::net::lookup_host((*host, port)).await?;
            let mut addresses: Vec<SocketAddr> = addresses.collect();
            // `localhost` means the IPv4 loopback, as for MongoDB without `--ipv6`.
            if addresses.iter().any(SocketAddr::is_ipv4) {
                addresses.retain(SocketAddr::is_ipv4);
            }
            addresses.sort();
            addresses.dedup();
            for address in addresses {
                listeners.push(listen(address, &vital)?);
            }
        }
        let counters = Arc::<Counters>::default();
        let most = &counters.connections_max;
        most.store(options.connections_max, Ordering::Relaxed);
        Ok(Server {
            listeners,
            options,
            counters,
        })
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners
            .iter()
            .filter_map(|listener| listener.local_addr().ok())
            .collect()
    }

    pub fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    /// Serves until `shutdown` is cancelled and the commands that were running have ended.
    pub async fn serve<S: Service>(self, service: Arc<S>, shutdown: CancellationToken) {
        let ordinary = Handle::current();
        let vital = self.options.vital.clone();
        // What must not wait for any query must not wait for the messages of queries either.
        let in_flight = || InFlight::new(self.options.in_flight_bytes_max);
        let places = Places {
            ordinary: vital.is_some().then(|| Ordinary {
                runtime: ordinary.clone(),
                in_flight: in_flight(),
                requesters: Arc::new(Requesters::new()),
            }),
            vital: vital.unwrap_or(ordinary),
            in_flight: in_flight(),
        };
        let connections = TaskTracker::new();
        let accepting = TaskTracker::new();
        let ids = Arc::new(AtomicU64::new(1));
        let presence = Arc::<Presence>::default();
        let watch = presence.clone().watch(service.clone(), shutdown.clone());
        accepting.spawn_on(watch, &places.vital);
        for listener in self.listeners {
            let acceptor = Acceptor {
                service: service.clone(),
                shutdown: shutdown.clone(),
                connections: connections.clone(),
                ids: ids.clone(),
                options: self.options.clone(),
                counters: self.counters.clone(),
                presence: presence.clone(),
                places: places.clone(),
            };
            accepting.spawn_on(acceptor.run(listener), &places.vital);
        }
        shutdown.cancelled().await;
        accepting.close();
        accepting.wait().await;
        connections.close();
        if tokio::time::timeout(self.options.drain, connections.wait())
            .await
            .is_err()
        {
            warn!("commands are still running after {:?}", self.options.drain);
        }
    }
}

fn listen(address: SocketAddr, runtime: &Handle) -> io::Result<TcpListener> {
    let domain = socket2::Domain::for_address(address);
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{address}: {error}"));
    socket.bind(&address.into()).map_err(named)?;
    socket.listen(BACKLOG as i32).map_err(named)?;
    let _context = runtime.enter();
    TcpListener::from_std(socket.into())
}

/// Where connections are served that carry more than vital commands.
#[derive(Clone)]
pub(crate) struct Ordinary {
    pub runtime: Handle,
    pub in_flight: InFlight,
    pub requesters: Arc<Requesters>,
}

/// The runtimes on which a server's connections are served, and what their messages may keep.
#[derive(Clone)]
pub(crate) struct Places {
    pub vital: Handle,
    /// Where a connection goes with its first ordinary command; `None`: it stays.
    pub ordinary: Option<Ordinary>,
    /// Of the connections that are served on `vital`.
    pub in_flight: InFlight,
}

struct Acceptor<S> {
    service: Arc<S>,
    shutdown: CancellationToken,
    connections: TaskTracker,
    ids: Arc<AtomicU64>,
    options: Options,
    counters: Arc<Counters>,
    presence: Arc<Presence>,
    places: Places,
}

impl<S: Service> Acceptor<S> {
    async fn run(self, listener: TcpListener) {
        let mut stop = pin!(self.shutdown.clone().cancelled_owned());
        loop {
            let accepted = tokio::select! {
                biased;
                () = &mut stop => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => self.admit(stream, peer),
                Err(error) => {
                    // Out of descriptors, most likely: leave the system a moment to get some back.
                    warn!("cannot accept a connection: {error}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    fn encryption(&self) -> Option<Encryption> {
        let tls = self.options.tls.clone()?;
        Some(Encryption {
            tls,
            patience: self.options.handshake_time_max,
        })
    }

    fn admit(&self, stream: TcpStream, peer: SocketAddr) {
        let open = self.counters.current.load(Ordering::Relaxed);
        if open >= self.options.connections_max {
            self.counters.rejected.fetch_add(1, Ordering::Relaxed);
            let most = self.options.connections_max;
            warn!(remote = %peer, connections = open, most, "connection refused because there are too many open connections");
            return;
        }
        let Ok(local) = stream.local_addr() else {
            return;
        };
        if let Err(error) = prepare(&stream) {
            debug!("connection from {peer} ended at once: {error}");
            return;
        }
        self.counters.total.fetch_add(1, Ordering::Relaxed);
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let connection = Connection::new(id, peer, local, self.shutdown.child_token());
        debug!(connection = id, "connection accepted from {peer}");
        let serving = Serving::new(
            self.service.clone(),
            Arc::new(connection),
            self.counters.clone(),
            self.presence.clone(),
            stream,
            self.encryption(),
            self.places.in_flight.clone(),
        );
        let work = serving.run(self.places.ordinary.clone(), self.connections.clone());
        self.connections.spawn_on(work, &self.places.vital);
    }
}
