//! Cutting a byte stream into messages.
//!
//! The length in a header is not to be trusted: it is bounded before anything is allocated, and
//! memory grows with the bytes that really arrive, never with the bytes that were announced.

use std::io;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::in_flight::{InFlight, NoRoom, Share};
use crate::socket::Socket;

/// The longest message either side may send.
pub const MESSAGE_BYTES_MAX: usize = 48_000_000;
/// Header: length, request id, response to, opcode.
pub const HEADER_BYTES: usize = 16;

/// What a message is first read into; most requests fit.
const BUFFER_BYTES_START: usize = 4 * 1024;
/// A buffer that a large message left behind is given back above this size.
const BUFFER_BYTES_KEPT: usize = 64 * 1024;
/// A message that does not fit into what a connection keeps goes on within this time, or not at all.
const STALL_MAX: Duration = Duration::from_secs(60);
/// How much room is made at once for a message that does not fit.
const BUFFER_BYTES_STEP: usize = 1024 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("the message says it is {0} bytes long")]
    Length(i32),
    #[error("a message of {bytes} bytes from a client that has not logged in; {most} are taken")]
    Stranger { bytes: usize, most: usize },
    #[error("there was no room for a message for a minute")]
    NoRoom,
    #[error("the rest of a message did not come")]
    Stalled,
    #[error("the connection ended in the middle of a message")]
    Truncated,
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Reads messages into a buffer that is used again once the previous message's bytes are released.
pub struct FrameReader {
    buffer: BytesMut,
    grown: bool,
    /// What the message that is being read has taken of the memory of all.
    share: Share,
}

/// What a message is held to.
#[derive(Clone, Copy, Default)]
pub(crate) struct Bounds<'a> {
    /// If there are fewer than for everybody.
    pub bytes_max: Option<usize>,
    pub in_flight: Option<&'a InFlight>,
}

impl Default for FrameReader {
    fn default() -> FrameReader {
        FrameReader {
            buffer: BytesMut::new(),
            grown: false,
            share: Share::default(),
        }
    }
}

impl FrameReader {
    /// The next whole message, header included; `None` when the peer ended the connection between
    /// messages. Safe to cancel: what was read stays in the buffer.
    pub async fn next<R: AsyncRead + Unpin>(
        &mut self,
        stream: &mut R,
    ) -> Result<Option<Bytes>, FrameError> {
        let next = self.next_within(stream, Bounds::default()).await?;
        Ok(next.map(|(message, _)| message))
    }

    /// [`Self::next`], and what the message holds of the memory of all until it is answered.
    pub(crate) async fn next_within<R: AsyncRead + Unpin>(
        &mut self,
        stream: &mut R,
        bounds: Bounds<'_>,
    ) -> Result<Option<(Bytes, Share)>, FrameError> {
        if self.grown && self.buffer.is_empty() {
            self.buffer = BytesMut::with_capacity(BUFFER_BYTES_START);
            self.grown = false;
        }
        loop {
            let wanted = self.wanted()?;
            if let (Some(bytes), Some(most)) = (wanted, bounds.bytes_max)
                && bytes > most
            {
                return Err(FrameError::Stranger { bytes, most });
            }
            if let Some(length) = wanted
                && self.buffer.len() >= length
            {
                let message = self.buffer.split_to(length).freeze();
                return Ok(Some((message, std::mem::take(&mut self.share))));
            }
            let room = self.room(wanted);
            if let Some(in_flight) = bounds.in_flight
                && room > 0
                && self.buffer.len() + room > BUFFER_BYTES_KEPT
            {
                let bytes = self.buffer.len() + room;
                let grown = self.share.grow_to(bytes, in_flight).await;
                grown.map_err(|NoRoom| FrameError::NoRoom)?;
            }
            self.make_room(room, wanted);
            let most = if room == 0 { usize::MAX } else { room };
            let mut next = (&mut self.buffer).limit(most);
            let read = stream.read_buf(&mut next);
            let read = match self.share.is_empty() {
                true => read.await?,
                // What it holds, others wait for.
                false => match tokio::time::timeout(STALL_MAX, read).await {
                    Ok(read) => read?,
                    Err(_) => return Err(FrameError::Stalled),
                },
            };
            if read == 0 {
                if self.buffer.is_empty() {
                    return Ok(None);
                }
                return Err(FrameError::Truncated);
            }
        }
    }

    /// Reads once, at the start of a message; ready also when the connection has ended.
    pub(crate) fn poll_fill<R: AsyncRead + Unpin>(
        &mut self,
        stream: &mut R,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        self.make_room(0, None);
        let read = pin!(stream.read_buf(&mut self.buffer));
        read.poll(cx).map_ok(drop)
    }

    /// As [`Self::poll_fill`]; `WouldBlock` if nothing has arrived.
    pub(crate) fn fill_directly(&mut self, socket: &Socket) -> io::Result<()> {
        let mut bytes = [0; BUFFER_BYTES_START];
        let read = socket.read_directly(&mut bytes)?;
        self.make_room(0, None);
        self.buffer.extend_from_slice(&bytes[..read]);
        Ok(())
    }

    /// Waits until so many bytes have been read, or the connection ends. Safe to cancel, and they
    /// are still there for [`Self::next`].
    pub(crate) async fn fill<R: AsyncRead + Unpin>(
        &mut self,
        stream: &mut R,
        bytes: usize,
    ) -> Result<(), FrameError> {
        while self.buffer.len() < bytes {
            self.make_room(0, None);
            if stream.read_buf(&mut self.buffer).await? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Keeps no buffer while there is nothing in it.
    pub(crate) fn release(&mut self) {
        if self.buffer.is_empty() {
            self.buffer = BytesMut::new();
            self.grown = false;
        }
    }

    /// What was read and not yet cut into messages.
    pub(crate) fn unread(&self) -> &[u8] {
        &self.buffer
    }

    /// All that was read: it is no message.
    pub(crate) fn take_unread(&mut self) -> Bytes {
        self.buffer.split().freeze()
    }

    /// The length of the message at the head of the buffer, once its header says so.
    fn wanted(&self) -> Result<Option<usize>, FrameError> {
        let Some(head) = self.buffer.first_chunk::<4>() else {
            return Ok(None);
        };
        let length = i32::from_le_bytes(*head);
        match usize::try_from(length) {
            Ok(bytes) if (HEADER_BYTES..=MESSAGE_BYTES_MAX).contains(&bytes) => Ok(Some(bytes)),
            _ => Err(FrameError::Length(length)),
        }
    }

    /// How much of a message is read next; 0: as much as a buffer begins with has room for.
    fn room(&self, wanted: Option<usize>) -> usize {
        let missing = wanted.unwrap_or(0).saturating_sub(self.buffer.len());
        missing.min(self.buffer.len().max(BUFFER_BYTES_STEP))
    }

    fn make_room(&mut self, room: usize, wanted: Option<usize>) {
        if room == 0 {
            // The start of a message: as much room as a buffer begins with, kept if it is there.
            if self.buffer.capacity() - self.buffer.len() < BUFFER_BYTES_START / 4 {
                self.buffer.reserve(BUFFER_BYTES_START);
            }
            return;
        }
        // What has come of a large message is not moved again and again. The kernel gives the memory
        // behind an address when something is written there.
        let missing = wanted.unwrap_or(0).saturating_sub(self.buffer.len());
        let whole = self.buffer.len() >= BUFFER_BYTES_STEP;
        self.buffer.reserve(if whole { missing } else { room });
        self.grown |= self.buffer.capacity() > BUFFER_BYTES_KEPT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(length: usize) -> Vec<u8> {
        let mut bytes = (length as i32).to_le_bytes().to_vec();
        bytes.resize(length, 9);
        bytes
    }

    #[tokio::test]
    async fn messages_are_cut_at_their_lengths() {
        let mut stream = Vec::new();
        for length in [16, 17, 5000, 200_000, 16] {
            stream.extend(message(length));
        }
        let mut stream = &stream[..];
        let mut frames = FrameReader::default();
        for length in [16, 17, 5000, 200_000, 16] {
            assert_eq!(
                frames.next(&mut stream).await.unwrap().unwrap().len(),
                length
            );
        }
        assert!(frames.next(&mut stream).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn lying_lengths_are_errors_and_cost_no_memory() {
        for length in [-1, 0, 15, i32::MAX, 48_000_001] {
            let mut bytes = length.to_le_bytes().to_vec();
            bytes.extend([0; 12]);
            let mut frames = FrameReader::default();
            let error = frames.next(&mut &bytes[..]).await.unwrap_err();
            assert!(matches!(error, FrameError::Length(_)), "{length}");
        }
        let mut bytes = 48_000_000i32.to_le_bytes().to_vec();
        bytes.extend([0; 12]);
        let mut frames = FrameReader::default();
        let error = frames.next(&mut &bytes[..]).await.unwrap_err();
        assert!(matches!(error, FrameError::Truncated));
        assert!(frames.buffer.capacity() < 4 * BUFFER_BYTES_STEP);
    }
}
