//! What a node keeps on disk: records, index keys and the catalog, on an embedded engine.
//!
//! This crate is the only one that may name the engine. It knows documents (it decodes none of
//! them) and key patterns, and nothing of commands, replication or time. Read it in this order:
//!
//! - [`keys`]: how collections and indexes share three keyspaces, so that thousands of
//!   collections cost no more than one; [`record_id`]: what records are known by;
//! - [`catalog`]: the immutable picture of all collections and indexes, replaced as a whole when
//!   a batch changes it; [`index`]: what it knows of one index;
//! - [`batch`]: one atomic change of everything (records, index keys, catalog, counts and
//!   whatever the caller keeps in the meta keyspace, such as the position it has applied);
//! - [`kind`]: which keys documents have in an index, and what can be asked of them;
//! - [`build`]: index builds that go on beside writes;
//! - [`snapshot`]: a consistent view of everything, with scans that own what they need;
//!   [`overlay`]: what its reader has staged, laid over it;
//! - `tables`: how scans read the engine's tables;
//! - [`store`]: the open directory; `engine`: the engine below it; `commit`: how a batch becomes
//!   visible; [`directory`]: its lock, its format and what else is in it;
//! - `writes`: how batches come into memory; `checkpoint`: how memory comes into tables;
//! - [`cleanup`]: the data of dropped collections, removed in the background;
//! - [`transfer`]: a whole snapshot carried to another member.
//!
//! There is no journal here: a batch is visible once committed and durable once [`Store::persist`] has
//! returned, or a checkpoint was made otherwise. The caller's log has the rest after a crash, because
//! the position it has applied is written in the same batch as the effects.

pub mod batch;
pub mod build;
pub mod catalog;
mod checkpoint;
pub mod cleanup;
mod commit;
mod compaction;
pub mod directory;
mod engine;
pub mod error;
pub mod index;
pub mod keys;
mod keyspaces;
pub mod kind;
mod newest;
pub mod overlay;
pub mod record;
pub mod record_id;
mod scan;
pub mod snapshot;
pub mod store;
mod tables;
pub mod transfer;
mod view;
mod writes;

pub use batch::{Batch, WriterId};
pub use build::{BuildAddress, BuildId, IndexBuild, IndexBuildDefinition, Violation};
pub use catalog::capped::CappedLimits;
pub use catalog::{Catalog, CatalogChange, Collection, Database, Namespace};
pub use engine::{LogBarrier, StoreOptions};
pub use error::{OpenError, StorageError};
pub use index::{Index, IndexDefinition};
pub use keys::{CollectionId, INDEX_KEY_BYTES_MAX, IndexId, KeyRange};
pub use kind::{ArrayPaths, IndexKind, KeyLayout, KeyPrefix};
pub use overlay::{Overlay, OverlayView};
pub use record::{Bytes, Record};
pub use record_id::{RecordId, RecordIdFormat, RecordIdRef};
pub use scan::{IndexKey, IndexScan, MetaScan, RecordReader, RecordScan, TypeBits};
pub use snapshot::Snapshot;
pub use store::{Stats, Store};
pub use transfer::{Chunk, Divergence, ImportScope, Importer, Part, SliceEnd, Totals};
