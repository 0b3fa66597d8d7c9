//! Projections in a shape: which fields stays, values go.

use banyan_document::DocumentWriter;
use banyan_document::element::{elements, items};
use banyan_document::number::Number;
use bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use super::expression::expression;
use super::literal::constant;
use super::{filter, mark};

/// The projection of a find, or the argument of a `$project`.
pub(super) fn projection(projection: &RawDocument) -> RawDocumentBuf {
    let mut out = DocumentWriter::new();
    let mut includes = false;
    let mut names_id = false;
    for element in elements(projection) {
        let name = element.name();
        names_id |= name == "_id";
        includes |= name != "_id" && is_included(element.value());
        field(name, element.value(), &mut out);
    }
    // What goes without saying is said, so that it is one shape.
    if includes && !names_id {
        out.append_bool(&mark::path("_id"), true);
    }
    out.finish()
}

fn is_included(value: RawBsonRef<'_>) -> bool {
    match value {
        RawBsonRef::Boolean(flag) => flag,
        other => Number::from_raw(other).is_some_and(|number| !number.is_zero()),
    }
}

fn field(name: &str, value: RawBsonRef<'_>, out: &mut DocumentWriter) {
    let name = mark::path(name);
    match value {
        RawBsonRef::Boolean(flag) => out.append_bool(&name, flag),
        RawBsonRef::Document(inner) => out.append(&name, computed(inner).as_raw_bson_ref()),
        other if Number::from_raw(other).is_some() => out.append_bool(&name, is_included(other)),
        other => out.append(&name, expression(other).as_raw_bson_ref()),
    }
}

fn computed(document: &RawDocument) -> RawBson {
    let mut out = DocumentWriter::new();
    match elements(document)
        .next()
        .map(|first| (first.name(), first.value()))
    {
        Some(("$slice", argument)) if !has_path(argument) => {
            out.append("$slice", constant(argument).as_raw_bson_ref());
        }
        Some(("$elemMatch", RawBsonRef::Document(inner))) => {
            out.append_doc("$elemMatch", &filter::filter(inner));
        }
        Some((name, _)) if name.starts_with('$') => {
            return expression(RawBsonRef::Document(document));
        }
        _ => {
            for element in elements(document) {
                field(element.name(), element.value(), &mut out);
            }
        }
    }
    RawBson::Document(out.finish())
}

/// Whether it is the `$slice` of expressions, which has an array to take from.
fn has_path(argument: RawBsonRef<'_>) -> bool {
    let first = argument.as_array().and_then(|array| items(array).next());
    first.is_some_and(|first| Number::from_raw(first.value()).is_none())
}
