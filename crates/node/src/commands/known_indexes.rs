//! Whether an index that is asked for is there already, or stands against one that is.

use banyan_document::compare_documents;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use super::clustered::EXPIRE;
use super::index_key::check_pattern;
use crate::errors;

/// Whether a specification, as it is kept, is that of a text index.
pub fn is_text(spec: &RawDocument) -> bool {
    let key = spec.get_document("key");
    key.is_ok_and(|key| key.get_str(banyan_text::TERM_FIELD).is_ok())
}

/// One command asks for one index twice.
pub fn identical(spec: &RawDocument) -> CommandError {
    let name = spec.get_str("name").unwrap_or_default();
    CommandError::new(
        ErrorCode::IndexAlreadyExists,
        format!("Identical index already exists: {name}"),
    )
}

fn equivalent(name: &str, spec: &RawDocument, known: &RawDocument) -> CommandError {
    CommandError::new(
        ErrorCode::IndexOptionsConflict,
        format!(
            "An equivalent index already exists with {name}. Requested index: {}, existing index: \
             {}",
            errors::shown(RawBsonRef::Document(spec)),
            errors::shown(RawBsonRef::Document(known))
        ),
    )
}

/// Whether the same index is there already; another one of its name or pattern is an error.
pub fn is_known<'a>(
    existing: impl Iterator<Item = &'a RawDocumentBuf>,
    spec: &RawDocument,
) -> Result<bool, CommandError> {
    let name = spec.get_str("name").unwrap_or("");
    let key = spec.get_document("key");
    let key =
        key.map_err(|error| CommandError::new(ErrorCode::InternalError, error.to_string()))?;
    let pattern = check_pattern(key)?;
    for known in existing {
        let known_key = known.get_document("key").ok();
        let same_key = known_key.is_some_and(|known| compare_documents(known, key).is_eq());
        let same =
            |option: &&str| known.get(option).ok().flatten() == spec.get(option).ok().flatten();
        // Indexes of one pattern with different collations are different indexes.
        let same_pattern = same_key && same(&"collation");
        let same_name = known.get_str("name").is_ok_and(|known| known == name);
        let is_set = |spec: &RawDocument, flag| spec.get_bool(flag).unwrap_or(false);
        let same_flag = |flag| is_set(known, flag) == is_set(spec, flag);
        let same_options = [
            "partialFilterExpression",
            "wildcardProjection",
            "2dsphereIndexVersion",
            "bits",
            "min",
            "max",
            "weights",
            "default_language",
            "language_override",
            "textIndexVersion",
        ]
        .iter()
        .all(same)
            && ["unique", "sparse"].into_iter().all(same_flag);
        match (same_name, same_pattern) {
            (_, true) if same_options && !(same(&EXPIRE) && same_flag("prepareUnique")) => {
                let name = match same_name {
                    true => "the same name but different options",
                    false => "a different name and options",
                };
                return Err(equivalent(name, spec, known));
            }
            (true, true) if same_options => return Ok(true),
            (_, true) if !same_options && (is_text(known) || pattern.has_plane_field()) => {
                let name = match same_name {
                    true => "the same name but different options",
                    false => "a different name and options",
                };
                return Err(equivalent(name, spec, known));
            }
            (true, _) => {
                return Err(CommandError::new(
                    ErrorCode::IndexKeySpecsConflict,
                    format!(
                        "An existing index has the same name as the requested index. When index \
                         names are not specified, they are auto generated and can cause conflicts. \
                         Please refer to our documentation. Requested index: {}, existing index: {}",
                        errors::shown(RawBsonRef::Document(spec)),
                        errors::shown(RawBsonRef::Document(known))
                    ),
                ));
            }
            (false, true) if same_options => {
                return Err(CommandError::new(
                    ErrorCode::IndexOptionsConflict,
                    format!(
                        "Index already exists with a different name: {}",
                        known.get_str("name").unwrap_or("")
                    ),
                ));
            }
            _ => {}
        }
    }
    Ok(false)
}
