//! Messages without replies, in order, to one address: what consensus sends to its peers.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tracing::debug;

use crate::socket::connect;

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

/// What both ends share.
#[derive(Default)]
struct Line {
    /// What waits in the queue, or is being written by the task.
    queued_bytes: AtomicUsize,
    /// The connection, while there is one.
    stream: Mutex<Option<Arc<TcpStream>>>,
}

impl Lane {
    pub fn open(runtime: &tokio::runtime::Handle, address: String, timeout: Duration) -> Lane {
        let (sender, receiver) = unbounded_channel();
        let line = Arc::new(Line::default());
        let carrier = Carrier {
            address,
            timeout,
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
        let stream = self.line.stream.lock();
        if let Some(stream) = &*stream
            && self.line.queued_bytes.load(Ordering::Acquire) == 0
            && is_open(stream)
        {
            match stream.try_write(&message) {
                Ok(written) if written == message.len() => return Ok(()),
                Ok(written) => {
                    message.drain(..written);
                    begun = true;
                }
                // The task comes upon what is wrong, too.
                Err(_) => {}
            }
        }
        let length = message.len();
        let queued = self.line.queued_bytes.fetch_add(length, Ordering::AcqRel);
        let waiting = Queued {
            bytes: message,
            begun,
        };
        let too_much = !begun && queued + length > QUEUED_BYTES_MAX;
        if too_much || self.sender.send(waiting).is_err() {
            self.line.queued_bytes.fetch_sub(length, Ordering::AcqRel);
            return Err(Overflow);
        }
        Ok(())
    }
}

/// The peer never writes here: anything to read is the end of the connection.
fn is_open(stream: &TcpStream) -> bool {
    let mut byte = [0];
    stream
        .try_read(&mut byte)
        .is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

struct Carrier {
    address: String,
    timeout: Duration,
    receiver: UnboundedReceiver<Queued>,
    line: Arc<Line>,
}

impl Carrier {
    async fn run(mut self) {
        while let Some(Queued { bytes, begun }) = self.receiver.recv().await {
            let mut batch = bytes;
            let mut length = batch.len();
            while batch.len() < WRITE_BYTES_MAX
                && let Ok(message) = self.receiver.try_recv()
            {
                length += message.bytes.len();
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

    async fn deliver(&self, mut batch: &[u8], begun: bool) -> std::io::Result<()> {
        let stream = self.line.stream.lock().clone();
        let stream = match stream.filter(|stream| is_open(stream)) {
            Some(stream) => stream,
            None if begun => return Err(ErrorKind::BrokenPipe.into()),
            None => {
                let fresh = Arc::new(connect(&self.address, self.timeout).await?);
                *self.line.stream.lock() = Some(fresh.clone());
                fresh
            }
        };
        while !batch.is_empty() {
            stream.writable().await?;
            match stream.try_write(batch) {
                Ok(written) => batch = &batch[written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// What waited for a peer that can't be reached is stale by the time it can.
    fn drop_queued(&mut self) {
        while let Ok(message) = self.receiver.try_recv() {
            self.line
                .queued_bytes
                .fetch_sub(message.bytes.len(), Ordering::AcqRel);
        }
    }
}
