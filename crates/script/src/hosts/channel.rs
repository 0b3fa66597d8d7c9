//! The node's end of one lane.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use bson::RawDocument;

use super::error::JobError;
use super::prints::{LeftOut, Prints};
use super::process::{Host, Process};
use crate::frame::{Kind, read_frame, write_frame};

/// Whether the command that a job belongs to has been ended: its time is over, or it was killed.
pub type Interrupted = Arc<dyn Fn() -> bool + Send + Sync>;

/// How often a job that waits for its host looks whether it was interrupted.
const WAIT_STEP: Duration = Duration::from_millis(25);

/// One lane's socket, with an eye on the clock.
pub struct Channel {
    stream: UnixStream,
    process: Arc<Process>,
    interrupted: Interrupted,
    prints: Arc<Prints>,
}

impl Channel {
    pub fn open(
        host: &Host,
        lane: usize,
        interrupted: Interrupted,
        prints: Arc<Prints>,
    ) -> Result<Channel, JobError> {
        let stream = host.lanes[lane].try_clone();
        let stream = stream.map_err(|error| JobError::Start {
            reason: error.to_string(),
        })?;
        stream
            .set_read_timeout(Some(WAIT_STEP))
            .map_err(|error| JobError::Start {
                reason: error.to_string(),
            })?;
        Ok(Channel {
            stream,
            process: host.process.clone(),
            interrupted,
            prints,
        })
    }

    /// A second handle to the socket.
    pub fn stream(&self) -> io::Result<UnixStream> {
        self.stream.try_clone()
    }

    /// Ends the host, and so what all of its lanes do.
    pub fn kill(&self) {
        self.process.kill();
    }

    pub fn send(&mut self, kind: Kind, payload: &[u8]) -> Result<(), JobError> {
        write_frame(&mut self.stream, kind, payload).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => JobError::TooLarge,
            _ => self.process.autopsy(),
        })
    }

    /// The next frame that means something to the caller: what a script prints is logged, a
    /// failure is an error. A lane that never falls silent is interrupted as well.
    pub fn receive(&mut self, payload: &mut Vec<u8>) -> Result<Kind, JobError> {
        loop {
            match read_frame(self, payload) {
                Ok(Some(Kind::Print)) => self.prints.line(payload),
                Ok(Some(Kind::PrintsLeftOut)) => {
                    let left_out = left_out(payload).ok_or(JobError::Protocol)?;
                    self.prints.left_out(left_out);
                }
                Ok(Some(Kind::Failure)) => return Err(failure(payload)),
                Ok(Some(Kind::Partials)) if (self.interrupted)() => {
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

impl Read for Channel {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.stream.read(buffer) {
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
