//! Unique indexes: no two records have one key.

use banyan_storage::{Collection, Index, Snapshot};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawDocument, rawdoc};

use super::unit::WriteUnit;
use crate::errors;

/// Refuses keys that another record holds. They are latched.
pub fn check_unique(
    unit: &WriteUnit,
    collection: &Collection,
    index: &Index,
    snapshot: &Snapshot,
    document: &RawDocument,
    keys: &[Vec<u8>],
    own_record: Option<u64>,
) -> Result<(), CommandError> {
    for key in keys {
        unit.check_key(index, key)?;
        let holder = snapshot
            .unique_lookup(index, key)
            .map_err(errors::storage)?;
        if holder.is_some() && holder != own_record {
            return Err(duplicate(collection, index, document, key));
        }
    }
    Ok(())
}

/// MongoDB's error 11000.
pub fn duplicate(
    collection: &Collection,
    index: &Index,
    document: &RawDocument,
    key: &[u8],
) -> CommandError {
    let value = index
        .kind
        .value_of_key(document, key)
        .unwrap_or_else(|| index.pattern.key_value(document));
    let pattern = index
        .spec
        .get_document("key")
        .map(RawDocument::to_owned)
        .unwrap_or_default();
    let shown: Vec<String> = value
        .iter()
        .flatten()
        .map(|(name, value)| format!("{}: {}", name.as_str(), errors::shown(value)))
        .collect();
    CommandError::new(
        ErrorCode::DuplicateKey,
        format!(
            "E11000 duplicate key error collection: {} index: {} dup key: {{ {} }}",
            collection.namespace,
            index.name,
            shown.join(", ")
        ),
    )
    .with_extra(rawdoc! { "keyPattern": pattern, "keyValue": value })
}
