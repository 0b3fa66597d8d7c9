//! A schema, parsed.

use banyan_document::path::Path;
use bson::RawBson;

use crate::comparison::Comparison;
use crate::filter::type_set::TypeSet;
use crate::pattern::Pattern;

#[derive(Clone, Debug, Default)]
pub struct Schema {
    pub(super) rules: Vec<Rule>,
}

#[derive(Clone, Debug)]
pub(super) enum Rule {
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
pub(super) enum Others {
    Any,
    None,
    Like(Box<Schema>),
}
