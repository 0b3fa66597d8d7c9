//! What lies before a log that begins with a snapshot.
//!
//! Where a snapshot has taken the place of the state, the log holds nothing up to the snapshot's
//! position. That position's time is kept: who has seen everything up to it misses nothing in the
//! log, and who reads the log finds where it begins.

use banyan_storage::{Batch, Snapshot, StorageError};
use parking_lot::Mutex;

use super::applied::Applied;

const META_KEY: &[u8] = b"base";

#[derive(Debug, Default)]
pub struct Base(Mutex<Option<Applied>>);

impl Base {
    pub fn load(&self, snapshot: &Snapshot) -> Result<(), StorageError> {
        let found = snapshot.meta(META_KEY)?;
        *self.0.lock() = found.and_then(|bytes| Applied::decode(&bytes));
        Ok(())
    }

    /// The state is that of a snapshot.
    pub fn set(&self, batch: &mut Batch, applied: Applied) {
        batch.put_meta(META_KEY, &applied.encode());
        *self.0.lock() = Some(applied);
    }

    /// What the snapshot had applied last, if a log that begins at this index begins right there.
    pub fn of_log(&self, first_index: u64) -> Option<Applied> {
        let base = *self.0.lock();
        base.filter(|base| base.position.index.checked_add(1) == Some(first_index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use banyan_consensus::Position;
    use banyan_storage::{Store, StoreOptions};

    #[test]
    fn it_is_known_again_after_a_start_and_only_where_the_log_begins() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), &StoreOptions::default()).unwrap();
        let applied = Applied {
            position: Position { term: 3, index: 40 },
            time: 7 << 32 | 2,
            wall_ms: 7001,
        };
        let mut batch = Batch::new();
        Base::default().set(&mut batch, applied);
        store.commit(batch).unwrap();
        let base = Base::default();
        assert_eq!(base.of_log(41), None);
        base.load(&store.snapshot()).unwrap();
        assert_eq!(base.of_log(41), Some(applied));
        assert_eq!(base.of_log(40), None);
        assert_eq!(base.of_log(42), None);
    }
}
