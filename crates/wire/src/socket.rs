//! A connection's stream, shared by the task that serves it and by whoever looks whether the client
//! is still there.

use std::io::{self, Read, Write};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::runtime::Handle;

use crate::stream::{self, Stream};
use crate::tls::{self, Tls, TlsPeer};

/// The lock is held for single calls that do not wait; only the look at the client ever meets it
/// taken.
pub(crate) struct Socket {
    held: Mutex<Held>,
}

enum Held {
    /// A runtime is told of what arrives.
    Registered(Stream),
    /// Nobody is told, and no thread is woken: whoever serves it looks itself. In the clear.
    Unregistered(std::net::TcpStream),
    /// Only while it moves or shakes hands, or when either has failed.
    Gone,
}

fn gone() -> io::Error {
    io::ErrorKind::NotConnected.into()
}

impl Held {
    fn take(&mut self) -> Held {
        std::mem::replace(self, Held::Gone)
    }

    /// To wait for it: the runtime of the present task is told.
    fn registered(&mut self) -> io::Result<&mut Stream> {
        if let Held::Unregistered(_) = self
            && let Held::Unregistered(tcp) = self.take()
        {
            *self = Held::Registered(Stream::Plain(TcpStream::from_std(tcp)?));
        }
        match self {
            Held::Registered(stream) => Ok(stream),
            Held::Unregistered(_) | Held::Gone => Err(gone()),
        }
    }
}

impl Socket {
    pub fn new(stream: TcpStream) -> Socket {
        Socket {
            held: Mutex::new(Held::Registered(Stream::Plain(stream))),
        }
    }

    /// From now on the threads of `runtime` are told when there is something to read.
    pub fn move_to(&self, runtime: &Handle) -> io::Result<()> {
        let mut held = self.held.lock();
        let _context = runtime.enter();
        *held = match held.take() {
            Held::Registered(stream) => Held::Registered(stream.moved_to(runtime)?),
            other => other,
        };
        held.registered().map(drop)
    }

    /// Until somebody waits for it nobody is told when there is something to read: that wakes a
    /// thread, which takes a core from the client or from the thread that looks itself. What is
    /// encrypted stays as it is.
    pub fn unregister(&self) -> io::Result<()> {
        let mut held = self.held.lock();
        if let Held::Registered(Stream::Plain(_)) = *held
            && let Held::Registered(Stream::Plain(tcp)) = held.take()
        {
            *held = Held::Unregistered(tcp.into_std()?);
        }
        Ok(())
    }

    /// The handshake, whose `first` bytes have been read: from now on the stream is encrypted.
    pub async fn encrypt(
        &self,
        tls: &Tls,
        first: &[u8],
        patience: Duration,
    ) -> io::Result<TlsPeer> {
        let plain = match self.held.lock().take() {
            Held::Registered(Stream::Plain(tcp)) => tcp,
            _ => return Err(gone()),
        };
        let (stream, peer) = tls::accept(tls, plain, first, patience).await?;
        *self.held.lock() = Held::Registered(Stream::Encrypted(Box::new(stream)));
        Ok(peer)
    }

    /// The peer has closed its end, or the connection is broken. Bytes that wait to be read hide
    /// that: they are a request that the peer sent before it left.
    pub fn has_ended(&self) -> bool {
        match &mut *self.held.lock() {
            Held::Registered(stream) => stream.has_ended(),
            Held::Unregistered(tcp) => stream::has_ended(socket2::SockRef::from(&*tcp)),
            Held::Gone => true,
        }
    }

    /// Reads what has arrived, also before the runtime has been told of it; `WouldBlock`: nothing.
    pub fn read_directly(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut *self.held.lock() {
            Held::Registered(stream) => stream.read_directly(buffer),
            Held::Unregistered(tcp) => tcp.read(buffer),
            Held::Gone => Err(gone()),
        }
    }

    /// Resolves when there is something to read, or it is the end.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        match self.held.lock().registered() {
            Ok(stream) => stream.poll_readable(cx),
            Err(_) => Poll::Ready(()),
        }
    }

    /// Resolves when the peer has closed its end. Bytes that arrive instead are its next request;
    /// from then on only writing tells.
    pub async fn ended(&self) {
        let peeked = std::future::poll_fn(|cx| match self.held.lock().registered() {
            Ok(stream) => stream.poll_peek(cx),
            Err(_) => Poll::Ready(false),
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
        let mut held = self.held.lock();
        Pin::new(held.registered()?).poll_read(cx, buffer)
    }
}

impl AsyncWrite for &Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut held = self.held.lock();
        if let Held::Unregistered(tcp) = &mut *held {
            match tcp.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
        Pin::new(held.registered()?).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut held = self.held.lock();
        Pin::new(held.registered()?).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self.held.lock() {
            Held::Registered(stream) => Pin::new(stream).poll_flush(cx),
            // Nothing is kept back.
            Held::Unregistered(_) => Poll::Ready(Ok(())),
            Held::Gone => Poll::Ready(Err(gone())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut held = self.held.lock();
        Pin::new(held.registered()?).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (Socket, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap());
        let (accepted, client) = tokio::join!(listener.accept(), client);
        let socket = Socket::new(accepted.unwrap().0);
        socket.unregister().unwrap();
        (socket, client.unwrap())
    }

    #[tokio::test]
    async fn what_arrives_at_an_unregistered_socket_is_there_to_be_read() {
        let (socket, mut client) = pair().await;
        let mut byte = [0; 1];
        let nothing = socket.read_directly(&mut byte).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        assert!(!socket.has_ended());
        client.write_all(b"a").await.unwrap();
        let read = loop {
            match socket.read_directly(&mut byte) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                read => break read.unwrap(),
            }
        };
        assert_eq!((read, &byte), (1, b"a"));
        (&socket).write_all(b"b").await.unwrap();
        client.read_exact(&mut byte).await.unwrap();
        assert_eq!(&byte, b"b");
        drop(client);
        while !socket.has_ended() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn who_waits_for_an_unregistered_socket_is_woken() {
        let (socket, mut client) = pair().await;
        let readable = std::future::poll_fn(|cx| socket.poll_readable(cx));
        let (sent, ()) = tokio::join!(client.write_all(b"a"), readable);
        sent.unwrap();
        socket.unregister().unwrap();
        let mut received = vec![0; 1 << 23];
        let large = vec![b'b'; 1 << 23];
        let mut writing = &socket;
        let (sent, read) =
            tokio::join!(writing.write_all(&large), client.read_exact(&mut received));
        sent.unwrap();
        assert_eq!((read.unwrap(), received == large), (large.len(), true));
        socket.unregister().unwrap();
        let ended = tokio::spawn(async move {
            let mut rest = Vec::new();
            (&socket).read_to_end(&mut rest).await.map(|_| rest)
        });
        drop(client);
        assert_eq!(ended.await.unwrap().unwrap(), b"a");
    }
}
