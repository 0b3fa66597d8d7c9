//! How the keywords of schemas are spoken of that ask for one thing.

use banyan_document::element::{elements, items};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr};

use super::considered;
use crate::error::QueryError;
use crate::filter::Schema;

/// The values that a keyword is about: all others are as it wants them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum About {
    Numbers,
    Strings,
    Arrays,
    Objects,
    All,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shows {
    Value,
    ValueAndType,
    ValueAndLength,
    NumberOfFields,
    Nothing,
}

#[derive(Debug)]
pub(super) struct Keyword {
    pub name: &'static str,
    pub about: About,
    reason: &'static str,
    shows: Shows,
    /// Another keyword that changes what it means.
    pub with: Option<&'static str>,
}

const fn row(name: &'static str, about: About, reason: &'static str, shows: Shows) -> Keyword {
    Keyword {
        name,
        about,
        reason,
        shows,
        with: None,
    }
}

const LENGTH: &str = "specified string length was not satisfied";
const ITEMS: &str = "array did not match specified length";
const FIELDS: &str = "specified number of properties was not satisfied";
const TYPE: &str = "type did not match";

static KEYWORDS: &[Keyword] = &[
    row(
        "multipleOf",
        About::Numbers,
        "considered value is not a multiple of the specified value",
        Shows::Value,
    ),
    Keyword {
        with: Some("exclusiveMaximum"),
        ..row("maximum", About::Numbers, "comparison failed", Shows::Value)
    },
    Keyword {
        with: Some("exclusiveMinimum"),
        ..row("minimum", About::Numbers, "comparison failed", Shows::Value)
    },
    row(
        "pattern",
        About::Strings,
        "regular expression did not match",
        Shows::Value,
    ),
    row("maxLength", About::Strings, LENGTH, Shows::Value),
    row("minLength", About::Strings, LENGTH, Shows::Value),
    row("minItems", About::Arrays, ITEMS, Shows::ValueAndLength),
    row("maxItems", About::Arrays, ITEMS, Shows::ValueAndLength),
    row(
        "minProperties",
        About::Objects,
        FIELDS,
        Shows::NumberOfFields,
    ),
    row(
        "maxProperties",
        About::Objects,
        FIELDS,
        Shows::NumberOfFields,
    ),
    row(
        "enum",
        About::All,
        "value was not found in enum",
        Shows::Value,
    ),
    row(
        "encrypt",
        About::All,
        "value was not encrypted",
        Shows::Nothing,
    ),
    row("type", About::All, TYPE, Shows::ValueAndType),
    row("bsonType", About::All, TYPE, Shows::ValueAndType),
];

impl Keyword {
    pub fn of(name: &str) -> Option<&'static Keyword> {
        KEYWORDS.iter().find(|keyword| keyword.name == name)
    }

    /// What is said of values of which none is as the keyword wants it.
    pub fn explain(
        &self,
        specified_as: &RawDocument,
        values: &[RawBsonRef<'_>],
    ) -> Result<RawDocumentBuf, QueryError> {
        let mut details = RawDocumentBuf::new();
        details.append(cstr!("operatorName"), self.name);
        if self.shows != Shows::Nothing {
            details.append(cstr!("specifiedAs"), specified_as.to_owned());
        }
        details.append(cstr!("reason"), self.reason);
        let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
        match self.shows {
            Shows::Nothing => {}
            Shows::Value => considered::show(values, &mut details),
            Shows::ValueAndType => {
                considered::show(values, &mut details);
                considered::show_types(values, &mut details);
            }
            Shows::ValueAndLength => {
                considered::show(values, &mut details);
                if let Some(array) = values.iter().find_map(|value| value.as_array()) {
                    details.append(cstr!("numberOfItems"), number(items(array).count()));
                }
            }
            Shows::NumberOfFields => {
                if let Some(document) = values.iter().find_map(|value| value.as_document()) {
                    let count = number(elements(document).count());
                    details.append(cstr!("numberOfProperties"), count);
                }
            }
        }
        Ok(details)
    }
}

impl About {
    /// Whether a value of one of the stated types may be one that the keyword is about.
    pub fn meets(self, stated: &Schema) -> Result<bool, QueryError> {
        let (array, document) = (bson::RawArrayBuf::new(), RawDocumentBuf::new());
        let decimal = bson::Decimal128::from_bytes([0; 16]);
        let samples: &[RawBsonRef<'_>] = match self {
            About::All => return Ok(true),
            About::Numbers => &[
                RawBsonRef::Int32(0),
                RawBsonRef::Int64(0),
                RawBsonRef::Double(0.0),
                RawBsonRef::Decimal128(decimal),
            ],
            About::Strings => &[RawBsonRef::String("")],
            About::Arrays => &[RawBsonRef::Array(&array)],
            About::Objects => &[RawBsonRef::Document(&document)],
        };
        for sample in samples {
            if stated.accepts(*sample, &crate::budget::Budget::unlimited())? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
