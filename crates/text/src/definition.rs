//! The options of a text index: what may be asked for, and what is kept and shown of it.

use std::collections::BTreeMap;

use bson::raw::CString;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr};

use crate::{Language, PLUGIN, TERM_FIELD, TextError, Version, WEIGHT_FIELD};

/// The name that stands for all fields.
pub(crate) const WILDCARD: &str = "$**";
/// Weights are below it.
const WEIGHT_END: i32 = 100_000;
const DEFAULT_LANGUAGE: &str = "english";
const DEFAULT_OVERRIDE: &str = "language";

/// A text index as it is kept: what `createIndexes` was asked for, completed.
#[derive(Debug, Clone, PartialEq)]
pub struct Definition {
    /// `{_fts: "text", _ftsx: 1}`, between the fields that come before and behind.
    pub key: RawDocumentBuf,
    pub weights: RawDocumentBuf,
    pub default_language: String,
    pub language_override: String,
    pub version: i32,
}

impl Definition {
    /// Appends the options that only text indexes have.
    pub fn append_options(&self, spec: &mut RawDocumentBuf) {
        spec.append(cstr!("weights"), self.weights.clone());
        spec.append(cstr!("default_language"), self.default_language.as_str());
        spec.append(cstr!("language_override"), self.language_override.as_str());
        spec.append(cstr!("textIndexVersion"), self.version);
    }
}

fn refuse<T>(why: impl Into<String>) -> Result<T, TextError> {
    Err(TextError::Definition(why.into()))
}

fn is_text(value: RawBsonRef<'_>) -> bool {
    matches!(value, RawBsonRef::String(_))
}

/// Completes the specification of a text index that a client gave, or one that is complete.
pub fn complete(spec: &RawDocument) -> Result<Definition, TextError> {
    let version = version(spec)?;
    let Ok(given) = spec.get_document("key") else {
        return refuse("text index option 'weights' must specify fields");
    };
    let (key, mut weights) = key(given)?;
    check_order(given)?;
    let named = option(spec, "weights");
    match named {
        None => {}
        Some(RawBsonRef::Document(named)) => {
            for (name, weight) in named.iter().flatten() {
                let Some(weight) = integer(weight) else {
                    return refuse("weight for text index needs numeric type");
                };
                weights.insert(name.as_str().to_owned(), weight);
            }
        }
        Some(RawBsonRef::String(WILDCARD)) => {
            weights.insert(WILDCARD.to_owned(), 1);
        }
        Some(_) => return refuse("text index option 'weights' must be an object"),
    }
    if weights.is_empty() {
        return refuse("text index option 'weights' must specify fields or the wildcard");
    }
    Ok(Definition {
        key,
        weights: checked_weights(weights)?,
        default_language: default_language(spec, version)?,
        language_override: language_override(spec)?,
        version: version.number(),
    })
}

/// The key pattern as it is kept, and the weights that it names.
fn key(given: &RawDocument) -> Result<(RawDocumentBuf, BTreeMap<String, i32>), TextError> {
    let mut weights = BTreeMap::new();
    let mut key = RawDocumentBuf::new();
    let mut has_text = false;
    for (name, value) in given.iter().flatten() {
        match (name.as_str(), value) {
            (TERM_FIELD, RawBsonRef::String(PLUGIN)) => {
                has_text = true;
                key.append(name, value);
            }
            (TERM_FIELD, _) => return refuse("expecting _fts:\"text\""),
            (WEIGHT_FIELD, value) if integer(value) == Some(1) => key.append(name, value),
            (WEIGHT_FIELD, _) => return refuse("expecting _ftsx:1"),
            (field, RawBsonRef::String(PLUGIN)) => {
                if !has_text {
                    key.append(cstr!("_fts"), PLUGIN);
                    key.append(cstr!("_ftsx"), 1);
                    has_text = true;
                }
                weights.insert(field.to_owned(), 1);
            }
            (_, value) if matches!(integer(value), Some(1 | -1)) => key.append(name, value),
            _ => return refuse("expected value 1 or -1 for non-text key in compound index"),
        }
    }
    Ok((key, weights))
}

/// The text fields stand side by side.
fn check_order(given: &RawDocument) -> Result<(), TextError> {
    let is_reserved = |name: &str| matches!(name, TERM_FIELD | WEIGHT_FIELD);
    let reserved = "text index with reserved fields _fts/_ftsx not allowed";
    let mut fields = given.iter().flatten().peekable();
    while let Some((name, _)) = fields.next_if(|(_, value)| !is_text(*value)) {
        if is_reserved(name.as_str()) {
            return refuse(reserved);
        }
    }
    if fields
        .next_if(|(name, _)| name.as_str() == TERM_FIELD)
        .is_some()
    {
        let next = fields.next_if(|(name, _)| name.as_str() == WEIGHT_FIELD);
        if next.is_none() {
            return refuse("expected _ftsx after _fts");
        }
    } else {
        while let Some((name, _)) = fields.next_if(|(_, value)| is_text(*value)) {
            if is_reserved(name.as_str()) {
                return refuse(reserved);
            }
        }
    }
    for (name, value) in fields {
        if is_text(value) {
            return refuse("'text' fields in index must all be adjacent");
        }
        if is_reserved(name.as_str()) {
            return refuse(reserved);
        }
    }
    Ok(())
}

fn checked_weights(weights: BTreeMap<String, i32>) -> Result<RawDocumentBuf, TextError> {
    let mut checked = RawDocumentBuf::new();
    for (name, weight) in weights {
        if weight <= 0 || weight >= WEIGHT_END {
            return refuse(format!(
                "text index weight must be in the exclusive interval (0,{WEIGHT_END}) but found: \
                 {weight}"
            ));
        }
        if name != WILDCARD {
            if name.is_empty() {
                return refuse("weight cannot be on an empty field");
            }
            for part in name.split('.') {
                if part.is_empty() {
                    return refuse("weight cannot have empty path component");
                }
                if part.starts_with('$') {
                    return refuse("weight cannot have path component with $ prefix");
                }
            }
        }
        if let Ok(name) = CString::try_from(name) {
            checked.append(name, weight);
        }
    }
    Ok(checked)
}

fn default_language(spec: &RawDocument, version: Version) -> Result<String, TextError> {
    let language = match option(spec, "default_language") {
        None => DEFAULT_LANGUAGE,
        Some(RawBsonRef::String(language)) => language,
        Some(_) => return refuse("default_language needs a string type"),
    };
    // The first version's names are not checked by those of later ones.
    if version != Version::One && Language::named(language, version).is_err() {
        return refuse("default_language is not valid");
    }
    Ok(language.to_owned())
}

fn language_override(spec: &RawDocument) -> Result<String, TextError> {
    match option(spec, "language_override") {
        None => Ok(DEFAULT_OVERRIDE.to_owned()),
        Some(RawBsonRef::String(name))
            if !name.is_empty() && !name.starts_with('$') && !name.contains('.') =>
        {
            Ok(name.to_owned())
        }
        Some(_) => refuse("language_override is not valid"),
    }
}

fn version(spec: &RawDocument) -> Result<Version, TextError> {
    let Some(given) = option(spec, "textIndexVersion") else {
        return Ok(Version::Three);
    };
    let Some(number) = integer(given) else {
        return refuse("text index option 'textIndexVersion' must be a number");
    };
    match Version::of(i64::from(number)) {
        Some(version) => Ok(version),
        None => refuse(format!("bad textIndexVersion: {number}")),
    }
}

fn option<'a>(spec: &'a RawDocument, name: &str) -> Option<RawBsonRef<'a>> {
    spec.get(name).ok().flatten()
}

/// A number, towards zero.
fn integer(value: RawBsonRef<'_>) -> Option<i32> {
    match value {
        RawBsonRef::Int32(number) => Some(number),
        RawBsonRef::Int64(number) => Some(number.clamp(i32::MIN.into(), i32::MAX.into()) as i32),
        RawBsonRef::Double(number) => Some(number as i32),
        RawBsonRef::Decimal128(number) => {
            let number: f64 = number.to_string().parse().ok()?;
            Some(number.round_ties_even() as i32)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;

    #[test]
    fn what_is_not_said_is_completed() {
        let spec = rawdoc! { "key": { "x": 1, "b": "text", "a.c": "text", "y": -1 } };
        let definition = complete(&spec).unwrap();
        let key = rawdoc! { "x": 1, "_fts": "text", "_ftsx": 1, "y": -1 };
        assert_eq!(definition.key, key);
        assert_eq!(definition.weights, rawdoc! { "a.c": 1, "b": 1 });
        assert_eq!(definition.default_language, "english");
        assert_eq!(definition.language_override, "language");
        assert_eq!(definition.version, 3);
        let mut kept = rawdoc! { "key": definition.key.clone() };
        definition.append_options(&mut kept);
        assert_eq!(complete(&kept).unwrap(), definition);
    }

    #[test]
    fn what_may_not_be_is_refused() {
        let refused = |spec: RawDocumentBuf| complete(&spec).unwrap_err().to_string();
        let key = rawdoc! { "a": "text" };
        assert_eq!(
            refused(rawdoc! { "key": { "a": "text", "b": 1, "c": "text" } }),
            "'text' fields in index must all be adjacent"
        );
        assert_eq!(
            refused(rawdoc! { "key": key.clone(), "weights": { "a": 0 } }),
            "text index weight must be in the exclusive interval (0,100000) but found: 0"
        );
        assert_eq!(
            refused(rawdoc! { "key": key.clone(), "default_language": "klingon" }),
            "default_language is not valid"
        );
        assert_eq!(
            refused(rawdoc! { "key": key, "textIndexVersion": 4 }),
            "bad textIndexVersion: 4"
        );
    }
}
