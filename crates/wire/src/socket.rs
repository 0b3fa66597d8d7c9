//! A connection's socket, shared by the task that serves it and by whoever looks whether the client
//! is still there.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::runtime::Handle;

/// The lock is held for single calls that do not wait; only the look at the client ever meets it
/// taken.
pub(crate) struct Socket {
    /// `None` only while it moves, or when moving has failed.
    stream: Mutex<Option<TcpStream>>,
}

fn gone() -> io::Error {
    io::ErrorKind::NotConnected.into()
}

impl Socket {
    pub fn new(stream: TcpStream) -> Socket {
        Socket {
            stream: Mutex::new(Some(stream)),
        }
    }

    /// From now on the threads of `runtime` are told when there is something to read.
    pub fn move_to(&self, runtime: &Handle) -> io::Result<()> {
        let mut stream = self.stream.lock();
        let plain = stream.take().ok_or_else(gone)?.into_std()?;
        let _context = runtime.enter();
        *stream = Some(TcpStream::from_std(plain)?);
        Ok(())
    }

    /// The peer has closed its end, or the connection is broken. Bytes that wait to be read hide
    /// that: they are a request that the peer sent before it left.
    pub fn has_ended(&self) -> bool {
        let stream = self.stream.lock();
        let Some(stream) = &*stream else { return true };
        let mut byte = [MaybeUninit::uninit()];
        match socket2::SockRef::from(stream).peek(&mut byte) {
            Ok(read) => read == 0,
            Err(error) => !matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
            ),
        }
    }

    /// Resolves when the peer has closed its end. Bytes that arrive instead are its next request;
    /// from then on only writing tells.
    pub async fn ended(&self) {
        let peeked = std::future::poll_fn(|cx| {
            let stream = self.stream.lock();
            let Some(stream) = &*stream else {
                return Poll::Ready(0);
            };
            let mut byte = [0];
            let read = ready!(stream.poll_peek(cx, &mut ReadBuf::new(&mut byte)));
            Poll::Ready(read.unwrap_or(0))
        });
        if peeked.await > 0 {
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

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self.stream.lock() {
            Some(stream) => Pin::new(stream).poll_shutdown(cx),
            None => Poll::Ready(Err(gone())),
        }
    }
}

/// Small replies leave at once, and a peer that vanished is noticed in minutes, not hours.
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(120))
        .with_interval(Duration::from_secs(30));
    socket2::SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

pub(crate) async fn connect(address: &str, timeout: Duration) -> io::Result<TcpStream> {
    let stream = tokio::time::timeout(timeout, TcpStream::connect(address))
        .await
        .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "connection timed out"))??;
    prepare(&stream)?;
    Ok(stream)
}
