//! The config server: a replicated member that also holds what the cluster knows of itself.
//!
//! All of it is ordinary documents in the database `config`, written through the same log as any
//! other data ([`metadata`]); whoever is primary of the set runs the commands below, one change of
//! a collection at a time ([`locks`]), and the balancer ([`balancer`], [`primary`]). Nothing that matters is
//! kept in memory: a new primary starts from the documents, and finishes what its predecessor left
//! half done ([`pending`], [`index_changes`], [`user_writes`]).
//!
//! Routers pass the administrator's commands on under these names (all on `admin`, on the config
//! primary; the command's own field is the same as in the public command unless noted):
//!
//! | public | here | fields next to the first |
//! | --- | --- | --- |
//! | `addShard` | `_configsvrAddShard` | `name`, `maxSize` |
//! | `removeShard` | `_configsvrRemoveShard` | |
//! | `enableSharding` | `_configsvrCreateDatabase` | `primaryShard`, `enableSharding: true` |
//! | (a first write into a new database) | `_configsvrCreateDatabase` | |
//! | `shardCollection` | `_configsvrShardCollection` | `key`, `unique`, `numInitialChunks`, … |
//! | `split` | `_configsvrSplitChunk` | `find`, `middle` or `bounds` |
//! | `moveChunk`, `moveRange` | `_configsvrMoveRange` | `find`, `bounds` or `min`/`max`; `to`/`toShard` |
//! | `balancerStart`, `…Stop`, `…Status` | `_configsvrBalancerStart`, … | |
//! | `drop` | `_configsvrDropCollection: "db.coll"` | |
//! | `dropDatabase` | `_configsvrDropDatabase: "db"` | |
//! | `renameCollection` | `_configsvrRenameCollection` | `to`, `dropTarget`, `collectionUUID` |
//! | `createIndexes`, `dropIndexes`, `collMod` | `_configsvrChangeIndexes: "db.coll"` | `command` |
//! | `addShardToZone`, `removeShardFromZone` | `_configsvrAddShardToZone`, … | `zone` |
//! | `setUserWriteBlockMode` | `_configsvrSetUserWriteBlockMode` | `global` |
//! | `updateZoneKeyRange` | `_configsvrUpdateZoneKeyRange` | `min`, `max`, `zone` |
//!
//! Shards use `_configsvrCommitChunkSplit`, `_configsvrCommitChunkMigration` and
//! `_configsvrEnsureChunkVersionIsGreaterThan` (a new primary's fence against a late commit).

pub mod balancer;
pub mod changelog;
pub mod commands;
mod concurrent;
pub mod index_changes;
pub mod locks;
pub mod metadata;
pub mod migrations;
pub mod pending;
pub mod primary;
pub mod reader;
pub mod role;
pub mod shards;
mod user_writes;

pub use commands::commands;
pub use reader::{ConfigReader, RemoteConfig, load_table};
pub use role::ConfigRole;
