//! Whether an index that is asked for is there already, or stands against one that is.

use std::collections::BTreeMap;

use banyan_document::{compare, compare_documents, field, is_true};
use banyan_query::Context;
use banyan_query::filter::Filter;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use super::clustered::EXPIRE;
use super::geo_indexes;
use crate::errors;

/// Whether a specification, as it is kept, is that of a text index.
pub fn is_text(spec: &RawDocument) -> bool {
    let key = spec.get_document("key");
    key.is_ok_and(|key| key.get_str(banyan_text::TERM_FIELD).is_ok())
}

/// One command asks for one index twice: that is two builds where there are documents to build them of.
pub fn identical(spec: &RawDocument, are_built: bool) -> CommandError {
    if are_built {
        return CommandError::new(
            ErrorCode::OperationFailed,
            "Cannot build two identical indexes. Try again without duplicate indexes.",
        );
    }
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

/// What is compared of two specifications that are not two indexes already, in any order of fields.
const OPTIONS: &[&str] = &[
    EXPIRE,
    "bits",
    geo_indexes::COARSEST,
    "default_language",
    geo_indexes::FINEST,
    "language_override",
    "max",
    "min",
    "storageEngine",
    "weights",
];

/// How two specifications are to each other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Likeness {
    /// Two indexes, which may stand side by side under different names.
    Different,
    /// One index, with different options.
    Equivalent,
    Identical,
}

impl Likeness {
    fn of(known: &RawDocument, spec: &RawDocument) -> Likeness {
        let is_same = |option: &str| match (field(known, option), field(spec, option)) {
            (Some(known), Some(asked)) => compare(known, asked).is_eq(),
            (None, None) => true,
            _ => false,
        };
        let is_set = |spec: &RawDocument, flag| spec.get_bool(flag).unwrap_or(false);
        let is_same_flag = |flag| is_set(known, flag) == is_set(spec, flag);
        let is_same_index = is_same("key")
            && is_same("collation")
            && ["unique", "sparse"].into_iter().all(is_same_flag)
            && is_same_filter(known, spec)
            && projected(known) == projected(spec);
        if !is_same_index {
            Likeness::Different
        } else if OPTIONS.iter().all(|option| is_same(option)) && is_same_flag("prepareUnique") {
            Likeness::Identical
        } else {
            Likeness::Equivalent
        }
    }
}

fn is_same_filter(known: &RawDocument, spec: &RawDocument) -> bool {
    match (filter_of(known), filter_of(spec)) {
        (Some(known), Some(asked)) => compare_documents(&known, &asked).is_eq(),
        (None, None) => true,
        _ => false,
    }
}

/// The filter of a partial index as one of those who mean the same writes it.
fn filter_of(spec: &RawDocument) -> Option<RawDocumentBuf> {
    let filter = spec.get_document("partialFilterExpression").ok()?;
    let parsed = Filter::parse(filter, &Context::default());
    Some(parsed.map_or_else(|_| filter.to_owned(), |parsed| parsed.to_document()))
}

/// The paths that an index over all fields is told to take or to leave out.
fn projected(spec: &RawDocument) -> Option<BTreeMap<String, bool>> {
    let mut paths = BTreeMap::new();
    collect(
        spec.get_document("wildcardProjection").ok()?,
        "",
        &mut paths,
    );
    Some(paths)
}

fn collect(projection: &RawDocument, above: &str, paths: &mut BTreeMap<String, bool>) {
    for (name, value) in projection.iter().flatten() {
        let path = format!("{above}{}", name.as_str());
        match value {
            RawBsonRef::Document(below) => collect(below, &format!("{path}."), paths),
            value => {
                paths.insert(path, is_true(value));
            }
        }
    }
}

/// Whether the same index is there already; another one of its name or pattern is an error. The one
/// of the same name is looked at first.
pub fn is_known<'a>(
    existing: impl Iterator<Item = &'a RawDocumentBuf>,
    spec: &RawDocument,
) -> Result<bool, CommandError> {
    let name = spec.get_str("name").unwrap_or("");
    let existing: Vec<&RawDocumentBuf> = existing.collect();
    let mut named = existing.iter();
    if let Some(known) = named.find(|known| known.get_str("name").is_ok_and(|known| known == name))
    {
        return match Likeness::of(known, spec) {
            Likeness::Identical => Ok(true),
            Likeness::Equivalent => Err(equivalent(
                "the same name but different options",
                spec,
                known,
            )),
            Likeness::Different => Err(other_of_name(spec, known)),
        };
    }
    for known in existing {
        match Likeness::of(known, spec) {
            Likeness::Identical => {
                return Err(CommandError::new(
                    ErrorCode::IndexOptionsConflict,
                    format!(
                        "Index already exists with a different name: {}",
                        known.get_str("name").unwrap_or("")
                    ),
                ));
            }
            Likeness::Equivalent => {
                return Err(equivalent("a different name and options", spec, known));
            }
            Likeness::Different => {}
        }
    }
    Ok(false)
}

fn other_of_name(spec: &RawDocument, known: &RawDocument) -> CommandError {
    CommandError::new(
        ErrorCode::IndexKeySpecsConflict,
        format!(
            "An existing index has the same name as the requested index. When index names are not \
             specified, they are auto generated and can cause conflicts. Please refer to our \
             documentation. Requested index: {}, existing index: {}",
            errors::shown(RawBsonRef::Document(spec)),
            errors::shown(RawBsonRef::Document(known))
        ),
    )
}
