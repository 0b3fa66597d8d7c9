//! Messages without replies, in order, to one address: what consensus sends to its peers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tracing::debug;

use crate::client::connect;

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
    sender: UnboundedSender<Vec<u8>>,
    queued_bytes: Arc<AtomicUsize>,
}

impl Lane {
    pub fn open(runtime: &tokio::runtime::Handle, address: String, timeout: Duration) -> Lane {
        let (sender, receiver) = unbounded_channel();
        let queued_bytes = Arc::new(AtomicUsize::new(0));
        let lane = Carrier {
            address,
            timeout,
            receiver,
            queued_bytes: queued_bytes.clone(),
        };
        runtime.spawn(lane.run());
        Lane {
            sender,
            queued_bytes,
        }
    }

    pub fn send(&self, message: Vec<u8>) -> Result<(), Overflow> {
        let length = message.len();
        let queued = self.queued_bytes.fetch_add(length, Ordering::Relaxed);
        if queued + length > QUEUED_BYTES_MAX || self.sender.send(message).is_err() {
            self.queued_bytes.fetch_sub(length, Ordering::Relaxed);
            return Err(Overflow);
        }
        Ok(())
    }
}

struct Carrier {
    address: String,
    timeout: Duration,
    receiver: UnboundedReceiver<Vec<u8>>,
    queued_bytes: Arc<AtomicUsize>,
}

impl Carrier {
    async fn run(mut self) {
        let mut stream: Option<TcpStream> = None;
        while let Some(mut batch) = self.receiver.recv().await {
            let mut length = batch.len();
            while batch.len() < WRITE_BYTES_MAX
                && let Ok(message) = self.receiver.try_recv()
            {
                length += message.len();
                batch.extend_from_slice(&message);
            }
            // The peer never writes here: anything to read is the end of the connection.
            stream = stream.filter(|stream| {
                let mut byte = [0];
                stream
                    .try_read(&mut byte)
                    .is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock)
            });
            let delivered = self.deliver(&mut stream, &batch).await;
            self.queued_bytes.fetch_sub(length, Ordering::Relaxed);
            if let Err(error) = delivered {
                debug!(peer = self.address, "messages lost: {error}");
                stream = None;
                self.drop_queued();
                tokio::time::sleep(RETRY_AFTER).await;
            }
        }
    }

    async fn deliver(&self, stream: &mut Option<TcpStream>, batch: &[u8]) -> std::io::Result<()> {
        let stream = match stream {
            Some(stream) => stream,
            None => stream.insert(connect(&self.address, self.timeout).await?),
        };
        stream.write_all(batch).await
    }

    /// What waited for a peer that can't be reached is stale by the time it can.
    fn drop_queued(&mut self) {
        while let Ok(message) = self.receiver.try_recv() {
            self.queued_bytes
                .fetch_sub(message.len(), Ordering::Relaxed);
        }
    }
}
