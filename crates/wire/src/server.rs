//! The listener: what a server does, and on which threads its connections are served.
//!
//! Every connection begins where logins are computed (see [`Runtimes`]), and leaves with its first
//! other command, for good: for the vital threads while all it carries is vital (see
//! [`Service::is_vital`]), which is consensus, heartbeats, `ping`, and `hello` once it has been said
//! before; for the ordinary ones with anything else.
//!
//! [`Runtimes`]: crate::Runtimes

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
use crate::places::{Others, Place, Places};
use crate::presence::Presence;
use crate::runtimes::Apart;
use crate::service::{Counters, Service};
use crate::serving::Serving;
use crate::stream::prepare;
use crate::tls::{self, Encryption, Tls};

#[derive(Clone, Debug)]
pub struct Options {
    pub connections_max: usize,
    /// How long a shutdown waits for commands that are running.
    pub drain: Duration,
    /// Without, everything happens where the server is served.
    pub apart: Option<Apart>,
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
            apart: None,
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
    presence: Arc<Presence>,
}

/// How many connections may wait to be accepted.
const BACKLOG: u32 = 1024;
impl Server {
    /// Binds every host on the port; port 0 takes a free one (see [`Server::addresses`]). Must be
    /// called on a runtime.
    pub async fn bind(hosts: &[&str], port: u16, options: Options) -> io::Result<Server> {
        let apart = options.apart.as_ref();
        let accepting = apart.map_or_else(Handle::current, |apart| apart.logins.clone());
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
                listeners.push(listen(address, &accepting)?);
            }
        }
        let counters = Arc::<Counters>::default();
        let most = &counters.connections_max;
        most.store(options.connections_max, Ordering::Relaxed);
        Ok(Server {
            listeners,
            options,
            counters,
            presence: Arc::default(),
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

    /// Who is connected, once it serves.
    pub fn presence(&self) -> Arc<Presence> {
        self.presence.clone()
    }

    /// Serves until `shutdown` is cancelled and the commands that were running have ended.
    pub async fn serve<S: Service>(self, service: Arc<S>, shutdown: CancellationToken) {
        let ordinary = Handle::current();
        let apart = self.options.apart.clone();
        // What must not wait for any query must not wait for the messages of queries either.
        let in_flight = || InFlight::new(self.options.in_flight_bytes_max);
        let place = |runtime: &Handle, in_flight: InFlight| Place {
            runtime: runtime.clone(),
            in_flight,
            requesters: Arc::new(Requesters::new()),
        };
        let first = in_flight();
        let places = match &apart {
            Some(apart) => Places {
                logins: place(&apart.logins, first.clone()),
                others: Some(Others {
                    vital: place(&apart.vital, first),
                    ordinary: place(&ordinary, in_flight()),
                }),
            },
            None => Places {
                logins: place(&ordinary, first),
                others: None,
            },
        };
        let watching = apart.map_or(ordinary, |apart| apart.vital);
        let connections = TaskTracker::new();
        let accepting = TaskTracker::new();
        let ids = Arc::new(AtomicU64::new(1));
        let presence = self.presence;
        let watch = presence.clone().watch(service.clone(), shutdown.clone());
        accepting.spawn_on(watch, &watching);
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
            accepting.spawn_on(acceptor.run(listener), &places.logins.runtime);
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
            self.places.logins.in_flight.clone(),
        );
        let work = serving.run(self.places.others.clone(), self.connections.clone());
        self.connections.spawn_on(work, &self.places.logins.runtime);
    }
}
