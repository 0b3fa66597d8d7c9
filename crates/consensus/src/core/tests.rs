//! Groups of cores without threads: witnesses and delay here, forced changes in a file of their own.

mod entering;
mod forced;
mod net;

use net::{Net, Out};

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

#[test]
fn a_state_that_is_here_is_not_fetched_again_for_a_log_that_has_gone_on() {
    let mut net = Net::new(3);
    net.propose(1, "first");
    net.run(20);
    net.part(&[&[1, 2], &[3]]);
    let propose = |net: &mut Net, count: u64| {
        for number in 0..count {
            net.propose(1, &number.to_string());
        }
        net.run(4);
        let applied = net.nodes[&1].applied.lock().index;
        net.core(1).log_mut().compact(applied).unwrap();
    };
    propose(&mut net, 10);
    net.part(&[]);
    // Told to fetch, and not yet at it.
    while net.nodes[&3].install.is_none() {
        let leader = net.core(1);
        leader.tick();
        net.pump(1, Out::default());
        net.deliver();
    }
    propose_while_fetching(&mut net);
    let applied = net.nodes[&1].applied.lock().index;
    net.core(1).log_mut().compact(applied).unwrap();
    // The state is that of now, the log begins where the leader has told it to.
    net.run(60);
    assert_eq!(net.nodes[&3].snapshots, 1);
    assert_eq!(net.texts(3), net.texts(1));
    net.propose(1, "last");
    net.run(20);
    assert_eq!(net.texts(3).last().map(String::as_str), Some("last"));
    assert_eq!(net.nodes[&3].snapshots, 1);
}

/// The third member hears nothing of it meanwhile.
fn propose_while_fetching(net: &mut Net) {
    net.part(&[&[1, 2], &[3]]);
    for number in 10..20 {
        net.propose(1, &number.to_string());
    }
    net.part(&[]);
}
