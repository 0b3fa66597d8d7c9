//! What entries settle of retryable statements goes into the sessions' records, and goes from there
//! when the sessions have long ended.

use std::time::Instant;

use super::applying::Applying;
use super::effects::EffectError;
use crate::entry::Entry;
use crate::sessions::{self, SessionId, SessionRecord};

impl Applying<'_> {
    /// Takes in what the entry says of sessions.
    pub(super) fn sessions(&mut self, entry: &Entry<'_>) -> Result<(), EffectError> {
        let now = self.applied.into();
        if let Some(stamp) = &entry.session {
            let known = self.known(&stamp.session, stamp.txn_number)?;
            let record = SessionRecord::merge(known, stamp, now);
            self.sessions.insert(stamp.session, record);
        }
        for history in &entry.histories {
            let known = self.known(&history.session, history.txn_number)?;
            let record = SessionRecord::adopt(known, history, now);
            self.sessions.insert(history.session, record);
        }
        Ok(())
    }

    /// What is known of a session, unless it is about an earlier number than this.
    fn known(
        &mut self,
        session: &SessionId,
        txn_number: i64,
    ) -> Result<Option<SessionRecord>, EffectError> {
        if let Some(record) = self.sessions.remove(session) {
            return Ok(Some(record));
        }
        let machine = self.machine;
        let numbers = &machine.latest_numbers;
        Ok(numbers.load(&machine.store, session, txn_number)?)
    }

    /// Removes the records of sessions that have long ended. Now and then is often enough.
    pub(super) fn forget_sessions(&mut self) -> Result<(), EffectError> {
        let now = Instant::now();
        let applied_bits = self.applied.time;
        let due = self.machine.session_sweeps.lock().due(now, applied_bits);
        let Some(limit) = due else {
            return Ok(());
        };
        for found in self
            .machine
            .store
            .snapshot()
            .scan_meta(&[sessions::META_PREFIX])
        {
            let (key, record) = found?;
            if sessions::last_write_bits(&record).is_some_and(|bits| bits <= limit) {
                self.batch.delete_meta(&key);
            }
        }
        Ok(())
    }
}
