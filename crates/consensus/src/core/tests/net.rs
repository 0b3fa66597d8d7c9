//! A few cores, and a network between them that loses what it is told to.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use raft::ReadState;
use raft::eraftpb::Message;

use crate::core::mix::mix;
use crate::core::{ChangeOutcome, Core, Decided, Outlet, Settings};
use crate::log::memory::MemoryDisk;
use crate::machine::Change;
use crate::machine::{Member, PeerId, Position, SnapshotMeta};
use crate::message::decode;

#[derive(Default)]
pub(super) struct Out {
    pub sent: Vec<(PeerId, Bytes)>,
    pub decided: Vec<Decided>,
    pub installs: Vec<(SnapshotMeta, Message)>,
}

impl Outlet for Out {
    fn send(&mut self, to: PeerId, _address: &str, frame: Bytes) {
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

#[derive(Default)]
pub(super) struct Node {
    pub disk: MemoryDisk,
    pub core: Option<Core<MemoryDisk>>,
    pub applied: Arc<Mutex<Position>>,
    pub state: Vec<(Position, Bytes)>,
    pub install: Option<(SnapshotMeta, Message)>,
    pub snapshots: u64,
    /// Entries it saw applied while it led, and in which term.
    pub acknowledged: Vec<(u64, Bytes)>,
    pub witness: bool,
}

pub(super) struct Net {
    pub nodes: BTreeMap<PeerId, Node>,
    pub queue: VecDeque<(PeerId, PeerId, Bytes)>,
    /// Who is in which part of a network that has come apart.
    pub parts: BTreeMap<PeerId, u64>,
    pub random: u64,
    pub loses: bool,
}

impl Net {
    pub fn new(size: u64) -> Net {
        let mut net = Net {
            nodes: (1..=size).map(|id| (id, Node::default())).collect(),
            queue: VecDeque::new(),
            parts: BTreeMap::new(),
            random: 7,
            loses: false,
        };
        for id in 1..=size {
            net.start(id);
        }
        assert!(net.core(1).bootstrap("m1"));
        net.run(20);
        for id in 2..=size {
            let address = format!("m{id}");
            net.change(1, Change::AddLearner { id, address });
            net.change(1, Change::Promote(id));
        }
        net
    }

    pub fn draw(&mut self, below: u64) -> u64 {
        self.random = mix(self.random);
        self.random % below
    }

    pub fn start(&mut self, id: PeerId) {
        let node = self.nodes.get_mut(&id).unwrap();
        let settings = Settings {
            id,
            heartbeat_ticks: 2,
            election_ticks: 10,
            seed: 1,
        };
        let position = node.state.last().map_or(Position::default(), |(at, _)| *at);
        node.applied = Arc::new(Mutex::new(position));
        let core = Core::open(node.disk.clone(), settings, node.applied.clone(), 0, |_| {
            Ok(())
        });
        node.core = core.ok();
        node.install = None;
        let witness = node.witness;
        let core = self.core(id);
        core.set_witness(witness);
    }

    pub fn crash(&mut self, id: PeerId) {
        let node = self.nodes.get_mut(&id).unwrap();
        node.core = None;
        node.disk.lose_unsynced();
    }

    pub fn core(&mut self, id: PeerId) -> &mut Core<MemoryDisk> {
        self.nodes.get_mut(&id).unwrap().core.as_mut().unwrap()
    }

    /// Messages pass only within a part.
    pub fn part(&mut self, parts: &[&[PeerId]]) {
        self.parts.clear();
        for (number, part) in parts.iter().enumerate() {
            self.parts
                .extend(part.iter().map(|&id| (id, number as u64)));
        }
    }

    pub fn pump(&mut self, id: PeerId, mut out: Out) {
        let node = self.nodes.get_mut(&id).unwrap();
        let Some(core) = &mut node.core else { return };
        let healthy = core.pump(true, &mut out).is_ok();
        let sent = out.sent.into_iter().map(|(to, frame)| (id, to, frame));
        self.queue.extend(sent);
        if !healthy {
            self.crash(id);
            return;
        }
        let leading = core.serves().then(|| core.term());
        for decided in out.decided {
            let at = decided.position;
            let applied = node.applied.lock().index;
            if at.index <= applied {
                continue;
            }
            assert_eq!(at.index, applied + 1, "member {id} left a gap");
            let acknowledges = leading.filter(|&term| term == at.term && !decided.data.is_empty());
            node.acknowledged
                .extend(acknowledges.map(|term| (term, decided.data.clone())));
            node.state.push((at, decided.data));
            *node.applied.lock() = at;
        }
        if let Some(install) = out.installs.pop() {
            assert!(!node.witness, "a witness was sent for a state");
            node.install = Some(install);
        }
    }

    pub fn install(&mut self, id: PeerId) {
        let Some((meta, held)) = self.nodes.get_mut(&id).unwrap().install.take() else {
            return;
        };
        let leader = &self.nodes[&meta.leader];
        let usable = leader.core.is_some()
            && self.parts.get(&id) == self.parts.get(&meta.leader)
            && *leader.applied.lock() >= meta.position;
        let fetched = usable.then(|| leader.state.clone());
        let node = self.nodes.get_mut(&id).unwrap();
        let success = fetched.is_some();
        node.state = fetched.unwrap_or_default();
        node.snapshots += u64::from(success);
        *node.applied.lock() = node.state.last().map_or(Position::default(), |(at, _)| *at);
        self.core(id).snapshot_installed(held, success);
        self.pump(id, Out::default());
    }

    pub fn run(&mut self, ticks: u64) {
        for _ in 0..ticks {
            let ids: Vec<PeerId> = self.nodes.keys().copied().collect();
            for &id in &ids {
                if self.nodes[&id].core.is_some() {
                    self.core(id).tick();
                    self.pump(id, Out::default());
                }
                if self.nodes[&id].core.is_some() {
                    self.install(id);
                }
            }
            self.deliver();
        }
    }

    pub fn deliver(&mut self) {
        // What is said in answer arrives in the same tick, for a while.
        for _ in 0..200 {
            let Some((from, to, frame)) = self.queue.pop_front() else {
                return;
            };
            let lost = self.loses && self.draw(10) == 0;
            if lost || self.parts.get(&from) != self.parts.get(&to) {
                continue;
            }
            let mut out = Out::default();
            if let Some(core) = self.nodes.get_mut(&to).and_then(|node| node.core.as_mut()) {
                core.step(decode(&frame).unwrap(), &mut out);
                self.pump(to, out);
            }
        }
    }

    pub fn propose(&mut self, id: PeerId, text: &str) {
        let data = Bytes::copy_from_slice(text.as_bytes());
        let _ = self.core(id).propose(vec![data]);
        self.pump(id, Out::default());
        self.deliver();
    }

    pub fn change(&mut self, leader: PeerId, change: Change) {
        for _ in 0..50 {
            if let ChangeOutcome::Unchanged = self.core(leader).propose_change(&change) {
                return;
            }
            self.pump(leader, Out::default());
            self.run(1);
        }
        panic!("{change:?} did not come about");
    }

    pub fn force(&mut self, id: PeerId, members: &[PeerId]) -> bool {
        let member = |&id: &PeerId| Member {
            id,
            address: format!("m{id}"),
            voter: true,
        };
        let members: Vec<Member> = members.iter().map(member).collect();
        let done = self.core(id).force_membership(&members).is_ok();
        self.pump(id, Out::default());
        done
    }

    pub fn leaders(&self) -> Vec<PeerId> {
        let leads = |node: &Node| node.core.as_ref().is_some_and(|core| core.serves());
        let leaders = self.nodes.iter().filter(|(_, node)| leads(node));
        leaders.map(|(&id, _)| id).collect()
    }

    pub fn texts(&self, id: PeerId) -> Vec<String> {
        let state = self.nodes[&id].state.iter();
        let texts = state.filter(|(_, data)| !data.is_empty());
        texts
            .map(|(_, data)| String::from_utf8_lossy(data).into_owned())
            .collect()
    }
}
