//! The node's end of one lane.

use std::io::{self, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use bson::RawDocument;

use super::error::JobError;
use super::prints::{LeftOut, Prints};
use super::process::{Host, Process};
use crate::frame::{Kind, read_frame, write_frame};

/// Whether the command that a job belongs to has been ended: its time is over, or it was killed.
pub type Interrupted = Arc<dyn Fn() -> bool + Send + Sync>;

/// One lane's socket, with an eye on the clock.
pub struct Channel {
    input: BufReader<Patient>,
    process: Arc<Process>,
    prints: Arc<Prints>,
}

/// Reads for as long as nobody interrupts.
struct Patient {
    stream: Arc<UnixStream>,
    interrupted: Interrupted,
}

/// More than most answers. Nothing is read ahead: a lane says nothing after its answer.
const READ_BYTES: usize = 4 << 10;

impl Channel {
    pub fn open(
        host: &Host,
        lane: usize,
        interrupted: Interrupted,
        prints: Arc<Prints>,
    ) -> Result<Channel, JobError> {
        let stream = host.lanes.get(lane).ok_or(JobError::Protocol)?.clone();
        let patient = Patient {
            stream,
            interrupted,
        };
        Ok(Channel {
            input: BufReader::with_capacity(READ_BYTES, patient),
            process: host.process.clone(),
            prints,
        })
    }

    /// The socket.
    pub fn stream(&self) -> Arc<UnixStream> {
        self.input.get_ref().stream.clone()
    }

    /// Ends the host, and so what all of its lanes do.
    pub fn kill(&self) {
        self.process.kill();
    }

    pub fn send(&mut self, kind: Kind, payload: &[u8]) -> Result<(), JobError> {
        let mut stream = &*self.input.get_ref().stream;
        write_frame(&mut stream, kind, payload).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => JobError::TooLarge,
            _ => self.process.autopsy(),
        })
    }

    /// The next frame that means something to the caller: what a script prints is logged, a
    /// failure is an error. A lane that never falls silent is interrupted as well.
    pub fn receive(&mut self, payload: &mut Vec<u8>) -> Result<Kind, JobError> {
        loop {
            match read_frame(&mut self.input, payload) {
                Ok(Some(Kind::Print)) => self.prints.line(payload),
                Ok(Some(Kind::PrintsLeftOut)) => {
                    let left_out = left_out(payload).ok_or(JobError::Protocol)?;
                    self.prints.left_out(left_out);
                }
                Ok(Some(Kind::Failure)) => return Err(failure(payload)),
                Ok(Some(Kind::Partials)) if (self.input.get_ref().interrupted)() => {
                    return Err(JobError::Interrupted);
                }
                Ok(Some(kind)) => return Ok(kind),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    return Err(JobError::Interrupted);
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    return Err(JobError::Protocol);
                }
                Ok(None) | Err(_) => return Err(self.process.autopsy()),
            }
        }
    }
}

fn left_out(payload: &[u8]) -> Option<LeftOut> {
    let (lines, bytes) = payload.split_first_chunk::<8>()?;
    Some(LeftOut {
        lines: u64::from_le_bytes(*lines),
        bytes: u64::from_le_bytes(bytes.try_into().ok()?),
    })
}

impl Read for Patient {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match (&*self.stream).read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if (self.interrupted)() {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                other => return other,
            }
        }
    }
}

fn failure(payload: &[u8]) -> JobError {
    let document = RawDocument::from_bytes(payload);
    let parts = document.ok().and_then(|document| {
        let code = document.get_i32("code").ok()?;
        Some((code, document.get_str("message").ok()?.to_string()))
    });
    match parts {
        Some((code, message)) => JobError::Script { code, message },
        None => JobError::Protocol,
    }
}
