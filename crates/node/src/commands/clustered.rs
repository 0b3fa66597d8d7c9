//! `clusteredIndex` among the options of a collection, and the `expireAfterSeconds` that belongs to
//! it.

use banyan_document::compare;
use banyan_document::key::KeyPattern;
use banyan_replication::write::catalog_ops;
use banyan_replication::{clock, time_series};
use banyan_storage::Collection;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use crate::errors;
use crate::params::{self, Field};

pub const CLUSTERED: &str = "clusteredIndex";
pub const EXPIRE: &str = "expireAfterSeconds";

/// What errors call the fields of a `clusteredIndex`.
const PARSER: &str = "create";

/// The clustered index that a `create` asks for, as it is kept.
pub fn parse(field: Field<'_>) -> Result<Option<RawDocumentBuf>, CommandError> {
    let spec = match field.value {
        RawBsonRef::Document(spec) => spec,
        RawBsonRef::Boolean(_)
        | RawBsonRef::Int32(_)
        | RawBsonRef::Int64(_)
        | RawBsonRef::Double(_)
        | RawBsonRef::Decimal128(_) => {
            return match field.bool()? {
                false => Ok(None),
                true => Err(location(
                    5979703,
                    "The 'clusteredIndex' legacy format {clusteredIndex: <bool>} is only supported \
                     for specific internal collections and vice versa",
                )),
            };
        }
        _ => return Err(field.wrong_type("types '[bool]'")),
    };
    let Written {
        version,
        key,
        name,
        unique,
    } = Written::parse(spec)?;
    if !unique {
        return Err(location(
            5979700,
            "The clusteredIndex option requires unique: true to be specified",
        ));
    }
    if !is_on_id(key) {
        return Err(CommandError::new(
            ErrorCode::InvalidIndexSpecificationOption,
            "The clusteredIndex option is only supported for key: {_id: 1}",
        ));
    }
    let shown = i32::try_from(version).unwrap_or(i32::MAX);
    let kept = rawdoc! { "v": shown, "key": key.to_owned(), "name": name, "unique": true };
    if version != 2 {
        return Err(location(
            5979704,
            &format!(
                "Invalid clusteredIndex specification {}; cannot create a clusteredIndex with \
                 v={version}",
                errors::shown(RawBsonRef::Document(&kept))
            ),
        ));
    }
    Ok(Some(kept))
}

/// Whether the field has the form that it has to have.
pub fn check_form(field: Field<'_>) -> Result<(), CommandError> {
    match field.value {
        RawBsonRef::Document(spec) => Written::parse(spec).map(drop),
        _ => field.bool().map(drop),
    }
}

/// A specification as it is written.
struct Written<'a> {
    version: i64,
    key: &'a RawDocument,
    name: &'a str,
    unique: bool,
}

impl<'a> Written<'a> {
    fn parse(spec: &'a RawDocument) -> Result<Written<'a>, CommandError> {
        let (mut version, mut key, mut unique) = (2, None, None);
        let mut name = catalog_ops::ID_INDEX;
        for field in params::given(PARSER, spec, &["v", "key", "name", "unique"]) {
            let field = field?;
            match field.name {
                "v" => version = field.i64()?,
                "key" => key = Some(field.document()?),
                "name" => name = field.str()?,
                _ => unique = Some(field.bool()?),
            }
        }
        Ok(Written {
            version,
            key: key.ok_or_else(|| params::missing_field(PARSER, "key"))?,
            name,
            unique: unique.ok_or_else(|| params::missing_field(PARSER, "unique"))?,
        })
    }
}

/// Whether a key pattern is `{_id: 1}`.
fn is_on_id(key: &RawDocument) -> bool {
    let mut fields = key.iter().flatten();
    match (fields.next(), fields.next()) {
        (Some((name, order)), None) => {
            name.as_str() == "_id" && compare(order, RawBsonRef::Int32(1)).is_eq()
        }
        _ => false,
    }
}

/// The seconds after which documents whose `_id` is a date go.
pub fn parse_seconds(field: Field<'_>) -> Result<i64, CommandError> {
    let seconds = field.i64()?;
    let refuse = |what: &str| {
        let told = format!("TTL index '{EXPIRE}' option {what}");
        Err(CommandError::new(ErrorCode::InvalidOptions, told))
    };
    if seconds < 0 {
        return refuse("cannot be less than 0");
    }
    // As long before now the time had not begun.
    if seconds > i64::from(i32::MAX) || seconds.saturating_mul(1000) > clock::wall_ms() {
        return refuse("must be within an acceptable range, try a lower number");
    }
    Ok(seconds)
}

/// What a `collMod` makes of the time after which documents go: `None` where they stay.
pub fn parse_change(field: Field<'_>) -> Result<Option<i64>, CommandError> {
    match field.value {
        RawBsonRef::String("off") => Ok(None),
        RawBsonRef::String(other) => Err(CommandError::new(
            ErrorCode::InvalidOptions,
            format!(
                "Invalid string value for the '{CLUSTERED}::{EXPIRE}' option. Got: '{other}'. \
                 Accepted value is 'off'"
            ),
        )),
        other if params::number(other).is_some() => parse_seconds(field).map(Some),
        _ => Err(field.wrong_type("types '[string, long]'")),
    }
}

/// Whether a value may be what a `collMod` makes of that time.
pub fn is_change(field: Field<'_>) -> bool {
    matches!(field.value, RawBsonRef::String(_)) || params::number(field.value).is_some()
}

/// A collection's options with another time after which its documents go.
pub fn with_seconds(options: &RawDocument, seconds: Option<i64>) -> RawDocumentBuf {
    let mut changed = RawDocumentBuf::new();
    let mut seconds = seconds;
    for (name, value) in options.iter().flatten() {
        // It is shown before how measurements lie.
        if name.as_str() == time_series::OPTION
            && let Some(seconds) = seconds.take()
        {
            changed.append(cstr!("expireAfterSeconds"), seconds);
        }
        if name.as_str() != EXPIRE {
            changed.append(name, value);
        }
    }
    if let Some(seconds) = seconds {
        changed.append(cstr!("expireAfterSeconds"), seconds);
    }
    changed
}

/// Whether a name is that of the collection's clustered index.
pub fn is_named(collection: &Collection, name: &str) -> bool {
    let index = collection.clustered_index.as_ref();
    index.is_some_and(|index| index.name == name)
}

/// Whether a key pattern is that of the collection's clustered index.
pub fn has_pattern(collection: &Collection, pattern: &KeyPattern) -> bool {
    let index = collection.clustered_index.as_ref();
    index.is_some_and(|index| catalog_ops::same_pattern(&index.pattern, pattern))
}

/// Whether what `createIndexes` asks for is the clustered index, which is there.
pub fn is_asked_for(collection: &Collection, spec: &RawDocument) -> Result<bool, CommandError> {
    let asks_clustered = spec.get_bool(CLUSTERED_OPTION).unwrap_or(false);
    let is_it =
        collection.clustered_index.is_some() && spec.get_document("key").is_ok_and(is_on_id);
    if asks_clustered && !is_it {
        return Err(location(
            6243700,
            "Cannot create index with option 'clustered' that does not match an existing clustered \
             index",
        ));
    }
    let Some(index) = &collection.clustered_index else {
        return Ok(false);
    };
    if !is_it && spec.get_str("name").is_ok_and(|name| name == index.name) {
        let kept = collection.options.get_document(CLUSTERED);
        return Err(location(
            6100906,
            &format!(
                "Cannot create an index where the name matches the clusteredIndex but the key does \
                 not - indexSpec: {}, clusteredIndex: {}",
                errors::shown(RawBsonRef::Document(spec)),
                kept.map_or_else(
                    |_| String::new(),
                    |kept| errors::shown(RawBsonRef::Document(kept))
                )
            ),
        ));
    }
    Ok(is_it)
}

/// Marks a clustered index among the specifications of indexes.
pub const CLUSTERED_OPTION: &str = "clustered";

pub fn location(code: u32, message: &str) -> CommandError {
    CommandError::new(ErrorCode::Location(code), message)
}
