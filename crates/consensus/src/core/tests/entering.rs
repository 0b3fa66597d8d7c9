//! Terms that somebody made up.

use raft::eraftpb::{Message, MessageType};

use super::net::{Net, Out};
use crate::machine::PeerId;
use crate::message;

fn forged(kind: MessageType, to: PeerId, term: u64) -> message::Frame {
    let mut message = Message::default();
    message.set_msg_type(kind);
    message.from = if to == 1 { 2 } else { 1 };
    message.to = to;
    message.term = term;
    message::Frame {
        sender_address: "forger:1".into(),
        message,
    }
}

#[test]
fn terms_that_nobody_was_elected_in_take_no_member_away() {
    let kinds = [
        MessageType::MsgHeartbeat,
        MessageType::MsgHeartbeatResponse,
        MessageType::MsgAppendResponse,
        MessageType::MsgRequestVote,
        MessageType::MsgRequestPreVote,
        MessageType::MsgRequestVoteResponse,
        MessageType::MsgRequestPreVoteResponse,
        MessageType::MsgReadIndexResp,
    ];
    let mut net = Net::new(3);
    net.propose(1, "before");
    net.run(20);
    let term = net.core(1).term();
    for made_up in [
        (1 << 60) - 1,
        1 << 59,
        1 << 33,
        (1 << 32) + 1,
        (1 << 32) - 1,
    ] {
        for kind in kinds {
            for id in 1..=3 {
                let mut out = Out::default();
                net.core(id).step(forged(kind, id, made_up), &mut out);
                net.pump(id, out);
            }
        }
        net.run(5);
    }
    for id in 1..=3 {
        assert_eq!(net.core(id).term(), term, "member {id}");
    }
    net.propose(1, "after");
    net.run(20);
    for id in 1..=3 {
        assert_eq!(net.texts(id), ["before", "after"], "member {id}");
    }
}

#[test]
fn a_set_goes_on_from_the_highest_term_that_is_believed() {
    let mut net = Net::new(3);
    net.propose(1, "before");
    net.run(20);
    let highest = super::super::entering::term_max(1, crate::surroundings::wall_ms());
    let mut out = Out::default();
    let heartbeat = forged(MessageType::MsgHeartbeat, 3, highest - 1);
    net.core(3).step(heartbeat, &mut out);
    net.pump(3, out);
    assert_eq!(net.core(3).term(), highest - 1);
    net.run(100);
    let [leader] = net.leaders()[..] else {
        panic!("{:?}", net.leaders())
    };
    net.propose(leader, "after");
    net.run(20);
    for id in 1..=3 {
        assert_eq!(net.texts(id), ["before", "after"], "member {id}");
        assert!(net.core(id).term() >= highest - 1);
    }
}
