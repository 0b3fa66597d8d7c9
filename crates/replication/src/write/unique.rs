//! Unique indexes: no two records have one key. Those that are prepared to become unique may have
//! such records from before, and are given no more of them.

use banyan_document::Collator;
use banyan_document::key::Key;
use banyan_storage::{Collection, Index, RecordId, Snapshot};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::unit::WriteUnit;
use crate::errors;

/// Refuses keys that another record holds. They are latched.
pub fn check_unique(
    unit: &WriteUnit,
    collection: &Collection,
    index: &Index,
    snapshot: &Snapshot,
    document: &RawDocument,
    keys: &[Key],
    own_record: Option<&RecordId>,
) -> Result<(), CommandError> {
    for key in keys {
        unit.check_key(index, key)?;
        // Two, as one of them may be the record itself.
        let holders = snapshot.key_holders(index, key, 2);
        let mut holders = holders.map_err(errors::storage)?.into_iter();
        if holders.any(|holder| Some(&holder) != own_record) {
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
    let mut extra = RawDocumentBuf::new();
    let (value, collation) = match &index.pattern.collator {
        None => (value, String::new()),
        Some(collator) if index.is_clustered() => (as_sort_keys(&value, collator), String::new()),
        Some(collator) => {
            let (value, encoded) = in_hexadecimal(&value, collator);
            let mut flags = encoded.into_iter().flatten();
            if flags.any(|flag| flag == RawBsonRef::Boolean(true)) {
                extra.append(cstr!("hexEncoded"), encoded);
            }
            let collation = collator.collation().to_document();
            let shown = errors::shown(RawBsonRef::Document(&collation));
            extra.append(cstr!("collation"), collation);
            (value, format!(" collation: {shown}"))
        }
    };
    let pattern = index
        .spec
        .get_document("key")
        .map(RawDocument::to_owned)
        .unwrap_or_default();
    let encoded = extra.get_array("hexEncoded").ok();
    let is_encoded = |at| {
        let mut flags = encoded.into_iter().flatten().flatten();
        flags.nth(at) == Some(RawBsonRef::Boolean(true))
    };
    let shown: Vec<String> = value
        .iter()
        .flatten()
        .enumerate()
        .map(|(at, (name, value))| match (value, is_encoded(at)) {
            (RawBsonRef::String(value), true) => format!("{}: \"0x{value}\"", name.as_str()),
            _ => format!("{}: {}", name.as_str(), errors::shown(value)),
        })
        .collect();
    // MongoDB takes the record, not an index, for what is there twice.
    let index = match index.is_clustered() {
        true => String::new(),
        false => format!(" index: {}", index.name),
    };
    CommandError::new(
        ErrorCode::DuplicateKey,
        format!(
            "E11000 duplicate key error collection: {}{index}{collation} dup key: {{ {} }}",
            collection.namespace,
            shown.join(", ")
        ),
    )
    .with_extra({
        let mut all = rawdoc! { "keyPattern": pattern, "keyValue": value };
        for (name, value) in extra.iter().flatten() {
            all.append(name, value);
        }
        all
    })
}

/// The strings of a collated key as what sorts them.
fn as_sort_keys(values: &RawDocument, collator: &Collator) -> RawDocumentBuf {
    let mut shown = RawDocumentBuf::new();
    for (name, value) in values.iter().flatten() {
        match value {
            RawBsonRef::String(text) | RawBsonRef::Symbol(text) => {
                shown.append(name, collator.key_string(text));
            }
            other => shown.append(name, other),
        }
    }
    shown
}

/// The strings of a collated index as their sort keys, and which fields are such strings.
fn in_hexadecimal(values: &RawDocument, collator: &Collator) -> (RawDocumentBuf, RawArrayBuf) {
    let (mut shown, mut encoded) = (RawDocumentBuf::new(), RawArrayBuf::new());
    for (name, value) in values.iter().flatten() {
        match value {
            RawBsonRef::String(text) | RawBsonRef::Symbol(text) => {
                let bytes = collator.key_string(text);
                let hexadecimal: String = bytes
                    .chars()
                    .map(|byte| format!("{:02x}", u32::from(byte)))
                    .collect();
                shown.append(name, hexadecimal);
                encoded.push(true);
            }
            other => {
                shown.append(name, other);
                encoded.push(false);
            }
        }
    }
    (shown, encoded)
}
