//! Where a capped collection begins.

use parking_lot::Mutex;

/// Where the records of a capped collection begin, as far as that is known. Records go at this end,
/// and none is ever put before another: who looks for the first one need not pass what the removed
/// ones have left in the engine.
#[derive(Debug, Default)]
pub(crate) struct Oldest(Mutex<Option<OldestIn>>);

/// The oldest record in some state.
#[derive(Debug, Clone, Copy)]
struct OldestIn {
    record: u64,
    /// The place of that state among all.
    state: u64,
}

impl Oldest {
    pub(crate) fn note(&self, record: u64, state: u64) {
        let mut known = self.0.lock();
        if known.is_none_or(|known| known.record < record) {
            *known = Some(OldestIn { record, state });
        }
    }

    /// The first record that may be there in a state; `None`: that is not known.
    pub(crate) fn known(&self, state: u64) -> Option<u64> {
        let known = *self.0.lock();
        known
            .filter(|known| known.state <= state)
            .map(|known| known.record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_record_is_known_of_later_states_only() {
        let oldest = Oldest::default();
        assert_eq!(oldest.known(u64::MAX), None);
        oldest.note(5, 10);
        assert_eq!(oldest.known(9), None);
        assert_eq!(oldest.known(10), Some(5));
        // Who looked in an earlier state comes late.
        oldest.note(3, 8);
        assert_eq!(oldest.known(9), None);
        oldest.note(7, 20);
        assert_eq!(oldest.known(19), None, "5 would do, and is forgotten");
        assert_eq!(oldest.known(20), Some(7));
    }
}
