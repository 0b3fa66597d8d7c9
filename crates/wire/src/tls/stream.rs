//! The bytes of an encrypted connection.

use std::io::{self, BufRead, ErrorKind, Write};
use std::task::{Context, Poll, ready};

use rustls::Connection;
use tokio::io::ReadBuf;
use tokio::net::TcpStream;

/// What is encrypted and waits for the socket, at most.
const UNSENT_BYTES_MAX: usize = 128 * 1024;
/// How much is read before others get their turn.
const READ_AT_ONCE: usize = 256 * 1024;

/// A connection after its handshake.
pub(crate) struct TlsStream {
    tcp: TcpStream,
    session: Connection,
}

/// What a peer was doing when somebody looked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Look {
    Nothing,
    /// It has sent something.
    Bytes,
    Gone,
}

/// A socket as `rustls` wants it: what cannot be done at once is an error.
pub(crate) struct AtOnce<'a>(pub &'a TcpStream);

impl io::Read for AtOnce<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buffer)
    }
}

/// The same, also before the runtime has been told that there is something to read.
pub(crate) struct Directly<'a>(pub &'a TcpStream);

impl io::Read for Directly<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*socket2::SockRef::from(self.0)).read(buffer)
    }
}

impl io::Write for AtOnce<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, bytes: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn would_block(error: &io::Error) -> bool {
    error.kind() == ErrorKind::WouldBlock
}

impl TlsStream {
    pub fn new(tcp: TcpStream, mut session: Connection) -> TlsStream {
        session.set_buffer_limit(Some(UNSENT_BYTES_MAX));
        TlsStream { tcp, session }
    }

    pub fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// Puts another handle of the same socket in the place of its own.
    pub fn replace_tcp(&mut self, tcp: TcpStream) {
        self.tcp = tcp;
    }

    /// Hands to the socket what is encrypted; `WouldBlock` if some is left.
    pub fn send_rest(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            if self.session.write_tls(&mut AtOnce(&self.tcp))? == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    /// Takes in what has arrived, without waiting; 0: the peer sends no more.
    fn receive(&mut self) -> io::Result<usize> {
        let read = self.session.read_tls(&mut AtOnce(&self.tcp))?;
        self.take_in(read)
    }

    /// [`Self::receive`], also before the runtime has been told that there is something.
    fn receive_directly(&mut self) -> io::Result<usize> {
        let read = self.session.read_tls(&mut Directly(&self.tcp))?;
        self.take_in(read)
    }

    fn take_in(&mut self, read: usize) -> io::Result<usize> {
        if let Err(error) = self.session.process_new_packets() {
            // The peer is told what was wrong, if it can be without waiting.
            let _ = self.send_rest();
            return Err(io::Error::new(ErrorKind::InvalidData, error));
        }
        // New keys may have been asked for: the answer leaves with what is written next, if not now.
        match self.send_rest() {
            Err(error) if !would_block(&error) => Err(error),
            _ => Ok(read),
        }
    }

    /// Moves what is decrypted; `Ok(false)`: the peer has sent all that it will.
    fn take_plain(&mut self, buffer: &mut ReadBuf<'_>) -> io::Result<bool> {
        while buffer.remaining() > 0 {
            let mut reader = self.session.reader();
            let chunk = match reader.fill_buf() {
                Ok([]) => return Ok(false),
                Ok(chunk) => chunk,
                Err(error) if would_block(&error) => return Ok(true),
                // Many close the connection without a word; whether a message was cut off, its
                // length tells.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(false),
                Err(error) => return Err(error),
            };
            let length = chunk.len().min(buffer.remaining());
            buffer.put_slice(&chunk[..length]);
            reader.consume(length);
        }
        Ok(true)
    }

    pub fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        loop {
            let goes_on = self.take_plain(buffer)?;
            let taken = buffer.filled().len() - before;
            if !goes_on || buffer.remaining() == 0 || taken >= READ_AT_ONCE {
                return Poll::Ready(Ok(()));
            }
            if taken == 0 {
                ready!(self.tcp.poll_read_ready(cx))?;
            }
            match self.receive() {
                Ok(_) => {}
                Err(error) if would_block(&error) && taken > 0 => return Poll::Ready(Ok(())),
                Err(error) if would_block(&error) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Reads what has arrived; `WouldBlock`: nothing that comes to a byte.
    pub fn read_directly(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut buffer = ReadBuf::new(buffer);
        let mut goes_on = self.take_plain(&mut buffer)?;
        if goes_on && buffer.filled().is_empty() {
            self.receive_directly()?;
            goes_on = self.take_plain(&mut buffer)?;
        }
        match buffer.filled().len() {
            0 if goes_on => Err(ErrorKind::WouldBlock.into()),
            read => Ok(read),
        }
    }

    pub fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        // The last part leaves before the next is encrypted: nothing piles up.
        ready!(self.poll_flush(cx))?;
        ready!(self.tcp.poll_write_ready(cx))?;
        let taken = self.session.writer().write(bytes)?;
        match self.send_rest() {
            Err(error) if !would_block(&error) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(taken)),
        }
    }

    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.has_unsent() {
            ready!(self.tcp.poll_write_ready(cx))?;
            match self.send_rest() {
                Err(error) if would_block(&error) => {}
                sent => return Poll::Ready(sent),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Like a socket's: writes what can be written at once. What it says was written may be
    /// encrypted and wait: see [`Self::has_unsent`].
    pub fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send_rest()?;
        let mut taken = 0;
        while taken < bytes.len() {
            taken += self.session.writer().write(&bytes[taken..])?;
            match self.send_rest() {
                Err(error) if would_block(&error) => break,
                sent => sent?,
            }
        }
        Ok(taken)
    }

    pub fn has_unsent(&self) -> bool {
        self.session.wants_write()
    }

    /// What the peer has done, without waiting and without taking a byte away.
    pub fn look(&mut self) -> Look {
        loop {
            match self.session.process_new_packets() {
                Err(_) => return Look::Gone,
                Ok(state) if state.plaintext_bytes_to_read() > 0 => return Look::Bytes,
                Ok(state) if state.peer_has_closed() => return Look::Gone,
                Ok(_) => {}
            }
            match self.receive() {
                Ok(0) => return Look::Gone,
                Ok(_) => {}
                Err(error) if would_block(&error) => return Look::Nothing,
                Err(_) => return Look::Gone,
            }
        }
    }

    /// Resolves when the peer has sent something (`true`) or is gone.
    pub fn poll_look(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        loop {
            match self.look() {
                Look::Bytes => return Poll::Ready(true),
                Look::Gone => return Poll::Ready(false),
                Look::Nothing => {}
            }
            if ready!(self.tcp.poll_read_ready(cx)).is_err() {
                return Poll::Ready(false);
            }
        }
    }

    pub fn close(&mut self) {
        self.session.send_close_notify();
        // Who is gone need not be told.
        let _ = self.send_rest();
    }
}

impl Drop for TlsStream {
    fn drop(&mut self) {
        self.close();
    }
}
