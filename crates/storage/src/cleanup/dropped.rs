//! What is to be removed, and the mark that says so.

use std::any::Any;
use std::sync::{Arc, Weak};

use crate::build::index_build::IndexBuild;
use crate::catalog::Collection;
use crate::index::Index;
use crate::keys::{self, IndexId};
use crate::keyspaces::Keyspace;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Collection,
    Index,
}

/// Something that is to be removed.
#[derive(Debug, Clone)]
pub(crate) struct Dropped {
    kind: Kind,
    pub(super) id: u32,
    reader: Option<Weak<dyn Any + Send + Sync>>,
}

impl Dropped {
    /// A collection's records and each of its indexes.
    pub(crate) fn collection(collection: &Arc<Collection>) -> Vec<Dropped> {
        let counters: Arc<dyn Any + Send + Sync> = collection.counters.clone();
        let reader = Some(Arc::downgrade(&counters));
        let records = Dropped {
            kind: Kind::Collection,
            id: collection.id,
            reader,
        };
        let mut dropped = vec![records];
        dropped.extend(collection.indexes.iter().map(Dropped::index));
        let builds = collection.builds.iter();
        dropped.extend(builds.flat_map(Dropped::build));
        dropped
    }

    /// The indexes of a build that comes to nothing, and what was in their way.
    pub(crate) fn build(build: &Arc<IndexBuild>) -> Vec<Dropped> {
        let mut dropped: Vec<Dropped> = build.indexes.iter().map(Dropped::index).collect();
        let held: Arc<dyn Any + Send + Sync> = build.building.clone();
        dropped.push(Dropped {
            kind: Kind::Index,
            id: build.building.duplicates,
            reader: Some(Arc::downgrade(&held)),
        });
        dropped
    }

    /// One index, ready or still loaded. With a build's last index goes the build.
    pub(crate) fn index_of(collection: &Collection, id: IndexId) -> Vec<Dropped> {
        let is_last =
            |build: &&Arc<IndexBuild>| matches!(&build.indexes[..], [only] if only.id == id);
        if let Some(build) = collection.builds.iter().find(is_last) {
            return Dropped::build(build);
        }
        let index = collection.written_by_id(id);
        index.map(Dropped::index).into_iter().collect()
    }

    pub(crate) fn index(index: &Arc<Index>) -> Dropped {
        let held: Arc<dyn Any + Send + Sync> = index.clone();
        Dropped {
            kind: Kind::Index,
            id: index.id,
            reader: Some(Arc::downgrade(&held)),
        }
    }

    /// What is there although it was dropped.
    pub(super) fn found(keyspace: Keyspace, id: u32) -> Dropped {
        let kind = match keyspace {
            Keyspace::Records => Kind::Collection,
            Keyspace::Indexes | Keyspace::Meta => Kind::Index,
        };
        Dropped {
            kind,
            id,
            reader: None,
        }
    }

    pub(crate) fn meta_key(&self) -> [u8; 6] {
        let kind = match self.kind {
            Kind::Collection => b'c',
            Kind::Index => b'i',
        };
        let mut key = [keys::DROPPED, kind, 0, 0, 0, 0];
        key[2..].copy_from_slice(&self.id.to_be_bytes());
        key
    }

    pub(crate) fn parse(key: &[u8]) -> Option<Dropped> {
        let (kind, id) = match key {
            [keys::DROPPED, b'c', id @ ..] => (Kind::Collection, id),
            [keys::DROPPED, b'i', id @ ..] => (Kind::Index, id),
            _ => return None,
        };
        Some(Dropped {
            kind,
            id: u32::from_be_bytes(id.try_into().ok()?),
            reader: None,
        })
    }

    pub(super) fn keyspace(&self) -> Keyspace {
        match self.kind {
            Kind::Collection => Keyspace::Records,
            Kind::Index => Keyspace::Indexes,
        }
    }

    pub(super) fn is_in_use(&self) -> bool {
        self.reader
            .as_ref()
            .is_some_and(|reader| reader.strong_count() > 0)
    }
}
