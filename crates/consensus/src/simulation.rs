//! A whole group on one thread, from one seed: messages are dropped, delayed, doubled and
//! reordered, members crash in the middle of a write and lose what was not synced, snapshots are
//! torn, the membership changes. Whatever happens:
//!
//! - a term has at most one leader,
//! - all members apply the same entries at the same indexes,
//! - what a leader saw applied is there in the end, on every member.
//!
//! A failure prints its seed; `SEED=… cargo test -p banyan-consensus simulation` repeats it, and
//! `SEED=1..1000` tries many.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use raft::ReadState;
use raft::eraftpb::{Entry, EntryType, Message, MessageType};

use crate::core::{Core, Decided, Outlet, Settings};
use crate::log::memory::MemoryDisk;
use crate::log::{conf_state, encode_membership};
use crate::machine::{Change, PeerId, Position, SnapshotMeta};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// True once in `odds` times.
    fn once_in(&mut self, odds: u64) -> bool {
        self.below(odds) == 0
    }
}

struct Install {
    meta: SnapshotMeta,
    held: Message,
    done_at: u64,
}

struct Member {
    disk: MemoryDisk,
    core: Option<Core<MemoryDisk>>,
    applied: Arc<Mutex<Position>>,
    /// What was applied, by position; `None` once a snapshot install has torn it.
    state: Vec<(Position, Bytes)>,
    /// How much of the state survives a crash.
    durable: usize,
    install: Option<Install>,
    restart_at: u64,
}

#[derive(Default)]
struct Out {
    sent: Vec<(PeerId, Bytes)>,
    decided: Vec<Decided>,
    installs: Vec<(SnapshotMeta, Message)>,
}

impl Outlet for Out {
    fn send(&mut self, to: PeerId, address: &str, frame: Bytes) {
        // Whoever sends nonsense may be asked who it is.
        assert!(address == format!("m{to}") || address == "stranger");
        self.sent.push((to, frame));
    }

    fn flush(&mut self) {}

    fn decided(&mut self, decided: Decided) {
        self.decided.push(decided);
    }

    fn read_state(&mut self, _state: ReadState) {}

    fn install(&mut self, meta: SnapshotMeta, held: Message) {
        self.installs.push((meta, held));
    }
}

struct Simulation {
    seed: u64,
    random: Random,
    now: u64,
    members: BTreeMap<PeerId, Member>,
    /// Messages under way: when they arrive, in which order, from, to.
    network: BTreeMap<(u64, u64), (PeerId, PeerId, Bytes)>,
    sent: u64,
    /// Members on the wrong side of a partition.
    cut: Vec<PeerId>,
    faults: bool,
    leaders: BTreeMap<u64, PeerId>,
    /// What is committed, by index.
    truth: BTreeMap<u64, (Position, Bytes)>,
    acknowledged: Vec<Bytes>,
    proposed: u64,
    snapshots: u64,
    crashes: u64,
    trace: u64,
}

impl Simulation {
    fn new(seed: u64) -> Simulation {
        let mut random = Random(seed);
        let size = 3 + random.below(3);
        let members = (1..=size).map(|id| (id, Member::blank())).collect();
        let mut simulation = Simulation {
            seed,
            random,
            now: 0,
            members,
            network: BTreeMap::new(),
            sent: 0,
            cut: Vec::new(),
            faults: true,
            leaders: BTreeMap::new(),
            truth: BTreeMap::new(),
            acknowledged: Vec::new(),
            proposed: 0,
            snapshots: 0,
            crashes: 0,
            trace: seed,
        };
        for id in 1..=size {
            simulation.start(id);
        }
        let core = simulation
            .members
            .get_mut(&1)
            .unwrap()
            .core
            .as_mut()
            .unwrap();
        assert!(core.bootstrap("m1"));
        simulation.pump(1, Out::default());
        simulation
    }

    fn start(&mut self, id: PeerId) {
        let seed = self.seed;
        let member = self.members.get_mut(&id).unwrap();
        let settings = Settings {
            id,
            heartbeat_ticks: 2,
            election_ticks: 10,
            seed,
        };
        let position = member
            .state
            .last()
            .map_or(Position::default(), |(at, _)| *at);
        member.applied = Arc::new(Mutex::new(position));
        let core = Core::open(
            member.disk.clone(),
            settings,
            member.applied.clone(),
            0,
            |_| Ok(()),
        );
        member.core = Some(core.unwrap());
    }

    fn crash(&mut self, id: PeerId) {
        let restart_at = self.now + 20 + self.random.below(200);
        let member = self.members.get_mut(&id).unwrap();
        member.core = None;
        member.disk.lose_unsynced();
        member.restart_at = restart_at;
        if member.install.take().is_some() {
            // Torn in the middle: nothing of it can be used.
            member.state.clear();
            member.durable = 0;
        }
        member.state.truncate(member.durable);
        self.crashes += 1;
    }

    fn pump(&mut self, id: PeerId, mut out: Out) {
        let member = self.members.get_mut(&id).unwrap();
        let Some(core) = &mut member.core else { return };
        let healthy = core.pump(true, &mut out).is_ok();
        // What left before the write failed has left.
        for (to, frame) in out.sent {
            self.post(id, to, frame);
        }
        if !healthy {
            self.crash(id);
            return;
        }
        for decided in out.decided {
            self.apply(id, decided);
        }
        for (meta, held) in out.installs {
            let done_at = self.now + 1 + self.random.below(60);
            let member = self.members.get_mut(&id).unwrap();
            assert!(member.install.is_none());
            member.install = Some(Install {
                meta,
                held,
                done_at,
            });
        }
        self.check_leader(id);
    }

    fn check_leader(&mut self, id: PeerId) {
        let Some(core) = &self.members[&id].core else {
            return;
        };
        if core.is_leader() {
            let first = *self.leaders.entry(core.term()).or_insert(id);
            assert_eq!(first, id, "two leaders in term {}", core.term());
        }
        let mark = core.term() ^ (core.commit() << 20) ^ (id << 50);
        self.trace = (self.trace ^ mark).wrapping_mul(0x0100_0000_01b3);
    }

    fn apply(&mut self, id: PeerId, decided: Decided) {
        let member = self.members.get_mut(&id).unwrap();
        let Decided { position, data, .. } = decided;
        let fact = (position, data.clone());
        let known = self
            .truth
            .entry(position.index)
            .or_insert_with(|| fact.clone());
        assert_eq!(
            *known, fact,
            "member {id} decided otherwise at {}",
            position.index
        );
        let applied = member.applied.lock().index;
        if position.index <= applied {
            return;
        }
        assert_eq!(position.index, applied + 1, "member {id} left a gap");
        member.state.push(fact);
        *member.applied.lock() = position;
        let leads = member.core.as_ref().is_some_and(|core| core.is_leader());
        if leads && !data.is_empty() {
            self.acknowledged.push(data);
        }
    }

    fn post(&mut self, from: PeerId, to: PeerId, frame: Bytes) {
        let copies = match self.random.below(20) {
            0 if self.faults => 0,
            1 if self.faults => 2,
            _ => 1,
        };
        for _ in 0..copies {
            let slow = self.faults && self.random.once_in(10);
            let delay = 1 + self.random.below(if slow { 40 } else { 3 });
            self.sent += 1;
            self.network
                .insert((self.now + delay, self.sent), (from, to, frame.clone()));
        }
    }

    fn step(&mut self) {
        self.now += 1;
        self.deliver();
        let ids: Vec<PeerId> = self.members.keys().copied().collect();
        for id in ids {
            self.finish_install(id);
            let member = self.members.get_mut(&id).unwrap();
            match &mut member.core {
                None if member.restart_at <= self.now => self.start(id),
                None => continue,
                Some(core) => {
                    // Clocks run at about a third of the network's pace, and not evenly.
                    if self.random.once_in(3) {
                        core.tick();
                    }
                }
            }
            self.act(id);
            self.pump(id, Out::default());
        }
        if self.faults && self.random.once_in(300) {
            self.cut.clear();
            if self.random.once_in(2) {
                let victim = 1 + self.random.below(self.members.len() as u64);
                self.cut.push(victim);
            }
        }
    }

    fn deliver(&mut self) {
        while let Some(entry) = self.network.first_entry() {
            if entry.key().0 > self.now {
                return;
            }
            let (from, to, frame) = entry.remove();
            if self.cut.contains(&from) != self.cut.contains(&to) {
                continue;
            }
            let mut out = Out::default();
            if let Some(core) = self.members.get_mut(&to).and_then(|m| m.core.as_mut()) {
                core.step(crate::message::decode(&frame).unwrap(), &mut out);
                self.pump(to, out);
            }
        }
    }

    /// What the outside world does to a member.
    fn act(&mut self, id: PeerId) {
        let size = self.members.len() as u64;
        let roll = self.random.below(400);
        let other = 1 + self.random.below(size);
        let member = self.members.get_mut(&id).unwrap();
        let Some(core) = &mut member.core else { return };
        if core.is_leader() && roll < 100 {
            let count = 1 + roll % 3;
            let data = (0..count)
                .map(|n| Bytes::from(format!("{}", self.proposed + n)))
                .collect();
            self.proposed += count;
            let _ = core.propose(data);
        } else if core.is_leader() && roll < 140 {
            let change = change_for(core, size, other, roll);
            let _ = core.propose_change(&change);
        } else if roll < 150 {
            member.durable = member.state.len();
        } else if roll < 155 {
            let upto = member
                .durable
                .checked_sub(1)
                .and_then(|at| member.state.get(at));
            let cut = upto.map_or(0, |(at, _)| at.index).min(core.handed_over());
            if core.log_mut().compact(cut).is_err() {
                self.crash(id);
            }
        } else if !self.faults {
        } else if roll == 160 {
            self.crash(id);
        } else if roll == 161 {
            member.disk.fail_next_write();
        } else if roll == 162 {
            core.transfer_leadership(other);
        } else if roll == 163 {
            core.step_down();
        } else if roll == 164 {
            core.broadcast_commit();
        }
    }

    fn finish_install(&mut self, id: PeerId) {
        let now = self.now;
        let member = self.members.get_mut(&id).unwrap();
        let Some(install) = member.install.take_if(|install| install.done_at <= now) else {
            return;
        };
        let Install { meta, held, .. } = install;
        let source = self
            .members
            .get(&meta.leader)
            .filter(|leader| leader.core.is_some() && *leader.applied.lock() >= meta.position);
        let fetched = source.map(|leader| leader.state.clone());
        let member = self.members.get_mut(&id).unwrap();
        let success = fetched.is_some();
        // A failed attempt has emptied the state all the same.
        member.state = fetched.unwrap_or_default();
        member.durable = member.state.len();
        *member.applied.lock() = member
            .state
            .last()
            .map_or(Position::default(), |(at, _)| *at);
        self.snapshots += u64::from(success);
        if let Some(core) = &mut member.core {
            core.snapshot_installed(held, success);
        }
        self.pump(id, Out::default());
    }

    /// The storm passes; everybody must come to agree.
    fn settle(&mut self) {
        self.faults = false;
        self.cut.clear();
        for _ in 0..6000 {
            self.step();
            if self.now.is_multiple_of(50) && self.agree() {
                return;
            }
        }
        let picture: Vec<String> = self
            .members
            .iter()
            .map(|(id, member)| {
                let core = member.core.as_ref();
                let role = core.map(|core| (core.role(), core.term(), core.installing()));
                let progress = core.map(|core| core.progress());
                let log = core.map(|core| (core.log().base(), core.last_index(), core.commit()));
                format!(
                    "{id}: {role:?} applied {:?}, log {log:?}, {progress:?}",
                    member.applied.lock()
                )
            })
            .collect();
        panic!("no agreement in the end: {picture:#?}");
    }

    fn agree(&self) -> bool {
        let mut positions = self.members.values().map(|member| *member.applied.lock());
        let first = positions.next().unwrap_or_default();
        let newest = self.truth.keys().next_back().copied().unwrap_or(0);
        first.index == newest
            && positions.all(|position| position == first)
            && self.members.values().all(|member| member.core.is_some())
            && self.members[&1]
                .core
                .as_ref()
                .is_some_and(|core| core.membership().members.len() == self.members.len())
    }

    fn check_end(&self) {
        let expected: Vec<_> = self.truth.values().cloned().collect();
        for (id, member) in &self.members {
            let length = member.state.len();
            assert!(
                member.state[..] == expected[..length],
                "member {id} applied otherwise"
            );
            assert_eq!(length, expected.len(), "member {id} lacks entries");
        }
        let mut kept: Vec<&Bytes> = expected.iter().map(|(_, data)| data).collect();
        kept.sort();
        for data in &self.acknowledged {
            assert!(
                kept.binary_search(&data).is_ok(),
                "{data:?} was acknowledged and lost"
            );
        }
    }
}

/// Grows the group towards everybody, with some shrinking in between.
fn change_for(core: &Core<MemoryDisk>, size: u64, other: PeerId, roll: u64) -> Change {
    let membership = core.membership();
    for id in 1..=size {
        match membership.get(id) {
            None => {
                return Change::AddLearner {
                    id,
                    address: format!("m{id}"),
                };
            }
            Some(member) if !member.voter => return Change::Promote(id),
            Some(_) => {}
        }
    }
    match roll % 20 {
        0 => Change::Demote(other),
        1 => Change::Remove(other),
        _ => Change::UpdateAddress {
            id: other,
            address: format!("m{other}"),
        },
    }
}

impl Member {
    fn blank() -> Member {
        Member {
            disk: MemoryDisk::default(),
            core: None,
            applied: Arc::default(),
            state: Vec::new(),
            durable: 0,
            install: None,
            restart_at: 0,
        }
    }
}

struct Summary {
    trace: u64,
    entries: usize,
    snapshots: u64,
    crashes: u64,
    terms: usize,
}

fn run(seed: u64) -> Summary {
    struct Announce(u64);
    impl Drop for Announce {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("the simulation failed; repeat it with SEED={}", self.0);
            }
        }
    }
    let _announce = Announce(seed);
    let mut simulation = Simulation::new(seed);
    for _ in 0..4000 {
        simulation.step();
    }
    simulation.settle();
    simulation.check_end();
    Summary {
        trace: simulation.trace,
        entries: simulation.acknowledged.len(),
        snapshots: simulation.snapshots,
        crashes: simulation.crashes,
        terms: simulation.leaders.len(),
    }
}

#[test]
fn simulation_agrees_whatever_happens() {
    let seeds: Vec<u64> = match std::env::var("SEED") {
        Ok(seeds) => match seeds.split_once("..") {
            Some((from, to)) => (from.parse().unwrap()..to.parse().unwrap()).collect(),
            None => vec![seeds.parse().unwrap()],
        },
        Err(_) => (1..=12).chain([rand::random::<u32>().into()]).collect(),
    };
    let (mut entries, mut snapshots, mut crashes, mut terms) = (0, 0, 0, 0);
    for &seed in &seeds {
        let summary = run(seed);
        entries += summary.entries;
        snapshots += summary.snapshots;
        crashes += summary.crashes;
        terms += summary.terms;
    }
    if seeds.len() > 1 {
        // The storms were storms: otherwise the checks would prove little.
        assert!(entries > 2000, "{entries} entries");
        assert!(snapshots > 10, "{snapshots} snapshots");
        assert!(crashes > 100, "{crashes} crashes");
        assert!(terms > 50, "{terms} terms");
    }
}

#[test]
fn simulation_repeats_itself() {
    assert_eq!(run(4711).trace, run(4711).trace);
}

/// A message that no sane member would send, though each of its parts looks like one.
fn nonsense(random: &mut Random, to: PeerId, core: &Core<MemoryDisk>) -> Message {
    let mut number = |near: u64| match random.below(8) {
        0 => 0,
        1 => u64::MAX,
        2 => random.next() >> 4,
        _ => (near + random.below(8)).saturating_sub(4),
    };
    let (last, commit, term) = (core.last_index(), core.commit(), core.term());
    let mut message = Message {
        to,
        term: number(term),
        log_term: number(term),
        index: number(last),
        commit: number(commit),
        commit_term: number(term),
        reject_hint: number(last),
        request_snapshot: 0,
        ..Message::default()
    };
    if random.once_in(4) {
        message.term = term;
    }
    if random.once_in(6) {
        message.request_snapshot = last;
    }
    message.from = random.below(7);
    message.reject = random.once_in(2);
    message.priority = random.next() as i64;
    message.set_msg_type(ALL_KINDS[random.below(ALL_KINDS.len() as u64) as usize]);
    let mut entries = Vec::new();
    for offset in 0..random.below(4) {
        let mut entry = Entry {
            index: message.index.wrapping_add(1 + offset),
            ..Entry::default()
        };
        entry.term = if random.once_in(3) {
            message.term
        } else {
            message.log_term
        };
        if random.once_in(3) {
            entry.set_entry_type(EntryType::EntryConfChange);
            entry.data = Bytes::from(random.next().to_le_bytes().to_vec());
        }
        if random.once_in(6) {
            entry.set_entry_type(EntryType::EntryConfChangeV2);
            entry.data = encode_membership(&some_membership(random)).into();
        }
        entries.push(entry);
    }
    message.set_entries(entries.into());
    if random.once_in(3) {
        let membership = core.membership();
        let snapshot = message.mut_snapshot();
        snapshot.mut_metadata().index = (last + random.below(8)).saturating_sub(4);
        snapshot.mut_metadata().term = term;
        snapshot
            .mut_metadata()
            .set_conf_state(conf_state(membership));
        snapshot.data = encode_membership(membership).into();
    }
    if random.once_in(3) {
        message.context = Bytes::from(random.next().to_le_bytes().to_vec());
    }
    message
}

fn some_membership(random: &mut Random) -> crate::machine::Membership {
    let mut members = Vec::new();
    for id in 1..6 {
        if random.once_in(2) {
            members.push(crate::machine::Member {
                id,
                address: format!("m{id}"),
                voter: random.once_in(2),
            });
        }
    }
    crate::machine::Membership {
        index: random.below(50),
        term: random.below(9),
        members,
    }
}

const ALL_KINDS: [MessageType; 19] = [
    MessageType::MsgHup,
    MessageType::MsgBeat,
    MessageType::MsgPropose,
    MessageType::MsgAppend,
    MessageType::MsgAppendResponse,
    MessageType::MsgRequestVote,
    MessageType::MsgRequestVoteResponse,
    MessageType::MsgSnapshot,
    MessageType::MsgHeartbeat,
    MessageType::MsgHeartbeatResponse,
    MessageType::MsgUnreachable,
    MessageType::MsgSnapStatus,
    MessageType::MsgCheckQuorum,
    MessageType::MsgTransferLeader,
    MessageType::MsgTimeoutNow,
    MessageType::MsgReadIndex,
    MessageType::MsgReadIndexResp,
    MessageType::MsgRequestPreVote,
    MessageType::MsgRequestPreVoteResponse,
];

/// Whoever reaches the port can ruin a group with forged messages, but not stop a process.
#[test]
fn nonsense_stops_nobody() {
    for seed in 1..60 {
        let mut simulation = Simulation::new(seed);
        for _ in 0..300 {
            simulation.step();
        }
        let mut random = Random(seed);
        for (&id, member) in &mut simulation.members {
            let Some(core) = &mut member.core else {
                continue;
            };
            for round in 0..400 {
                let message = nonsense(&mut random, id, core);
                let mut out = Out::default();
                let frame = crate::message::encode("stranger", &message);
                core.step(crate::message::decode(&frame).unwrap(), &mut out);
                if round % 5 == 0 {
                    core.tick();
                }
                if round % 7 == 0 {
                    let _ = core.propose(vec![Bytes::from_static(b"x")]);
                }
                let mut quiet = Quiet;
                // The disk may have been told to fail; a second attempt is only for this test.
                if core.pump(true, &mut quiet).is_err() {
                    break;
                }
                for (_, held) in out.installs {
                    core.snapshot_installed(held, random.once_in(2));
                }
            }
        }
    }
}

struct Quiet;

impl Outlet for Quiet {
    fn send(&mut self, _to: PeerId, _address: &str, _frame: Bytes) {}
    fn flush(&mut self) {}
    fn decided(&mut self, _decided: Decided) {}
    fn read_state(&mut self, _state: ReadState) {}
    fn install(&mut self, _meta: SnapshotMeta, _held: Message) {}
}
