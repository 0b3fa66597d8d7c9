//! Messages of Raft, written as no member would write them.

use banyan_diff::random::Random;

/// What members say about themselves, and what makes a forged message fit.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub peers: Vec<Peer>,
}

#[derive(Clone, Debug, Default)]
pub struct Peer {
    pub id: u64,
    pub term: u64,
    pub last_index: u64,
    pub commit_index: u64,
    pub address: String,
}

impl Facts {
    pub fn peer(&self, random: &mut Random) -> Peer {
        match self.peers.is_empty() {
            true => Peer::default(),
            false => random.pick(&self.peers).clone(),
        }
    }
}

const APPEND: u64 = 3;
const SNAPSHOT: u64 = 7;

fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn number(out: &mut Vec<u8>, field: u64, number: u64) {
    varint(out, field << 3);
    varint(out, number);
}

fn bytes(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    varint(out, field << 3 | 2);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// A number near the one that is right, or far from it.
fn near(random: &mut Random, right: u64) -> u64 {
    match random.below(8) {
        0..=3 => right,
        4 => right.wrapping_add(1),
        5 => right.saturating_sub(1),
        6 => *random.pick(&[0, 1, 2, u64::from(u32::MAX)]),
        _ => *random.pick(&[u64::MAX, 1 << 60, 1 << 62, 1 << 63]),
    }
}

/// A frame for `to`. Its term is never above that of the set: a set takes the term of any of its
/// members for true.
pub fn frame(random: &mut Random, facts: &Facts, to: &Peer) -> Vec<u8> {
    let from = facts.peer(random);
    let kind = match random.percent(90) {
        true => random.between(3, 18) as u64,
        false => random.draw() % 40,
    };
    let mut message = Vec::new();
    number(&mut message, 1, kind);
    number(
        &mut message,
        2,
        if random.percent(90) {
            to.id
        } else {
            random.draw()
        },
    );
    number(
        &mut message,
        3,
        if random.percent(85) {
            from.id
        } else {
            random.draw() % 9
        },
    );
    let term = match random.below(4) {
        0 => random.draw() % (to.term + 1),
        _ => to.term,
    };
    number(&mut message, 4, term);
    let log_term = near(random, to.term);
    number(&mut message, 5, log_term);
    let index = near(random, to.last_index);
    number(&mut message, 6, index);
    if random.percent(30) && kind != APPEND {
        for at in 0..random.between(1, 3) as u64 {
            let entry = entry(random, index.wrapping_add(1 + at), term);
            bytes(&mut message, 7, &entry);
        }
    }
    // A heartbeat's commit beyond the log is one of the checks; an append may not commit what is
    // nobody's.
    let commit = near(random, to.commit_index);
    number(&mut message, 8, commit);
    if random.percent(20) && kind != SNAPSHOT {
        let mut snapshot = Vec::new();
        bytes(&mut snapshot, 1, &any(random, 40));
        bytes(&mut snapshot, 2, &any(random, 20));
        bytes(&mut message, 9, &snapshot);
    }
    number(&mut message, 10, u64::from(random.percent(40)));
    number(&mut message, 11, near(random, to.last_index));
    if random.percent(30) {
        bytes(&mut message, 12, &any(random, 24));
    }
    number(&mut message, 13, near(random, 0));
    number(&mut message, 15, near(random, to.term));
    if random.percent(25) {
        crate::places::any_bytes(random, &mut message);
    }
    let mut frame = vec![if random.percent(97) {
        1
    } else {
        random.draw() as u8
    }];
    let length = near(random, from.address.len() as u64) as u16;
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(from.address.as_bytes());
    frame.extend_from_slice(&message);
    frame
}

fn entry(random: &mut Random, index: u64, term: u64) -> Vec<u8> {
    let mut entry = Vec::new();
    number(&mut entry, 1, random.draw() % 4);
    number(&mut entry, 2, near(random, term));
    number(&mut entry, 3, near(random, index));
    bytes(&mut entry, 4, &any(random, 60));
    bytes(&mut entry, 6, &any(random, 9));
    entry
}

fn any(random: &mut Random, most: usize) -> Vec<u8> {
    (0..random.below(most))
        .map(|_| random.draw() as u8)
        .collect()
}
