//! Forced changes of the membership, and what is left of two histories.

use super::net::{Net, Node, Out};
use crate::core::members::conf_change;
use crate::core::mix::mix;
use crate::core::{ChangeOutcome, forced};
use crate::machine::Change;
use crate::machine::{Member, PeerId};
use crate::message::decode;
use crate::status::Role;

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

/// Members that force a change at odd moments of a bad time, and how it ends.
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
    net.random = mix(seed);
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
    let epoch = forced::epoch;
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
        data: conf_change(kind, id, ""),
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
        let passes = forced::passes_over(&entry(kind, id), 2, 1);
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
        ChangeOutcome::Proposed(_)
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
        net.core(2).step(decode(&frame).unwrap(), &mut out);
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
