//! Working out what entries do on several threads.
//!
//! An operation says what a record was and becomes, so that what it amounts to in storage follows
//! from itself and the catalog, and not from the entries before it. Neighbours in the log can
//! therefore be decoded, and their index keys made, at once; their batches are put together in the
//! order of the log, in which the last write of a key wins.

use std::num::NonZero;
use std::sync::OnceLock;
use std::thread;

use banyan_storage::{Batch, Catalog};

use super::effects::{self, EffectError};
use crate::entry::Entry;

/// Less than this is not worth starting threads for.
const BYTES_MIN: usize = 128 << 10;
const THREADS_MAX: usize = 8;

/// What entries that change documents only do, as one batch. `entries` are in the log's order.
pub fn work_out(catalog: &Catalog, entries: &[&[u8]]) -> Result<Batch, EffectError> {
    // Finding out reads the limits of control groups, which takes longer than a small batch.
    static AVAILABLE: OnceLock<usize> = OnceLock::new();
    let count = || thread::available_parallelism().map_or(1, NonZero::get);
    let available = *AVAILABLE.get_or_init(count);
    let bytes: usize = entries.iter().map(|entry| entry.len()).sum();
    let threads = available.min(THREADS_MAX).min(bytes / BYTES_MIN * 2);
    work_out_on(catalog, entries, threads)
}

fn work_out_on(catalog: &Catalog, entries: &[&[u8]], threads: usize) -> Result<Batch, EffectError> {
    if threads < 2 || entries.len() < 2 {
        return in_order(catalog, entries);
    }
    let parts = split(entries, threads);
    let outcomes: Vec<Result<Batch, EffectError>> = thread::scope(|scope| {
        let (first, others) = parts.split_at(1);
        let others: Vec<_> = others
            .iter()
            .map(|part| scope.spawn(|| in_order(catalog, part)))
            .collect();
        let first = first.iter().map(|part| in_order(catalog, part));
        let mut outcomes: Vec<_> = first.collect();
        for other in others {
            match other.join() {
                Ok(outcome) => outcomes.push(outcome),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        outcomes
    });
    let mut whole = Batch::new();
    for outcome in outcomes {
        whole.append(outcome?);
    }
    Ok(whole)
}

fn in_order(catalog: &Catalog, entries: &[&[u8]]) -> Result<Batch, EffectError> {
    let mut batch = Batch::new();
    for entry in entries {
        effects::work_out(&mut batch, catalog, &Entry::decode(entry)?)?;
    }
    Ok(batch)
}

/// Neighbours together, in parts of about as many bytes.
fn split<'a, 'b>(entries: &'a [&'b [u8]], parts: usize) -> Vec<&'a [&'b [u8]]> {
    let bytes: usize = entries.iter().map(|entry| entry.len()).sum();
    let each = bytes.div_ceil(parts).max(1);
    let mut out = Vec::with_capacity(parts);
    let (mut start, mut gathered) = (0, 0);
    for (at, entry) in entries.iter().enumerate() {
        gathered += entry.len();
        if gathered >= each {
            out.push(&entries[start..=at]);
            (start, gathered) = (at + 1, 0);
        }
    }
    if start < entries.len() {
        out.push(&entries[start..]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_split_in_order_and_whole() {
        let entries: Vec<Vec<u8>> = (1..60_usize)
            .map(|n| vec![n as u8; n * 37 % 101 + 1])
            .collect();
        let slices: Vec<&[u8]> = entries.iter().map(|entry| &entry[..]).collect();
        for parts in 1..9 {
            let split = split(&slices, parts);
            assert!(split.len() <= parts, "{} of {parts}", split.len());
            assert_eq!(split.concat(), slices);
        }
        assert!(split(&[], 3).is_empty());
    }
}
