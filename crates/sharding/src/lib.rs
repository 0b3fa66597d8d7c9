//! What a sharded collection is, as pure functions: which shard owns a document, which
//! shards a filter may touch, where a chunk is split and which chunk moves next.
//!
//! Nothing in here reads a socket, a disk or a clock. The router, the shards and the config
//! servers all hold the same [`RoutingTable`], built from the same config documents, so a
//! question about ownership has one answer in the whole cluster.
//!
//! In the order worth reading:
//!
//! * [`shard_key`]: the pattern `{a: 1, b: "hashed"}` and the keys it takes from documents.
//! * [`bounds`]: the key ranges that a filter can reach.
//! * [`version`]: how old a picture of a collection is.
//! * [`chunk`]: a range of keys, owned by one shard.
//! * [`routing`]: all chunks of one collection, found by key.
//! * [`coverage`]: what a statement on several shards has been run for.
//! * [`zone`]: ranges that must live on certain shards.
//! * [`split`]: when and where a chunk is cut.
//! * [`commit`]: what a split or a move changes, and when it must be refused.
//! * [`balancer`]: which chunks should move, given a picture of the cluster.

pub mod balancer;
pub mod bounds;
pub mod chunk;
pub mod commit;
pub mod coverage;
pub mod routing;
pub mod shard_key;
pub mod split;
pub mod version;
pub mod zone;

pub use balancer::{ClusterPicture, CollectionPicture, Move, MoveReason, ShardPicture};
pub use bounds::{KeyRange, KeyRanges, ValueRange};
pub use chunk::{Chunk, ChunkError, ChunkRange};
pub use commit::{CommitError, MoveCommit, SplitCommit};
pub use coverage::Coverage;
pub use routing::{RoutingError, RoutingTable};
pub use shard_key::{ShardKey, ShardKeyError, ShardKeyPattern};
pub use version::ChunkVersion;
pub use zone::{Zone, Zones};
