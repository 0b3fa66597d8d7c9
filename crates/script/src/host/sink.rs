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
}

struct Partial {
    key: Vec<u8>,
    document: Vec<u8>,
}

impl Run {
    pub fn push(&mut self, key: Vec<u8>, document: Vec<u8>) {
        self.partials.push(Partial { key, document });
    }

    /// Sends the run in key order and begins a new one.
    pub fn send(&mut self, output: &mut Output) {
        let mut partials = std::mem::take(&mut self.partials);
        if partials.is_empty() {
            return;
        }
        partials.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        let mut payload = Vec::with_capacity(PARTIALS_FRAME_BYTES);
        for partial in partials {
            if !payload.is_empty() && payload.len() + partial.document.len() > PARTIALS_FRAME_BYTES
            {
                output.send(Kind::Partials, &payload);
                payload.clear();
            }
            payload.extend_from_slice(&partial.document);
        }
        output.send(Kind::Partials, &payload);
        output.send(Kind::RunEnd, &[]);
    }
}
