//! A connection's stream, shared by the task that serves it and by whoever looks whether the client
//! is still there.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::runtime::Handle;

use crate::stream::Stream;
use crate::tls::{self, Tls, TlsPeer};

/// The lock is held for single calls that do not wait; only the look at the client ever meets it
/// taken.
pub(crate) struct Socket {
    /// `None` only while it moves or shakes hands, or when either has failed.
    stream: Mutex<Option<Stream>>,
}

fn gone() -> io::Error {
    io::ErrorKind::NotConnected.into()
}

impl Socket {
    pub fn new(stream: TcpStream) -> Socket {
        Socket {
            stream: Mutex::new(Some(Stream::Plain(stream))),
        }
    }

    /// From now on the threads of `runtime` are told when there is something to read.
    pub fn move_to(&self, runtime: &Handle) -> io::Result<()> {
        let mut stream = self.stream.lock();
        let moved = stream.take().ok_or_else(gone)?.moved_to(runtime)?;
        *stream = Some(moved);
        Ok(())
    }

    /// The handshake, whose `first` bytes have been read: from now on the stream is encrypted.
    pub async fn encrypt(
        &self,
        tls: &Tls,
        first: &[u8],
        patience: Duration,
    ) -> io::Result<TlsPeer> {
        let plain = match self.stream.lock().take() {
            Some(Stream::Plain(tcp)) => tcp,
            Some(Stream::Encrypted(_)) | None => return Err(gone()),
        };
        let (stream, peer) = tls::accept(tls, plain, first, patience).await?;
        *self.stream.lock() = Some(Stream::Encrypted(Box::new(stream)));
        Ok(peer)
    }

    /// The peer has closed its end, or the connection is broken. Bytes that wait to be read hide
    /// that: they are a request that the peer sent before it left.
    pub fn has_ended(&self) -> bool {
        let mut stream = self.stream.lock();
        stream.as_mut().is_none_or(Stream::has_ended)
    }

    /// Something has arrived, or it is the end, also before the runtime has been told of it.
    pub fn is_arriving(&self) -> bool {
        let stream = self.stream.lock();
        stream.as_ref().is_none_or(Stream::is_arriving)
    }

    /// Reads what has arrived, also before the runtime has been told of it; `WouldBlock`: nothing.
    pub fn read_directly(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut stream = self.stream.lock();
        stream.as_mut().ok_or_else(gone)?.read_directly(buffer)
    }

    /// Resolves when there is something to read, or it is the end.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut *self.stream.lock() {
            Some(stream) => stream.poll_readable(cx),
            None => Poll::Ready(()),
        }
    }

    /// Resolves when the peer has closed its end. Bytes that arrive instead are its next request;
    /// from then on only writing tells.
    pub async fn ended(&self) {
        let peeked = std::future::poll_fn(|cx| match &mut *self.stream.lock() {
            Some(stream) => stream.poll_peek(cx),
            None => Poll::Ready(false),
        });
        if peeked.await {
            std::future::pending().await
        }
    }
}

impl AsyncRead for &Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self.stream.lock() {
            Some(stream) => Pin::new(stream).poll_read(cx, buffer),
            None => Poll::Ready(Err(gone())),
        }
    }
}

impl AsyncWrite for &Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut *self.stream.lock() {
            Some(stream) => Pin::new(stream).poll_write(cx, bytes),
            None => Poll::Ready(Err(gone())),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut *self.stream.lock() {
            Some(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            None => Poll::Ready(Err(gone())),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self.stream.lock() {
            Some(stream) => Pin::new(stream).poll_flush(cx),
            None => Poll::Ready(Err(gone())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self.stream.lock() {
            Some(stream) => Pin::new(stream).poll_shutdown(cx),
            None => Poll::Ready(Err(gone())),
        }
    }
}
