//! How a collection and its counts lie in the meta keyspace.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bson::spec::BinarySubtype;
use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use super::{Collection, Counters, Index, IndexDefinition, Namespace};
use crate::StorageError;
use crate::keys::CollectionId;

pub(crate) fn encode(collection: &Collection) -> RawDocumentBuf {
    let mut indexes = RawArrayBuf::new();
    for index in &collection.indexes {
        indexes.push(rawdoc! {
            "id": i64::from(index.id),
            "multikey": index.is_multikey(),
            "spec": index.spec.clone(),
        });
    }
    rawdoc! {
        "ns": collection.namespace.as_str(),
        "uuid": bson::Binary { subtype: BinarySubtype::Uuid, bytes: collection.uuid.to_vec() },
        "options": collection.options.clone(),
        "indexes": indexes,
    }
}

pub(crate) fn decode(id: CollectionId, bytes: &[u8]) -> Result<Collection, StorageError> {
    let damaged = |reason: &dyn std::fmt::Display| {
        StorageError::damaged(format!("catalog entry of collection {id}"), reason)
    };
    let document = RawDocument::from_bytes(bytes).map_err(|error| damaged(&error))?;
    let name = document.get_str("ns").map_err(|error| damaged(&error))?;
    let namespace = Namespace::parse(name).ok_or_else(|| damaged(&"no dot in its name"))?;
    let uuid = document
        .get_binary("uuid")
        .map_err(|error| damaged(&error))?;
    let uuid = uuid.bytes.try_into().map_err(|error| damaged(&error))?;
    let options = document
        .get_document("options")
        .map_err(|error| damaged(&error))?
        .to_owned();
    let mut indexes = Vec::new();
    for element in document
        .get_array("indexes")
        .map_err(|error| damaged(&error))?
    {
        let RawBsonRef::Document(entry) = element.map_err(|error| damaged(&error))? else {
            return Err(damaged(&"an index that is no document"));
        };
        let id = entry.get_i64("id").map_err(|error| damaged(&error))?;
        let id = id.try_into().map_err(|error| damaged(&error))?;
        let multikey = entry
            .get_bool("multikey")
            .map_err(|error| damaged(&error))?;
        let spec = entry
            .get_document("spec")
            .map_err(|error| damaged(&error))?
            .to_owned();
        let index = Index::parse(&IndexDefinition { id, spec }, multikey)?;
        indexes.push(Arc::new(index));
    }
    let counters = Arc::new(Counters::default());
    Ok(Collection {
        id,
        namespace,
        uuid,
        options,
        indexes,
        counters,
    })
}

/// Documents, bytes, then the key bytes of each index by id.
pub(crate) fn encode_counts(collection: &Collection) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16 + 12 * collection.indexes.len());
    let counters = &collection.counters;
    bytes.extend_from_slice(&counters.documents.load(Ordering::Relaxed).to_be_bytes());
    bytes.extend_from_slice(&counters.bytes.load(Ordering::Relaxed).to_be_bytes());
    for index in &collection.indexes {
        bytes.extend_from_slice(&index.id.to_be_bytes());
        bytes.extend_from_slice(&index.key_bytes.load(Ordering::Relaxed).to_be_bytes());
    }
    bytes
}

pub(crate) fn decode_counts(collection: &Collection, bytes: &[u8]) -> Result<(), StorageError> {
    let damaged = || {
        let place = format!("counts of collection {}", collection.id);
        StorageError::damaged(place, "unexpected length")
    };
    let (documents, rest) = bytes.split_first_chunk::<8>().ok_or_else(damaged)?;
    let (data, mut rest) = rest.split_first_chunk::<8>().ok_or_else(damaged)?;
    let counters = &collection.counters;
    counters
        .documents
        .store(i64::from_be_bytes(*documents), Ordering::Relaxed);
    counters
        .bytes
        .store(i64::from_be_bytes(*data), Ordering::Relaxed);
    while !rest.is_empty() {
        let (id, after_id) = rest.split_first_chunk::<4>().ok_or_else(damaged)?;
        let (keys, after) = after_id.split_first_chunk::<8>().ok_or_else(damaged)?;
        if let Some(index) = collection.index_by_id(u32::from_be_bytes(*id)) {
            index
                .key_bytes
                .store(i64::from_be_bytes(*keys), Ordering::Relaxed);
        }
        rest = after;
    }
    Ok(())
}
