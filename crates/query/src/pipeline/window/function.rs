//! What a function of $setWindowFields is.

use std::collections::BTreeSet;
use std::fmt::Debug;

use bson::{RawBson, RawBsonRef};

use super::partition::Partition;
use crate::error::QueryError;
use crate::memory::Holding;

/// The values of each document of a partition.
pub(super) type Values = Vec<Option<RawBson>>;

pub(super) trait Function: Debug + Send + Sync {
    /// The values of the documents; `None` sets no field.
    fn evaluate(
        &self,
        partition: &Partition<'_>,
        holding: &mut Holding,
    ) -> Result<Values, QueryError>;

    /// What is wrong whatever the documents are, told before any is read.
    fn check(&self) -> Result<(), QueryError> {
        Ok(())
    }

    /// Adds the paths that it reads; false if it may look at anything.
    fn dependencies(&self, paths: &mut BTreeSet<String>) -> bool;
}

/// A function as it was written.
pub(super) struct Call<'a> {
    pub name: &'static str,
    pub argument: RawBsonRef<'a>,
    pub window: Option<RawBsonRef<'a>>,
}
