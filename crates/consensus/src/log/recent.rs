//! The newest entries in memory: they are read soon after they are written, to be applied and to
//! be sent to members that lag a little.

use std::collections::VecDeque;

use raft::eraftpb::Entry;

const BYTES_MAX: usize = 4 << 20;

pub(crate) struct Recent {
    /// The index of the first entry held, or of the next one to come.
    first: u64,
    entries: VecDeque<Entry>,
    bytes: usize,
}

impl Recent {
    pub fn new(first: u64) -> Recent {
        Recent {
            first,
            entries: VecDeque::new(),
            bytes: 0,
        }
    }

    pub fn extend(&mut self, entries: &[Entry]) {
        let Some(start) = entries.first().map(|entry| entry.index) else {
            return;
        };
        if start < self.first || start > self.first + self.entries.len() as u64 {
            *self = Recent::new(start);
        }
        while self.first + self.entries.len() as u64 > start {
            if let Some(gone) = self.entries.pop_back() {
                self.bytes -= cost(&gone);
            }
        }
        for entry in entries {
            self.bytes += cost(entry);
            self.entries.push_back(entry.clone());
        }
        // The newest entry stays, however large: it is about to be applied.
        while self.bytes > BYTES_MAX && self.entries.len() > 1 {
            self.drop_first();
        }
    }

    pub fn cut(&mut self, first: u64) {
        while self.first < first && !self.entries.is_empty() {
            self.drop_first();
        }
        self.first = self.first.max(first);
    }

    /// None if some of `low..high` is no longer here.
    pub fn read(&self, low: u64, high: u64, bytes_max: u64) -> Option<Vec<Entry>> {
        if low < self.first || high > self.first + self.entries.len() as u64 {
            return None;
        }
        let from = (low - self.first) as usize;
        let mut left = bytes_max;
        let mut found = Vec::with_capacity((high - low).min(1024) as usize);
        for entry in self.entries.range(from..from + (high - low) as usize) {
            let size = cost(entry) as u64;
            if size > left && !found.is_empty() {
                break;
            }
            left = left.saturating_sub(size);
            found.push(entry.clone());
        }
        Some(found)
    }

    fn drop_first(&mut self) {
        if let Some(gone) = self.entries.pop_front() {
            self.bytes -= cost(&gone);
            self.first += 1;
        }
    }
}

fn cost(entry: &Entry) -> usize {
    entry.data.len() + entry.context.len() + 64
}
