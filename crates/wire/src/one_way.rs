//! Messages without replies, in order, to one address: what consensus sends to its peers.

use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::AsyncWrite;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tracing::debug;

use crate::opened::ClientConnection;
use crate::stream::Stream;
use crate::tls::Tls;

/// The queue to a peer is full; the message was dropped.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("too much is queued for this peer")]
pub struct Overflow;

/// What may wait for one peer.
const QUEUED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Messages that wait together leave in one write, up to this size.
const WRITE_BYTES_MAX: usize = 1024 * 1024;
/// How long a peer that can't be reached is left alone.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// The sending end; the task behind it ends when this is dropped.
pub(crate) struct Lane {
    sender: UnboundedSender<Queued>,
    line: Arc<Line>,
}

struct Queued {
    bytes: Vec<u8>,
    /// The beginning was written; what is left makes sense on the same connection only.
    begun: bool,
}

impl Queued {
    /// What it counts for in the queue. There may be nothing left of a message but what the stream
    /// keeps, and still the task has to see to it.
    fn weight(&self) -> usize {
        self.bytes.len().max(1)
    }
}

/// What both ends share.
#[derive(Default)]
struct Line {
    /// What waits in the queue, or is being written by the task.
    queued_bytes: AtomicUsize,
    /// The connection, while there is one.
    stream: Mutex<Option<Stream>>,
}

impl Lane {
    pub fn open(
        runtime: &tokio::runtime::Handle,
        address: String,
        timeout: Duration,
        tls: Option<Arc<Tls>>,
    ) -> Lane {
        let (sender, receiver) = unbounded_channel();
        let line = Arc::new(Line::default());
        let carrier = Carrier {
            address,
            timeout,
            tls,
            receiver,
            line: line.clone(),
        };
        runtime.spawn(carrier.run());
        Lane { sender, line }
    }

    /// Writes at once what the connection takes; waking the task for it would take longer.
    pub fn send(&self, mut message: Vec<u8>) -> Result<(), Overflow> {
        let mut begun = false;
        // Held until it's written or in the queue, so that nobody overtakes.
        let mut stream = self.line.stream.lock();
        if let Some(stream) = &mut *stream
            && self.line.queued_bytes.load(Ordering::Acquire) == 0
            && stream.is_quiet()
        {
            match stream.try_write(&message) {
                Ok(written) if written == message.len() && !stream.has_unsent() => return Ok(()),
                Ok(written) => {
                    message.drain(..written);
                    begun = true;
                }
                // The task comes upon what is wrong, too.
                Err(_) => {}
            }
        }
        let waiting = Queued {
            bytes: message,
            begun,
        };
        let length = waiting.weight();
        let queued = self.line.queued_bytes.fetch_add(length, Ordering::AcqRel);
        let too_much = !begun && queued + length > QUEUED_BYTES_MAX;
        if too_much || self.sender.send(waiting).is_err() {
            self.line.queued_bytes.fetch_sub(length, Ordering::AcqRel);
            return Err(Overflow);
        }
        Ok(())
    }
}

struct Carrier {
    address: String,
    timeout: Duration,
    tls: Option<Arc<Tls>>,
    receiver: UnboundedReceiver<Queued>,
    line: Arc<Line>,
}

impl Carrier {
    async fn run(mut self) {
        while let Some(first) = self.receiver.recv().await {
            let mut length = first.weight();
            let Queued {
                bytes: mut batch,
                begun,
            } = first;
            while batch.len() < WRITE_BYTES_MAX
                && let Ok(message) = self.receiver.try_recv()
            {
                length += message.weight();
                batch.extend_from_slice(&message.bytes);
            }
            let delivered = self.deliver(&batch, begun).await;
            if let Err(error) = &delivered {
                debug!(peer = self.address, "messages lost: {error}");
                *self.line.stream.lock() = None;
            }
            // From now on whoever sends writes.
            self.line.queued_bytes.fetch_sub(length, Ordering::AcqRel);
            if delivered.is_err() {
                self.drop_queued();
                tokio::time::sleep(RETRY_AFTER).await;
            }
        }
    }

    async fn deliver(&self, mut batch: &[u8], begun: bool) -> io::Result<()> {
        // The peer never writes here: anything to read is the end of the connection.
        let is_open = |stream: &mut Option<Stream>| stream.as_mut().is_some_and(Stream::is_quiet);
        if !is_open(&mut self.line.stream.lock()) {
            if begun {
                return Err(ErrorKind::BrokenPipe.into());
            }
            let tls = self.tls.as_deref();
            let fresh = ClientConnection::open(&self.address, self.timeout, tls).await?;
            *self.line.stream.lock() = Some(fresh.into_stream());
        }
        while !batch.is_empty() {
            let written = self.on_stream(|stream, cx| stream.poll_write(cx, batch));
            batch = &batch[written.await?..];
        }
        self.on_stream(|stream, cx| stream.poll_flush(cx)).await
    }

    /// Only this task puts a stream there, or takes it away.
    async fn on_stream<T>(
        &self,
        mut poll: impl FnMut(Pin<&mut Stream>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> io::Result<T> {
        poll_fn(|cx| match &mut *self.line.stream.lock() {
            Some(stream) => poll(Pin::new(stream), cx),
            None => Poll::Ready(Err(ErrorKind::NotConnected.into())),
        })
        .await
    }

    /// What waited for a peer that can't be reached is stale by the time it can.
    fn drop_queued(&mut self) {
        while let Ok(message) = self.receiver.try_recv() {
            self.line
                .queued_bytes
                .fetch_sub(message.weight(), Ordering::AcqRel);
        }
    }
}
