//! Groups of real threads and real logs, joined by channels in place of a network.

// Each test binary uses a part of it.
#![allow(dead_code, clippy::unwrap_used)]

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use banyan_consensus::{
    ApplyError, Change, Committed, Error, Group, Options, PeerId, Position, ProposeError,
    ProposeOptions, SnapshotMeta, StateMachine, SyncMode, Transport,
};
use bytes::Bytes;
use futures::executor::block_on;
use parking_lot::Mutex;

/// Remembers what was applied, in order.
#[derive(Default)]
pub struct Journal {
    pub state: Mutex<State>,
    /// The states of the others, by address: where a snapshot is fetched from.
    pub peers: Arc<Mutex<HashMap<String, Arc<Journal>>>>,
    pub gate: Mutex<()>,
}

#[derive(Clone, Default)]
pub struct State {
    pub applied: Position,
    pub entries: Vec<Bytes>,
    pub prepared: u64,
    /// The bytes of the most that was applied at once.
    pub largest: usize,
}

impl StateMachine for Journal {
    type Prepared = u64;

    /// Whoever holds the gate holds up the thread that writes the log.
    fn seal(&self, _data: &mut [u8]) {
        drop(self.gate.lock());
    }

    /// An entry that begins with a number and a colon was written then.
    fn written_ms(&self, data: &[u8]) -> Option<i64> {
        let text = std::str::from_utf8(data).ok()?;
        text.split_once(':')?.0.parse().ok()
    }

    fn applied(&self) -> Position {
        self.state.lock().applied
    }

    fn apply(&self, entries: Vec<Committed<u64>>) -> Result<(), ApplyError> {
        let mut state = self.state.lock();
        let bytes = entries.iter().map(|entry| entry.data.len()).sum();
        state.largest = state.largest.max(bytes);
        for entry in entries {
            if entry.position.index != state.applied.index + 1 {
                return Err(ApplyError(format!("{:?} after {:?}", entry, state.applied)));
            }
            state.applied = entry.position;
            state.prepared += entry.prepared.unwrap_or(0);
            if !entry.data.is_empty() {
                state.entries.push(entry.data);
            }
        }
        Ok(())
    }

    fn durable(&self) -> u64 {
        self.state.lock().applied.index
    }

    fn make_durable(&self) -> std::io::Result<u64> {
        Ok(self.durable())
    }

    fn install_snapshot(&self, meta: SnapshotMeta) -> Result<(), ApplyError> {
        let leader = self.peers.lock().get(&meta.leader_address).cloned();
        let leader = leader.ok_or_else(|| ApplyError("the leader is away".into()))?;
        let fetched = leader.state.lock().clone();
        if fetched.applied < meta.position {
            return Err(ApplyError("the leader's state is too old".into()));
        }
        let mut state = self.state.lock();
        state.applied = fetched.applied;
        state.entries = fetched.entries;
        Ok(())
    }
}

#[derive(Default)]
pub struct Network {
    pub groups: Mutex<HashMap<PeerId, Group<Journal>>>,
    pub cut: Mutex<Vec<PeerId>>,
    pub sent: AtomicU64,
}

pub struct Wire {
    pub own: PeerId,
    pub network: Arc<Network>,
}

impl Transport for Wire {
    fn send(&self, to: PeerId, address: &str, messages: Vec<Bytes>) {
        assert_eq!(address, format!("host{to}"));
        let cut = self.network.cut.lock();
        if cut.contains(&to) || cut.contains(&self.own) {
            return;
        }
        drop(cut);
        let group = self.network.groups.lock().get(&to).cloned();
        if let Some(group) = group {
            let count = messages.len() as u64;
            self.network.sent.fetch_add(count, Ordering::Relaxed);
            for message in messages {
                group.step(message);
            }
        }
    }
}

pub struct Cluster {
    pub dir: tempfile::TempDir,
    pub network: Arc<Network>,
    pub peers: Arc<Mutex<HashMap<String, Arc<Journal>>>>,
}

pub fn dies(what: &str) {
    eprintln!("fatal in a test: {what}");
    FATAL.store(true, Ordering::SeqCst);
}

pub static FATAL: AtomicBool = AtomicBool::new(false);

pub fn options(id: PeerId, sync: SyncMode) -> Options {
    let mut options = Options::new(id, sync);
    options.heartbeat = Duration::from_millis(40);
    options.election_timeout = Duration::from_millis(400);
    options.on_fatal = dies;
    options
}

impl Cluster {
    pub fn new() -> Cluster {
        Cluster {
            dir: tempfile::tempdir().unwrap(),
            network: Arc::default(),
            peers: Arc::default(),
        }
    }

    pub fn start(&self, id: PeerId, sync: SyncMode) -> Group<Journal> {
        let journal = Arc::new(Journal {
            state: Mutex::default(),
            peers: self.peers.clone(),
            gate: Mutex::default(),
        });
        self.start_with(id, sync, journal, 64 << 20)
    }

    pub fn start_with(
        &self,
        id: PeerId,
        sync: SyncMode,
        journal: Arc<Journal>,
        log_bytes_max: u64,
    ) -> Group<Journal> {
        let mut options = options(id, sync);
        options.log_bytes_max = log_bytes_max;
        self.open(options, journal).unwrap()
    }

    pub fn open(&self, options: Options, journal: Arc<Journal>) -> Result<Group<Journal>, Error> {
        let id = options.id;
        self.peers
            .lock()
            .insert(format!("host{id}"), journal.clone());
        let wire = Arc::new(Wire {
            own: id,
            network: self.network.clone(),
        });
        let group = Group::open(&self.path(id), options, journal, wire)?;
        self.network.groups.lock().insert(id, group.clone());
        Ok(group)
    }

    pub fn path(&self, id: PeerId) -> std::path::PathBuf {
        let path = Path::new(self.dir.path()).join(id.to_string());
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    pub fn journal(&self, id: PeerId) -> Arc<Journal> {
        self.peers.lock()[&format!("host{id}")].clone()
    }

    /// As if its process had been killed; the state is lost, the log stays.
    pub fn kill(&self, id: PeerId) {
        let group = self.network.groups.lock().remove(&id);
        if let Some(group) = group {
            group.stop();
        }
    }

    pub fn entries(&self, id: PeerId) -> Vec<Bytes> {
        self.journal(id).state.lock().entries.clone()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let groups: Vec<_> = self.network.groups.lock().drain().collect();
        for (_, group) in groups {
            group.stop();
        }
    }
}

pub fn wait(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "no {what} in time");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn propose(group: &Group<Journal>, text: &str) -> Result<Position, ProposeError> {
    let data = text.as_bytes().to_vec();
    block_on(group.propose(data, 1, ProposeOptions::default()))
}

pub fn three(cluster: &Cluster) -> Vec<Group<Journal>> {
    let groups: Vec<_> = (1..=3)
        .map(|id| cluster.start(id, SyncMode::EveryEntry))
        .collect();
    groups[0].bootstrap("host1").unwrap();
    wait("leader", || groups[0].leader_term() != 0);
    for id in 2..=3 {
        let address = format!("host{id}");
        block_on(groups[0].change_membership(Change::AddLearner { id, address })).unwrap();
        block_on(groups[0].change_membership(Change::Promote(id))).unwrap();
    }
    groups
}

pub fn leader_among(groups: &[Group<Journal>]) -> Option<Group<Journal>> {
    groups
        .iter()
        .find(|group| group.leader_term() != 0)
        .cloned()
}
