//! A stage in its pipeline.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::dependencies::Dependencies;
use super::stage::{Reads, Stage};
use crate::variables::Slots;

#[derive(Clone, Debug)]
pub(super) struct Member {
    pub stage: Arc<dyn Stage>,
    /// The variables of `$lookup` stages around that it reads.
    pub slots: Slots,
}

/// The fields that the stages read of their input.
pub(super) fn dependencies(members: &[Member]) -> Dependencies {
    let mut paths = BTreeSet::new();
    for member in members {
        match member.stage.reads(&mut paths) {
            Reads::AndPasses => {}
            Reads::Only => return Dependencies::Paths(paths),
            Reads::Everything => return Dependencies::Whole,
        }
    }
    Dependencies::Whole
}
