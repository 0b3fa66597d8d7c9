//! The variables of a `$lookup`: their names while its pipeline is parsed, their values while it
//! runs.
//!
//! A pipeline inside a `$lookup` is parsed once. Its variables are slots, those of an enclosing
//! `$lookup` before its own, and each document that the `$lookup` is given binds them anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bson::{RawBson, RawBsonRef};

/// The names of the variables that a pipeline is parsed with, by slot.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    names: Arc<[Box<str>]>,
    /// Which slots were read by what was parsed so far.
    read: Arc<AtomicU64>,
}

impl Scope {
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The slot that the next variable will have.
    pub fn next_slot(&self) -> usize {
        self.names.len()
    }

    /// This scope with more variables, which hide others of the same name.
    pub fn with<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> Scope {
        let known = self.names.iter().cloned();
        Scope {
            names: known.chain(names.into_iter().map(Box::from)).collect(),
            read: self.read.clone(),
        }
    }

    /// The slot of a name, which is taken to be read.
    pub(crate) fn slot(&self, name: &str) -> Option<usize> {
        let slot = self.names.iter().rposition(|known| **known == *name)?;
        self.read.fetch_or(Slots::one(slot).0, Ordering::Relaxed);
        Some(slot)
    }

    /// What `parse` reads, beside its result.
    pub(crate) fn recording<T>(&self, parse: impl FnOnce() -> T) -> (T, Slots) {
        let before = self.read.swap(0, Ordering::Relaxed);
        let parsed = parse();
        let read = self.read.fetch_or(before, Ordering::Relaxed);
        (parsed, Slots(read))
    }
}

/// A set of slots. Those past the sixty-third count as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slots(u64);

impl Slots {
    fn one(slot: usize) -> Slots {
        Slots(1 << slot.min(63))
    }

    /// Whether one of them is among those from `first` up to `end`.
    pub fn any_within(self, first: usize, end: usize) -> bool {
        (first.min(63)..end.min(64)).any(|slot| self.0 >> slot & 1 == 1)
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn union(self, other: Slots) -> Slots {
        Slots(self.0 | other.0)
    }
}

/// The values of variables, by slot. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Variables(Option<Arc<[Option<RawBson>]>>);

impl Variables {
    /// Where there are none.
    pub const NONE: &'static Variables = &Variables(None);

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn get(&self, slot: usize) -> Option<&Option<RawBson>> {
        self.0.as_ref()?.get(slot)
    }

    /// These and more.
    pub(crate) fn with<'v>(
        &self,
        values: impl IntoIterator<Item = Option<RawBsonRef<'v>>>,
    ) -> Variables {
        let known = self.0.iter().flat_map(|values| values.iter().cloned());
        let more = values.into_iter().map(|value| value.map(RawBson::from));
        Variables(Some(known.chain(more).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inner_names_hide_outer_ones() {
        let scope = Scope::default().with(["a", "b"]).with(["a"]);
        let (slots, read) = scope.recording(|| (scope.slot("a"), scope.slot("c")));
        assert_eq!(slots, (Some(2), None));
        assert!(read.any_within(2, 3) && !read.any_within(0, 2));
        let (_, read) = scope.recording(|| scope.slot("b"));
        assert!(read.any_within(0, 2) && !read.any_within(2, 9));
    }
}
