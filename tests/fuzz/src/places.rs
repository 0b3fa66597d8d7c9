//! Damage to a document's bytes, at the places that mean something.

use banyan_diff::random::Random;

/// What the bytes at an offset are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// A length of four bytes.
    Length,
    Type,
    Name,
    Terminator,
    Value,
}

/// The offsets of a well-formed document that mean something, those of its inner ones included.
fn places(bytes: &[u8]) -> Vec<(usize, Role)> {
    let mut out = Vec::new();
    document(bytes, 0, &mut out);
    out
}

fn length_at(bytes: &[u8], at: usize) -> Option<usize> {
    let four = bytes.get(at..at + 4)?;
    usize::try_from(i32::from_le_bytes(four.try_into().ok()?)).ok()
}

/// Where the document ends; `None` where it is not well-formed.
fn document(bytes: &[u8], start: usize, out: &mut Vec<(usize, Role)>) -> Option<usize> {
    let end = start + length_at(bytes, start)?;
    out.push((start, Role::Length));
    let mut at = start + 4;
    while at + 1 < end {
        out.push((at, Role::Type));
        let kind = *bytes.get(at)?;
        at += 1;
        out.push((at, Role::Name));
        at += bytes.get(at..)?.iter().position(|byte| *byte == 0)?;
        out.push((at, Role::Terminator));
        at += 1;
        at = value(bytes, kind, at, out)?;
    }
    out.push((end.checked_sub(1)?, Role::Terminator));
    Some(end)
}

/// Where the value that begins here ends.
fn value(bytes: &[u8], kind: u8, at: usize, out: &mut Vec<(usize, Role)>) -> Option<usize> {
    let fixed = match kind {
        0x03 | 0x04 => return document(bytes, at, out),
        0x02 | 0x0d | 0x0e => {
            out.push((at, Role::Length));
            let end = at + 4 + length_at(bytes, at)?;
            out.push((at + 4, Role::Value));
            out.push((end.checked_sub(1)?, Role::Terminator));
            return Some(end);
        }
        0x05 => {
            out.push((at, Role::Length));
            out.push((at + 4, Role::Type));
            return Some(at + 5 + length_at(bytes, at)?);
        }
        0x0b => {
            let mut end = at;
            for _ in 0..2 {
                out.push((end, Role::Value));
                end += bytes.get(end..)?.iter().position(|byte| *byte == 0)?;
                out.push((end, Role::Terminator));
                end += 1;
            }
            return Some(end);
        }
        0x0f => {
            out.push((at, Role::Length));
            let text = value(bytes, 0x02, at + 4, out)?;
            return document(bytes, text, out);
        }
        0x01 | 0x09 | 0x11 | 0x12 => 8,
        0x07 => 12,
        0x08 => 1,
        0x10 => 4,
        0x13 => 16,
        _ => 0,
    };
    if fixed > 0 {
        out.push((at, Role::Value));
    }
    Some(at + fixed)
}

const LENGTHS: &[i32] = &[
    0,
    -1,
    1,
    4,
    5,
    6,
    16_777_216,
    48_000_000,
    i32::MAX,
    i32::MIN,
];

/// Damages a document in one to three places.
pub fn damage(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..random.between(1, 3) {
        let places = places(bytes);
        if places.is_empty() || random.percent(10) {
            any_bytes(random, bytes);
        } else {
            let &(at, role) = random.pick(&places);
            one_place(random, bytes, at, role);
        }
        if bytes.is_empty() {
            return;
        }
    }
}

fn one_place(random: &mut Random, bytes: &mut Vec<u8>, at: usize, role: Role) {
    match role {
        Role::Length => {
            let Some(known) = bytes.get(at..at + 4).and_then(|four| four.try_into().ok()) else {
                return;
            };
            let known = i32::from_le_bytes(known);
            let length = match random.percent(60) {
                true => known.wrapping_add(random.between(-9, 9) as i32),
                false => *random.pick(LENGTHS),
            };
            bytes[at..at + 4].copy_from_slice(&length.to_le_bytes());
        }
        Role::Type => set(bytes, at, random.below(0x16) as u8),
        Role::Terminator => match random.below(3) {
            0 => set(bytes, at, 1 + random.below(255) as u8),
            1 => drop(bytes.remove(at.min(bytes.len() - 1))),
            _ => bytes.insert(at.min(bytes.len()), 0),
        },
        Role::Name | Role::Value => match random.below(4) {
            0 => set(bytes, at, 0xc0 + random.below(64) as u8),
            1 => set(bytes, at, 0),
            2 => set(bytes, at, b'$'),
            _ => set(bytes, at, random.draw() as u8),
        },
    }
}

fn set(bytes: &mut [u8], at: usize, to: u8) {
    if let Some(byte) = bytes.get_mut(at) {
        *byte = to;
    }
}

/// Damage of bytes that mean nothing in particular.
pub fn any_bytes(random: &mut Random, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    let at = random.below(bytes.len());
    match random.below(6) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.draw() as u8,
        2 => bytes.truncate(at),
        3 => {
            let end = (at + 1 + random.below(64)).min(bytes.len());
            drop(bytes.drain(at..end));
        }
        4 => {
            let end = (at + 1 + random.below(64)).min(bytes.len());
            let again = bytes[at..end].to_vec();
            drop(bytes.splice(at..at, again));
        }
        _ => {
            let end = (at + 8).min(bytes.len());
            let filled = *random.pick(&[0, 0x7f, 0x80, 0xff]);
            bytes[at..end].fill(filled);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Bson, doc};

    #[test]
    fn every_place_of_a_document_is_found() {
        let inner = doc! { "x": [1, "two", { "y": 2.0 }], "r": Bson::RegularExpression(bson::Regex {
            pattern: bson::raw::CString::try_from("a").unwrap(),
            options: bson::raw::CString::try_from("i").unwrap(),
        }) };
        let bytes = doc! { "a": inner, "b": true }.to_vec().unwrap();
        let found = places(&bytes);
        let count = |role| found.iter().filter(|place| place.1 == role).count();
        // Elements: a, x, 0, 1, 2, y, r, b.
        assert_eq!(count(Role::Type), 8);
        // Four documents, an array of them, and a string.
        assert_eq!(count(Role::Length), 5);
        assert_eq!(found.last(), Some(&(bytes.len() - 1, Role::Terminator)));
    }
}
