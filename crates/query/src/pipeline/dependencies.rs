//! Which fields of its input a pipeline reads, so that the rest need not be carried along.

use std::collections::{BTreeSet, HashSet};

use banyan_document::DocumentWriter;
use banyan_document::element::elements;
use bson::{RawDocument, RawDocumentBuf};

use super::Member;
use super::stage::{Reads, top};

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

/// Leaves out of documents that are held back what nobody behind reads.
#[derive(Debug)]
pub(super) struct Pruner {
    /// The top-level fields that matter; `None`: all do.
    needed: Option<HashSet<Box<str>>>,
}

impl Pruner {
    pub fn new(needed: &Dependencies) -> Pruner {
        Pruner {
            needed: match needed {
                Dependencies::Whole => None,
                Dependencies::Paths(paths) => Some(paths.iter().map(|p| top(p).into()).collect()),
            },
        }
    }

    pub fn prune(&self, document: &RawDocument) -> RawDocumentBuf {
        let Some(needed) = &self.needed else {
            return document.to_owned();
        };
        let mut writer = DocumentWriter::new();
        for element in elements(document) {
            if needed.contains(element.name()) {
                writer.append_element(&element);
            }
        }
        writer.finish()
    }
}
