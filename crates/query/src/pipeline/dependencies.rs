//! Which fields of its input a pipeline reads, so that the rest need not be carried along.

use std::collections::BTreeSet;

use super::Member;
use super::stage::Reads;

/// The fields of the input that matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dependencies {
    Whole,
    /// Dotted paths; everything below and above them may be looked at.
    Paths(BTreeSet<String>),
}

impl Dependencies {
    pub(super) fn of(members: &[Member]) -> Dependencies {
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

    /// Whether the top-level field `name` matters.
    pub fn needs(&self, name: &str) -> bool {
        match self {
            Dependencies::Whole => true,
            Dependencies::Paths(paths) => paths
                .iter()
                .any(|path| path.split('.').next() == Some(name)),
        }
    }
}
