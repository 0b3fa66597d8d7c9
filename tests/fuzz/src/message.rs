//! Messages of every opcode, whole and damaged.

use banyan_diff::random::Random;
use banyan_wire::Compressor;
use bson::Document;

use crate::places;

pub const HEADER_BYTES: usize = 16;
pub const OP_REPLY: i32 = 1;
pub const OP_MSG: i32 = 2013;
const OP_COMPRESSED: i32 = 2012;
const CHECKSUM: u32 = 1;
const MORE_TO_COME: u32 = 2;
const EXHAUST: u32 = 1 << 16;

/// Bytes to send, and what to wait for.
#[derive(Clone, Debug)]
pub struct Message {
    pub bytes: Vec<u8>,
    /// The reply, if there is one, may be a stream that never ends.
    pub streams: bool,
}

impl Message {
    /// Its header says how long it is: what follows is read as the next message.
    pub fn is_whole(&self) -> bool {
        let said = self
            .bytes
            .first_chunk::<4>()
            .map(|four| i32::from_le_bytes(*four));
        said.and_then(|said| usize::try_from(said).ok()) == Some(self.bytes.len())
    }
}

/// A header and a body, with the length that is right.
pub fn framed(request_id: i32, opcode: i32, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_BYTES + body.len());
    for number in [(HEADER_BYTES + body.len()) as i32, request_id, 0, opcode] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(body);
    out
}

/// A command as today's drivers send it.
pub fn plain(request_id: i32, body: &[u8]) -> Vec<u8> {
    let mut sections = vec![0; 5];
    sections.extend_from_slice(body);
    framed(request_id, OP_MSG, &sections)
}

/// A command's bytes with its database. What cannot be written (a zero byte in a name) is not.
pub fn with_database(command: &Document, database: &str) -> Option<Vec<u8>> {
    let mut command = command.clone();
    command.insert("$db", database);
    command.to_vec().ok()
}

fn put(out: &mut Vec<u8>, number: i32) {
    out.extend_from_slice(&number.to_le_bytes());
}

/// A number that a length, a count or flags may be, small in most cases.
fn any_number(random: &mut Random) -> i32 {
    match random.below(6) {
        0 => *random.pick(&[i32::MAX, i32::MIN, -1, 1 << 30]),
        1 => random.draw() as i32,
        _ => random.between(0, 9) as i32,
    }
}

fn namespace(random: &mut Random) -> String {
    let name = random.pick(&[
        "fuzz.c",
        "fuzz.c",
        "fuzz.$cmd",
        "admin.$cmd",
        "fuzz.system.indexes",
        "fuzz.system.namespaces",
        "admin.$cmd.sys.inprog",
        "admin.$cmd.sys.killop",
        "fuzz.",
        ".c",
        "fuzz",
        "",
        "a.b.c.$d",
        "local.oplog.rs",
        "config.system.sessions",
    ]);
    match random.percent(97) {
        true => (*name).to_owned(),
        false => "n".repeat(random.below(5000)),
    }
}

/// The documents that a message is made of: a command with its database, and others.
pub struct Parts {
    pub command: Vec<u8>,
    pub documents: Vec<Vec<u8>>,
    pub cursor: i64,
}

/// A message of any opcode made of these documents.
pub fn any(random: &mut Random, parts: &Parts) -> Message {
    let opcode = *random.weighted(&[
        (8, OP_MSG),
        (4, 2004),
        (2, 2002),
        (2, 2001),
        (2, 2006),
        (3, 2005),
        (2, 2007),
        (1, OP_REPLY),
        (1, 1000),
        (1, 2010),
        (1, -1),
    ]);
    let (body, streams) = match opcode {
        OP_MSG => op_msg(random, parts),
        _ => (legacy(random, opcode, parts), false),
    };
    let mut body = body;
    if random.percent(15) {
        places::any_bytes(random, &mut body);
    }
    let id = any_number(random);
    let bytes = match random.percent(25) {
        true => compressed(random, id, opcode, &body),
        false => framed(id, opcode, &body),
    };
    let mut message = Message { bytes, streams };
    if opcode == OP_MSG
        && message
            .bytes
            .get(HEADER_BYTES)
            .is_some_and(|flags| flags & 1 != 0)
    {
        seal(random, &mut message.bytes);
    }
    if random.percent(12) {
        damage_header(random, &mut message.bytes);
    }
    message
}

/// Writes the checksum, right in most cases.
fn seal(random: &mut Random, bytes: &mut [u8]) {
    let end = bytes.len().saturating_sub(4);
    if end > HEADER_BYTES && random.percent(80) {
        let sum = crc32c::crc32c(&bytes[..end]);
        bytes[end..].copy_from_slice(&sum.to_le_bytes());
    }
}

fn damage_header(random: &mut Random, bytes: &mut [u8]) {
    let at = *random.pick(&[0, 0, 0, 4, 8, 12]);
    let known = bytes.len() as i32;
    let number = match (at, random.percent(60)) {
        (0, true) => known + random.between(-20, 20) as i32,
        (0, false) => *random.pick(&[0, 15, 16, -1, 48_000_000, 48_000_001, i32::MAX]),
        _ => any_number(random),
    };
    bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
}

fn op_msg(random: &mut Random, parts: &Parts) -> (Vec<u8>, bool) {
    let mut flags = 0;
    for (percent, flag) in [
        (15, CHECKSUM),
        (8, MORE_TO_COME),
        (6, EXHAUST),
        (3, 1 << 5),
        (3, 1 << 20),
    ] {
        if random.percent(percent) {
            flags |= flag;
        }
    }
    let mut body = flags.to_le_bytes().to_vec();
    let mut sections = vec![Section::Body];
    for (percent, section) in [
        (25, Section::Sequence("documents")),
        (6, Section::Sequence("updates")),
        (3, Section::Sequence("documents")),
        (3, Section::Body),
        (3, Section::Unknown),
    ] {
        if random.percent(percent) {
            sections.insert(random.below(sections.len() + 1), section);
        }
    }
    if random.percent(2) {
        sections.clear();
    }
    for section in sections {
        match section {
            Section::Body => {
                body.push(0);
                body.extend_from_slice(&parts.command);
            }
            Section::Unknown => body.push(random.draw() as u8),
            Section::Sequence(name) => {
                let documents = parts.documents.concat();
                let right = (4 + name.len() + 1 + documents.len()) as i32;
                let said = match random.percent(85) {
                    true => right,
                    false => right.wrapping_add(any_number(random)),
                };
                body.push(1);
                put(&mut body, said);
                body.extend_from_slice(name.as_bytes());
                body.push(0);
                body.extend_from_slice(&documents);
            }
        }
    }
    if flags & CHECKSUM != 0 {
        put(&mut body, 0);
    }
    (body, flags & EXHAUST != 0)
}

#[derive(Clone, Copy)]
enum Section {
    Body,
    Sequence(&'static str),
    Unknown,
}

fn legacy(random: &mut Random, opcode: i32, parts: &Parts) -> Vec<u8> {
    let mut body = Vec::new();
    let first = parts.documents.first();
    let document = first.map_or(&parts.command[..], |document| &document[..]);
    match opcode {
        2007 => {
            put(&mut body, any_number(random));
            let count = random.below(4);
            let said = if random.percent(80) {
                count as i32
            } else {
                any_number(random)
            };
            put(&mut body, said);
            for _ in 0..count {
                body.extend_from_slice(&parts.cursor.to_le_bytes());
            }
            return body;
        }
        _ => put(&mut body, any_number(random)),
    }
    let name = namespace(random);
    body.extend_from_slice(name.as_bytes());
    if random.percent(98) {
        body.push(0);
    }
    match opcode {
        2004 => {
            put(&mut body, any_number(random));
            put(&mut body, any_number(random));
            let is_command = name.ends_with("$cmd");
            body.extend_from_slice(if is_command { &parts.command } else { document });
            if random.percent(30) {
                body.extend_from_slice(document);
            }
        }
        2005 => {
            put(&mut body, any_number(random));
            body.extend_from_slice(&parts.cursor.to_le_bytes());
        }
        2002 => body.extend_from_slice(&parts.documents.concat()),
        2001 => {
            put(&mut body, any_number(random));
            body.extend_from_slice(document);
            body.extend_from_slice(parts.documents.last().map_or(&[][..], |last| last));
        }
        2006 => {
            put(&mut body, any_number(random));
            body.extend_from_slice(document);
        }
        _ => body.extend_from_slice(&parts.command),
    }
    body
}

fn compressed(random: &mut Random, id: i32, opcode: i32, body: &[u8]) -> Vec<u8> {
    let compressor = *random.pick(&[
        Compressor::Noop,
        Compressor::Snappy,
        Compressor::Zlib,
        Compressor::Zstd,
    ]);
    let mut small = Vec::new();
    // What cannot be compressed goes as it is, under a name that is wrong.
    if compressor.compress(body, &mut small).is_err() {
        small = body.to_vec();
    }
    if random.percent(20) {
        places::any_bytes(random, &mut small);
    }
    let claimed = match random.percent(85) {
        true => body.len() as i32,
        false => any_number(random),
    };
    let mut envelope = Vec::new();
    put(
        &mut envelope,
        if random.percent(95) {
            opcode
        } else {
            OP_COMPRESSED
        },
    );
    put(&mut envelope, claimed);
    let number = match random.percent(93) {
        true => compressor as u8,
        false => random.draw() as u8,
    };
    envelope.push(number);
    envelope.extend_from_slice(&small);
    framed(id, OP_COMPRESSED, &envelope)
}
