//! One operator on a field: what is said where a document fails it, and where it should have.

use banyan_document::path::{Leaf, Path};
use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::considered::{self, Considered};
use super::outcome::refuted;
use crate::context::Context;
use crate::error::QueryError;
use crate::filter::{self, Filter};

/// How an operator is spoken of.
#[derive(Debug)]
pub(super) struct Words {
    name: &'static str,
    failed: &'static str,
    succeeded: &'static str,
    /// What of the document is shown.
    shows: Shows,
    /// The only types it can hold for.
    types: &'static [&'static str],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shows {
    Nothing,
    Items,
    ItemsAndTypes,
    Shapes,
    WholeArrays,
}

const NUMBERS: &[&str] = &["decimal", "double", "int", "long"];
const BITS: &[&str] = &["binData", "decimal", "double", "int", "long"];
const TEXTS: &[&str] = &["regex", "string", "symbol"];
const ARRAYS: &[&str] = &["array"];

const fn words(name: &'static str, failed: &'static str, succeeded: &'static str) -> Words {
    Words {
        name,
        failed,
        succeeded,
        shows: Shows::Items,
        types: &[],
    }
}

const fn comparison(name: &'static str) -> Words {
    words(name, "comparison failed", "comparison succeeded")
}

const fn bitwise(name: &'static str) -> Words {
    Words {
        types: BITS,
        ..words(
            name,
            "bitwise operator failed to match",
            "bitwise operator matched successfully",
        )
    }
}

const fn within(name: &'static str) -> Words {
    Words {
        shows: Shows::Shapes,
        ..words(
            name,
            "none of the considered geometries were contained within the expression’s geometry",
            "at least one of considered geometries was contained within the expression’s geometry",
        )
    }
}

static WORDS: &[Words] = &[
    comparison("$eq"),
    comparison("$lt"),
    comparison("$lte"),
    comparison("$gt"),
    comparison("$gte"),
    words("$ne", "comparison succeeded", "comparison failed"),
    words(
        "$in",
        "no matching value found in array",
        "matching value found in array",
    ),
    words(
        "$nin",
        "matching value found in array",
        "no matching value found in array",
    ),
    Words {
        shows: Shows::Nothing,
        ..words("$exists", "path does not exist", "path does exist")
    },
    Words {
        shows: Shows::ItemsAndTypes,
        ..words("$type", "type did not match", "type did match")
    },
    Words {
        types: NUMBERS,
        ..words(
            "$mod",
            "$mod did not evaluate to expected remainder",
            "$mod did evaluate to expected remainder",
        )
    },
    Words {
        types: TEXTS,
        ..words(
            "$regex",
            "regular expression did not match",
            "regular expression did match",
        )
    },
    Words {
        shows: Shows::WholeArrays,
        types: ARRAYS,
        ..words(
            "$size",
            "array length was not equal to given size",
            "array length was equal to given size",
        )
    },
    Words {
        shows: Shows::WholeArrays,
        ..words(
            "$all",
            "array did not contain all specified values",
            "array did contain all specified values",
        )
    },
    Words {
        shows: Shows::WholeArrays,
        types: ARRAYS,
        ..words(
            "$elemMatch",
            "array did not satisfy the child predicate",
            "array did satisfy the child predicate",
        )
    },
    bitwise("$bitsAllSet"),
    bitwise("$bitsAllClear"),
    bitwise("$bitsAnySet"),
    bitwise("$bitsAnyClear"),
    within("$geoWithin"),
    within("$within"),
    Words {
        shows: Shows::Shapes,
        ..words(
            "$geoIntersects",
            "none of the considered geometries intersected the expression’s geometry",
            "at least one of considered geometries intersected the expression’s geometry",
        )
    },
];

impl Words {
    pub fn of(name: &str) -> Option<&'static Words> {
        WORDS.iter().find(|words| words.name == name)
    }
}

/// A field and what is asked of it.
#[derive(Debug)]
pub(super) struct Test {
    words: &'static Words,
    path: Path,
    /// As it was written, which is a filter by itself.
    specified_as: RawDocumentBuf,
    filter: Filter,
    /// Asks for what is not there.
    for_missing: bool,
    context: Context,
}

impl Test {
    pub fn parse(
        words: &'static Words,
        path: Path,
        specified_as: RawDocumentBuf,
        for_missing: bool,
        context: &Context,
    ) -> Result<Test, QueryError> {
        Ok(Test {
            words,
            path,
            filter: Filter::parse(&specified_as, context)?,
            specified_as,
            for_missing,
            context: context.clone(),
        })
    }

    pub fn holds(&self, document: &RawDocument) -> Result<bool, QueryError> {
        refuted(self.filter.try_matches(document))
    }

    /// `inverted`: it should not have held.
    pub fn explain(
        &self,
        document: &RawDocument,
        inverted: bool,
    ) -> Result<RawDocumentBuf, QueryError> {
        let words = self.words;
        let reason = match inverted {
            true => words.succeeded,
            false => words.failed,
        };
        let mut details = rawdoc! {
            "operatorName": words.name, "specifiedAs": self.specified_as.clone(),
        };
        if words.shows == Shows::Nothing {
            let reason = match inverted != self.for_missing {
                true => words.succeeded,
                false => words.failed,
            };
            details.append(cstr!("reason"), reason);
            return Ok(details);
        }
        let leaf = match words.shows {
            Shows::WholeArrays => Leaf::Whole,
            _ => Leaf::Items,
        };
        let considered = Considered::at(document, &self.path, leaf);
        let values = &considered.values;
        if considered.reached.is_empty() {
            details.append(cstr!("reason"), "field was missing");
            return Ok(details);
        }
        let suits =
            |value: &RawBsonRef<'_>| words.types.contains(&banyan_document::kind::name(value));
        if !words.types.is_empty() && !values.iter().any(suits) {
            details.append(cstr!("reason"), "type did not match");
            considered::show_types(values, &mut details);
            match words.types {
                [one] => details.append(cstr!("expectedType"), *one),
                several => details.append(
                    cstr!("expectedTypes"),
                    RawArrayBuf::from_iter(several.iter().copied()),
                ),
            }
            considered::show(values, &mut details);
            return Ok(details);
        }
        let mut reason = reason;
        if words.shows == Shows::Shapes {
            let mut is_shape = false;
            for value in &considered.reached {
                is_shape |= filter::is_shape(*value, &self.context.budget)?;
            }
            if !is_shape {
                reason = "could not find a valid geometry at the given path";
            }
        }
        details.append(cstr!("reason"), reason);
        considered::show(values, &mut details);
        if words.shows == Shows::ItemsAndTypes {
            considered::show_types(values, &mut details);
        }
        Ok(details)
    }
}
