//! A message between members: how it is framed, and which ones are let in.
//!
//! A frame is a format byte, the sender's address (two bytes of length, then text; empty if the
//! sender does not know its own) and the Raft message. The address is there because a member may
//! be contacted by one that it does not know yet.

use bytes::{BufMut, Bytes, BytesMut};
use protobuf::Message as _;
use raft::eraftpb::{ConfChange, ConfState, Entry, EntryType, Message, MessageType, Snapshot};

use crate::log::decode_membership;
use crate::machine::PeerId;

const FORMAT: u8 = 1;
/// Indexes and terms beyond this are nonsense, and would overflow where one is added to them.
const LIMIT: u64 = 1 << 60;
/// No address of a member is longer.
const ADDRESS_BYTES_MAX: usize = 1024;
/// About how much travels in one message of entries.
const APPEND_BYTES_MAX: usize = 4 << 20;

pub(crate) struct Frame {
    pub sender_address: String,
    pub message: Message,
}

pub(crate) fn encode(sender_address: &str, message: &Message) -> Bytes {
    let size = message.compute_size() as usize;
    let mut out = BytesMut::with_capacity(3 + sender_address.len() + size);
    out.put_u8(FORMAT);
    out.put_u16_le(sender_address.len() as u16);
    out.put_slice(sender_address.as_bytes());
    let mut writer = out.writer();
    // Writing to memory fails only for a message that lacks a required field; it has none.
    let written = message.write_to_writer(&mut writer);
    debug_assert!(written.is_ok());
    writer.into_inner().freeze()
}

/// Hands a message on, one of many entries in several. All that waits for a member that is behind
/// comes as one message, however long that gets, and no transport takes any length.
pub(crate) fn in_pieces(mut message: Message, mut send: impl FnMut(&Message)) {
    let length = |entry: &Entry| entry.data.len() + entry.context.len();
    let bytes: usize = message.entries.iter().map(length).sum();
    if bytes <= APPEND_BYTES_MAX {
        return send(&message);
    }
    let mut rest = message.take_entries().into_iter().peekable();
    while rest.peek().is_some() {
        let (mut piece, mut bytes) = (Vec::new(), 0);
        while let Some(entry) = rest.next_if(|entry| {
            bytes += length(entry);
            bytes <= APPEND_BYTES_MAX || piece.is_empty()
        }) {
            piece.push(entry);
        }
        let last = piece.last().map(|last| (last.index, last.term));
        message.set_entries(piece.into());
        send(&message);
        if let Some((index, term)) = last {
            (message.index, message.log_term) = (index, term);
        }
    }
}

pub(crate) fn decode(frame: &[u8]) -> Option<Frame> {
    let (&format, rest) = frame.split_first()?;
    if format != FORMAT {
        return None;
    }
    let (length, rest) = rest.split_first_chunk::<2>()?;
    let (address, body) = rest.split_at_checked(u16::from_le_bytes(*length) as usize)?;
    let sender_address = std::str::from_utf8(address).ok()?.to_owned();
    let mut message = Message::default();
    message.merge_from_bytes(body).ok()?;
    Some(Frame {
        sender_address,
        message,
    })
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A heartbeat, or the answer to one.
    Heartbeat,
    /// Entries up to here were taken.
    Taken(u64),
    Other,
}

pub(crate) fn kind(message: &Message) -> Kind {
    match message.msg_type {
        MessageType::MsgHeartbeat | MessageType::MsgHeartbeatResponse => Kind::Heartbeat,
        MessageType::MsgAppendResponse if !message.reject => Kind::Taken(message.index),
        _ => Kind::Other,
    }
}

/// Refuses a message with an entry that no leader has appended. `check` looks at what users of a
/// group propose.
pub(crate) fn check_entries(
    message: &Message,
    check: impl Fn(&[u8]) -> Result<(), String>,
) -> Result<(), String> {
    if message.msg_type != MessageType::MsgAppend {
        return Ok(());
    }
    for entry in &message.entries {
        match entry.entry_type {
            // Empty: what a leader begins its term with.
            EntryType::EntryNormal if entry.data.is_empty() => {}
            EntryType::EntryNormal => check(&entry.data)?,
            EntryType::EntryConfChange => {
                let mut change = ConfChange::default();
                let readable = change.merge_from_bytes(&entry.data).is_ok()
                    && change.node_id != 0
                    && change.context.len() <= ADDRESS_BYTES_MAX
                    && std::str::from_utf8(&change.context).is_ok();
                if !readable {
                    return Err("a change of one member is unreadable".into());
                }
            }
            EntryType::EntryConfChangeV2 => {
                let members = decode_membership(&entry.data);
                let sound = members.is_some_and(|members| members.voters().next().is_some());
                if !sound {
                    return Err("a list of members is unreadable, or has no voter".into());
                }
            }
        }
    }
    Ok(())
}

/// What the check needs to know about the receiver.
pub(crate) struct Receiver {
    pub id: PeerId,
    pub term: u64,
    pub last_index: u64,
    pub may_lead: bool,
    /// No term of this epoch can be higher by now.
    pub term_max: u64,
}

/// Refuses every message that the `raft` crate would panic on, and every kind that no member
/// sends. `Err` says what is wrong with it.
pub(crate) fn check(message: &Message, receiver: &Receiver) -> Result<(), &'static str> {
    if message.to != receiver.id {
        return Err("it is meant for another member");
    }
    if message.from == 0 || message.from == receiver.id {
        return Err("its sender is impossible");
    }
    let numbers = [
        message.term,
        message.log_term,
        message.index,
        message.commit,
        message.commit_term,
        message.request_snapshot,
        message.reject_hint,
    ];
    if numbers.iter().any(|&number| number >= LIMIT) {
        return Err("a number in it is out of range");
    }
    if message.term > receiver.term_max {
        return Err("no group has had so many elections");
    }
    // Only a read travels without a term: any other would be taken for a local message.
    if (message.term == 0) != (message.msg_type == MessageType::MsgReadIndex) {
        return Err("its term is missing, or should be");
    }
    match message.msg_type {
        MessageType::MsgAppend => check_append(message),
        MessageType::MsgSnapshot => check_snapshot(message),
        MessageType::MsgAppendResponse => {
            let beyond = message.index > receiver.last_index
                || message.reject && message.reject_hint > receiver.last_index.max(message.index);
            if beyond {
                Err("it speaks of entries that do not exist")
            } else {
                Ok(())
            }
        }
        MessageType::MsgReadIndex | MessageType::MsgReadIndexResp => {
            if message.entries.len() == 1 {
                Ok(())
            } else {
                Err("it has no context")
            }
        }
        // A blank member grants it to anybody with a log. A refusal would have to carry our term,
        // and zero is none.
        MessageType::MsgRequestPreVote if receiver.term == 0 && message.index == 0 => {
            Err("neither of us has a log")
        }
        MessageType::MsgTimeoutNow if !receiver.may_lead => Err("this member may not lead"),
        MessageType::MsgTimeoutNow
        | MessageType::MsgHeartbeat
        | MessageType::MsgHeartbeatResponse
        | MessageType::MsgRequestVote
        | MessageType::MsgRequestVoteResponse
        | MessageType::MsgRequestPreVote
        | MessageType::MsgRequestPreVoteResponse => Ok(()),
        MessageType::MsgHup
        | MessageType::MsgBeat
        | MessageType::MsgPropose
        | MessageType::MsgUnreachable
        | MessageType::MsgSnapStatus
        | MessageType::MsgCheckQuorum
        | MessageType::MsgTransferLeader => Err("its kind is not sent between members"),
    }
}

fn check_append(message: &Message) -> Result<(), &'static str> {
    if (message.index == 0) != (message.log_term == 0) || message.log_term > message.term {
        return Err("the entry before its entries is impossible");
    }
    let mut index = message.index;
    let mut term = message.log_term;
    for entry in message.entries.iter() {
        index += 1;
        if !follows(entry, index, term, message.term) {
            return Err("its entries do not follow each other");
        }
        term = entry.term;
    }
    Ok(())
}

fn follows(entry: &Entry, index: u64, term_before: u64, term_max: u64) -> bool {
    entry.index == index && entry.term >= term_before.max(1) && entry.term <= term_max
}

fn check_snapshot(message: &Message) -> Result<(), &'static str> {
    let snapshot: &Snapshot = message.get_snapshot();
    let metadata = snapshot.get_metadata();
    if metadata.index == 0 || metadata.index >= LIMIT {
        return Err("its index is out of range");
    }
    if metadata.term == 0 || metadata.term > message.term {
        return Err("its term is out of range");
    }
    let Some(membership) = decode_membership(&snapshot.data) else {
        return Err("its list of members is unreadable");
    };
    let state: &ConfState = metadata.get_conf_state();
    let simple = state.voters_outgoing.is_empty()
        && state.learners_next.is_empty()
        && !state.auto_leave
        && membership.index <= metadata.index;
    if !simple || *state != crate::log::conf_state(&membership) {
        return Err("its configuration is not one of the list of members");
    }
    if membership.voters().next().is_none() {
        return Err("its list of members has no voter");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{conf_state, encode_membership};
    use crate::machine::{Member, Membership};

    const RECEIVER: Receiver = Receiver {
        term: 3,
        id: 2,
        last_index: 10,
        may_lead: true,
        term_max: 1 << 20,
    };

    fn message(kind: MessageType) -> Message {
        Message {
            msg_type: kind,
            from: 1,
            to: 2,
            term: 3,
            ..Message::default()
        }
    }

    fn entry(index: u64, term: u64) -> Entry {
        Entry {
            index,
            term,
            ..Entry::default()
        }
    }

    #[test]
    fn a_long_message_of_entries_goes_in_pieces_that_follow_each_other() {
        let with_data = |index, bytes| Entry {
            data: vec![7; bytes].into(),
            ..entry(index, if index < 14 { 2 } else { 3 })
        };
        let pieces_of = |sizes: &[usize]| {
            let entries = (11..).zip(sizes);
            let message = Message {
                index: 10,
                log_term: 2,
                commit: 9,
                entries: entries.map(|(at, &bytes)| with_data(at, bytes)).collect(),
                ..message(MessageType::MsgAppend)
            };
            let mut pieces = Vec::new();
            in_pieces(message, |piece| pieces.push(piece.clone()));
            pieces
        };
        let full = APPEND_BYTES_MAX;
        for (sizes, lengths) in [
            (&[][..], &[0][..]),
            (&[1, 2, 3], &[3]),
            (&[full, 1], &[1, 1]),
            (&[full * 3, 1, 1, full, full / 2, full / 2], &[1, 2, 1, 2]),
            (&[1, full * 3, full * 3], &[1, 1, 1]),
        ] {
            let pieces = pieces_of(sizes);
            let found: Vec<_> = pieces.iter().map(|piece| piece.entries.len()).collect();
            assert_eq!(found, lengths, "{sizes:?}");
            let (mut index, mut term) = (10, 2);
            for piece in &pieces {
                assert_eq!((piece.index, piece.log_term), (index, term));
                assert_eq!((piece.commit, piece.to), (9, 2));
                for entry in &piece.entries {
                    assert_eq!(entry.index, index + 1);
                    (index, term) = (entry.index, entry.term);
                }
            }
            assert_eq!(index, 10 + sizes.len() as u64);
        }
    }

    #[test]
    fn a_frame_survives() {
        let mut sent = message(MessageType::MsgAppend);
        sent.entries = vec![entry(1, 3)].into();
        let frame = decode(&encode("a:1", &sent)).unwrap();
        assert_eq!(
            (frame.sender_address.as_str(), frame.message),
            ("a:1", sent)
        );
    }

    #[test]
    fn kinds_are_told() {
        let mut taken = message(MessageType::MsgAppendResponse);
        taken.index = 77;
        let mut refused = taken.clone();
        refused.reject = true;
        for (message, expected) in [
            (message(MessageType::MsgHeartbeat), Kind::Heartbeat),
            (message(MessageType::MsgHeartbeatResponse), Kind::Heartbeat),
            (taken, Kind::Taken(77)),
            (refused, Kind::Other),
            (message(MessageType::MsgAppend), Kind::Other),
            (message(MessageType::MsgRequestVote), Kind::Other),
        ] {
            assert_eq!(kind(&message), expected);
        }
    }

    #[test]
    fn entries_that_no_leader_appends_are_refused() {
        let with = |kind, data: Vec<u8>| Message {
            entries: vec![Entry {
                entry_type: kind,
                data: data.into(),
                ..entry(5, 3)
            }]
            .into(),
            ..message(MessageType::MsgAppend)
        };
        let only_good = |data: &[u8]| match data {
            b"good" => Ok(()),
            _ => Err("bad".to_owned()),
        };
        let change = |id, address: &str| {
            let change = ConfChange {
                node_id: id,
                context: address.to_owned().into(),
                ..ConfChange::default()
            };
            change.write_to_bytes().unwrap()
        };
        let members = |voter| {
            encode_membership(&Membership {
                index: 1,
                term: 1,
                members: vec![Member {
                    id: 7,
                    address: "a:1".into(),
                    voter,
                }],
            })
        };
        use EntryType::{EntryConfChange, EntryConfChangeV2, EntryNormal};
        for (kind, data, sound) in [
            (EntryNormal, vec![], true),
            (EntryNormal, b"good".to_vec(), true),
            (EntryNormal, b"evil".to_vec(), false),
            (EntryConfChange, change(7, "a:1"), true),
            (EntryConfChange, change(0, "a:1"), false),
            (EntryConfChange, change(7, &"a".repeat(70_000)), false),
            (EntryConfChange, vec![0xff; 9], false),
            (EntryConfChangeV2, members(true), true),
            (EntryConfChangeV2, members(false), false),
            (EntryConfChangeV2, vec![0xff; 9], false),
        ] {
            let message = with(kind, data);
            assert_eq!(
                check_entries(&message, only_good).is_ok(),
                sound,
                "{message:?}"
            );
        }
    }

    #[test]
    fn cut_and_foreign_frames_are_refused() {
        assert!(decode(&[]).is_none());
        assert!(decode(&[FORMAT, 9, 0, b'a']).is_none());
        assert!(decode(&[FORMAT, 0, 0, 0xff, 0xff]).is_none());
        assert!(decode(&[7, 0, 0]).is_none());
    }

    #[test]
    fn local_and_misdirected_messages_are_refused() {
        for kind in [
            MessageType::MsgHup,
            MessageType::MsgPropose,
            MessageType::MsgSnapStatus,
        ] {
            assert!(check(&message(kind), &RECEIVER).is_err());
        }
        let mut other = message(MessageType::MsgHeartbeat);
        assert!(check(&other, &RECEIVER).is_ok());
        other.to = 3;
        assert!(check(&other, &RECEIVER).is_err());
        let mut timeless = message(MessageType::MsgHeartbeat);
        timeless.term = 0;
        assert!(check(&timeless, &RECEIVER).is_err());
    }

    #[test]
    fn an_append_must_be_contiguous() {
        let mut append = message(MessageType::MsgAppend);
        append.index = 4;
        append.log_term = 2;
        append.entries = vec![entry(5, 2), entry(6, 3)].into();
        assert_eq!(check(&append, &RECEIVER), Ok(()));
        append.entries = vec![entry(5, 2), entry(7, 3)].into();
        assert!(check(&append, &RECEIVER).is_err());
        append.entries = vec![entry(5, 1)].into();
        assert!(check(&append, &RECEIVER).is_err());
        append.entries = vec![entry(5, 4)].into();
        assert!(check(&append, &RECEIVER).is_err());
        append.entries = vec![].into();
        append.log_term = 0;
        assert!(check(&append, &RECEIVER).is_err());
    }

    #[test]
    fn a_snapshot_must_be_consistent() {
        let members = vec![Member {
            id: 1,
            address: "a:1".into(),
            voter: true,
        }];
        let membership = Membership {
            index: 5,
            term: 2,
            members,
        };
        let mut snapshot = Snapshot::default();
        snapshot.mut_metadata().index = 9;
        snapshot.mut_metadata().term = 3;
        snapshot
            .mut_metadata()
            .set_conf_state(conf_state(&membership));
        snapshot.data = encode_membership(&membership).into();
        let mut good = message(MessageType::MsgSnapshot);
        good.set_snapshot(snapshot);
        assert_eq!(check(&good, &RECEIVER), Ok(()));
        let mut doubled = good.clone();
        doubled
            .mut_snapshot()
            .mut_metadata()
            .mut_conf_state()
            .voters
            .push(1);
        assert!(check(&doubled, &RECEIVER).is_err());
        let mut empty = good.clone();
        empty.mut_snapshot().data = Bytes::new();
        assert!(check(&empty, &RECEIVER).is_err());
    }
}
