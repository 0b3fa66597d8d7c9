//! The writes of a batch that is not committed, laid over a snapshot.
//!
//! Whoever stages writes reads them so, and nobody else does. Keys of the engine are laid over
//! keys of the engine: records, index keys and their order are what the batch will leave once it
//! is committed. Counts and the catalog are those of the snapshot.
//!
//! A view sees the writes that were there when it was taken. What is staged while a scan runs does
//! not come before that scan.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use fjall::Slice;
use parking_lot::RwLock;

use crate::batch::Batch;
use crate::keyspaces::Keyspace;

/// Follows one batch while it grows.
#[derive(Default)]
pub struct Overlay {
    writes: Arc<RwLock<Writes>>,
    followed: usize,
}

/// The first so many writes of a batch.
#[derive(Clone)]
pub struct OverlayView {
    writes: Arc<RwLock<Writes>>,
    end: usize,
}

/// By the engine's keys.
#[derive(Default)]
struct Writes {
    records: BTreeMap<Slice, Versions>,
    indexes: BTreeMap<Slice, Versions>,
}

/// What the writes of one key leave, in their order.
struct Versions {
    earlier: Vec<Version>,
    last: Version,
}

struct Version {
    /// The number of the write in its batch.
    at: usize,
    /// `None`: removed.
    value: Option<Slice>,
}

impl Overlay {
    /// The writes that the batch holds by now: those that it held the last time, and perhaps more.
    pub fn view(&mut self, batch: &Batch) -> OverlayView {
        let operations = &batch.operations;
        debug_assert!(self.followed <= operations.len(), "another batch");
        if self.followed < operations.len() {
            let mut writes = self.writes.write();
            for (at, operation) in operations.iter().enumerate().skip(self.followed) {
                let version = Version {
                    at,
                    value: operation.value.clone(),
                };
                let Some(keys) = writes.of_mut(operation.keyspace) else {
                    continue;
                };
                match keys.get_mut(&operation.key) {
                    Some(versions) => {
                        let before = std::mem::replace(&mut versions.last, version);
                        versions.earlier.push(before);
                    }
                    None => {
                        let earlier = Vec::new();
                        let last = version;
                        keys.insert(operation.key.clone(), Versions { earlier, last });
                    }
                }
            }
            self.followed = operations.len();
        }
        OverlayView {
            writes: self.writes.clone(),
            end: self.followed,
        }
    }
}

impl Writes {
    fn of(&self, keyspace: Keyspace) -> Option<&BTreeMap<Slice, Versions>> {
        match keyspace {
            Keyspace::Records => Some(&self.records),
            Keyspace::Indexes => Some(&self.indexes),
            Keyspace::Meta => None,
        }
    }

    fn of_mut(&mut self, keyspace: Keyspace) -> Option<&mut BTreeMap<Slice, Versions>> {
        match keyspace {
            Keyspace::Records => Some(&mut self.records),
            Keyspace::Indexes => Some(&mut self.indexes),
            Keyspace::Meta => None,
        }
    }
}

impl Versions {
    /// What is left of the writes before `end`; `None` if there were none.
    fn before(&self, end: usize) -> Option<&Option<Slice>> {
        if self.last.at < end {
            return Some(&self.last.value);
        }
        let mut earlier = self.earlier.iter().rev();
        let seen = earlier.find(|version| version.at < end)?;
        Some(&seen.value)
    }
}

impl OverlayView {
    /// `None`: the key was not written. `Some(None)`: it was removed.
    pub(crate) fn get(&self, keyspace: Keyspace, key: &[u8]) -> Option<Option<Slice>> {
        let writes = self.writes.read();
        let versions = writes.of(keyspace)?.get(key)?;
        versions.before(self.end).cloned()
    }

    /// The first written key within bounds, or the last one.
    fn next(
        &self,
        keyspace: Keyspace,
        (lower, upper): &(Bound<Vec<u8>>, Bound<Vec<u8>>),
        reverse: bool,
    ) -> Option<(Slice, Option<Slice>)> {
        let writes = self.writes.read();
        let bounds = (
            lower.as_ref().map(Vec::as_slice),
            upper.as_ref().map(Vec::as_slice),
        );
        let mut keys = writes.of(keyspace)?.range::<[u8], _>(bounds);
        loop {
            let next = if reverse {
                keys.next_back()
            } else {
                keys.next()
            };
            let (key, versions) = next?;
            if let Some(value) = versions.before(self.end) {
                return Some((key.clone(), value.clone()));
            }
        }
    }
}

/// The engine refuses a range that ends before it starts; a query may well ask for one.
pub(crate) fn is_empty((lower, upper): &(Bound<Vec<u8>>, Bound<Vec<u8>>)) -> bool {
    match (lower, upper) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(lower), Bound::Included(upper)) => lower > upper,
        (Bound::Included(lower) | Bound::Excluded(lower), Bound::Excluded(upper))
        | (Bound::Excluded(lower), Bound::Included(upper)) => lower >= upper,
    }
}

/// What comes next on one side of a merge.
enum Next<T> {
    /// Not looked up yet.
    Unknown,
    Known(T),
    End,
}

impl<T> Next<T> {
    fn or_look(&mut self, look: impl FnOnce() -> Option<T>) {
        if matches!(self, Next::Unknown) {
            *self = look().map_or(Next::End, Next::Known);
        }
    }

    fn take(&mut self) -> Option<T> {
        match std::mem::replace(self, Next::Unknown) {
            Next::Known(next) => Some(next),
            Next::Unknown => None,
            Next::End => {
                *self = Next::End;
                None
            }
        }
    }
}

/// The keys of a scan and those written within its bounds, in one order.
pub(crate) struct Merge {
    overlay: OverlayView,
    keyspace: Keyspace,
    /// Of what is not looked up yet in the overlay.
    bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>),
    reverse: bool,
    stored: Next<(Slice, Slice)>,
    written: Next<(Slice, Option<Slice>)>,
}

impl Merge {
    pub(crate) fn new(
        overlay: OverlayView,
        keyspace: Keyspace,
        bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>),
        reverse: bool,
    ) -> Merge {
        Merge {
            overlay,
            keyspace,
            bounds,
            reverse,
            stored: Next::Unknown,
            written: Next::Unknown,
        }
    }

    fn look(&mut self) {
        let (overlay, keyspace, reverse) = (&self.overlay, self.keyspace, self.reverse);
        let bounds = &mut self.bounds;
        self.written.or_look(|| {
            if is_empty(bounds) {
                return None;
            }
            let found = overlay.next(keyspace, bounds, reverse)?;
            let behind = if reverse {
                &mut bounds.1
            } else {
                &mut bounds.0
            };
            *behind = Bound::Excluded(found.0.to_vec());
            Some(found)
        });
    }

    /// The next pair; `stored` advances the scan below.
    pub(crate) fn next<E>(
        &mut self,
        mut stored: impl FnMut() -> Option<Result<(Slice, Slice), E>>,
    ) -> Option<Result<(Slice, Slice), E>> {
        loop {
            if matches!(self.stored, Next::Unknown) {
                let pair = match stored() {
                    Some(Err(error)) => return Some(Err(error)),
                    Some(Ok(pair)) => Some(pair),
                    None => None,
                };
                self.stored.or_look(|| pair);
            }
            self.look();
            let order = match (&self.stored, &self.written) {
                (Next::Known((stored, _)), Next::Known((written, _))) => {
                    let order = stored.cmp(written);
                    if self.reverse { order.reverse() } else { order }
                }
                (_, Next::Known(_)) => std::cmp::Ordering::Greater,
                _ => std::cmp::Ordering::Less,
            };
            if order.is_lt() {
                return self.stored.take().map(Ok);
            }
            if order.is_eq() {
                self.stored.take();
            }
            if let Some((key, Some(value))) = self.written.take() {
                return Some(Ok((key, value)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyspaces::Operation;
    use proptest::prelude::*;

    type Pair = (Vec<u8>, Vec<u8>);

    fn write(batch: &mut Batch, key: u8, value: Option<u8>) {
        batch.operations.push(Operation {
            keyspace: Keyspace::Records,
            key: Slice::from([key]),
            value: value.map(|value| Slice::from([value])),
        });
    }

    fn scan(stored: &[(u8, u8)], view: &OverlayView, lower: u8, reverse: bool) -> Vec<Pair> {
        let bounds = (Bound::Included(vec![lower]), Bound::Unbounded);
        let mut merge = Merge::new(view.clone(), Keyspace::Records, bounds, reverse);
        let mut pairs: Vec<_> = stored.iter().filter(|(key, _)| *key >= lower).collect();
        if reverse {
            pairs.reverse();
        }
        let mut pairs = pairs.into_iter();
        let mut next = || {
            let (key, value) = pairs.next()?;
            Some(Ok::<_, ()>((Slice::from([*key]), Slice::from([*value]))))
        };
        let merged = std::iter::from_fn(|| merge.next(&mut next));
        merged
            .map(|pair| {
                pair.map(|(key, value)| (key.to_vec(), value.to_vec()))
                    .unwrap()
            })
            .collect()
    }

    proptest! {
        /// A view shows what a committed batch would, whatever is staged after it.
        #[test]
        fn a_view_is_the_state_that_the_batch_leaves(
            stored in proptest::collection::btree_map(0..20_u8, 0..9_u8, 0..12),
            before in proptest::collection::vec((0..20_u8, proptest::option::of(0..9_u8)), 0..20),
            after in proptest::collection::vec((0..20_u8, proptest::option::of(0..9_u8)), 0..20),
            lower in 0..20_u8,
        ) {
            let (mut batch, mut overlay) = (Batch::new(), Overlay::default());
            let mut state = stored.clone();
            for (key, value) in before {
                write(&mut batch, key, value);
                match value {
                    Some(value) => state.insert(key, value),
                    None => state.remove(&key),
                };
            }
            let view = overlay.view(&batch);
            for (key, value) in after {
                write(&mut batch, key, value);
            }
            let later = overlay.view(&batch);
            prop_assert_eq!(later.end, batch.operations.len());
            let pairs: Vec<_> = stored.iter().map(|(key, value)| (*key, *value)).collect();
            let mut expected: Vec<Pair> = state
                .range(lower..)
                .map(|(key, value)| (vec![*key], vec![*value]))
                .collect();
            prop_assert_eq!(&scan(&pairs, &view, lower, false), &expected);
            expected.reverse();
            prop_assert_eq!(&scan(&pairs, &view, lower, true), &expected);
            for key in 0..20_u8 {
                let below = stored.get(&key).map(|value| vec![*value]);
                let seen = view.get(Keyspace::Records, &[key]);
                let seen = seen.map_or(below, |seen| seen.map(|value| value.to_vec()));
                prop_assert_eq!(seen, state.get(&key).map(|value| vec![*value]));
            }
        }
    }
}
