//! Which fields of its input a pipeline reads, so that the rest need not be carried along.

use std::collections::BTreeSet;

use banyan_document::DocumentWriter;
use banyan_document::element::elements;
use bson::RawDocument;

use crate::names::Named;

/// The fields of the input that matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dependencies {
    Whole,
    /// Dotted paths; everything below and above them may be looked at.
    Paths(BTreeSet<String>),
}

impl Dependencies {
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

/// The first part of a path.
pub fn top(path: &str) -> &str {
    path.split('.').next().unwrap_or(path)
}

/// The top-level fields that the stages behind one read.
#[derive(Clone, Debug)]
pub(super) enum Needed {
    All,
    Fields(Named<()>),
}

impl Needed {
    pub fn of(dependencies: &Dependencies) -> Needed {
        let Dependencies::Paths(paths) = dependencies else {
            return Needed::All;
        };
        let mut fields = Named::default();
        for path in paths {
            let name = top(path);
            if fields.place(name).is_none() {
                fields.push(name.into(), ());
            }
        }
        Needed::Fields(fields)
    }

    #[inline]
    pub fn includes(&self, name: &[u8]) -> bool {
        match self {
            Needed::All => true,
            Needed::Fields(fields) => fields.place_of(name).is_some(),
        }
    }
}

/// Leaves out of documents that are held back what nobody behind reads.
#[derive(Debug)]
pub(super) struct Pruner {
    needed: Needed,
}

impl Pruner {
    pub fn new(needed: &Dependencies) -> Pruner {
        Pruner {
            needed: Needed::of(needed),
        }
    }

    /// Appends what is left of a document.
    pub fn prune_into(&self, document: &RawDocument, out: &mut Vec<u8>) {
        if matches!(self.needed, Needed::All) {
            return out.extend_from_slice(document.as_bytes());
        }
        let mut writer = DocumentWriter::new();
        for element in elements(document) {
            if self.needed.includes(element.name_bytes()) {
                writer.append_element(&element);
            }
        }
        out.extend_from_slice(writer.finish().as_bytes());
    }
}
