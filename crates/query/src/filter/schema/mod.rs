//! `$jsonSchema`: JSON Schema draft 4 over BSON, as MongoDB has it.
//!
//! A schema is a list of rules; each says something about values of one type and lets all others
//! pass. `keyword.rs` is the table of the keywords and what each becomes; `matching.rs` runs rules
//! over a value.

mod keyword;
mod matching;

use std::collections::HashMap;

use banyan_document::path::Path;
use bson::{RawBson, RawBsonRef, RawDocument};

use super::parse::Parser;
use super::{Comparison, TypeSet};
use crate::error::{ErrorKind, QueryError};
use crate::pattern::Pattern;

#[derive(Clone, Debug, Default)]
pub struct Schema {
    rules: Vec<Rule>,
}

#[derive(Clone, Debug)]
enum Rule {
    Types(TypeSet),
    /// Binary data of the subtype for encrypted values.
    Encrypted,
    /// Numbers.
    Compare(Comparison, RawBson),
    MultipleOf(RawBson),
    /// Strings, their lengths in code points.
    MinLength(usize),
    MaxLength(usize),
    Pattern(Pattern),
    /// Arrays.
    MinItems(usize),
    MaxItems(usize),
    UniqueItems,
    /// The first items each have a schema, the others share one.
    Items {
        first: Vec<Schema>,
        rest: Others,
    },
    /// Documents.
    MinProperties(usize),
    MaxProperties(usize),
    Required(Path),
    Property(Path, Schema),
    /// Fields by pattern, and those that are neither named nor match one.
    Others {
        named: Vec<Box<str>>,
        patterns: Vec<(Pattern, Schema)>,
        rest: Others,
    },
    Dependency(Path, Schema),
    /// Values of any type.
    Enum(Vec<RawBson>),
    All(Vec<Schema>),
    Any(Vec<Schema>),
    One(Vec<Schema>),
    Not(Schema),
}

/// What is asked of those that are not named.
#[derive(Clone, Debug)]
enum Others {
    Any,
    None,
    Like(Box<Schema>),
}

/// The keywords of one schema, each once.
struct Keywords<'d> {
    values: HashMap<&'d str, RawBsonRef<'d>>,
}

impl Schema {
    pub(super) fn parse(schema: &RawDocument, parser: &Parser<'_>) -> Result<Schema, QueryError> {
        let mut values = HashMap::new();
        for (name, value) in schema.iter().flatten() {
            parser.spend()?;
            let name = name.as_str();
            keyword::check(name)?;
            if values.insert(name, value).is_some() {
                return Err(failed(format!("Duplicate $jsonSchema keyword: {name}")));
            }
        }
        let mut rules = Vec::new();
        keyword::parse(&Keywords { values }, parser, &mut rules)?;
        Ok(Schema { rules })
    }
}

fn failed(message: impl Into<String>) -> QueryError {
    QueryError::new(ErrorKind::FailedToParse, message)
}

fn wrong_type(message: impl Into<String>) -> QueryError {
    QueryError::new(ErrorKind::TypeMismatch, message)
}
