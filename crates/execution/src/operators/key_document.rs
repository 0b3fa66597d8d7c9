//! The parts of documents that the keys of an index hold.

use std::collections::BTreeSet;
use std::ops::Range;

use banyan_document::key::{FieldOrder, FieldValue, KeyReader, Unreadable};
use banyan_query::QueryError;
use banyan_storage::StorageError;
use banyan_storage::kind::KeyPrefix;
use bson::spec::ElementType;
use bson::{RawBsonRef, RawDocument};

use crate::error;
use crate::plan::IndexBounds;

/// Makes a document of each key: with the fields that are wanted, in the key's order, where the
/// document that the key is of has them.
#[derive(Clone)]
pub struct KeyDocument {
    index: String,
    /// Bytes before the first field.
    prefix: usize,
    /// As far as any is wanted: the order, and the last part of the path of one that is wanted.
    fields: Vec<(FieldOrder, Option<String>)>,
    /// Of paths with several parts: how the fields lie in the document.
    tree: Option<Vec<FieldTree>>,
    /// Of each field: its element, and through how many documents its path leads.
    found: Vec<(Range<usize>, usize)>,
    elements: Vec<u8>,
    /// The last document.
    bytes: Vec<u8>,
}

#[derive(Clone)]
enum FieldTree {
    Field(usize),
    Inner {
        name: String,
        children: Vec<FieldTree>,
    },
}

impl KeyDocument {
    /// All of the paths can be read from the keys.
    pub fn new(bounds: &IndexBounds, paths: &BTreeSet<String>) -> KeyDocument {
        let wanted: BTreeSet<usize> = paths.iter().filter_map(|p| bounds.field_at(p)).collect();
        let layout = &bounds.layout;
        let end = wanted.last().map_or(0, |last| last + 1);
        let fields = layout.fields[..end].iter().enumerate();
        let fields = fields.map(|(number, (path, order))| {
            let name = path.parts().last().filter(|_| wanted.contains(&number));
            (*order, name.map(|name| name.to_string()))
        });
        let mut tree = Vec::new();
        for number in &wanted {
            let parts = layout.fields[*number].0.parts();
            insert(&mut tree, &parts[..parts.len() - 1], *number);
        }
        let is_flat = tree.iter().all(|node| matches!(node, FieldTree::Field(_)));
        let mut prefix = Vec::new();
        // Where keys begin with different paths no field is read.
        if let Some(path) = layout.prefix.as_ref().and_then(KeyPrefix::only) {
            banyan_document::key::encode(RawBsonRef::String(path), &mut prefix);
        }
        KeyDocument {
            index: bounds.index.name.clone(),
            prefix: prefix.len(),
            fields: fields.collect(),
            tree: (!is_flat).then_some(tree),
            found: Vec::new(),
            elements: Vec::new(),
            bytes: Vec::new(),
        }
    }

    pub fn read(&mut self, key: &[u8], types: &[u8]) -> Result<&RawDocument, QueryError> {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        bytes.extend_from_slice(&[0; 4]);
        let read = match self.tree.is_some() {
            false => self.read_flat(key, types, &mut bytes),
            true => self.read_nested(key, types, &mut bytes),
        };
        close(&mut bytes, 0);
        self.bytes = bytes;
        let document = read
            .ok()
            .and_then(|()| RawDocument::from_bytes(&self.bytes).ok());
        document.ok_or_else(|| unreadable(&self.index))
    }

    fn read_flat(&self, key: &[u8], types: &[u8], out: &mut Vec<u8>) -> Result<(), Unreadable> {
        let mut reader = KeyReader::new(key, types);
        reader.skip_bytes(self.prefix);
        for (order, name) in &self.fields {
            let Some(name) = name else {
                reader.skip(*order)?;
                continue;
            };
            if reader.read(*order, name, out)? == FieldValue::EmptyArray {
                return Err(Unreadable);
            }
        }
        Ok(())
    }

    fn read_nested(
        &mut self,
        key: &[u8],
        types: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Unreadable> {
        let mut reader = KeyReader::new(key, types);
        reader.skip_bytes(self.prefix);
        self.elements.clear();
        self.found.clear();
        for (order, name) in &self.fields {
            let start = self.elements.len();
            let documents = match name {
                None => {
                    reader.skip(*order)?;
                    0
                }
                Some(name) => match reader.read(*order, name, &mut self.elements)? {
                    FieldValue::Present => usize::MAX,
                    FieldValue::Missing { documents } => documents,
                    FieldValue::EmptyArray => return Err(Unreadable),
                },
            };
            self.found.push((start..self.elements.len(), documents));
        }
        for node in self.tree.iter().flatten() {
            self.write(node, 1, out);
        }
        Ok(())
    }

    fn write(&self, node: &FieldTree, depth: usize, out: &mut Vec<u8>) {
        match node {
            FieldTree::Field(number) => {
                let (element, _) = &self.found[*number];
                out.extend_from_slice(&self.elements[element.clone()]);
            }
            FieldTree::Inner { name, children } => {
                if !children.iter().any(|child| self.is_document(child, depth)) {
                    return;
                }
                out.push(ElementType::EmbeddedDocument as u8);
                out.extend_from_slice(name.as_bytes());
                out.push(0);
                let start = out.len();
                out.extend_from_slice(&[0; 4]);
                for child in children {
                    self.write(child, depth + 1, out);
                }
                close(out, start);
            }
        }
    }

    /// Whether the path to a field leads through so many documents.
    fn is_document(&self, node: &FieldTree, depth: usize) -> bool {
        match node {
            FieldTree::Field(number) => self.found[*number].1 >= depth,
            FieldTree::Inner { children, .. } => {
                children.iter().any(|child| self.is_document(child, depth))
            }
        }
    }
}

fn insert(tree: &mut Vec<FieldTree>, above: &[Box<str>], number: usize) {
    let Some((first, rest)) = above.split_first() else {
        return tree.push(FieldTree::Field(number));
    };
    let known = tree.iter().position(|node| match node {
        FieldTree::Inner { name, .. } => **name == **first,
        FieldTree::Field(_) => false,
    });
    let at = known.unwrap_or_else(|| {
        tree.push(FieldTree::Inner {
            name: first.to_string(),
            children: Vec::new(),
        });
        tree.len() - 1
    });
    if let FieldTree::Inner { children, .. } = &mut tree[at] {
        insert(children, rest, number);
    }
}

/// Ends a document that begins with the place for its length.
pub(super) fn close(bytes: &mut Vec<u8>, start: usize) {
    bytes.push(0);
    let length = (bytes.len() - start) as u32;
    bytes[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// A key that cannot be read: the index lies.
pub(super) fn unreadable(index: &str) -> QueryError {
    error::storage(StorageError::Damaged {
        place: format!("index {index}"),
        reason: Unreadable.to_string(),
    })
}
