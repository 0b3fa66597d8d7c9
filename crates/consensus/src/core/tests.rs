//! Groups of cores without threads: forced changes, witnesses, delay.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use raft::ReadState;
use raft::eraftpb::Message;

use super::{Core, Decided, Outlet, Settings};
use crate::group::{Change, Role};
use crate::log::memory::MemoryDisk;
use crate::machine::{Member, PeerId, Position, SnapshotMeta};

#[derive(Default)]
struct Out {
    sent: Vec<(PeerId, Bytes)>,
    decided: Vec<Decided>,
    installs: Vec<(SnapshotMeta, Message)>,
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
struct Node {
    disk: MemoryDisk,
    core: Option<Core<MemoryDisk>>,
    applied: Arc<Mutex<Position>>,
    state: Vec<(Position, Bytes)>,
    install: Option<(SnapshotMeta, Message)>,
    snapshots: u64,
    /// Entries it saw applied while it led, and in which term.
    acknowledged: Vec<(u64, Bytes)>,
    witness: bool,
}

struct Net {
    nodes: BTreeMap<PeerId, Node>,
    queue: VecDeque<(PeerId, PeerId, Bytes)>,
    /// Who is in which part of a network that has come apart.
    parts: BTreeMap<PeerId, u64>,
    random: u64,
    loses: bool,
}

impl Net {
    fn new(size: u64) -> Net {
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

    fn draw(&mut self, below: u64) -> u64 {
        self.random = super::mix(self.random);
        self.random % below
    }

    fn start(&mut self, id: PeerId) {
        let node = self.nodes.get_mut(&id).unwrap();
        let settings = Settings {
            id,
            heartbeat_ticks: 2,
            election_ticks: 10,
            seed: 1,
        };
        let position = node.state.last().map_or(Position::default(), |(at, _)| *at);
        node.applied = Arc::new(Mutex::new(position));
        let core = Core::open(node.disk.clone(), settings, node.applied.clone(), 0);
        node.core = core.ok();
        node.install = None;
        let witness = node.witness;
        let core = self.core(id);
        core.set_witness(witness);
    }

    fn crash(&mut self, id: PeerId) {
        let node = self.nodes.get_mut(&id).unwrap();
        node.core = None;
        node.disk.lose_unsynced();
    }

    fn core(&mut self, id: PeerId) -> &mut Core<MemoryDisk> {
        self.nodes.get_mut(&id).unwrap().core.as_mut().unwrap()
    }

    /// Messages pass only within a part.
    fn part(&mut self, parts: &[&[PeerId]]) {
        self.parts.clear();
        for (number, part) in parts.iter().enumerate() {
            self.parts
                .extend(part.iter().map(|&id| (id, number as u64)));
        }
    }

    fn pump(&mut self, id: PeerId, mut out: Out) {
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

    fn install(&mut self, id: PeerId) {
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

    fn run(&mut self, ticks: u64) {
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

    fn deliver(&mut self) {
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
                core.step(&frame, &mut out);
                self.pump(to, out);
            }
        }
    }

    fn propose(&mut self, id: PeerId, text: &str) {
        let data = Bytes::copy_from_slice(text.as_bytes());
        let _ = self.core(id).propose(vec![data]);
        self.pump(id, Out::default());
        self.deliver();
    }

    fn change(&mut self, leader: PeerId, change: Change) {
        for _ in 0..50 {
            if let super::Wish::Fulfilled = self.core(leader).propose_change(&change) {
                return;
            }
            self.pump(leader, Out::default());
            self.run(1);
        }
        panic!("{change:?} did not come about");
    }

    fn force(&mut self, id: PeerId, members: &[PeerId]) -> bool {
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

    fn leaders(&self) -> Vec<PeerId> {
        let leads = |node: &Node| node.core.as_ref().is_some_and(|core| core.serves());
        let leaders = self.nodes.iter().filter(|(_, node)| leads(node));
        leaders.map(|(&id, _)| id).collect()
    }

    fn texts(&self, id: PeerId) -> Vec<String> {
        let state = self.nodes[&id].state.iter();
        let texts = state.filter(|(_, data)| !data.is_empty());
        texts
            .map(|(_, data)| String::from_utf8_lossy(data).into_owned())
            .collect()
    }
}

#[test]
fn a_forced_member_leads_and_others_give_up_another_history() {
    let mut net = Net::new(3);
    net.propose(1, "shared");
    net.run(20);
    net.part(&[&[1], &[2, 3]]);
    net.run(60);
    let [other] = net.leaders()[..] else {
        panic!("{:?}", net.leaders())
    };
    for number in 0..20 {
        net.propose(other, &format!("other {number}"));
    }
    net.run(10);
    assert_eq!(net.texts(2), net.texts(3));
    assert_eq!(net.texts(2).len(), 21);

    assert!(net.force(1, &[1, 3]));
    net.run(5);
    assert!(net.leaders().contains(&1));
    net.propose(1, "forced");
    assert_eq!(net.texts(1), ["shared", "forced"]);
    assert_eq!(
        net.core(3).role(),
        if other == 3 {
            Role::Leader
        } else {
            Role::Follower
        }
    );

    net.part(&[]);
    net.run(120);
    assert_eq!(net.texts(3), ["shared", "forced"]);
    assert_eq!(net.nodes[&3].snapshots, 1);
    net.change(1, Change::Promote(3));
    net.propose(1, "both");
    net.run(20);
    assert_eq!(net.texts(3), ["shared", "forced", "both"]);
    assert_eq!(net.leaders(), [1]);
    // The one that was left out disturbs nobody, and changes nothing either.
    assert_eq!(net.texts(2).len(), 21);
}

#[test]
fn those_with_the_same_history_need_no_snapshot_after_a_forced_change() {
    let mut net = Net::new(5);
    for number in 0..10 {
        net.propose(1, &number.to_string());
    }
    net.run(20);
    net.part(&[&[1, 2], &[3], &[4], &[5]]);
    net.run(60);
    assert_eq!(net.leaders(), []);
    assert!(net.force(2, &[1, 2]));
    net.run(40);
    net.propose(2, "more");
    net.run(20);
    assert_eq!(net.texts(1), net.texts(2));
    assert_eq!(net.nodes[&1].snapshots, 0);
    net.change(2, Change::Promote(1));
    net.core(2).transfer_leadership(1);
    net.pump(2, Out::default());
    net.run(20);
    assert_eq!(net.leaders(), [1]);
}

#[test]
fn a_crash_comes_before_or_after_a_forced_change() {
    let mut net = Net::new(3);
    net.propose(1, "x");
    net.run(20);
    net.part(&[&[1], &[2], &[3]]);
    net.nodes[&1].disk.fail_next_write();
    assert!(!net.force(1, &[1, 2]));
    net.crash(1);
    net.start(1);
    net.run(60);
    assert_eq!(net.core(1).membership().members.len(), 3);
    assert_eq!(net.leaders(), []);
    let own = Member {
        id: 1,
        address: "m1".into(),
        voter: true,
    };
    // Written, and nothing else done.
    assert!(net.core(1).force_membership(&[own]).is_ok());
    net.crash(1);
    net.start(1);
    net.run(5);
    assert_eq!(net.leaders(), [1]);
    net.propose(1, "alone");
    assert_eq!(net.texts(1), ["x", "alone"]);
}

/// Members that force a change at odd moments of a bad time, and what becomes of it.
#[test]
fn forced_changes_leave_one_history() {
    let seeds: Vec<u64> = match std::env::var("SEED") {
        Ok(seeds) => match seeds.split_once("..") {
            Some((from, to)) => (from.parse().unwrap()..to.parse().unwrap()).collect(),
            None => vec![seeds.parse().unwrap()],
        },
        Err(_) => (1..=25).collect(),
    };
    let mut snapshots = 0;
    for seed in seeds {
        eprintln!("SEED={seed}");
        snapshots += force_in_a_storm(seed);
    }
    // Histories did part.
    assert!(snapshots > 0);
}

fn force_in_a_storm(seed: u64) -> u64 {
    let mut net = Net::new(5);
    net.random = super::mix(seed);
    net.loses = true;
    let mut proposed = 0;
    let mut forced: Option<(u64, Vec<PeerId>)> = None;
    for step in 0..600 {
        let id = 1 + net.draw(5);
        if net.draw(40) == 0 {
            let cut = 1 + net.draw(4);
            let left: Vec<PeerId> = (1..=5).filter(|_| net.draw(5) < cut).collect();
            net.part(&[&left]);
        }
        if net.draw(60) == 0 {
            net.crash(id);
        }
        for id in 1..=5 {
            if net.nodes[&id].core.is_none() && net.draw(20) == 0 {
                net.start(id);
            }
        }
        if step > 100 && net.draw(150) == 0 && net.nodes[&id].core.is_some() {
            let mut members: Vec<PeerId> = (1..=5).filter(|_| net.draw(3) > 0).collect();
            if !members.contains(&id) {
                members.push(id);
            }
            if net.force(id, &members) {
                let term = net.core(id).term();
                if forced.as_ref().is_none_or(|(highest, _)| *highest < term) {
                    forced = Some((term, members));
                }
            }
        }
        for leader in net.leaders() {
            if net.draw(3) == 0 {
                proposed += 1;
                net.propose(leader, &format!("{proposed}"));
            } else if net.draw(5) == 0 && net.nodes[&leader].core.is_some() {
                let learner = net.core(leader).progress().into_iter().find(|p| !p.voter);
                if let Some(learner) = learner.filter(|learner| learner.matched > 0) {
                    let _ = net
                        .core(leader)
                        .propose_change(&Change::Promote(learner.id));
                    net.pump(leader, Out::default());
                }
            }
        }
        net.run(1);
    }
    net.loses = false;
    net.part(&[]);
    for id in 1..=5 {
        if net.nodes[&id].core.is_none() {
            net.start(id);
        }
    }
    net.run(600);
    check_forced(&mut net, forced)
}

fn check_forced(net: &mut Net, forced: Option<(u64, Vec<PeerId>)>) -> u64 {
    let epoch = super::forced::epoch;
    let (last_epoch, members) = forced.map_or((0, vec![1, 2, 3, 4, 5]), |(term, members)| {
        (epoch(term), members)
    });
    let described: Vec<_> = net
        .nodes
        .iter()
        .map(|(id, node)| {
            let core = node.core.as_ref().unwrap();
            let log = (core.log().base(), core.last_index(), core.commit());
            (*id, core.role(), core.term(), *node.applied.lock(), log)
        })
        .collect();
    let first = &net.nodes[&members[0]].state;
    for id in &members {
        assert!(
            net.nodes[id].state == *first,
            "{id} of {members:?}: {described:#?}"
        );
    }
    let leads = |id: &PeerId| net.leaders().contains(id);
    assert!(members.iter().any(leads), "nobody leads: {described:#?}");
    for node in net.nodes.values() {
        for (term, data) in &node.acknowledged {
            if epoch(*term) == last_epoch {
                assert!(
                    first.iter().any(|(_, kept)| kept == data),
                    "{data:?} was lost"
                );
            }
        }
    }
    net.nodes.values().map(|node| node.snapshots).sum()
}

#[test]
fn one_of_two_goes_on_without_the_other() {
    let newcomer = |id: PeerId| Member {
        id,
        address: format!("m{id}"),
        voter: true,
    };
    let mut net = Net::new(2);
    for number in 0..10 {
        net.propose(1, &number.to_string());
    }
    net.run(20);
    let replace = |net: &mut Net, own: PeerId, lost: PeerId, id: PeerId| {
        let outcome = net.core(own).replace_lost_voter(lost, &newcomer(id));
        net.pump(own, Out::default());
        outcome.is_ok()
    };
    assert!(!replace(&mut net, 1, 2, 3), "there is a leader");
    // The one that led is lost, with a change of members that the other may not know to be decided.
    net.part(&[&[1], &[2]]);
    net.propose(1, "not decided");
    net.crash(1);
    net.run(60);
    assert!(!replace(&mut net, 2, 3, 4), "it is no voter");
    // Some of what the log may hold lets nobody else decide.
    let entry = |kind, id| raft::eraftpb::Entry {
        entry_type: raft::eraftpb::EntryType::EntryConfChange,
        data: super::conf_change(kind, id, ""),
        ..Default::default()
    };
    use raft::eraftpb::ConfChangeType::{AddLearnerNode, AddNode, RemoveNode};
    for (kind, id, expected) in [
        (RemoveNode, 1, false),
        (RemoveNode, 2, true),
        (AddNode, 1, false),
        (AddNode, 3, true),
        (AddLearnerNode, 1, false),
        (AddLearnerNode, 2, true),
        (AddLearnerNode, 3, false),
    ] {
        let passes = super::forced::passes_over(&entry(kind, id), 2, 1);
        assert_eq!(passes, expected, "{kind:?} {id}");
    }
    net.nodes.insert(3, Node::default());
    net.start(3);
    assert!(replace(&mut net, 2, 1, 3));
    net.parts.clear();
    net.run(40);
    assert_eq!(net.texts(3), net.texts(2));
    assert_eq!(net.texts(2).len(), 10);
    net.change(2, Change::Promote(3));
    net.propose(2, "more");
    net.run(10);
    // It was not lost after all, and has to see that others went on.
    net.start(1);
    net.run(60);
    assert_eq!(net.leaders(), [2]);
    let address = "m1".to_owned();
    net.change(2, Change::AddLearner { id: 1, address });
    net.run(40);
    assert_eq!(net.texts(1), net.texts(2));
    assert_eq!(net.texts(1).len(), 11);
}

#[test]
fn one_of_two_does_not_go_on_if_there_may_be_a_third() {
    let mut net = Net::new(2);
    net.nodes.insert(3, Node::default());
    net.start(3);
    let address = "m3".to_owned();
    net.change(1, Change::AddLearner { id: 3, address });
    net.run(20);
    // The change is in both logs, so it is decided; only the first knows.
    assert!(matches!(
        net.core(1).propose_change(&Change::Promote(3)),
        super::Wish::Proposed(_)
    ));
    net.pump(1, Out::default());
    net.part(&[&[1, 3], &[2]]);
    let to_second: Vec<_> = net
        .queue
        .iter()
        .filter(|(_, to, _)| *to == 2)
        .cloned()
        .collect();
    assert!(!to_second.is_empty());
    for (_, _, frame) in to_second {
        let mut out = Out::default();
        net.core(2).step(&frame, &mut out);
        net.pump(2, out);
    }
    net.run(60);
    assert_eq!(net.core(2).membership().voters().count(), 2);
    let newcomer = Member {
        id: 4,
        address: "m4".into(),
        voter: true,
    };
    assert!(net.core(2).replace_lost_voter(1, &newcomer).is_err());
}

#[test]
fn a_witness_hands_over_what_only_it_has() {
    let mut net = Net::new(3);
    net.nodes.get_mut(&3).unwrap().witness = true;
    net.core(3).set_witness(true);
    for id in 1..=3 {
        net.core(id).set_witnesses(vec![3]);
    }
    net.propose(1, "before");
    net.run(20);
    net.part(&[&[1, 3], &[2]]);
    net.run(2);
    net.propose(1, "only the witness has it");
    net.run(3);
    assert_eq!(net.texts(1).len(), 2);
    net.crash(1);
    net.part(&[]);
    net.run(200);
    assert_eq!(net.leaders(), [2]);
    assert_eq!(net.texts(2), ["before", "only the witness has it"]);
    net.propose(2, "after");
    net.start(1);
    net.run(60);
    assert_eq!(net.texts(1), ["before", "only the witness has it", "after"]);
    // It is given the lead by nobody.
    net.core(2).transfer_leadership(3);
    net.pump(2, Out::default());
    net.run(20);
    assert_eq!(net.leaders(), [2]);
}

#[test]
fn a_witness_does_not_lead_without_need_and_not_for_long() {
    let mut net = Net::new(3);
    net.nodes.get_mut(&3).unwrap().witness = true;
    net.core(3).set_witness(true);
    net.propose(1, "x");
    net.run(20);
    net.part(&[&[1], &[2], &[3]]);
    net.run(200);
    net.part(&[&[1], &[2, 3]]);
    for _ in 0..100 {
        net.run(1);
        assert!(!net.core(3).is_leader());
    }
    assert_eq!(net.leaders(), [2]);
    // Nobody to hand over to: the one that is left may not lead.
    net.propose(2, "y");
    net.run(5);
    net.crash(2);
    net.core(1).set_electable(false);
    net.part(&[]);
    let mut led = 0;
    for _ in 0..400 {
        net.run(1);
        let leads = net.core(3).is_leader();
        assert!(!leads || !net.core(3).serves());
        led += u64::from(leads);
    }
    assert!(led < 200, "it led for {led} of 400 ticks");
}

#[test]
fn a_delayed_member_follows_when_it_is_time() {
    let mut net = Net::new(3);
    net.core(3).set_delayed(true);
    let before = net.texts(3).len();
    for number in 0..30 {
        net.propose(1, &number.to_string());
    }
    net.run(20);
    assert_eq!(net.texts(1).len(), 30);
    assert_eq!(net.texts(3).len(), before);
    assert_eq!(net.core(3).commit(), net.core(1).commit());

    let release = |net: &mut Net, until: usize| {
        let mut out = Out::default();
        let due = |data: &[u8]| {
            let text = String::from_utf8_lossy(data);
            text.parse::<usize>().unwrap() < until
        };
        net.core(3).release(due, &mut out).unwrap();
        net.pump(3, out);
    };
    release(&mut net, 10);
    assert_eq!(net.texts(3).len(), 10);
    // What was not applied is not lost by a restart.
    net.crash(3);
    net.start(3);
    net.core(3).set_delayed(true);
    net.run(20);
    assert_eq!(net.texts(3).len(), 10);
    release(&mut net, 20);
    assert_eq!(net.texts(3).len(), 20);
    net.propose(1, "30");
    net.run(10);
    net.core(3).set_delayed(false);
    release(&mut net, 0);
    assert_eq!(net.texts(3), net.texts(1));
    net.propose(1, "31");
    net.run(10);
    assert_eq!(net.texts(3), net.texts(1));
}
