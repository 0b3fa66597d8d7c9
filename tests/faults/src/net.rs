//! The network between members, and between clients and members: one listening proxy for each
//! member, at the address by which everybody knows it.
//!
//! The proxy finds out which process has opened a connection (the kernel's tables say which socket
//! has that port, and a process's folder which sockets are its own), so that what one member says to
//! another can be held, delayed or cut, each direction for itself.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// Pieces on the way in one direction of one connection.
const PIECES_MAX: usize = 256;
const PIECE_BYTES: usize = 32 << 10;

/// Someone who talks: a member by its place, or any client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Party {
    Member(usize),
    Clients,
}

/// What becomes of what one says to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Open,
    /// It takes this much longer.
    Delayed(Duration),
    /// It waits until the link is better.
    Held,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    mode: Mode,
    /// New connections are refused.
    refused: bool,
    /// Connections that were opened before it changed are cut.
    cuts: u64,
}

const OPEN: Link = Link {
    mode: Mode::Open,
    refused: false,
    cuts: 0,
};

type Links = HashMap<(Party, Party), watch::Sender<Link>>;

pub struct Net {
    links: Links,
    processes: Mutex<Vec<Option<i32>>>,
    pub addresses: Vec<SocketAddr>,
    listening: Vec<JoinHandle<()>>,
}

impl Net {
    /// Proxies for members that listen on these ports.
    pub async fn new(ports: &[u16]) -> Result<Arc<Self>> {
        let members = (0..ports.len()).map(Party::Member);
        let parties: Vec<Party> = members.chain([Party::Clients]).collect();
        let mut links = Links::new();
        for &from in &parties {
            for &to in &parties {
                links.insert((from, to), watch::channel(OPEN).0);
            }
        }
        let mut listeners = Vec::new();
        for _ in ports {
            listeners.push(TcpListener::bind("127.0.0.1:0").await?);
        }
        let addresses = listeners
            .iter()
            .map(TcpListener::local_addr)
            .collect::<io::Result<_>>()?;
        let ports = ports.to_vec();
        Ok(Arc::new_cyclic(|net: &std::sync::Weak<Net>| {
            let listen = |(member, listener)| {
                let (net, port) = (net.clone(), ports[member]);
                tokio::spawn(async move {
                    while let Ok((stream, from)) = TcpListener::accept(&listener).await {
                        let Some(net) = net.upgrade() else { return };
                        tokio::spawn(async move { net.relay(stream, from, member, port).await });
                    }
                })
            };
            Net {
                links,
                processes: Mutex::new(vec![None; ports.len()]),
                addresses,
                listening: listeners.into_iter().enumerate().map(listen).collect(),
            }
        }))
    }

    fn processes(&self) -> MutexGuard<'_, Vec<Option<i32>>> {
        self.processes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// This member runs as this process now.
    pub fn runs_as(&self, member: usize, process: Option<i32>) {
        self.processes()[member] = process;
    }

    fn change(&self, from: Party, to: Party, change: impl FnOnce(&mut Link)) {
        if let Some(link) = self.links.get(&(from, to)) {
            link.send_modify(change);
        }
    }

    pub fn set(&self, from: Party, to: Party, mode: Mode) {
        self.change(from, to, |link| link.mode = mode);
    }

    /// No connections in either direction: those that are there break, new ones are refused.
    pub fn refuse(&self, one: Party, other: Party) {
        for (from, to) in [(one, other), (other, one)] {
            self.change(from, to, |link| {
                link.refused = true;
                link.cuts += 1;
            });
        }
    }

    /// Breaks the connections between two; new ones are welcome.
    pub fn cut(&self, one: Party, other: Party) {
        self.change(one, other, |link| link.cuts += 1);
        self.change(other, one, |link| link.cuts += 1);
    }

    pub fn is_open(&self, from: Party, to: Party) -> bool {
        let link = self
            .links
            .get(&(from, to))
            .map_or(OPEN, |link| *link.borrow());
        link.mode == Mode::Open && !link.refused
    }

    /// Everybody hears everybody. What was held arrives now, late, or is lost with its connection.
    pub fn heal(&self, lose_held: bool) {
        for link in self.links.values() {
            link.send_modify(|link| {
                if lose_held && link.mode == Mode::Held {
                    link.cuts += 1;
                }
                *link = Link {
                    cuts: link.cuts,
                    ..OPEN
                };
            });
        }
    }

    fn party(&self, from: SocketAddr, to: SocketAddr) -> Option<Party> {
        let socket = socket_between(from, to)?;
        let members = self.processes().clone();
        let owner = members
            .iter()
            .position(|process| process.is_some_and(|process| has_socket(process, &socket)));
        match owner {
            Some(member) => Some(Party::Member(member)),
            None if has_socket(std::process::id() as i32, &socket) => Some(Party::Clients),
            // Whoever it was is gone again.
            None => None,
        }
    }

    async fn relay(&self, stream: TcpStream, from: SocketAddr, member: usize, port: u16) {
        let Some(party) = self.party(from, self.addresses[member]) else {
            return;
        };
        let to = Party::Member(member);
        let (Some(there), Some(back)) =
            (self.links.get(&(party, to)), self.links.get(&(to, party)))
        else {
            return;
        };
        let (there, back) = (there.subscribe(), back.subscribe());
        if there.borrow().refused || back.borrow().refused {
            return;
        }
        let Ok(target) = TcpStream::connect(("127.0.0.1", port)).await else {
            return;
        };
        // Small messages must not wait for each other.
        let _ = (stream.set_nodelay(true), target.set_nodelay(true));
        let (reader, writer) = stream.into_split();
        let (target_reader, target_writer) = target.into_split();
        // Either direction's break ends both.
        tokio::select! {
            () = flow(reader, target_writer, there) => {}
            () = flow(target_reader, writer, back) => {}
        }
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for task in &self.listening {
            task.abort();
        }
    }
}

/// Carries what comes in to the other side as the link lets it, until an end or a cut.
async fn flow(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, link: watch::Receiver<Link>) {
    let (pieces, mut arriving) = mpsc::channel::<(Instant, Vec<u8>)>(PIECES_MAX);
    let mut gate = link.clone();
    let read = async move {
        loop {
            let mut piece = vec![0; PIECE_BYTES];
            match from.read(&mut piece).await {
                Ok(count) if count > 0 => {
                    piece.truncate(count);
                    if pieces.send((Instant::now(), piece)).await.is_err() {
                        return;
                    }
                }
                // An end travels like anything else: behind what was said before.
                _ => return,
            }
        }
    };
    let write = async move {
        while let Some((said, piece)) = arriving.recv().await {
            pass(&mut gate, said).await;
            if to.write_all(&piece).await.is_err() {
                return;
            }
        }
        pass(&mut gate, Instant::now()).await;
    };
    let mut cut = link;
    let cuts = cut.borrow().cuts;
    let carry = async { tokio::join!(read, write) };
    tokio::select! {
        _ = carry => {}
        _ = cut.wait_for(|link| link.cuts != cuts) => {}
    }
}

/// Waits until what was said at that moment may arrive.
async fn pass(link: &mut watch::Receiver<Link>, said: Instant) {
    loop {
        let mode = link.borrow_and_update().mode;
        match mode {
            Mode::Open => return,
            Mode::Delayed(delay) => {
                tokio::time::sleep_until((said + delay).into()).await;
                return;
            }
            Mode::Held => {
                if link.changed().await.is_err() {
                    return;
                }
            }
        }
    }
}

/// The kernel's name of the socket at `from` that is connected to `to`.
fn socket_between(from: SocketAddr, to: SocketAddr) -> Option<String> {
    let table = fs::read_to_string("/proc/self/net/tcp").ok()?;
    let (from, to) = (hexadecimal(from)?, hexadecimal(to)?);
    let inode = table.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let found = words.next()? == from && words.next()? == to;
        found.then(|| words.nth(6)).flatten()
    })?;
    Some(format!("socket:[{inode}]"))
}

fn hexadecimal(address: SocketAddr) -> Option<String> {
    let SocketAddr::V4(address) = address else {
        return None;
    };
    let number = u32::from_ne_bytes(address.ip().octets());
    Some(format!("{number:08X}:{:04X}", address.port()))
}

fn has_socket(process: i32, socket: &str) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{process}/fd")) else {
        return false;
    };
    descriptors
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .any(|target| target.as_os_str() == socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn echo() -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut reader, mut writer) = stream.split();
                    let _ = tokio::io::copy(&mut reader, &mut writer).await;
                });
            }
        });
        port
    }

    async fn said_back(stream: &mut TcpStream) -> bool {
        let mut byte = [0];
        let exchange = async {
            stream.write_all(b"x").await?;
            stream.read_exact(&mut byte).await
        };
        let answer = tokio::time::timeout(Duration::from_millis(300), exchange).await;
        matches!(answer, Ok(Ok(_)))
    }

    #[tokio::test]
    async fn a_link_is_held_refused_and_healed() {
        let net = Net::new(&[echo().await]).await.unwrap();
        let mut stream = TcpStream::connect(net.addresses[0]).await.unwrap();
        assert!(said_back(&mut stream).await);
        // The answer is held, and arrives once the link is open again.
        net.set(Party::Member(0), Party::Clients, Mode::Held);
        assert!(!said_back(&mut stream).await);
        net.heal(false);
        let mut late = [0];
        stream.read_exact(&mut late).await.unwrap();
        assert!(said_back(&mut stream).await);
        net.refuse(Party::Clients, Party::Member(0));
        assert!(!said_back(&mut stream).await);
        let mut refused = TcpStream::connect(net.addresses[0]).await.unwrap();
        assert!(!said_back(&mut refused).await);
        net.heal(true);
        let mut again = TcpStream::connect(net.addresses[0]).await.unwrap();
        assert!(said_back(&mut again).await);
    }

    #[tokio::test]
    async fn a_connection_belongs_to_the_process_that_opened_it() {
        let net = Net::new(&[echo().await]).await.unwrap();
        let mut stream = TcpStream::connect(net.addresses[0]).await.unwrap();
        assert!(said_back(&mut stream).await);
        let own = stream.local_addr().unwrap();
        assert_eq!(net.party(own, net.addresses[0]), Some(Party::Clients));
        net.runs_as(0, Some(std::process::id() as i32));
        assert_eq!(net.party(own, net.addresses[0]), Some(Party::Member(0)));
    }
}
