//! What queries are told apart by: their shape, who sends them, and how they ask to be answered.

use banyan_document::DocumentWriter;
use banyan_document::element::elements;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};
use sha2::{Digest, Sha256};

use crate::shape::{QueryShape, hint, literal, other_collections};

/// What is known of a query beside its command.
pub struct Asked<'a> {
    pub database: &'a str,
    pub body: &'a RawDocument,
    /// What the client's driver says of itself.
    pub client: Option<&'a RawDocument>,
    /// `collection`, `view`, ….
    pub collection_type: &'a str,
}

/// The key of one query, with clients' names marked.
#[derive(Debug, Clone)]
pub struct Key {
    pub(super) document: RawDocumentBuf,
    pub(super) hash: [u8; 32],
    pub(super) shape_hash: String,
}

/// Options that are shown as they were sent: they are the server's words.
const SHOWN: [&str; 9] = [
    "readConcern",
    "$readPreference",
    "apiVersion",
    "apiStrict",
    "apiDeprecationErrors",
    "allowPartialResults",
    "noCursorTimeout",
    "readOnce",
    "bypassDocumentValidation",
];

/// Options of which it only counts that they are there.
const TYPED: [&str; 3] = ["comment", "maxTimeMS", "batchSize"];

impl Key {
    pub fn new(shape: &QueryShape, asked: &Asked<'_>) -> Key {
        let mut out = DocumentWriter::new();
        out.append_doc("queryShape", shape.document());
        if let Some(client) = asked.client {
            out.append_doc("client", client);
        }
        for element in elements(asked.body).skip(1) {
            let (name, value) = (element.name(), element.value());
            match (name, value) {
                ("$readPreference", value) => out.append("readPreference", value),
                ("readConcern", RawBsonRef::Document(concern)) => {
                    out.append_doc(name, &without_times(concern));
                }
                (name, value) if SHOWN.contains(&name) => out.append(name, value),
                (name, value) if TYPED.contains(&name) => out.append_str(name, &literal(value)),
                ("hint", value) => out.append(name, hint(value).as_raw_bson_ref()),
                ("cursor", RawBsonRef::Document(cursor)) => {
                    if let Some(size) = banyan_document::field(cursor, "batchSize") {
                        out.begin_document(name);
                        out.append_str("batchSize", &literal(size));
                        out.end();
                    }
                }
                _ => {}
            }
        }
        let others = other_collections(asked.database, asked.body);
        if !others.is_empty() {
            out.begin_array("otherNss");
            for other in &others {
                out.push(RawBsonRef::Document(other));
            }
            out.end();
        }
        out.append_str("collectionType", asked.collection_type);
        let document = out.finish();
        let hash = Sha256::digest(document.as_bytes()).into();
        let shape_hash = shape.to_string();
        Key {
            document,
            hash,
            shape_hash,
        }
    }

    /// About how much memory it takes.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Key>() + self.document.as_bytes().len() + self.shape_hash.len()
    }
}

/// A time is another one each time.
fn without_times(concern: &RawDocument) -> RawDocumentBuf {
    let mut out = DocumentWriter::new();
    for element in elements(concern) {
        match element.value() {
            RawBsonRef::Timestamp(_) => out.append_str(element.name(), "?timestamp"),
            value => out.append(element.name(), value),
        }
    }
    out.finish()
}
