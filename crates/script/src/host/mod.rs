//! The script host: a process that does nothing but run JavaScript for one data node.
//!
//! [`main`] takes over the process. It finds a control socket and one socket per lane among its
//! open files, gives each lane a thread with an isolate of its own ([`lane`]), and waits on the
//! control socket: when that ends, the node is gone and the process goes too. [`job`] is what a
//! lane does for a map-reduce, with `driver.js` inside V8 and [`driver`] around it; [`fields`] finds
//! out what need not be done at all. [`call`] is for single functions. [`sandbox`] takes the process its privileges
//! before a script runs.

mod call;
mod driver;
mod exit;
mod failure;
mod fields;
mod globals;
mod job;
mod lane;
mod payload;
mod print;
pub(crate) mod sandbox;
mod scripts;
mod sink;

pub use exit::EXIT_OUT_OF_MEMORY;
pub(crate) use failure::EXCEEDED_MEMORY_LIMIT;
pub(crate) use fields::fields_read;
pub(crate) use job::JobSpec;
pub(crate) use payload::next_document;

use std::io::Read;
use std::ops::RangeInclusive;
use std::os::fd::FromRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Barrier};
use std::thread;

use bson::RawDocument;

use crate::frame::{Kind, read_frame};
use exit::{EXIT_MISUSED, exit};

/// The control socket's place among the open files; the lanes follow.
pub const CONTROL_FD: i32 = 3;
const LANE_STACK_BYTES: usize = 8 << 20;
const LANES_MAX: usize = 256;
const HEAP_BYTES: RangeInclusive<usize> = HEAP_BYTES_STEP..=1 << 36;
/// V8 ends the process where a heap of a few megabytes is not made of whole pages.
const HEAP_BYTES_STEP: usize = 1 << 20;

/// What a host is told at its start, as BSON on the control socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Configuration {
    pub lanes: usize,
    pub heap_bytes_max: usize,
}

impl Configuration {
    pub fn to_bytes(self) -> Vec<u8> {
        let lanes = self.lanes as i64;
        let heap_bytes_max = self.heap_bytes_max as i64;
        bson::rawdoc! { "lanes": lanes, "heapBytesMax": heap_bytes_max }.into_bytes()
    }

    fn parse(bytes: &[u8]) -> Option<Configuration> {
        let document = RawDocument::from_bytes(bytes).ok()?;
        let lanes = usize::try_from(document.get_i64("lanes").ok()?).ok()?;
        let heap_bytes_max = usize::try_from(document.get_i64("heapBytesMax").ok()?).ok()?;
        let possible = (1..=LANES_MAX).contains(&lanes)
            && HEAP_BYTES.contains(&heap_bytes_max)
            && heap_bytes_max.is_multiple_of(HEAP_BYTES_STEP);
        possible.then_some(Configuration {
            lanes,
            heap_bytes_max,
        })
    }
}

/// The whole life of a script host. Ends the process.
pub fn main() -> ! {
    // SAFETY: the node that started this process put the control socket here; started by hand,
    // the first read fails and the process ends.
    let mut control = unsafe { UnixStream::from_raw_fd(CONTROL_FD) };
    let mut payload = Vec::new();
    let configured = match read_frame(&mut control, &mut payload) {
        Ok(Some(Kind::Configure)) => Configuration::parse(&payload),
        _ => None,
    };
    let Some(configuration) = configured else {
        eprintln!("a script host is started by mongod, not by hand");
        exit(EXIT_MISUSED);
    };
    if sandbox::give_up_user().is_err() || sandbox::restrict_files().is_err() {
        exit(EXIT_MISUSED);
    }
    crate::runtime::initialize();
    let ready = Arc::new(Barrier::new(configuration.lanes + 1));
    let restricted = Arc::new(Barrier::new(configuration.lanes + 1));
    for number in 0..configuration.lanes {
        // SAFETY: as above, one socket per lane follows the control socket.
        let socket = unsafe { UnixStream::from_raw_fd(CONTROL_FD + 1 + number as i32) };
        let started = thread::Builder::new()
            .name(format!("lane-{number}"))
            .stack_size(LANE_STACK_BYTES)
            .spawn({
                let ready = ready.clone();
                let restricted = restricted.clone();
                move || {
                    let mut lane = lane::Lane::new(socket, configuration.heap_bytes_max);
                    ready.wait();
                    restricted.wait();
                    lane.run()
                }
            });
        if started.is_err() {
            exit(EXIT_MISUSED);
        }
    }
    // All threads are there, and have read what they need.
    ready.wait();
    if sandbox::restrict_calls().is_err() {
        exit(EXIT_MISUSED);
    }
    restricted.wait();
    // Nothing more comes; the end of the stream is the end of the node.
    let mut byte = [0];
    while !matches!(control.read(&mut byte), Ok(0) | Err(_)) {}
    exit(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_told_only_what_it_can_be() {
        let parsed = |lanes, heap_bytes_max| {
            let told = Configuration {
                lanes,
                heap_bytes_max,
            };
            let read = Configuration::parse(&told.to_bytes());
            assert!(read.is_none_or(|read| read == told));
            read.is_some()
        };
        for heap in [1 << 20, 512 << 20, 1 << 36] {
            assert!(parsed(1, heap), "{heap}");
        }
        for heap in [
            0,
            1,
            (1 << 20) + 1,
            5_000_001,
            (1 << 36) + (1 << 20),
            1 << 62,
        ] {
            assert!(!parsed(1, heap), "{heap}");
        }
        assert!(parsed(LANES_MAX, 1 << 20));
        assert!(!parsed(0, 1 << 20));
        assert!(!parsed(LANES_MAX + 1, 1 << 20));
    }
}
