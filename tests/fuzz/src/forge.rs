//! Messages of Raft, written as no member would write them.

use std::time::{SystemTime, UNIX_EPOCH};

use banyan_diff::generate::Generator;
use banyan_diff::random::Random;
use banyan_replication::entry::{self, EntryBuilder, Style};
use banyan_storage::{CatalogChange, RecordId};
use bson::RawDocumentBuf;

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
    /// Of the entry there.
    pub last_term: u64,
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
const VOTE_GRANTED: u64 = 6;
const SNAPSHOT: u64 = 7;
const HEARTBEAT: u64 = 8;
const PRE_VOTE_GRANTED: u64 = 18;

/// Terms from here on belong to the next forced change of a set's members.
const EPOCH: u64 = 1 << 32;

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

/// Terms as the set has them, made up ones that must not be believed, and a few that will be: the set
/// then elects somebody, and has to come back from it.
fn term(random: &mut Random, kind: u64, to: &Peer) -> u64 {
    // A set takes the votes of its members for true: these elect whoever asks for them.
    let may_leap = !matches!(kind, VOTE_GRANTED | PRE_VOTE_GRANTED);
    match random.below(100) {
        0..=19 => random.draw() % (to.term + 1),
        20..=29 if may_leap => *random.pick(&[1 << 60, (1 << 60) - 1, 1 << 62, u64::MAX]),
        30..=36 if may_leap => {
            let epoch = (random.draw() % 8 + 1) * EPOCH;
            epoch + *random.pick(&[0, 1, 2, to.term, EPOCH - 1])
        }
        37 if may_leap => to.term + random.draw() % 10_000,
        38 if may_leap => near_the_highest(random),
        _ => to.term,
    }
}

/// What is believed at most grows with the clock: four elections a second since 2024.
fn near_the_highest(random: &mut Random) -> u64 {
    const SECONDS_BEFORE: u64 = 1_704_067_200 - 24 * 3600;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let seconds = now.map_or(0, |now| now.as_secs()) - SECONDS_BEFORE;
    4 * seconds - 50 + random.draw() % 100
}

/// A frame for `to`.
pub fn frame(random: &mut Random, generator: &mut Generator, facts: &Facts, to: &Peer) -> Vec<u8> {
    let from = facts.peer(random);
    let kind = match random.below(10) {
        0 => random.draw() % 40,
        1..=3 => APPEND,
        _ => random.between(3, 18) as u64,
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
    let term = term(random, kind, to);
    number(&mut message, 4, term);
    let entries = Entries::draw(random, generator, to, term, kind);
    number(&mut message, 5, entries.log_term);
    number(&mut message, 6, entries.index);
    for entry in &entries.encoded {
        bytes(&mut message, 7, entry);
    }
    // Whatever a leader says is committed is, so these say it of nothing that is not.
    let commit = match (kind, random.below(8)) {
        (APPEND | HEARTBEAT, 0..=4) => to.commit_index,
        (APPEND | HEARTBEAT, 5) => to.commit_index.saturating_sub(1),
        (APPEND | HEARTBEAT, _) => *random.pick(&[0, 1, 1 << 60, u64::MAX]),
        _ => near(random, to.commit_index),
    };
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
    // Damage could make of an append that is refused one that is believed.
    if random.percent(25) && kind != APPEND {
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

/// The entries of a message, and the place that it has for them.
struct Entries {
    log_term: u64,
    index: u64,
    encoded: Vec<Vec<u8>>,
}

impl Entries {
    fn draw(
        random: &mut Random,
        generator: &mut Generator,
        to: &Peer,
        term: u64,
        kind: u64,
    ) -> Entries {
        let data: Vec<Data> = match random.percent(if kind == APPEND { 75 } else { 30 }) {
            true => (0..random.between(1, 3))
                .map(|_| Data::draw(random, generator))
                .collect(),
            false => Vec::new(),
        };
        // A leader's entries are taken for what they are, and what was made up would be applied: the
        // place for what might be believed is one that no log has.
        let far = to.last_index + (1 << 40);
        let is_believed = data.iter().any(|data| data.is_sound);
        let (index, log_term) = match (kind, random.below(10)) {
            (APPEND, _) if is_believed => (far, to.last_term.max(1)),
            (_, 0..=6) => (to.last_index, to.last_term),
            _ => (near(random, to.last_index), near(random, to.last_term)),
        };
        let encode = |(at, data): (u64, &Data)| {
            let (index, term) = match random.percent(85) {
                true => (index.wrapping_add(1 + at), term),
                false => (near(random, index), near(random, term)),
            };
            let mut entry = Vec::new();
            number(&mut entry, 1, data.kind);
            number(&mut entry, 2, term);
            number(&mut entry, 3, index);
            bytes(&mut entry, 4, &data.bytes);
            bytes(&mut entry, 6, &any(random, 9));
            entry
        };
        Entries {
            log_term,
            index,
            encoded: (0..).zip(&data).map(encode).collect(),
        }
    }
}

/// What an entry carries.
struct Data {
    kind: u64,
    bytes: Vec<u8>,
    /// A member has no reason to refuse it.
    is_sound: bool,
}

const NORMAL: u64 = 0;
const CHANGE_OF_MEMBER: u64 = 1;

impl Data {
    fn draw(random: &mut Random, generator: &mut Generator) -> Data {
        let (kind, bytes) = match random.below(10) {
            0 => (NORMAL, any(random, 60)),
            // What no change of members begins with.
            1 => {
                let kind = random.between(1, 2) as u64;
                (kind, [vec![0xff; 11], any(random, 60)].concat())
            }
            2 => (CHANGE_OF_MEMBER, Vec::new()),
            _ => (NORMAL, generated(random, generator)),
        };
        let is_sound = kind == NORMAL && (bytes.is_empty() || entry::check(&bytes).is_ok());
        Data {
            kind,
            bytes,
            is_sound,
        }
    }
}

/// An entry as a leader writes it, most of them damaged.
fn generated(random: &mut Random, generator: &mut Generator) -> Vec<u8> {
    let mut builder = EntryBuilder::new();
    for _ in 0..random.between(1, 3) {
        let collection = random.below(9) as u32;
        let record = RecordId::from(random.draw() % 99);
        let (one, other) = (document(generator), document(generator));
        match random.below(8) {
            0 | 1 => builder.insert(collection, &record, &one),
            2 => builder.update(collection, &record, &one, &other, &Style::Replacement),
            3 => builder.delete(collection, &record, &one),
            4 => builder.noop(&one),
            5 => builder.set_config(&one),
            6 => builder.drop_database("fuzz"),
            _ => {
                let index = random.below(9) as u32;
                let change = CatalogChange::DropIndex { collection, index };
                builder.catalog(&change, &one);
            }
        }
    }
    let mut bytes = builder.encode(1_700_000_000_000);
    if random.percent(90) {
        // The time of its first operation, which a leader gives it.
        let second = 1_700_000_000 + random.draw() % 1000;
        bytes[1..9].copy_from_slice(&(second << 32 | 1).to_le_bytes());
    }
    if random.percent(70) {
        crate::places::any_bytes(random, &mut bytes);
    }
    bytes
}

fn document(generator: &mut Generator) -> RawDocumentBuf {
    let document = generator.object(3);
    RawDocumentBuf::try_from(&document).unwrap_or_default()
}

fn any(random: &mut Random, most: usize) -> Vec<u8> {
    (0..random.below(most))
        .map(|_| random.draw() as u8)
        .collect()
}
