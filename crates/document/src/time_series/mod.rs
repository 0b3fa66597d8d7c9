//! Time-series collections: many small measurements, kept together in buckets.
//!
//! A bucket is a document of the bucket collection. Its measurements have the same metadata
//! (`meta`) and times within a span; their other fields lie in columns (`data`), and `control` says
//! between which values each of them is. Read in this order: [`options`] (how a collection is
//! divided into buckets), [`measurement`] (what goes into one), [`bucket`] over [`extremes`] (how
//! it is kept), [`rows`] (how it comes out again) and [`index_keys`] (what an index over
//! measurements is over buckets).

pub mod bucket;
pub mod extremes;
pub mod index_keys;
pub mod measurement;
pub mod options;
pub mod rows;
#[cfg(test)]
mod tests;

pub use bucket::{Bucket, bucket_id};
pub use measurement::Measurement;
pub use options::{Granularity, TimeSeries, UNPACK_STAGE, meta_path};
pub use rows::{RowError, Rows};

/// What the name of a bucket collection begins with.
const PREFIX: &str = "system.buckets.";

/// The collection that holds the buckets of the one of this name.
pub fn buckets_name(name: &str) -> String {
    format!("{PREFIX}{name}")
}

/// The collection whose buckets the one of this name holds. `None`: it is no bucket collection.
pub fn visible_name(buckets: &str) -> Option<&str> {
    buckets.strip_prefix(PREFIX)
}
