//! Expressions in a shape: operators, paths and variables stay, constants go.

use banyan_document::DocumentWriter;
use banyan_document::element::{elements, items};
use bson::{RawArray, RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use super::literal::{constant, constants};
use super::mark;
use super::sort::sort;

/// Operators whose argument is a document of theirs. In any other operator's a document is what
/// makes a document, whose fields the client names.
const NAMED_ARGUMENTS: &[&str] = &[
    "$accumulator",
    "$bottom",
    "$bottomN",
    "$cond",
    "$convert",
    "$createObjectId",
    "$dateAdd",
    "$dateDiff",
    "$dateFromParts",
    "$dateFromString",
    "$dateSubtract",
    "$dateToParts",
    "$dateToString",
    "$dateTrunc",
    "$dayOfMonth",
    "$dayOfWeek",
    "$dayOfYear",
    "$derivative",
    "$expMovingAvg",
    "$filter",
    "$firstN",
    "$function",
    "$getField",
    "$hour",
    "$integral",
    "$isoDayOfWeek",
    "$isoWeek",
    "$isoWeekYear",
    "$lastN",
    "$let",
    "$ltrim",
    "$map",
    "$maxN",
    "$median",
    "$millisecond",
    "$minN",
    "$minute",
    "$month",
    "$percentile",
    "$reduce",
    "$regexFind",
    "$regexFindAll",
    "$regexMatch",
    "$replaceAll",
    "$replaceOne",
    "$rtrim",
    "$second",
    "$setField",
    "$shift",
    "$sortArray",
    "$switch",
    "$top",
    "$topN",
    "$trim",
    "$unsetField",
    "$week",
    "$year",
    "$zip",
];

/// Operators whose `field` names one.
const FIELD_OPERATORS: [&str; 3] = ["$getField", "$setField", "$unsetField"];

/// What stands for an expression.
pub(super) fn expression(value: RawBsonRef<'_>) -> RawBson {
    match value {
        RawBsonRef::String(text) if text.starts_with('$') => RawBson::String(mark::path(text)),
        RawBsonRef::Document(document) => match operator_of(document) {
            Some(_) => RawBson::Document(operators(document)),
            None => object(document),
        },
        RawBsonRef::Array(array) if !is_constant(value) => RawBson::Array(each(array)),
        other => constant(other),
    }
}

fn operator_of(document: &RawDocument) -> Option<&str> {
    let first = elements(document).next()?;
    first.name().starts_with('$').then(|| first.name())
}

/// Whether there is nothing to be computed in it.
fn is_constant(value: RawBsonRef<'_>) -> bool {
    match value {
        RawBsonRef::String(text) => !text.starts_with('$'),
        RawBsonRef::Array(array) => items(array).all(|item| is_constant(item.value())),
        RawBsonRef::Document(document) => document.is_empty(),
        _ => true,
    }
}

fn each(array: &RawArray) -> RawArrayBuf {
    items(array).map(|item| expression(item.value())).collect()
}

/// A document whose fields are expressions.
fn object(document: &RawDocument) -> RawBson {
    match document.is_empty() {
        true => constant(RawBsonRef::Document(document)),
        false => RawBson::Document(named(document)),
    }
}

/// Fields that the client names, each with an expression.
pub(super) fn named(document: &RawDocument) -> RawDocumentBuf {
    let mut out = DocumentWriter::new();
    for element in elements(document) {
        let value = expression(element.value());
        out.append(&mark::path(element.name()), value.as_raw_bson_ref());
    }
    out.finish()
}

/// `{$operator: argument}`, and `window` beside one in a `$setWindowFields`.
fn operators(document: &RawDocument) -> RawDocumentBuf {
    let mut out = DocumentWriter::new();
    for element in elements(document) {
        let (name, argument) = (element.name(), element.value());
        let shown = match (name, argument) {
            ("window", RawBsonRef::Document(window)) => RawBson::Document(constants(window)),
            ("$literal" | "$const", value) => constant(value),
            ("$meta", RawBsonRef::String(kind)) => RawBson::String(kind.to_owned()),
            ("$getField", RawBsonRef::String(field)) => RawBson::String(mark::path(field)),
            // The arguments of an operator are no array of the client's.
            (_, RawBsonRef::Array(arguments)) => RawBson::Array(each(arguments)),
            (_, RawBsonRef::Document(none)) if none.is_empty() => {
                RawBson::Document(none.to_owned())
            }
            (name, RawBsonRef::Document(arguments))
                if NAMED_ARGUMENTS.contains(&name) && operator_of(arguments).is_none() =>
            {
                RawBson::Document(own_arguments(name, arguments))
            }
            (_, value) => expression(value),
        };
        out.append(name, shown.as_raw_bson_ref());
    }
    out.finish()
}

fn own_arguments(operator: &str, arguments: &RawDocument) -> RawDocumentBuf {
    let mut out = DocumentWriter::new();
    for element in elements(arguments) {
        let shown = match (element.name(), element.value()) {
            ("vars", RawBsonRef::Document(variables)) => RawBson::Document(named(variables)),
            ("as", RawBsonRef::String(name)) => RawBson::String(mark::path(name)),
            ("field", RawBsonRef::String(name)) if FIELD_OPERATORS.contains(&operator) => {
                RawBson::String(mark::path(name))
            }
            ("sortBy", RawBsonRef::Document(by)) => RawBson::Document(sort(by)),
            ("branches", RawBsonRef::Array(branches)) => RawBson::Array(
                items(branches)
                    .map(|branch| match branch.value() {
                        RawBsonRef::Document(branch) => {
                            RawBson::Document(own_arguments(operator, branch))
                        }
                        other => expression(other),
                    })
                    .collect(),
            ),
            (_, value) => expression(value),
        };
        out.append(element.name(), shown.as_raw_bson_ref());
    }
    out.finish()
}
