//! Asking for checkpoints.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::time::Duration;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request {
    Checkpoint,
    Stop,
}

/// Asks for checkpoints. Never waits for one.
#[derive(Clone)]
pub(crate) struct Requests(SyncSender<Request>);

impl Requests {
    pub(crate) fn channel() -> (Requests, RequestQueue) {
        let (sender, receiver) = mpsc::sync_channel(1);
        (Requests(sender), RequestQueue(receiver))
    }

    pub(crate) fn checkpoint(&self) {
        // One that waits to begin does for this as well.
        let _ = self.0.try_send(Request::Checkpoint);
    }

    pub(super) fn stop(&self) {
        // Whoever takes the requests may have ended.
        let _ = self.0.send(Request::Stop);
    }
}

pub(crate) struct RequestQueue(Receiver<Request>);

impl RequestQueue {
    /// What is asked for next; `None`: nothing for so long.
    pub(super) fn next_within(&self, time: Duration) -> Option<Request> {
        match self.0.recv_timeout(time) {
            Ok(request) => Some(request),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Request::Stop),
        }
    }

    /// Whether a checkpoint was asked for since this was looked at last.
    #[cfg(test)]
    pub(crate) fn is_asked(&self) -> bool {
        self.0.try_recv().is_ok()
    }
}
