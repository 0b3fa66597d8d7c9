//! How a collection and its counts lie in the meta keyspace.

use std::fmt::Display;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use bson::spec::BinarySubtype;
use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::{Collection, Counters, Namespace};
use crate::StorageError;
use crate::build::building::Building;
use crate::build::index_build::IndexBuild;
use crate::index::{Index, IndexDefinition};
use crate::keys::CollectionId;
use crate::kind::ArrayPaths;
use crate::record_id::RecordIdFormat;

pub(crate) fn encode(collection: &Collection) -> RawDocumentBuf {
    let builds = collection.builds.iter().map(|build| {
        rawdoc! {
            "id": uuid(&build.id),
            "duplicates": i64::from(build.building.duplicates),
            "committed": build.is_committed,
            "options": build.options.clone(),
            "indexes": encode_indexes(&build.indexes),
        }
    });
    let builds: RawArrayBuf = builds.collect();
    rawdoc! {
        "ns": collection.namespace.as_str(),
        "uuid": uuid(&collection.uuid),
        "options": collection.options.clone(),
        "indexes": encode_indexes(&collection.indexes),
        "builds": builds,
    }
}

fn uuid(bytes: &[u8; 16]) -> bson::Binary {
    bson::Binary {
        subtype: BinarySubtype::Uuid,
        bytes: bytes.to_vec(),
    }
}

fn encode_indexes(indexes: &[Arc<Index>]) -> RawArrayBuf {
    let entries = indexes.iter().map(|index| {
        let mut entry = rawdoc! {
            "id": i64::from(index.id),
            "spec": index.spec.clone(),
        };
        // Without it there may be arrays everywhere.
        if let Some(paths) = index.arrays().paths() {
            entry.append(cstr!("arrays"), paths.collect::<RawArrayBuf>());
        }
        entry
    });
    entries.collect()
}

pub(crate) fn decode(id: CollectionId, bytes: &[u8]) -> Result<Collection, StorageError> {
    let damaged = |reason: &dyn Display| {
        StorageError::damaged(format!("catalog entry of collection {id}"), reason)
    };
    let document = RawDocument::from_bytes(bytes).map_err(|error| damaged(&error))?;
    let name = document.get_str("ns").map_err(|error| damaged(&error))?;
    let namespace = Namespace::parse(name).ok_or_else(|| damaged(&"no dot in its name"))?;
    let options = document
        .get_document("options")
        .map_err(|error| damaged(&error))?;
    let mut collection = Collection {
        id,
        namespace,
        uuid: decode_uuid(document, "uuid", &damaged)?,
        collator: None,
        clustered_index: None,
        is_capped: false,
        options: RawDocumentBuf::new(),
        indexes: Vec::new(),
        builds: Vec::new(),
        counters: Arc::new(Counters::default()),
        from_options: OnceLock::new(),
    };
    collection.set_options(options)?;
    let record_ids = collection.record_ids();
    for entry in entries(document, "indexes", &damaged)? {
        let (definition, arrays) = decode_index(entry, &damaged)?;
        let index = Index::parse(&definition, arrays)?.of_records(record_ids);
        collection.indexes.push(Arc::new(index));
    }
    for entry in entries(document, "builds", &damaged)? {
        let build = decode_build(entry, record_ids, &damaged)?;
        collection.builds.push(Arc::new(build));
    }
    Ok(collection)
}

/// Makes an error of what is wrong with an entry.
type Damaged<'a> = &'a dyn Fn(&dyn Display) -> StorageError;

/// The documents in an array.
fn entries<'a>(
    document: &'a RawDocument,
    name: &str,
    damaged: Damaged<'_>,
) -> Result<Vec<&'a RawDocument>, StorageError> {
    let array = document.get_array(name).map_err(|error| damaged(&error))?;
    let entry = |element: Result<RawBsonRef<'a>, bson::error::Error>| match element {
        Ok(RawBsonRef::Document(entry)) => Ok(entry),
        Ok(_) => Err(damaged(&format!("{name} holds what is no document"))),
        Err(error) => Err(damaged(&error)),
    };
    array.into_iter().map(entry).collect()
}

fn decode_uuid(
    document: &RawDocument,
    name: &str,
    damaged: Damaged<'_>,
) -> Result<[u8; 16], StorageError> {
    let uuid = document.get_binary(name).map_err(|error| damaged(&error))?;
    uuid.bytes.try_into().map_err(|error| damaged(&error))
}

fn decode_id(
    document: &RawDocument,
    name: &str,
    damaged: Damaged<'_>,
) -> Result<u32, StorageError> {
    let id = document.get_i64(name).map_err(|error| damaged(&error))?;
    id.try_into().map_err(|error| damaged(&error))
}

fn decode_index(
    entry: &RawDocument,
    damaged: Damaged<'_>,
) -> Result<(IndexDefinition, ArrayPaths), StorageError> {
    let spec = entry
        .get_document("spec")
        .map_err(|error| damaged(&error))?;
    let definition = IndexDefinition {
        id: decode_id(entry, "id", damaged)?,
        spec: spec.to_owned(),
    };
    let arrays = match entry.get("arrays").map_err(|error| damaged(&error))? {
        None => ArrayPaths::everywhere(),
        Some(RawBsonRef::Array(paths)) => {
            let path = |path: Result<RawBsonRef<'_>, bson::error::Error>| match path {
                Ok(RawBsonRef::String(path)) => Ok(Box::from(path)),
                Ok(_) => Err(damaged(&"a path that is no string")),
                Err(error) => Err(damaged(&error)),
            };
            ArrayPaths::of(&paths.into_iter().map(path).collect::<Result<_, _>>()?)
        }
        Some(_) => return Err(damaged(&"arrays that are no list")),
    };
    Ok((definition, arrays))
}

fn decode_build(
    entry: &RawDocument,
    record_ids: RecordIdFormat,
    damaged: Damaged<'_>,
) -> Result<IndexBuild, StorageError> {
    let building = Arc::new(Building::resumed(decode_id(entry, "duplicates", damaged)?));
    let mut indexes = Vec::new();
    for index in entries(entry, "indexes", damaged)? {
        let (definition, arrays) = decode_index(index, damaged)?;
        let index = Index::parse(&definition, arrays)?.of_records(record_ids);
        indexes.push(Arc::new(index.under(&building)));
    }
    let options = entry
        .get_document("options")
        .map_err(|error| damaged(&error))?;
    Ok(IndexBuild {
        id: decode_uuid(entry, "id", damaged)?,
        indexes,
        options: options.to_owned(),
        is_committed: entry
            .get_bool("committed")
            .map_err(|error| damaged(&error))?,
        building,
    })
}

/// Documents, bytes, then the key bytes of each index by id.
pub(crate) fn encode_counts(collection: &Collection) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16 + 12 * collection.indexes.len());
    let counters = &collection.counters;
    bytes.extend_from_slice(&counters.documents.load(Ordering::Relaxed).to_be_bytes());
    bytes.extend_from_slice(&counters.bytes.load(Ordering::Relaxed).to_be_bytes());
    for index in collection
        .indexes
        .iter()
        .chain(collection.building_indexes())
    {
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
        if let Some(index) = collection.written_by_id(u32::from_be_bytes(*id)) {
            index
                .key_bytes
                .store(i64::from_be_bytes(*keys), Ordering::Relaxed);
        }
        rest = after;
    }
    Ok(())
}
