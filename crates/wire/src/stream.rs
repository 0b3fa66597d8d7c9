//! A connection's bytes: in the clear, or encrypted.
//!
//! In the clear every call is the socket's own, after one branch.

use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::runtime::Handle;

use crate::tls::{self, Directly, Look, Tls, TlsStream};

pub(crate) enum Stream {
    Plain(TcpStream),
    Encrypted(Box<TlsStream>),
}

impl Stream {
    /// From now on the threads of `runtime` are told when there is something to read.
    pub fn moved_to(self, runtime: &Handle) -> io::Result<Stream> {
        let _context = runtime.enter();
        match self {
            Stream::Plain(tcp) => Ok(Stream::Plain(TcpStream::from_std(tcp.into_std()?)?)),
            Stream::Encrypted(mut stream) => {
                let again = socket2::SockRef::from(stream.tcp()).try_clone()?;
                stream.replace_tcp(TcpStream::from_std(again.into())?);
                Ok(Stream::Encrypted(stream))
            }
        }
    }

    /// Nothing to read, not even the end.
    pub fn is_quiet(&mut self) -> bool {
        match self {
            Stream::Plain(tcp) => {
                let mut byte = [0];
                tcp.try_read(&mut byte)
                    .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
            }
            Stream::Encrypted(stream) => stream.look() == Look::Nothing,
        }
    }

    /// The peer has closed its end, or the connection is broken. Bytes that wait to be read hide
    /// that: they are a request that the peer sent before it left.
    pub fn has_ended(&mut self) -> bool {
        match self {
            Stream::Plain(tcp) => has_ended(socket2::SockRef::from(&*tcp)),
            Stream::Encrypted(stream) => stream.look() == Look::Gone,
        }
    }

    /// Resolves when the peer has sent something (`true`) or has closed its end.
    pub fn poll_peek(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        match self {
            Stream::Plain(tcp) => {
                let mut byte = [0];
                let read = ready!(tcp.poll_peek(cx, &mut ReadBuf::new(&mut byte)));
                Poll::Ready(read.unwrap_or(0) > 0)
            }
            Stream::Encrypted(stream) => stream.poll_look(cx),
        }
    }

    /// Resolves when there is something to read, or it is the end.
    pub fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Stream::Plain(tcp) => tcp.poll_read_ready(cx).map(drop),
            Stream::Encrypted(stream) => stream.poll_look(cx).map(drop),
        }
    }

    /// Reads what has arrived, also before the runtime has been told of it; `WouldBlock`: nothing.
    pub fn read_directly(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(tcp) => Directly(tcp).read(buffer),
            Stream::Encrypted(stream) => stream.read_directly(buffer),
        }
    }

    /// Writes what can be written at once; see [`Self::has_unsent`].
    pub fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(tcp) => tcp.try_write(bytes),
            Stream::Encrypted(stream) => stream.try_write(bytes),
        }
    }

    /// Something that was written has not left yet: the stream has to be flushed.
    pub fn has_unsent(&self) -> bool {
        match self {
            Stream::Plain(_) => false,
            Stream::Encrypted(stream) => stream.has_unsent(),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(tcp) => Pin::new(tcp).poll_read(cx, buffer),
            Stream::Encrypted(stream) => stream.poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(tcp) => Pin::new(tcp).poll_write(cx, bytes),
            Stream::Encrypted(stream) => stream.poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(tcp) => Pin::new(tcp).poll_write_vectored(cx, bytes),
            Stream::Encrypted(stream) => {
                let first = bytes.iter().find(|part| !part.is_empty());
                stream.poll_write(cx, first.map_or(&[], |part| part))
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        matches!(self, Stream::Plain(_))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(_) => Poll::Ready(Ok(())),
            Stream::Encrypted(stream) => stream.poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Stream::Encrypted(stream) => {
                stream.close();
                stream.poll_flush(cx)
            }
        }
    }
}

/// Nothing waits to be read, and nothing will come.
pub(crate) fn has_ended(socket: socket2::SockRef<'_>) -> bool {
    let mut byte = [std::mem::MaybeUninit::uninit()];
    match socket.peek(&mut byte) {
        Ok(read) => read == 0,
        Err(error) => !matches!(
            error.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
        ),
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

/// Connects to `host:port`, encrypted if `tls` says so.
pub(crate) async fn connect(
    address: &str,
    timeout: Duration,
    tls: Option<&Tls>,
) -> io::Result<Stream> {
    let connecting = async {
        let tcp = TcpStream::connect(address).await?;
        prepare(&tcp)?;
        match tls.filter(|tls| tls.connects()) {
            None => Ok(Stream::Plain(tcp)),
            Some(tls) => {
                let stream = tls::connect(tls, tcp, host_of(address)).await?;
                Ok(Stream::Encrypted(Box::new(stream)))
            }
        }
    };
    tokio::time::timeout(timeout, connecting)
        .await
        .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "connection timed out"))?
}

/// `[::1]:27017` is the host `::1`.
fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let inner = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    inner.unwrap_or(host)
}
