//! Members of special kinds, reads that wait together, and a clock that changes.

#![allow(clippy::unwrap_used)]

mod harness;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use banyan_consensus::{Change, Error, Member, SyncMode};
use futures::executor::block_on;
use futures::future::join_all;
use harness::{Cluster, FATAL, Journal, leader_among, options, propose, three, wait};

const SYNCED: SyncMode = SyncMode::EveryEntry;

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_millis() as i64
}

fn member(id: u64) -> Member {
    Member {
        id,
        address: format!("host{id}"),
        voter: true,
    }
}

#[test]
fn a_forced_member_writes_again_and_the_others_come_back() {
    let cluster = Cluster::new();
    let mut groups = three(&cluster);
    propose(&groups[0], "before").unwrap();
    wait("replication", || {
        (1..=3).all(|id| cluster.entries(id).len() == 1)
    });
    let survivor = groups.remove(0);
    drop(groups);
    cluster.kill(2);
    cluster.kill(3);
    wait("the loss to be seen", || survivor.leader_term() == 0);
    let without = block_on(survivor.force_membership(vec![member(2), member(3)]));
    assert!(matches!(without, Err(Error::Refused(_))), "{without:?}");
    let forced = block_on(survivor.force_membership(vec![member(1), member(2)])).unwrap();
    assert_eq!(forced.voters().count(), 1);
    wait("leader", || survivor.leader_term() != 0);
    propose(&survivor, "alone").unwrap();

    let _second = cluster.start(2, SYNCED);
    let third = cluster.start(3, SYNCED);
    wait("the second", || cluster.entries(2) == cluster.entries(1));
    block_on(survivor.change_membership(Change::Promote(2))).unwrap();
    propose(&survivor, "together").unwrap();
    assert!(third.status().leader.is_none());
    // What it knows to be committed of its own log, and nothing of what was forced without it.
    assert!(cluster.entries(3).len() <= 1);
    assert!(!FATAL.load(Ordering::SeqCst));
}

#[test]
fn a_delayed_member_follows_later() {
    let cluster = Cluster::new();
    let groups = three(&cluster);
    groups[2].set_apply_delay(Duration::from_secs(3600));
    propose(&groups[0], &format!("{}:now", now_ms())).unwrap();
    propose(&groups[0], &format!("{}:earlier", now_ms() - 1_800_000)).unwrap();
    let commit = groups[0].status().commit;
    wait("commit", || groups[2].status().commit == commit);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(cluster.entries(3).len(), 0);
    assert_eq!(cluster.entries(2).len(), 2);
    // In the order of the log, whatever the clocks say.
    groups[2].set_apply_delay(Duration::from_secs(1));
    wait("what is due", || cluster.entries(3).len() == 2);

    let started = Instant::now();
    propose(&groups[0], &format!("{}:later", now_ms())).unwrap();
    wait("what is due later", || cluster.entries(3).len() == 3);
    assert!(started.elapsed() >= Duration::from_millis(900));
    groups[2].set_apply_delay(Duration::ZERO);
    propose(&groups[0], &format!("{}:last", now_ms() + 100_000)).unwrap();
    wait("the last", || cluster.entries(3).len() == 4);

    // From the start, before anything of the log is applied.
    let mut groups = groups;
    groups.pop();
    cluster.kill(3);
    let mut delayed = options(3, SYNCED);
    delayed.apply_delay = Duration::from_secs(3600);
    let journal = Arc::new(Journal {
        peers: cluster.peers.clone(),
        ..Journal::default()
    });
    let third = cluster.open(delayed, journal).unwrap();
    wait("commit", || {
        third.status().commit >= groups[0].status().commit
    });
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(cluster.entries(3).len(), 0);
}

#[test]
fn a_witness_brings_its_log_to_whoever_has_data() {
    let cluster = Cluster::new();
    let mut groups = three(&cluster);
    groups[2].set_witness(true);
    for group in &groups {
        group.set_witnesses(vec![3]);
    }
    propose(&groups[0], "before").unwrap();
    cluster.network.cut.lock().push(2);
    propose(&groups[0], "only the witness has it").unwrap();
    groups.remove(0);
    cluster.kill(1);
    cluster.network.cut.lock().clear();
    wait("the second to lead", || groups[0].leader_term() != 0);
    assert_eq!(cluster.entries(2).len(), 2);
    propose(&groups[0], "after").unwrap();
    groups[0].transfer_leadership(3);
    propose(&groups[0], "still").unwrap();
    assert_eq!(groups[1].leader_term(), 0);
    // With its vote alone nobody leads.
    groups.remove(0);
    cluster.kill(2);
    std::thread::sleep(Duration::from_millis(1000));
    assert!(leader_among(&groups).is_none());
}

#[test]
fn reads_that_wait_together_share_their_messages() {
    let cluster = Cluster::new();
    let groups = three(&cluster);
    let committed = propose(&groups[0], "x").unwrap().index;
    for group in &groups {
        assert!(block_on(group.read_index()).unwrap() >= committed);
    }
    let before = cluster.network.sent.load(Ordering::Relaxed);
    let started = Instant::now();
    let reads: Vec<_> = (0..2000).map(|_| groups[0].read_index()).collect();
    for index in block_on(join_all(reads)) {
        assert!(index.unwrap() >= committed);
    }
    let sent = cluster.network.sent.load(Ordering::Relaxed) - before;
    assert!(sent < 1000, "{sent} messages for 2000 reads");
    eprintln!(
        "2000 reads took {:?} and {sent} messages",
        started.elapsed()
    );

    let rounds = 300;
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for _ in 0..rounds {
                    block_on(groups[0].read_index()).unwrap();
                }
            });
        }
    });
    eprintln!("16 threads: {:?} a read", started.elapsed() / (16 * rounds));

    // One that is cut off is not told anything, even if it thinks that it leads.
    cluster.network.cut.lock().push(1);
    let lonely = groups[0].read_index();
    wait("another leader", || leader_among(&groups[1..]).is_some());
    let newer = propose(&leader_among(&groups[1..]).unwrap(), "y")
        .unwrap()
        .index;
    cluster.network.cut.lock().clear();
    assert!(block_on(lonely).unwrap() >= newer);
}

#[test]
fn a_group_of_one_answers_reads_at_once() {
    let cluster = Cluster::new();
    let group = cluster.start(1, SYNCED);
    assert!(matches!(
        block_on(futures::future::select(
            group.read_index(),
            futures::future::ready(())
        )),
        futures::future::Either::Right(_)
    ));
    group.bootstrap("host1").unwrap();
    wait("leader", || group.leader_term() != 0);
    let at = propose(&group, "x").unwrap().index;
    let journal = cluster.journal(1);
    let gate = journal.gate.lock();
    let pending = group.propose(b"y".to_vec(), 1, Default::default());
    // Whoever drives the group is busy; nobody needs to be asked.
    assert_eq!(block_on(group.read_index()).unwrap(), at);
    drop(gate);
    block_on(pending).unwrap();
}

#[test]
fn timing_changes_while_the_group_runs() {
    let cluster = Cluster::new();
    let mut groups = three(&cluster);
    for group in &groups {
        group.set_timing(Duration::from_secs(2), Duration::from_secs(60));
    }
    propose(&groups[0], "slow").unwrap();
    for group in &groups {
        group.set_timing(Duration::from_millis(20), Duration::from_millis(200));
    }
    propose(&groups[0], "fast").unwrap();
    groups.remove(0);
    cluster.kill(1);
    let started = Instant::now();
    wait("another leader", || leader_among(&groups).is_some());
    assert!(started.elapsed() < Duration::from_secs(5));
    assert!(!FATAL.load(Ordering::SeqCst));
}

#[test]
fn a_member_that_starts_alone_knows_what_it_knew_to_be_committed() {
    let cluster = Cluster::new();
    let groups = three(&cluster);
    propose(&groups[0], "last").unwrap();
    let commit = groups[0].status().commit;
    wait("commit", || groups[2].status().commit == commit);
    drop(groups);
    for id in 1..=3 {
        cluster.kill(id);
    }
    // Nobody is there to tell it.
    let alone = cluster.start(3, SYNCED);
    assert_eq!(alone.status().commit, commit);
    wait("the last entry", || cluster.entries(3).len() == 1);
    assert!(alone.status().leader.is_none());
}
