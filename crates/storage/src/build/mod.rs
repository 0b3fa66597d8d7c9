//! Index builds that go on beside writes.
//!
//! A build begins with an entry of the log, so that all members begin it at the same point. From
//! then on the collection's entry in the catalog names the build and its indexes. Readers do not
//! see them; every write of a document keeps their keys up too ([`writes`]). Meanwhile threads
//! of each member read the records ([`scan`]) and sort their keys in bounded memory ([`gather`],
//! [`runs`]). The sorted keys are written straight into tables of the engine ([`tables`]), or, those of
//! a unique index, put in small batches ([`load`]).
//!
//! # Why the index is exact in the end
//!
//! Each build keeps the set of the records that were *touched*: inserted, updated or deleted since
//! the build began on this member (or was taken up again after a restart). Three rules hold:
//!
//! 1. A write of a document removes all keys of its earlier state from the index and puts all keys
//!    of its later state, also those that both have. It marks the record as touched before its
//!    batch is committed.
//! 2. The load puts no key of a touched record.
//! 3. Marking and committing, and looking at the marks and putting keys, exclude each other: both
//!    are done with the store's commit lock held. Tables are written without it; what is touched
//!    meanwhile is put right in the moment in which they are taken up ([`tables`]).
//!
//! At any time the keys of a touched record in the index are therefore those of its present state:
//! no key of it is put by the load afterwards (rule 2), and what the load had put before was of the
//! state that the first touch found, which rule 1 removes. So a deleted key is never resurrected
//! and a newer one never lost. The keys of an untouched record that are in the index are keys of
//! its present state, since that has not changed since the load read it; once the load is through,
//! they are all there. It does not matter in which snapshot, or how many, the load reads.
//!
//! The index holds keys of present states only, at any time, so within one process a load that was
//! stopped goes on over what is there. A process that opens a store with a build in it does not know
//! what was touched, and the last tables may not have been put right: it removes the build's keys, and
//! the load begins anew. How many bytes of keys an index has is counted exactly: a key is put if it is
//! missing and removed if it is there, which is looked up where it is not known.
//!
//! # Unique indexes
//!
//! A unique index maps a key to one record. While it is built two records may share a key: nobody
//! refuses that yet, and on a member that loads at another pace the order of events differs. The
//! first holder stays in the index, any other one waits in a list of duplicates on disk; when the
//! holder goes, the next one moves up. So at any point of the log, index and list together hold
//! exactly the keys of the documents. A record whose keys cannot be made (two parallel arrays, say)
//! has none and is remembered as unindexable. The primary commits the build when it has found, with
//! all writes of the collection held off, neither a duplicate nor an unindexable record
//! ([`IndexBuild::violation`]). What it finds holds for all members at that point of the log.
//!
//! A member that has not loaded everything when the commit comes goes on; its readers get the index
//! once it is complete.

pub(crate) mod building;
mod gather;
pub(crate) mod index_build;
pub(crate) mod load;
mod record_set;
mod runs;
mod scan;
mod tables;
mod violation;
pub(crate) mod writes;

use crate::keys::CollectionId;

pub use index_build::{BuildId, IndexBuild, IndexBuildDefinition};
pub use load::{LoadEnd, LoadHost, LoadPhase, LoadProgress};
pub use violation::Violation;

/// Where a build is to be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BuildAddress {
    pub collection: CollectionId,
    pub build: BuildId,
}
