//! Where a lane's results wait to be sorted, and leave.

use std::io::{BufWriter, Write};
use std::os::unix::net::UnixStream;

use super::exit::exit;
use crate::frame::{Kind, write_frame};

const PARTIALS_FRAME_BYTES: usize = 128 << 10;

/// The lane's way out. The other end's absence ends the process: there is nobody to work for.
pub struct Output {
    socket: BufWriter<UnixStream>,
}

impl Output {
    pub fn new(socket: UnixStream) -> Self {
        Output {
            socket: BufWriter::with_capacity(64 << 10, socket),
        }
    }

    pub fn send(&mut self, kind: Kind, payload: &[u8]) {
        if write_frame(&mut self.socket, kind, payload).is_err() {
            exit(0);
        }
    }

    pub fn flush(&mut self) {
        if self.socket.flush().is_err() {
            exit(0);
        }
    }
}

/// One run in the making: `{_id: key, value}` documents with their keys in sortable form.
#[derive(Default)]
pub struct Run {
    partials: Vec<Partial>,
    keys: Vec<u8>,
    documents: Vec<u8>,
}

struct Partial {
    /// The bytes of its key that come after what all keys have in common, as a number.
    head: u64,
    key: Place,
    document: Place,
}

#[derive(Clone, Copy)]
struct Place {
    start: usize,
    length: u32,
}

impl Place {
    fn of(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.start..self.start + self.length as usize]
    }
}

/// Puts bytes to those that are there.
fn put(bytes: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) -> Place {
    let start = bytes.len();
    write(bytes);
    // No document is longer than a frame.
    let length = u32::try_from(bytes.len() - start).unwrap_or(u32::MAX);
    Place { start, length }
}

impl Run {
    pub fn push(&mut self, document: &[u8], encode_key: impl FnOnce(&mut Vec<u8>)) {
        let partial = Partial {
            head: 0,
            key: put(&mut self.keys, encode_key),
            document: put(&mut self.documents, |bytes| {
                bytes.extend_from_slice(document)
            }),
        };
        self.partials.push(partial);
    }

    /// Sends the run in key order and begins a new one.
    pub fn send(&mut self, output: &mut Output) {
        let mut run = std::mem::take(self);
        if run.partials.is_empty() {
            return;
        }
        run.sort();
        let mut payload = Vec::with_capacity(PARTIALS_FRAME_BYTES);
        for partial in run.partials {
            let document = partial.document.of(&run.documents);
            if !payload.is_empty() && payload.len() + document.len() > PARTIALS_FRAME_BYTES {
                output.send(Kind::Partials, &payload);
                payload.clear();
            }
            payload.extend_from_slice(document);
        }
        output.send(Kind::Partials, &payload);
        output.send(Kind::RunEnd, &[]);
    }

    fn sort(&mut self) {
        let keys = &self.keys;
        let common = common_length(self.partials.iter().map(|partial| partial.key.of(keys)));
        for partial in &mut self.partials {
            let rest = &partial.key.of(keys)[common..];
            let mut head = [0; 8];
            let length = rest.len().min(head.len());
            head[..length].copy_from_slice(&rest[..length]);
            partial.head = u64::from_be_bytes(head);
        }
        // Most keys differ in their heads, and are not looked at.
        self.partials.sort_unstable_by(|a, b| {
            let whole = || a.key.of(keys).cmp(b.key.of(keys));
            a.head.cmp(&b.head).then_with(whole)
        });
    }
}

/// The bytes with which all keys begin.
fn common_length<'k>(mut keys: impl Iterator<Item = &'k [u8]>) -> usize {
    let Some(first) = keys.next() else { return 0 };
    let equal = |length: usize, key: &[u8]| {
        let pairs = first[..length].iter().zip(key);
        pairs.take_while(|(a, b)| a == b).count()
    };
    keys.fold(first.len(), equal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_sorted_by_whole_keys() {
        let keys = [
            "user0",
            "user",
            "user00000001b",
            "user00000001a",
            "uses",
            "user0",
        ];
        let mut run = Run::default();
        for key in keys {
            run.push(key.as_bytes(), |bytes| {
                bytes.extend_from_slice(key.as_bytes())
            });
        }
        run.sort();
        let sorted = run
            .partials
            .iter()
            .map(|partial| partial.document.of(&run.documents));
        let mut expected = keys.map(str::as_bytes);
        expected.sort_unstable();
        assert!(sorted.eq(expected));
    }

    #[test]
    fn one_key_has_itself_in_common() {
        let mut run = Run::default();
        run.push(b"d", |bytes| bytes.extend_from_slice(b"key"));
        run.sort();
        assert_eq!(run.partials.len(), 1);
        assert_eq!(common_length(std::iter::empty()), 0);
    }
}
