//! What writes pass, so that an operator can hold them up: `fsync` with `lock`.

use std::sync::Arc;

use tokio::sync::{Mutex, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// Writes of different connections do not meet at one counter.
const LANES: u64 = 16;

/// Open, unless it was closed; it is opened as often as it was closed.
pub struct WriteGate {
    lanes: Box<[Arc<RwLock<()>>]>,
    closed: Mutex<Closed>,
}

#[derive(Default)]
struct Closed {
    times: u64,
    lanes: Vec<OwnedRwLockWriteGuard<()>>,
}

impl Default for WriteGate {
    fn default() -> WriteGate {
        WriteGate {
            lanes: (0..LANES).map(|_| Arc::default()).collect(),
            closed: Mutex::default(),
        }
    }
}

impl WriteGate {
    /// Keeps the gate from being closed until this is dropped, if it is open.
    pub fn try_enter(&self, connection: u64) -> Option<OwnedRwLockReadGuard<()>> {
        self.lane(connection).try_read_owned().ok()
    }

    /// The same when it is.
    pub async fn enter(&self, connection: u64) -> OwnedRwLockReadGuard<()> {
        self.lane(connection).read_owned().await
    }

    fn lane(&self, connection: u64) -> Arc<RwLock<()>> {
        // There are as many lanes as that, so there is this one.
        self.lanes[(connection % LANES) as usize].clone()
    }

    /// Waits for the writes that have begun, and keeps others out; how often it is closed now. Given
    /// up, it leaves the gate as it was.
    pub async fn close(&self) -> u64 {
        let mut closed = self.closed.lock().await;
        if closed.times == 0 {
            let mut lanes = Vec::with_capacity(self.lanes.len());
            for lane in &self.lanes {
                lanes.push(lane.clone().write_owned().await);
            }
            closed.lanes = lanes;
        }
        closed.times += 1;
        closed.times
    }

    /// How often it is closed still; `None`: it was not.
    pub async fn open(&self) -> Option<u64> {
        let mut closed = self.closed.lock().await;
        closed.times = closed.times.checked_sub(1)?;
        if closed.times == 0 {
            closed.lanes.clear();
        }
        Some(closed.times)
    }

    pub fn is_closed(&self) -> bool {
        // Whoever is about to close or open it has not done so yet, or has: either will do.
        self.closed.try_lock().is_ok_and(|closed| closed.times > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn it_opens_when_it_was_opened_as_often_as_it_was_closed() {
        let gate = WriteGate::default();
        assert_eq!(gate.open().await, None);
        let inside = gate.try_enter(1).unwrap();
        let closing = tokio::time::timeout(Duration::from_millis(20), gate.close());
        assert!(closing.await.is_err());
        // Given up: others may enter.
        drop(gate.try_enter(1).unwrap());
        drop(inside);
        assert_eq!(gate.close().await, 1);
        assert_eq!(gate.close().await, 2);
        assert!(gate.is_closed() && gate.try_enter(3).is_none());
        assert_eq!(gate.open().await, Some(1));
        assert!(gate.try_enter(3).is_none());
        assert_eq!(gate.open().await, Some(0));
        assert!(!gate.is_closed() && gate.try_enter(3).is_some());
    }
}
