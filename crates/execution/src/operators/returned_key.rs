//! The keys of an index as documents.

use banyan_document::key::{FieldOrder, FieldValue, KeyReader, Unreadable};
use banyan_document::{DocumentWriter, validate};
use banyan_query::QueryError;
use banyan_storage::{Index, KeyLayout};
use bson::spec::BinarySubtype;
use bson::{RawBinaryRef, RawBsonRef, RawDocument, RawDocumentBuf};

use super::key_document::{close, unreadable};

/// What `returnKey` shows of a key: its values under the paths of its fields, null for what is
/// missing, undefined for an empty array. A hashed field shows the hash, a string of a collation's
/// index the bytes that it is compared by.
#[derive(Clone)]
pub struct KeyFields {
    index: String,
    /// The field that every key begins with and that holds a path.
    prefix: Option<&'static str>,
    fields: Vec<(FieldOrder, String)>,
    is_collated: bool,
}

impl KeyFields {
    pub fn new(index: &Index, layout: &KeyLayout) -> KeyFields {
        let fields = layout.fields.iter();
        KeyFields {
            index: index.name.clone(),
            prefix: layout.prefix.as_ref().map(|known| known.field),
            fields: fields
                .map(|(path, order)| (*order, path.to_string()))
                .collect(),
            is_collated: index.pattern.collator.is_some(),
        }
    }

    pub fn read(&self, key: &[u8], types: &[u8]) -> Result<RawDocumentBuf, QueryError> {
        let shown = self.show(key, types);
        shown.map_err(|_| unreadable(&self.index))
    }

    fn show(&self, key: &[u8], types: &[u8]) -> Result<RawDocumentBuf, Unreadable> {
        let mut reader = KeyReader::new(key, types);
        let mut shown = DocumentWriter::with_capacity(64);
        let mut field = Vec::new();
        if let Some(name) = self.prefix {
            field.extend_from_slice(&[0; 4]);
            reader.read(FieldOrder::Ascending, name, &mut field)?;
            close(&mut field, 0);
            shown.append_all(RawDocument::from_bytes(&field).map_err(|_| Unreadable)?);
        }
        for (order, path) in &self.fields {
            field.clear();
            field.extend_from_slice(&[0; 4]);
            let start = reader.position();
            match reader.read(*order, path, &mut field)? {
                FieldValue::Missing { .. } => shown.append_null(path),
                FieldValue::EmptyArray => shown.append(path, RawBsonRef::Undefined),
                FieldValue::Present => {
                    close(&mut field, 0);
                    // The bytes that a collation compares by need be no text.
                    if self.is_collated && validate::validate(&field).is_err() {
                        let bytes = key.get(start..reader.position()).ok_or(Unreadable)?;
                        let subtype = BinarySubtype::Generic;
                        shown.append(path, RawBsonRef::Binary(RawBinaryRef { subtype, bytes }));
                        continue;
                    }
                    let field = RawDocument::from_bytes(&field).map_err(|_| Unreadable)?;
                    shown.append_all(field);
                }
            }
        }
        Ok(shown.finish())
    }
}
