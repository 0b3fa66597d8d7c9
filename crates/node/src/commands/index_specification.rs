//! What `createIndexes` is told of an index: checked, and completed to what is kept.

use banyan_document::key::KeyPattern;
use banyan_document::{Collator, Number};
use banyan_query::Context;
use banyan_query::filter::Filter;
use banyan_query::projection::Projection;
use banyan_replication::write::catalog_ops;
use banyan_text::{Definition, TextError};
use banyan_wire::{CommandError, ErrorCode};
use bson::raw::CString;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::clustered::{self, CLUSTERED_OPTION, EXPIRE};
use super::engine_options;
use super::geo_indexes;
use super::index_expiry;
use super::index_key::{check_pattern, is_of_text};
use crate::collation;
use crate::errors;
use crate::params::{self, Field};

/// A specification as it is kept: `v`, `key`, `name`, then the options. Its outline is right.
pub fn normalize(spec: &RawDocument) -> Result<RawDocumentBuf, CommandError> {
    let (mut key, mut name, mut collation, mut version) = (None, None, None, None);
    let (mut expires, mut background) = (None, None);
    let (mut format, mut prepares_unique) = (2, false);
    let mut options = RawDocumentBuf::new();
    // Those of text indexes, which say nothing of any other.
    let mut text_options = RawDocumentBuf::new();
    // The square of an index over points, shown behind the others.
    let mut plane_options = RawDocumentBuf::new();
    for (option, value) in spec.iter().flatten() {
        let field = Field {
            command: "createIndexes.indexes",
            name: option.as_str(),
            value,
        };
        match option.as_str() {
            "key" => key = Some(field.document()?),
            "name" => name = Some(field.str()?.to_owned()),
            "unique" if flag(field)? => options.append(option, true),
            "unique" => {}
            "prepareUnique" => prepares_unique = flag(field)?,
            "hidden" => match value {
                RawBsonRef::Boolean(true) => options.append(option, true),
                RawBsonRef::Boolean(false) => {}
                _ => return Err(field.wrong_type("type 'bool'")),
            },
            "sparse" => options.append(option, flag(field)?),
            // Says nothing of how an index is built; those who compare indexes look at it.
            "background" => background = Some(flag(field)?),
            "partialFilterExpression" => {
                check_partial_filter(field.document()?)?;
                options.append(option, value);
            }
            EXPIRE => expires = Some(index_expiry::of_new(field, spec)?),
            "collation" => collation = Some(completed_collation(field)?),
            "wildcardProjection" => options.append(option, value),
            "2dsphereIndexVersion" => version = Some((field, field.i64()?)),
            "v" => format = format_version(field)?,
            "storageEngine" => {
                check_storage_engine(field)?;
                options.append(option, value);
            }
            // What else they may be, the completed specification says.
            "weights" if matches!(value, RawBsonRef::String(_) | RawBsonRef::Array(_)) => {}
            "weights" => {
                field.document()?;
            }
            "default_language" | "language_override" => {
                text_options.append(option, field.str()?);
            }
            "textIndexVersion" if params::number(value).is_none() => {
                return Err(CommandError::new(
                    ErrorCode::TypeMismatch,
                    format!(
                        "The field 'textIndexVersion' must be a number, but got {}",
                        banyan_document::kind::name(&value)
                    ),
                ));
            }
            "textIndexVersion" => {
                text_options.append(option, geo_indexes::clamped(geo_indexes::whole(field)?))
            }
            "bits" | "min" | "max" => {
                plane_options.append(option, geo_indexes::plane_option(field)?)
            }
            CLUSTERED_OPTION => options.append(option, clustered_flag(field)?),
            geo_indexes::COARSEST | geo_indexes::FINEST => {
                options.append(option, geo_indexes::level(field)?);
            }
            "ns" | "dropDups" => {}
            // Those that are not known are refused by now, or nobody minds them.
            _ => {}
        }
    }
    // It is there, as the outline says.
    let key = key.ok_or_else(|| params::missing_field("createIndexes.indexes", "key"))?;
    let text = text_definition(spec, key)?;
    if text.is_none() && matches!(spec.get("weights"), Ok(Some(_))) {
        return Err(weights_of_no_text(spec));
    }
    let key = text.as_ref().map_or(key, |text| &*text.key);
    let is_id = is_id_key(key);
    let name = kept_name(name, is_id)?;
    if expires.is_some() {
        index_expiry::check_fields(spec, key)?;
    }
    if options
        .get("partialFilterExpression")
        .is_ok_and(|found| found.is_some())
        && options.get_bool("sparse").unwrap_or(false)
    {
        return Err(CommandError::new(
            ErrorCode::CannotCreateIndex,
            "cannot mix \"partialFilterExpression\" and \"sparse\" options",
        ));
    }
    if let Some(collation) = collation.as_ref().filter(|named| **named != simple()) {
        geo_indexes::check_collation(key, collation)?;
    }
    if prepares_unique && options.get_bool("unique").unwrap_or(false) {
        return Err(CommandError::new(
            ErrorCode::CannotCreateIndex,
            format!(
                "Invalid index specification {}; cannot create an index with the 'unique' option \
                 and the 'prepareUnique' option",
                errors::shown(RawBsonRef::Document(spec))
            ),
        ));
    }
    let pattern = check_pattern(key)?;
    check_wildcard_options(&pattern, &options)?;
    if format == 1 && pattern.is_wildcard() {
        return Err(CommandError::new(
            ErrorCode::CannotCreateIndex,
            "an index over all fields has no format of keys with v=1",
        ));
    }
    if let Some(seconds) = expires {
        index_expiry::check_key(key, &pattern, spec)?;
        options.append(cstr!("expireAfterSeconds"), seconds);
    }
    if pattern.has_plane_field() {
        geo_indexes::check_bounds(spec)?;
    }
    if pattern.has_geo_field() && !pattern.has_plane_field() {
        let sphere = geo_indexes::sphere_version(key, version.map(|(_, version)| version))?;
        version.map_or(Ok(()), |(field, _)| geo_indexes::check_whole(field))?;
        geo_indexes::check_levels(spec)?;
        options.append(cstr!("2dsphereIndexVersion"), sphere);
    } else if let Some((_, version)) = version {
        options.append(cstr!("2dsphereIndexVersion"), geo_indexes::clamped(version));
    }
    for option in ["bits", "min", "max"] {
        if let Ok(Some(value)) = plane_options.get(option) {
            append(&mut options, option, value);
        }
    }
    let mut normalized = rawdoc! { "v": format, "key": key.to_owned(), "name": name };
    if let Some(background) = background.filter(|_| !is_id) {
        normalized.append(cstr!("background"), background);
    }
    for (option, value) in options.iter().flatten() {
        normalized.append(option, value);
    }
    match &text {
        Some(text) => text.append_options(&mut normalized),
        None => {
            for (option, value) in text_options.iter().flatten() {
                normalized.append(option, value);
            }
        }
    }
    if let Some(collation) = collation {
        if format == 1 {
            return Err(collation_of_old_format());
        }
        normalized.append(cstr!("collation"), collation);
    }
    if prepares_unique {
        normalized.append(cstr!("prepareUnique"), true);
    }
    Ok(normalized)
}

pub fn collation_of_old_format() -> CommandError {
    CommandError::new(
        ErrorCode::CannotCreateIndex,
        "cannot create an index with the 'collation' option and v=1",
    )
}

pub fn weights_of_no_text(spec: &RawDocument) -> CommandError {
    CommandError::new(
        ErrorCode::CannotCreateIndex,
        format!(
            "Invalid index specification {}; the field 'weights' can only be specified with \
             text indexes",
            errors::shown(RawBsonRef::Document(spec))
        ),
    )
}

fn refused(message: impl Into<String>) -> CommandError {
    CommandError::new(ErrorCode::BadValue, message.into())
}

/// A filter by what a document is alone.
pub fn parse_partial_filter(filter: &RawDocument) -> Result<Filter, CommandError> {
    parse_partial_filter_in(filter, &Context::default())
}

pub fn parse_partial_filter_in(
    filter: &RawDocument,
    context: &Context,
) -> Result<Filter, CommandError> {
    refuse_computed_conditions(filter)?;
    Filter::parse(filter, context).map_err(errors::query)
}

/// Refuses the conditions that an index has nowhere, however far down they stand.
fn refuse_computed_conditions(filter: &RawDocument) -> Result<(), CommandError> {
    for (name, value) in filter.iter().flatten() {
        let (code, what) = match name.as_str() {
            "$expr" => (ErrorCode::QueryFeatureNotAllowed, "$expr"),
            "$jsonSchema" => (ErrorCode::QueryFeatureNotAllowed, "$jsonSchema"),
            "$where" => (ErrorCode::BadValue, "$where"),
            "$and" | "$or" | "$nor" => {
                let branches = value.as_array().into_iter().flatten().flatten();
                for branch in branches.filter_map(|branch| branch.as_document()) {
                    refuse_computed_conditions(branch)?;
                }
                continue;
            }
            _ => continue,
        };
        return Err(CommandError::new(
            code,
            format!("{what} is not allowed in this context"),
        ));
    }
    Ok(())
}

/// Whether nothing is said that no index has as its condition, but that may come to no condition.
fn is_of_plain_conditions(filter: &RawDocument) -> bool {
    filter.iter().flatten().all(|(name, value)| {
        let name = name.as_str();
        match value {
            _ if matches!(
                name,
                "$alwaysTrue" | "$alwaysFalse" | "$nor" | "$sampleRate"
            ) =>
            {
                false
            }
            RawBsonRef::Array(branches) if matches!(name, "$and" | "$or") => {
                let branches = branches.into_iter().flatten();
                let mut branches = branches.filter_map(|branch| branch.as_document());
                branches.all(is_of_plain_conditions)
            }
            RawBsonRef::Document(condition) if !name.starts_with('$') => {
                let mut names = condition.iter().flatten().map(|(name, _)| name);
                !names.any(|name| matches!(name.as_str(), "$not" | "$nin"))
            }
            _ => true,
        }
    })
}

/// A filter that every member can answer at any time by the document alone.
fn check_partial_filter(filter: &RawDocument) -> Result<(), CommandError> {
    match parse_partial_filter(filter)?.suits_an_index() && is_of_plain_conditions(filter) {
        true => Ok(()),
        false => Err(CommandError::new(
            ErrorCode::CannotCreateIndex,
            format!(
                "Expression not supported in partial index: {}",
                errors::shown(RawBsonRef::Document(filter))
            ),
        )),
    }
}

/// Which of the two formats of keys: there is one here, and what is asked for is shown.
pub fn format_version(field: Field<'_>) -> Result<i32, CommandError> {
    let Some(number) = Number::from_raw(field.value) else {
        return Err(field.wrong_type("types '[long, int, decimal, double]'"));
    };
    // As a double: the smallest decimals are zero.
    match Number::Double(number.to_f64()).to_i32_exact() {
        None => Err(refused(
            "Index version must be representable as a 32-bit integer",
        )),
        Some(version @ (1 | 2)) => Ok(version),
        Some(version) => Err(CommandError::new(
            ErrorCode::CannotCreateIndex,
            format!("Invalid index specification; cannot create an index with v={version}"),
        )),
    }
}

/// Options of engines, some of which there have to be.
fn check_storage_engine(field: Field<'_>) -> Result<(), CommandError> {
    match field.value {
        RawBsonRef::Document(engines) if !engines.is_empty() => {
            engine_options::parse(field).map(drop)
        }
        _ => Err(CommandError::new(
            ErrorCode::CannotCreateIndex,
            "\"storageEngine\" options must be a document if present",
        )),
    }
}

fn first_order(key: &RawDocument) -> RawBsonRef<'_> {
    let first = key.iter().flatten().next();
    first.map_or(RawBsonRef::Null, |(_, order)| order)
}

/// Whether it is the key of the index that every collection has: other numbers make one more index
/// over the same field.
pub fn is_id_key(key: &RawDocument) -> bool {
    let mut names = key.iter().flatten().map(|(name, _)| name.as_str());
    names.next() == Some("_id")
        && names.next().is_none()
        && matches!(params::number(first_order(key)), Some(1 | -1))
}

/// Refuses to have the index over `_id` descend, or go by part of a number.
pub fn check_id_key(key: &RawDocument) -> Result<(), CommandError> {
    match Number::from_raw(first_order(key)).and_then(Number::to_i64_exact) {
        Some(1) => Ok(()),
        _ => Err(refused(format!(
            "The field 'key' for an _id index must be {{_id: 1}}, but got {}",
            errors::shown(RawBsonRef::Document(key))
        ))),
    }
}

fn kept_name(name: Option<String>, is_id: bool) -> Result<String, CommandError> {
    let refuse = |message| Err(CommandError::new(ErrorCode::CannotCreateIndex, message));
    match name {
        Some(name) if name.is_empty() => refuse("index name cannot be empty"),
        Some(name) if name.contains('\0') => refuse("index name cannot contain NUL bytes"),
        // Whatever else it is called.
        _ if is_id => Ok(catalog_ops::ID_INDEX.to_owned()),
        Some(name) => Ok(name),
        None => refuse("index name cannot be empty"),
    }
}

/// Refuses the names that mean all indexes, or the one that every collection has.
pub fn check_name(name: &str, is_id: bool) -> Result<(), CommandError> {
    match name {
        "*" if !is_id => Err(refused("The index name '*' is not valid.")),
        catalog_ops::ID_INDEX if !is_id => Err(refused(
            "The index name '_id_' is reserved for the _id index, which must have key pattern \
             {_id: 1}",
        )),
        _ => Ok(()),
    }
}

/// `clustered`, which nothing but true makes sense for.
pub fn clustered_flag(field: Field<'_>) -> Result<bool, CommandError> {
    match flag(field)? {
        true => Ok(true),
        false => Err(clustered::location(
            6492800,
            "Value 'false' for field 'clustered' is invalid",
        )),
    }
}

/// A boolean, or a number that stands for one.
pub fn flag(field: Field<'_>) -> Result<bool, CommandError> {
    if field.is_null() {
        return Err(CommandError::new(
            ErrorCode::TypeMismatch,
            format!(
                "The field '{0} has value {0}: {1}, which is not convertible to bool",
                field.name,
                errors::shown(field.value)
            ),
        ));
    }
    field.bool()
}

/// What is kept of a text index. `None`: it is none.
fn text_definition(
    spec: &RawDocument,
    key: &RawDocument,
) -> Result<Option<Definition>, CommandError> {
    if !is_of_text(key) {
        return Ok(None);
    }
    let completed = banyan_text::complete(spec);
    let refused =
        |error: TextError| CommandError::new(ErrorCode::from_code(error.code()), error.to_string());
    completed.map(Some).map_err(refused)
}

/// What an index over all fields may not be.
fn check_wildcard_options(pattern: &KeyPattern, options: &RawDocument) -> Result<(), CommandError> {
    for option in ["unique", "sparse"] {
        if pattern.is_wildcard() && options.get_bool(option).unwrap_or(false) {
            return Err(CommandError::new(
                ErrorCode::CannotCreateIndex,
                format!("Index type 'wildcard' does not support the {option} option"),
            ));
        }
    }
    Ok(())
}

/// Whether the key, as it is given, may have a projection: before what that says.
fn check_projected(spec: &RawDocument) -> Result<(), CommandError> {
    let key = spec.get_document("key").ok();
    let is_text = key.is_some_and(is_of_text);
    let names = key.into_iter().flat_map(|key| key.iter().flatten());
    let names: Vec<&str> = names.map(|(name, _)| name.as_str()).collect();
    if names.contains(&"$**") && !is_text {
        return Ok(());
    }
    match !is_text && names.iter().any(|name| name.ends_with(".$**")) {
        true => Err(CommandError::new(
            ErrorCode::FailedToParse,
            "The field 'wildcardProjection' is only allowed when 'key' is {\"$**\": ±1}",
        )),
        false => Err(refused(
            "The field 'wildcardProjection' is only allowed in an 'wildcard' index",
        )),
    }
}

/// A projection that chooses fields and computes none.
pub fn check_wildcard_projection(field: Field<'_>, spec: &RawDocument) -> Result<(), CommandError> {
    check_projected(spec)?;
    let projection = field.document()?;
    if projection.is_empty() {
        return Err(CommandError::new(
            ErrorCode::FailedToParse,
            "The 'wildcardProjection' field can't be an empty object",
        ));
    }
    refuse_computed(projection)?;
    let parsed = Projection::parse(projection, &Context::default());
    parsed.map(drop).map_err(|error| {
        let mut error = errors::query(error);
        error.message = format!(
            "Failed to parse: wildcardProjection :: caused by :: {}",
            error.message
        );
        error
    })
}

fn refuse_computed(projection: &RawDocument) -> Result<(), CommandError> {
    let refuse = |code, message: &str| {
        let message = format!("Failed to parse: wildcardProjection :: caused by :: {message}");
        Err(CommandError::new(ErrorCode::Location(code), message))
    };
    for (name, value) in projection.iter().flatten() {
        let first = match value {
            RawBsonRef::Document(inner) => {
                let operator = inner.iter().flatten().next();
                operator.is_some_and(|(name, _)| name.as_str().starts_with('$'))
            }
            value => params::number(value).is_none() && !matches!(value, RawBsonRef::Boolean(_)),
        };
        if first {
            let message = "Bad projection specification, cannot use computed fields when parsing a \
                           spec in kBanComputedFields mode";
            return refuse(51271, message);
        }
        if name.as_str().ends_with(".$") {
            return refuse(
                31324,
                "Cannot use positional projection in a wildcard index",
            );
        }
        if name.as_str().split('.').any(|part| part.starts_with('$')) {
            let message = "FieldPath field names may not start with '$'. Consider using $getField \
                           or $setField.";
            return refuse(16410, message);
        }
        if let RawBsonRef::Document(inner) = value {
            refuse_computed(inner)?;
        }
    }
    Ok(())
}

/// What a collation has to be before it is looked into.
pub fn check_collation_form(field: Field<'_>) -> Result<&RawDocument, CommandError> {
    let given = field.document()?;
    if given.is_empty() {
        return Err(CommandError::new(
            ErrorCode::BadValue,
            "The field 'collation' cannot be an empty object.",
        ));
    }
    Ok(given)
}

/// `{locale: "simple"}`, or another collation with all its fields.
pub fn completed_collation(field: Field<'_>) -> Result<RawDocumentBuf, CommandError> {
    let collator = Collator::parse(check_collation_form(field)?).map_err(collation::error)?;
    Ok(collator.map_or_else(simple, |collator| collator.collation().to_document()))
}

pub fn simple() -> RawDocumentBuf {
    rawdoc! { "locale": "simple" }
}

fn append(document: &mut RawDocumentBuf, name: &str, value: RawBsonRef<'_>) {
    if let Ok(name) = CString::try_from(name) {
        document.append(name, value);
    }
}
