//! The memory that the messages of all connections take together, until they are answered.
//!
//! What any connection keeps anyway is not counted. A larger message takes its share as it arrives,
//! never what it has announced. When nothing is left, connections are not read any further, and
//! their clients wait. One message at a time may go on beyond what there is: all that wait hold a
//! part of theirs, and would wait for each other.

use std::sync::Arc;
use std::time::Duration;

use banyan_document::validate::MAX_MESSAGE_BYTES;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A message that gets no room for so long is given up, with its connection.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// So many of the longest messages are always taken.
const MESSAGES_MIN: usize = 4;
const BYTES_MAX: usize = 2 << 30;
/// The part of a machine's memory that messages may take.
const MACHINE_SHARE: usize = 8;

#[derive(Clone, Debug)]
pub(crate) struct InFlight {
    left: Arc<Semaphore>,
    beyond: Arc<Semaphore>,
    patience: Duration,
}

/// What one message has taken; given back when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Share {
    bytes: usize,
    held: Option<OwnedSemaphorePermit>,
    beyond: Option<OwnedSemaphorePermit>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoRoom;

impl InFlight {
    pub fn new(bytes: usize) -> InFlight {
        InFlight {
            left: Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS))),
            beyond: Arc::new(Semaphore::new(1)),
            patience: WAIT_MAX,
        }
    }
}

/// As much as a machine of this size has for them.
pub(crate) fn of_machine(bytes: usize) -> usize {
    let least = MESSAGES_MIN * MAX_MESSAGE_BYTES;
    (bytes / MACHINE_SHARE).clamp(least, BYTES_MAX)
}

impl Share {
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Has at least so many bytes when it returns. Safe to cancel.
    pub async fn grow_to(&mut self, bytes: usize, of: &InFlight) -> Result<(), NoRoom> {
        let more = bytes.saturating_sub(self.bytes);
        if more == 0 {
            return Ok(());
        }
        if self.beyond.is_none() {
            // No message is longer than 48 MB.
            let more = u32::try_from(more).unwrap_or(u32::MAX);
            match of.left.clone().try_acquire_many_owned(more) {
                Ok(permit) => self.keep(permit),
                Err(_) => self.wait_for(more, of).await?,
            }
        }
        self.bytes = bytes;
        Ok(())
    }

    async fn wait_for(&mut self, more: u32, of: &InFlight) -> Result<(), NoRoom> {
        // Neither is ever closed.
        let waited = tokio::time::timeout(of.patience, async {
            tokio::select! {
                biased;
                room = of.left.clone().acquire_many_owned(more) => (room.ok(), None),
                turn = of.beyond.clone().acquire_owned() => (None, turn.ok()),
            }
        });
        match waited.await {
            Ok((Some(room), _)) => self.keep(room),
            Ok((None, Some(turn))) => self.beyond = Some(turn),
            Ok((None, None)) | Err(_) => return Err(NoRoom),
        }
        Ok(())
    }

    fn keep(&mut self, permit: OwnedSemaphorePermit) {
        match &mut self.held {
            Some(held) => held.merge(permit),
            None => self.held = Some(permit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_millis(400);

    fn hasty(bytes: usize) -> InFlight {
        InFlight {
            patience: PATIENCE,
            ..InFlight::new(bytes)
        }
    }

    #[tokio::test]
    async fn what_is_taken_is_bounded_and_one_goes_on() {
        let all = hasty(100);
        let (mut first, mut second, mut third) =
            (Share::default(), Share::default(), Share::default());
        assert_eq!(first.grow_to(60, &all).await, Ok(()));
        assert_eq!(first.grow_to(40, &all).await, Ok(()), "it has more");
        assert_eq!(second.grow_to(40, &all).await, Ok(()));
        // Nothing is left. The first that asks goes on; nobody else does, for as long as it takes.
        assert_eq!(second.grow_to(500, &all).await, Ok(()));
        assert_eq!(first.grow_to(61, &all).await, Err(NoRoom));
        assert_eq!(third.grow_to(1, &all).await, Err(NoRoom));
        drop(second);
        assert_eq!(first.grow_to(100, &all).await, Ok(()));
        drop(first);
        assert_eq!(third.grow_to(100, &all).await, Ok(()));
        assert!(third.beyond.is_none());
        assert_eq!(all.left.available_permits(), 0);
        drop(third);
        assert_eq!(all.left.available_permits(), 100);
    }

    #[tokio::test]
    async fn who_waits_goes_on_when_there_is_room() {
        let all = hasty(100);
        let (mut first, mut second, mut third) =
            (Share::default(), Share::default(), Share::default());
        assert_eq!(first.grow_to(100, &all).await, Ok(()));
        assert_eq!(second.grow_to(1, &all).await, Ok(()));
        let (grown, ()) = tokio::join!(third.grow_to(50, &all), async {
            tokio::time::sleep(PATIENCE / 4).await;
            drop(first);
        });
        assert_eq!(grown, Ok(()));
    }
}
