//! The engine's keyspaces, and single writes to them.

use fjall::Slice;

use crate::tables::States;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Keyspace {
    Records,
    Indexes,
    Meta,
}

pub(crate) struct Operation {
    pub(crate) keyspace: Keyspace,
    pub(crate) key: Slice,
    /// `None` removes.
    pub(crate) value: Option<Slice>,
}

/// The engine's handles. An import replaces those of the two large ones.
pub(crate) struct Keyspaces {
    pub(crate) records: fjall::Keyspace,
    pub(crate) indexes: fjall::Keyspace,
    pub(crate) meta: fjall::Keyspace,
    pub(crate) states: LargeKeyspaces<States>,
}

/// One of something for each of the two large keyspaces.
#[derive(Default)]
pub(crate) struct LargeKeyspaces<T> {
    pub(crate) records: T,
    pub(crate) indexes: T,
}

impl<T> LargeKeyspaces<T> {
    pub(crate) fn of(&self, keyspace: Keyspace) -> Option<&T> {
        match keyspace {
            Keyspace::Records => Some(&self.records),
            Keyspace::Indexes => Some(&self.indexes),
            Keyspace::Meta => None,
        }
    }
}

impl Keyspaces {
    pub(crate) fn of(&self, keyspace: Keyspace) -> &fjall::Keyspace {
        match keyspace {
            Keyspace::Records => &self.records,
            Keyspace::Indexes => &self.indexes,
            Keyspace::Meta => &self.meta,
        }
    }
}
