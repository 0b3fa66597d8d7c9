//! Groups of real threads and real logs, what any user of them relies on.

#![allow(clippy::unwrap_used)]

mod harness;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use banyan_consensus::{
    Change, Error, Group, Member, Options, ProposeError, ProposeOptions, SyncMode,
};
use bytes::Bytes;
use futures::executor::block_on;
use harness::{Cluster, FATAL, Journal, Wire, leader_among, options, propose, three, wait};
use parking_lot::Mutex;
use std::time::Duration;

const INTERVAL: SyncMode = SyncMode::Interval(Duration::from_millis(100));

#[test]
fn a_group_of_one_keeps_its_entries_in_both_sync_modes() {
    for mode in [INTERVAL, SyncMode::EveryEntry] {
        let cluster = Cluster::new();
        let group = cluster.start(7, mode);
        assert!(!group.is_bootstrapped());
        assert_eq!(
            propose(&group, "early"),
            Err(ProposeError::NotLeader { leader: None })
        );
        group.bootstrap("host7").unwrap();
        assert!(matches!(group.bootstrap("host7"), Err(Error::Refused(_))));
        wait("leader", || group.leader_term() != 0);
        for number in 0..100 {
            propose(&group, &number.to_string()).unwrap();
        }
        let synced = ProposeOptions {
            sync: true,
            term: group.leader_term(),
        };
        block_on(group.propose(b"synced".to_vec(), 1, synced)).unwrap();
        assert_eq!(cluster.journal(7).state.lock().prepared, 101);
        let before = cluster.entries(7);
        drop(group);
        cluster.kill(7);

        let group = cluster.start(7, mode);
        wait("leader", || group.leader_term() != 0);
        assert_eq!(cluster.entries(7), before);
        let other_term = ProposeOptions {
            sync: false,
            term: group.leader_term() + 1,
        };
        let refused = block_on(group.propose(b"x".to_vec(), 1, other_term));
        assert!(matches!(refused, Err(ProposeError::NotLeader { .. })));
    }
}

#[test]
fn many_threads_share_a_group_of_one() {
    let cluster = Cluster::new();
    let group = cluster.start(1, INTERVAL);
    group.bootstrap("host1").unwrap();
    wait("leader", || group.leader_term() != 0);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let group = &group;
            scope.spawn(move || {
                for number in 0..200 {
                    propose(group, &format!("{thread}-{number}")).unwrap();
                }
            });
        }
    });
    let entries = cluster.entries(1);
    assert_eq!(entries.len(), 1600);
    for thread in 0..8 {
        let mine: Vec<_> = entries
            .iter()
            .filter(|entry| entry.starts_with(format!("{thread}-").as_bytes()))
            .collect();
        let expected: Vec<_> = (0..200)
            .map(|number| Bytes::from(format!("{thread}-{number}")))
            .collect();
        assert!(mine.into_iter().eq(expected.iter()));
    }
}

#[test]
fn three_members_survive_the_loss_of_their_leader() {
    let cluster = Cluster::new();
    let mut groups = three(&cluster);
    for number in 0..50 {
        propose(&groups[0], &number.to_string()).unwrap();
    }
    let expected = cluster.entries(1);
    wait("replication", || {
        cluster.entries(2) == expected && cluster.entries(3) == expected
    });
    assert_eq!(groups[0].status().membership.voters().count(), 3);

    drop(groups.remove(0));
    cluster.kill(1);
    wait("another leader", || leader_among(&groups).is_some());
    let leader = leader_among(&groups).unwrap();
    propose(&leader, "after").unwrap();

    let back = cluster.start(1, SyncMode::EveryEntry);
    let expected = cluster.entries(leader.status().id);
    wait("catching up", || cluster.entries(1) == expected);
    assert_eq!(block_on(back.read_index()).unwrap(), leader.status().commit);
    assert!(!FATAL.load(Ordering::SeqCst));
}

#[test]
fn leadership_moves_on_request() {
    let cluster = Cluster::new();
    let groups = three(&cluster);
    wait("transfer", || {
        // It is given up where the other one does not answer in time.
        groups[0].transfer_leadership(2);
        groups[1].leader_term() != 0
    });
    propose(&groups[1], "x").unwrap();
    assert!(matches!(
        propose(&groups[0], "y"),
        Err(ProposeError::NotLeader { leader: Some(2) })
    ));
    groups[1].set_electable(false);
    groups[2].set_electable(false);
    groups[1].step_down();
    wait("the only electable one", || groups[0].leader_term() != 0);
}

#[test]
fn a_leader_without_a_majority_steps_down_and_says_so() {
    let cluster = Cluster::new();
    let groups = three(&cluster);
    propose(&groups[0], "kept").unwrap();
    cluster.network.cut.lock().push(1);
    let lost = propose(&groups[0], "lost");
    assert_eq!(lost, Err(ProposeError::Unknown));
    wait("another leader", || leader_among(&groups[1..]).is_some());
    let leader = leader_among(&groups[1..]).unwrap();
    propose(&leader, "new").unwrap();
    cluster.network.cut.lock().clear();
    let expected = vec![Bytes::from_static(b"kept"), Bytes::from_static(b"new")];
    wait("agreement", || {
        (1..=3).all(|id| cluster.entries(id) == expected)
    });
}

#[test]
fn a_newcomer_fetches_a_snapshot_when_the_log_was_cut() {
    let cluster = Cluster::new();
    let journal = Arc::new(Journal {
        state: Mutex::default(),
        peers: cluster.peers.clone(),
        gate: Mutex::default(),
    });
    let group = cluster.start_with(1, SyncMode::EveryEntry, journal, 4 << 20);
    group.bootstrap("host1").unwrap();
    wait("leader", || group.leader_term() != 0);
    let large = "x".repeat(1 << 20);
    for _ in 0..12 {
        propose(&group, &large).unwrap();
    }
    wait("cut", || {
        propose(&group, "tick").unwrap();
        group.status().first_index > 5
    });
    let _newcomer = cluster.start(2, SyncMode::EveryEntry);
    let address = "host2".to_owned();
    block_on(group.change_membership(Change::AddLearner { id: 2, address })).unwrap();
    wait("snapshot", || {
        cluster.entries(2).len() == cluster.entries(1).len()
    });
    block_on(group.change_membership(Change::Promote(2))).unwrap();
    propose(&group, "both").unwrap();
    wait("both", || cluster.entries(2) == cluster.entries(1));
    let members = group.status().membership.members;
    let expected: Vec<_> = (1..=2)
        .map(|id| Member {
            id,
            address: format!("host{id}"),
            voter: true,
        })
        .collect();
    assert_eq!(members, expected);
    block_on(group.change_membership(Change::Remove(2))).unwrap();
    propose(&group, "alone").unwrap();
}

#[test]
fn a_damaged_log_is_refused() {
    let cluster = Cluster::new();
    let group = cluster.start(1, SyncMode::EveryEntry);
    group.bootstrap("host1").unwrap();
    wait("leader", || group.leader_term() != 0);
    for number in 0..200 {
        propose(&group, &number.to_string()).unwrap();
    }
    drop(group);
    cluster.kill(1);
    let path = cluster.path(1);
    let file = std::fs::read_dir(&path)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| {
            path.extension()
                .is_some_and(|extension| extension == "raftlog")
        })
        .unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[20..400].fill(0xee);
    std::fs::write(&file, &bytes).unwrap();
    let journal = cluster.journal(1);
    let wire = Arc::new(Wire {
        own: 1,
        network: cluster.network.clone(),
    });
    let options = Options::new(1, SyncMode::EveryEntry);
    let outcome = Group::open(&path, options, journal, wire);
    let Err(Error::Open(what)) = outcome.map(|_| ()) else {
        panic!("a damaged log was opened")
    };
    assert!(what.contains("damaged"), "{what}");
    assert!(
        std::fs::read(&file).unwrap() == bytes,
        "the file is left as it was found"
    );
}

#[test]
fn a_file_of_the_log_whose_beginning_is_torn_stops_nobody() {
    // Before, within and after the engine's magic text, and within the number that follows it.
    for length in [0, 20, 53, 57] {
        let cluster = Cluster::new();
        let group = cluster.start(1, SyncMode::EveryEntry);
        group.bootstrap("host1").unwrap();
        wait("leader", || group.leader_term() != 0);
        propose(&group, "kept").unwrap();
        let last = group.status().last_index;
        drop(group);
        cluster.kill(1);
        let first = cluster.path(1).join("0000000000000001.raftlog");
        let beginning = std::fs::read(&first).unwrap()[..length].to_vec();
        let next = first.with_file_name("0000000000000002.raftlog");
        std::fs::write(next, beginning).unwrap();
        let group = cluster.start(1, SyncMode::EveryEntry);
        assert!(group.status().last_index >= last, "torn after {length}");
        wait("leader again", || group.leader_term() != 0);
        propose(&group, "more").unwrap();
    }
}

#[test]
fn what_cannot_be_applied_yet_waits_in_the_log() {
    const ROOM: usize = 1000;
    let cluster = Cluster::new();
    let groups: Vec<_> = (1..=3)
        .map(|id| {
            let mut options = options(id, SyncMode::EveryEntry);
            options.apply_queue_bytes_max = ROOM;
            cluster.open(options, Arc::default()).unwrap()
        })
        .collect();
    groups[0].bootstrap("host1").unwrap();
    wait("leader", || groups[0].leader_term() != 0);
    for id in [2, 3] {
        let address = format!("host{id}");
        block_on(groups[0].change_membership(Change::AddLearner { id, address })).unwrap();
        block_on(groups[0].change_membership(Change::Promote(id))).unwrap();
    }
    let slow = cluster.journal(3);
    wait("everybody", || {
        slow.state.lock().applied == groups[0].status().applied
    });
    let busy = slow.state.lock();
    let text = "x".repeat(100);
    for _ in 0..100 {
        propose(&groups[0], &text).unwrap();
    }
    let end = groups[0].status().commit;
    wait("the log", || groups[2].status().commit >= end);
    drop(busy);
    wait("the state", || slow.state.lock().applied.index >= end);
    let state = slow.state.lock();
    assert_eq!(state.entries.len(), 100);
    assert!(state.largest < 2 * ROOM, "{} at once", state.largest);
}
