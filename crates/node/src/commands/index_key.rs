//! The key of an index that is asked for: what its parts may be, each by itself and together.

use std::collections::HashSet;

use banyan_document::key::{KeyPattern, KeyPatternError, SPHERE_OF_COLUMN};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr};

use crate::errors;

/// Whether a key is that of a text index.
pub fn is_of_text(key: &RawDocument) -> bool {
    let mut orders = key.iter().flatten().map(|(_, order)| order);
    orders.any(|order| matches!(order, RawBsonRef::String(banyan_text::PLUGIN)))
}

/// A field is one part of a key at most.
pub fn check_repeated(key: &RawDocument) -> Result<(), CommandError> {
    let mut names = HashSet::new();
    let mut fields = key.iter().flatten().map(|(name, _)| name.as_str());
    match fields.find(|name| !names.insert(*name)) {
        Some(name) => Err(CommandError::new(
            ErrorCode::BadValue,
            format!(
                "The field '{name}' appears multiple times in the index key pattern {}",
                errors::shown(RawBsonRef::Document(key))
            ),
        )),
        None => Ok(()),
    }
}

/// What the parts of a key may be, each by itself.
pub fn check_pattern_form(key: &RawDocument) -> Result<(), CommandError> {
    match check_pattern(key) {
        Err(error) if TOGETHER.contains(&error.code) => Ok(()),
        checked => checked.map(drop),
    }
}

/// The same of the key of a text index, in which its own parts are of no order.
pub fn check_text_form(key: &RawDocument) -> Result<(), CommandError> {
    let mut orders = RawDocumentBuf::new();
    for (name, order) in key.iter().flatten() {
        match order {
            // That this is a name of text indexes is told later.
            RawBsonRef::String(banyan_text::PLUGIN) if name.as_str() == banyan_text::TERM_FIELD => {
                orders.append(cstr!("text"), 1);
            }
            // A text index over all fields may have others before and behind.
            RawBsonRef::String(banyan_text::PLUGIN) if name.as_str() == "$**" => {
                orders.append(cstr!("text"), 1);
            }
            RawBsonRef::String(banyan_text::PLUGIN) if name.as_str().ends_with(".$**") => {
                return Err(CommandError::new(
                    ErrorCode::CannotCreateIndex,
                    KeyPatternError::Dollar.to_string(),
                ));
            }
            RawBsonRef::String(banyan_text::PLUGIN) => orders.append(name, 1),
            RawBsonRef::String("hashed" | "2dsphere" | "2d") => {
                return Err(CommandError::new(
                    ErrorCode::CannotCreateIndex,
                    "Can't use more than one index plugin for a single index.",
                ));
            }
            order => orders.append(name, order),
        }
    }
    check_pattern_form(&orders)
}

/// What is wrong with a key whose parts do not go together.
const TOGETHER: [ErrorCode; 3] = [
    ErrorCode::Location(31303),
    ErrorCode::Location(16800),
    ErrorCode::Location(16801),
];

pub fn check_pattern(key: &RawDocument) -> Result<KeyPattern, CommandError> {
    let refuse = |message: String| Err(CommandError::new(ErrorCode::CannotCreateIndex, message));
    for (name, value) in key.iter().flatten() {
        let is_term = value == RawBsonRef::String(banyan_text::PLUGIN);
        if name.as_str() == banyan_text::TERM_FIELD && !is_term {
            return refuse(format!("'{}' is a name of text indexes", name.as_str()));
        }
        match value {
            RawBsonRef::String(
                "hashed" | "2dsphere" | "2d" | SPHERE_OF_COLUMN | banyan_text::PLUGIN,
            ) => {}
            RawBsonRef::String("geoHaystack") => {
                let message = "GeoHaystack indexes cannot be created in version 5.0 and above";
                return refuse(message.to_owned());
            }
            RawBsonRef::String(kind) => return refuse(format!("Unknown index plugin '{kind}'")),
            _ => {}
        }
    }
    let orders = || key.iter().flatten().map(|(_, order)| order);
    let has = |plugin| orders().any(|order| order == RawBsonRef::String(plugin));
    if has("2dsphere") && has(SPHERE_OF_COLUMN) {
        return refuse("Can't use more than one index plugin for a single index.".to_owned());
    }
    KeyPattern::parse(key).map_err(|error: KeyPatternError| {
        let code = match error {
            KeyPatternError::ManyHashed(_) => ErrorCode::Location(31303),
            KeyPatternError::ManyPlanes => ErrorCode::Location(16800),
            KeyPatternError::PlaneNotFirst => ErrorCode::Location(16801),
            _ => ErrorCode::CannotCreateIndex,
        };
        CommandError::new(code, error.to_string())
    })
}
