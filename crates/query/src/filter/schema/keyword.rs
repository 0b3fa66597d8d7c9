//! The keywords of schemas.

use std::collections::{HashMap, HashSet};

use banyan_document::element::items;
use banyan_document::kind;
use banyan_document::number::Number;
use banyan_document::path::Path;
use bson::{RawArray, RawBson, RawBsonRef, RawDocument};

use super::rule::{Others, Rule, Schema};
use super::type_names::types;
use super::{encryption, matching};
use crate::comparison::Comparison;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::describe;
use crate::filter::parse::{Parser, bad, parse_path};
use crate::filter::type_set::TypeSet;
use crate::pattern::Pattern;

/// The keywords of one schema, each once.
pub(super) struct Keywords<'d> {
    pub values: HashMap<&'d str, RawBsonRef<'d>>,
    /// They are about whole documents.
    pub at_top: bool,
}

/// Reads one keyword, and those that belong to it, into rules.
type Read = for<'d> fn(&At<'d, '_>, RawBsonRef<'d>, &mut Vec<Rule>) -> Result<(), QueryError>;

/// Where a keyword stands.
struct At<'d, 'p> {
    name: &'static str,
    keywords: &'p Keywords<'d>,
    parser: &'p Parser<'p>,
}

impl At<'_, '_> {
    /// A schema of the same value.
    fn alike(&self, schema: &RawDocument) -> Result<Schema, QueryError> {
        Schema::parse(schema, self.keywords.at_top, self.parser)
    }

    /// A schema of a value inside.
    fn inside(&self, schema: &RawDocument) -> Result<Schema, QueryError> {
        Schema::parse(schema, false, self.parser)
    }
}

struct Keyword {
    name: &'static str,
    read: Read,
}

const fn row(name: &'static str, read: Read) -> Keyword {
    Keyword { name, read }
}

/// In the order in which they are read, and their mistakes found.
static KEYWORDS: &[Keyword] = &[
    row("title", text),
    row("description", text),
    row("type", json_types),
    row("bsonType", bson_types),
    row("pattern", pattern),
    row("maxLength", |at, value, rules| {
        rules.push(Rule::MaxLength(count(at, value)?));
        Ok(())
    }),
    row("minLength", |at, value, rules| {
        rules.push(Rule::MinLength(count(at, value)?));
        Ok(())
    }),
    row("multipleOf", multiple_of),
    row("maximum", |at, value, rules| {
        limit(
            at,
            "exclusiveMaximum",
            Comparison::Lte,
            Comparison::Lt,
            value,
            rules,
        )
    }),
    row("exclusiveMaximum", |at, value, _| {
        exclusive(at, "maximum", value)
    }),
    row("minimum", |at, value, rules| {
        limit(
            at,
            "exclusiveMinimum",
            Comparison::Gte,
            Comparison::Gt,
            value,
            rules,
        )
    }),
    row("exclusiveMinimum", |at, value, _| {
        exclusive(at, "minimum", value)
    }),
    row("minItems", |at, value, rules| {
        rules.push(Rule::MinItems(count(at, value)?));
        Ok(())
    }),
    row("maxItems", |at, value, rules| {
        rules.push(Rule::MaxItems(count(at, value)?));
        Ok(())
    }),
    row("items", item_schemas),
    row("additionalItems", |at, value, _| {
        other_items(at, value).map(drop)
    }),
    row("uniqueItems", |at, value, rules| {
        if flag(at, value)? {
            rules.push(Rule::UniqueItems);
        }
        Ok(())
    }),
    row("encrypt", encrypt),
    row("encryptMetadata", encrypt_metadata),
    row("required", required),
    row("properties", properties),
    row("additionalProperties", additional_properties),
    row("patternProperties", |at, value, rules| {
        // With `additionalProperties`, which has to know them, they are read there.
        match at.keywords.values.contains_key("additionalProperties") {
            true => Ok(()),
            false => others(at, Some(value), Others::Any, rules),
        }
    }),
    row("minProperties", |at, value, rules| {
        rules.push(Rule::MinProperties(count(at, value)?));
        Ok(())
    }),
    row("maxProperties", |at, value, rules| {
        rules.push(Rule::MaxProperties(count(at, value)?));
        Ok(())
    }),
    row("dependencies", dependencies),
    row("allOf", |at, value, rules| {
        rules.push(Rule::All(schemas(at, value)?));
        Ok(())
    }),
    row("anyOf", |at, value, rules| {
        rules.push(Rule::Any(schemas(at, value)?));
        Ok(())
    }),
    row("oneOf", |at, value, rules| {
        rules.push(Rule::One(schemas(at, value)?));
        Ok(())
    }),
    row("not", negation),
    row("enum", values),
];

const UNSUPPORTED: [&str; 6] = ["$ref", "$schema", "default", "definitions", "format", "id"];

pub(super) fn check(name: &str) -> Result<(), QueryError> {
    if KEYWORDS.iter().any(|keyword| keyword.name == name) {
        return Ok(());
    }
    Err(failed(match UNSUPPORTED.contains(&name) {
        true => format!("$jsonSchema keyword '{name}' is not currently supported"),
        false => format!("Unknown $jsonSchema keyword: {name}"),
    }))
}

pub(super) fn parse(
    keywords: &Keywords<'_>,
    parser: &Parser<'_>,
    rules: &mut Vec<Rule>,
) -> Result<(), QueryError> {
    for Keyword { name, read } in KEYWORDS {
        if let Some(value) = keywords.values.get(name) {
            let at = At {
                name,
                keywords,
                parser,
            };
            read(&at, *value, rules)?;
        }
    }
    Ok(())
}

fn kind_of(value: RawBsonRef<'_>) -> &'static str {
    kind::name(&value)
}

fn text(at: &At<'_, '_>, value: RawBsonRef<'_>, _: &mut Vec<Rule>) -> Result<(), QueryError> {
    match value {
        RawBsonRef::String(_) => Ok(()),
        _ => Err(wrong_type(format!(
            "$jsonSchema keyword '{}' must be of type string",
            at.name
        ))),
    }
}

fn encrypt(
    at: &At<'_, '_>,
    value: RawBsonRef<'_>,
    rules: &mut Vec<Rule>,
) -> Result<(), QueryError> {
    let Some(how) = value.as_document() else {
        return Err(wrong_type(
            "$jsonSchema keyword 'encrypt' must be an object ",
        ));
    };
    encryption::check(at.name, how)?;
    rules.push(Rule::Encrypted);
    Ok(())
}

fn encrypt_metadata(
    at: &At<'_, '_>,
    value: RawBsonRef<'_>,
    _: &mut Vec<Rule>,
) -> Result<(), QueryError> {
    match value {
        RawBsonRef::Document(document) if document.is_empty() => Err(failed(
            "$jsonSchema keyword 'encryptMetadata' cannot be an empty object ",
        )),
        RawBsonRef::Document(document) => encryption::check(at.name, document),
        _ => Err(wrong_type(
            "$jsonSchema keyword 'encryptMetadata' must be an object",
        )),
    }
}

fn json_types(
    at: &At<'_, '_>,
    value: RawBsonRef<'_>,
    rules: &mut Vec<Rule>,
) -> Result<(), QueryError> {
    if at.keywords.values.contains_key("bsonType") {
        let message = "Cannot specify both $jsonSchema keywords 'type' and 'bsonType'";
        return Err(failed(message));
    }
    let types = types(at.name, value, |name| match name {
        "boolean" => Ok("bool"),
        "array" | "null" | "number" | "object" | "string" => Ok(name),
        _ => Err(bad(format!("Unknown type name alias: {name}"))),
    })?;
    rules.push(Rule::Types(at_least_one(at.name, types)?));
    Ok(())
}

fn bson_types(
    at: &At<'_, '_>,
    value: RawBsonRef<'_>,
    rules: &mut Vec<Rule>,
) -> Result<(), QueryError> {
    let types = types(at.name, value, Ok)?;
    rules.push(Rule::Types(at_least_one(at.name, types)?));
    Ok(())
}

fn at_least_one(keyword: &str, types: Option<TypeSet>) -> Result<TypeSet, QueryError> {
    types.ok_or_else(|| {
        failed(format!(
            "$jsonSchema keyword '{keyword}' must name at least one type"
        ))
    })
}

fn values(at: &At<'_, '_>, value: RawBsonRef<'_>, rules: &mut Vec<Rule>) -> Result<(), QueryError> {
    let RawBsonRef::Array(array) = value else {
        return Err(wrong_type(format!(
            "$jsonSchema keyword 'enum' must be an array, but found an element of type {}",
            kind_of(value)
        )));
    };
    if array.is_empty() {
        return Err(failed(
            "$jsonSchema keyword 'enum' cannot be an empty array",
        ));
    }
    if matching::has_duplicates(array, at.parser.budget())? {
        return Err(failed(
            "$jsonSchema keyword 'enum' array cannot contain duplicate values.",
        ));
    }
    let values = items(array).map(|item| RawBson::from(item.value()));
    rules.push(Rule::Enum(values.collect()));
    Ok(())
}

fn schemas(at: &At<'_, '_>, value: RawBsonRef<'_>) -> Result<Vec<Schema>, QueryError> {
    let keyword = at.name;
    let RawBsonRef::Array(array) = value else {
        return Err(wrong_type(format!(
            "$jsonSchema keyword '{keyword}' must be an array"
        )));
    };
    if array.is_empty() {
        return Err(bad(format!(
            "$jsonSchema keyword '{keyword}' must be a non-empty array"
        )));
    }
    let schemas = items(array).map(|item| match item.value() {
        RawBsonRef::Document(schema) => at.alike(schema),
        other => Err(wrong_type(format!(
            "$jsonSchema keyword '{keyword}' must be an array of objects, but found an element of \
             type {}",
            kind_of(other)
        ))),
    });
    schemas.collect()
}

fn negation(
    at: &At<'_, '_>,
    value: RawBsonRef<'_>,
    rules: &mut Vec<Rule>,
) -> Result<(), QueryError> {
    let RawBsonRef::Document(schema) = value else {
        return Err(wrong_type(format!(
            "$jsonSchema keyword 'not' must be an object, but found an element of type {}",
            kind_of(value)
        )));
    };
    rules.push(Rule::Not(at.alike(schema)?));
    Ok(())
}

/// A number of characters, items or fields.
fn count(at: &At<'_, '_>, value: RawBsonRef<'_>) -> Result<usize, QueryError> {
    let shown = || format!("{}: {}", at.name, describe(Some(value)));
    let number = Number::from_raw(value)
        .ok_or_else(|| failed(format!("Expected a number in: {}", shown())))?;
    let number = number
        .to_i64_exact()
        .ok_or_else(|| failed(format!("Expected an integer: {}", shown())))?;
    usize::try_from(number)
        .map_err(|_| failed(format!("Expected a non-negative number in: {}", shown())))
}

fn pattern(
    at: &At<'_, '_>,
    value: RawBsonRef<'_>,
    rules: &mut Vec<Rule>,
) -> Result<(), QueryError> {
    let RawBsonRef::String(source) = value else {
        return Err(wrong_type("$jsonSchema keyword 'pattern' must be a string"));
    };
    // A document is no string: MongoDB does not read the pattern then.
    if !at.keywords.at_top {
        let pattern = at.parser.patterns.compile(source, "")?;
        rules.push(Rule::Pattern(pattern));
    }
    Ok(())
}

fn number<'d>(at: &At<'_, '_>, value: RawBsonRef<'d>) -> Result<RawBsonRef<'d>, QueryError> {
    match Number::from_raw(value) {
        Some(_) => Ok(value),
        None => Err(wrong_type(format!(
            "$jsonSchema keyword '{}' must be a number",
            at.name
        ))),
    }
}

fn limit(
    at: &At<'_, '_>,
    excluding: &'static str,
    inclusive: Comparison,
    exclusive: Comparison,
    value: RawBsonRef<'_>,
    rules: &mut Vec<Rule>,
) -> Result<(), QueryError> {
    let value = number(at, value)?;
    let excluded = match at.keywords.values.get(excluding) {
        Some(RawBsonRef::Boolean(excluded)) => *excluded,
        _ => false,
    };
    let comparison = if excluded { exclusive } else { inclusive };
    rules.push(Rule::Compare(comparison, value.into()));
    Ok(())
}

fn exclusive(at: &At<'_, '_>, limit: &str, value: RawBsonRef<'_>) -> Result<(), QueryError> {
    if !at.keywords.values.contains_key(limit) {
        return Err(failed(format!(
            "$jsonSchema keyword '{limit}' must be a present if {} is present",
            at.name
        )));
    }
    flag(at, value).map(drop)
}

fn flag(at: &At<'_, '_>, value: RawBsonRef<'_>) -> Result<bool, QueryError> {
    match value {
        RawBsonRef::Boolean(flag) => Ok(flag),
        _ => Err(wrong_type(format!(
            "$jsonSchema keyword '{}' must be a boolean",
            at.name
        ))),
    }
}

fn multiple_of(
    at: &At<'_, '_>,
    value: RawBsonRef<'_>,
    rules: &mut Vec<Rule>,
) -> Result<(), QueryError> {
    let value = number(at, value)?;
    let divisor = Number::from_raw(value);
    let positive = divisor.is_some_and(|n| n.is_nan() || n.is_infinite() || n.to_f64() > 0.0);
    if !positive {
        return Err(failed(
            "$jsonSchema keyword 'multipleOf' must have a positive value",
        ));
    }
    // A document is no number.
    if at.keywords.at_top {
        return Ok(());
    }
    if divisor.is_some_and(|n| n.is_nan()) {
        return Err(bad("divisor cannot be NaN"));
    }
    if divisor.is_some_and(|n| n.is_infinite()) {
        return Err(bad("divisor cannot be infinite"));
    }
    rules.push(Rule::MultipleOf(value.into()));
    Ok(())
}

fn item_schemas(
    at: &At<'_, '_>,
    value: RawBsonRef<'_>,
    rules: &mut Vec<Rule>,
) -> Result<(), QueryError> {
    match value {
        RawBsonRef::Document(schema) => {
            let schema = Box::new(at.inside(schema)?);
            rules.push(Rule::Items {
                first: Vec::new(),
                rest: Others::Like(schema),
            });
        }
        RawBsonRef::Array(array) => {
            let schemas = items(array).map(|item| match item.value() {
                RawBsonRef::Document(schema) => at.inside(schema),
                other => Err(wrong_type(format!(
                    "$jsonSchema keyword 'items' requires that each element of the array is an \
                     object, but found a {}",
                    kind_of(other)
                ))),
            });
            let first = schemas.collect::<Result<_, _>>()?;
            let rest = match at.keywords.values.get("additionalItems") {
                Some(rest) => other_items(at, *rest)?,
                None => Others::Any,
            };
            rules.push(Rule::Items { first, rest });
        }
        other => {
            return Err(wrong_type(format!(
                "$jsonSchema keyword 'items' must be an array or an object, not {}",
                kind_of(other)
            )));
        }
    }
    Ok(())
}

fn other_items(at: &At<'_, '_>, value: RawBsonRef<'_>) -> Result<Others, QueryError> {
    match value {
        RawBsonRef::Boolean(true) => Ok(Others::Any),
        RawBsonRef::Boolean(false) => Ok(Others::None),
        RawBsonRef::Document(schema) => {
            let schema = at.inside(schema)?;
            Ok(Others::Like(Box::new(schema)))
        }
        other => Err(wrong_type(format!(
            "$jsonSchema keyword 'additionalItems' must be either an object or a boolean, but got \
             a {}",
            kind_of(other)
        ))),
    }
}

fn object<'d>(at: &At<'_, '_>, value: RawBsonRef<'d>) -> Result<&'d RawDocument, QueryError> {
    value.as_document().ok_or_else(|| {
        wrong_type(format!(
            "$jsonSchema keyword '{}' must be an object",
            at.name
        ))
    })
}

fn properties(
    at: &At<'_, '_>,
    value: RawBsonRef<'_>,
    rules: &mut Vec<Rule>,
) -> Result<(), QueryError> {
    for (name, value) in object(at, value)?.iter().flatten() {
        at.parser.spend()?;
        let RawBsonRef::Document(schema) = value else {
            return Err(wrong_type(format!(
                "Nested schema for $jsonSchema property '{name}' must be an object"
            )));
        };
        let schema = at.inside(schema)?;
        rules.push(Rule::Property(parse_path(name.as_str())?, schema));
    }
    Ok(())
}

fn additional_properties(
    at: &At<'_, '_>,
    value: RawBsonRef<'_>,
    rules: &mut Vec<Rule>,
) -> Result<(), QueryError> {
    let rest = match value {
        RawBsonRef::Boolean(true) => Others::Any,
        RawBsonRef::Boolean(false) => Others::None,
        RawBsonRef::Document(schema) => Others::Like(Box::new(at.inside(schema)?)),
        _ => {
            return Err(wrong_type(
                "$jsonSchema keyword 'additionalProperties' must be an object or a boolean",
            ));
        }
    };
    let patterns = at.keywords.values.get("patternProperties").copied();
    others(at, patterns, rest, rules)
}

fn others(
    at: &At<'_, '_>,
    patterns: Option<RawBsonRef<'_>>,
    rest: Others,
    rules: &mut Vec<Rule>,
) -> Result<(), QueryError> {
    let mut known: Vec<(Pattern, Schema)> = Vec::new();
    if let Some(patterns) = patterns {
        let RawBsonRef::Document(patterns) = patterns else {
            return Err(wrong_type(
                "$jsonSchema keyword 'patternProperties' must be an object",
            ));
        };
        for (source, value) in patterns.iter().flatten() {
            at.parser.spend()?;
            let RawBsonRef::Document(schema) = value else {
                return Err(wrong_type(format!(
                    "$jsonSchema keyword 'patternProperties' has property '{source}' which is not \
                     an object"
                )));
            };
            let pattern = at.parser.patterns.compile(source.as_str(), "");
            let pattern = pattern.map_err(|error| {
                let reason = error.message.rsplit(": ").next().unwrap_or_default();
                bad(format!("Invalid regular expression: {reason}"))
            })?;
            known.push((pattern, at.inside(schema)?));
        }
    }
    let named = match at.keywords.values.get("properties") {
        Some(RawBsonRef::Document(named)) => {
            let names = named.iter().flatten().map(|(name, _)| name.as_str().into());
            names.collect()
        }
        _ => Vec::new(),
    };
    rules.push(Rule::Others {
        named,
        patterns: known,
        rest,
    });
    Ok(())
}

/// Names in an array, each once.
fn names<'d>(
    at: &At<'_, '_>,
    array: &'d RawArray,
    wrong: impl Fn(&'static str) -> QueryError,
    twice: impl Fn(&str) -> QueryError,
) -> Result<Vec<&'d str>, QueryError> {
    let mut seen = HashSet::new();
    let mut names = Vec::new();
    for item in items(array) {
        at.parser.spend()?;
        let value = item.value();
        let RawBsonRef::String(name) = value else {
            return Err(wrong(kind_of(value)));
        };
        if !seen.insert(name) {
            return Err(twice(name));
        }
        names.push(name);
    }
    Ok(names)
}

fn required(
    at: &At<'_, '_>,
    value: RawBsonRef<'_>,
    rules: &mut Vec<Rule>,
) -> Result<(), QueryError> {
    let RawBsonRef::Array(array) = value else {
        return Err(wrong_type(format!(
            "$jsonSchema keyword 'required' must be an array, but found an element of type {}",
            kind_of(value)
        )));
    };
    if array.is_empty() {
        return Err(failed(
            "$jsonSchema keyword 'required' cannot be an empty array",
        ));
    }
    let wrong = |kind: &'static str| {
        wrong_type(format!(
            "$jsonSchema keyword 'required' must be an array of strings, but found an element of \
             type: {kind}"
        ))
    };
    let twice =
        |_: &str| failed("$jsonSchema keyword 'required' array cannot contain duplicate values");
    for name in names(at, array, wrong, twice)? {
        rules.push(required_field(name)?);
    }
    Ok(())
}

fn required_field(name: &str) -> Result<Rule, QueryError> {
    // A name with a zero byte is that of no field.
    match name.contains('\0') {
        true => Ok(Rule::Required(Path::field(name))),
        false => parse_path(name).map(Rule::Required),
    }
}

fn dependencies(
    at: &At<'_, '_>,
    value: RawBsonRef<'_>,
    rules: &mut Vec<Rule>,
) -> Result<(), QueryError> {
    for (property, value) in object(at, value)?.iter().flatten() {
        let schema = match value {
            RawBsonRef::Document(schema) => at.alike(schema)?,
            RawBsonRef::Array(array) if array.is_empty() => {
                return Err(failed(format!(
                    "property '{property}' in $jsonSchema keyword 'dependencies' cannot be an \
                     empty array"
                )));
            }
            RawBsonRef::Array(array) => {
                let wrong = |kind: &'static str| {
                    wrong_type(format!(
                        "array '{property}' in $jsonSchema keyword 'dependencies' can only \
                         contain strings, but found element of type: {kind}"
                    ))
                };
                let twice = |name: &str| {
                    failed(format!(
                        "array '{property}' in $jsonSchema keyword 'dependencies' contains \
                         duplicate element: {name}"
                    ))
                };
                let needed = names(at, array, wrong, twice)?.into_iter();
                let rules = needed.map(required_field);
                Schema {
                    rules: rules.collect::<Result<_, _>>()?,
                }
            }
            _ => {
                return Err(wrong_type(format!(
                    "property '{property}' in $jsonSchema keyword 'dependencies' must be either an \
                     object or an array"
                )));
            }
        };
        rules.push(Rule::Dependency(parse_path(property.as_str())?, schema));
    }
    Ok(())
}

pub(super) fn failed(message: impl Into<String>) -> QueryError {
    QueryError::new(ErrorKind::FailedToParse, message)
}

fn wrong_type(message: impl Into<String>) -> QueryError {
    QueryError::new(ErrorKind::TypeMismatch, message)
}
