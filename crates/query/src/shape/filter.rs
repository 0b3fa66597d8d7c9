//! Filters in a shape: each condition by itself, as MongoDB shows them, without its value.

use banyan_document::DocumentWriter;
use banyan_document::element::{Element, elements, items};
use bson::{RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::expression::expression;
use super::literal::{constant, constants, literal};
use super::mark;

pub(super) fn filter(filter: &RawDocument) -> RawDocumentBuf {
    let mut conditions = Vec::new();
    for element in elements(filter) {
        match element.name() {
            "$comment" => {}
            name if is_pathless(name) => conditions.push(pathless(&element)),
            name => of_field(name, element.value(), &mut conditions),
        }
    }
    joined(conditions)
}

/// All of them: one stands alone.
fn joined(mut conditions: Vec<RawDocumentBuf>) -> RawDocumentBuf {
    match conditions.len() {
        0 => RawDocumentBuf::new(),
        1 => conditions.remove(0),
        _ => rawdoc! { "$and": RawArrayBuf::from_iter(conditions) },
    }
}

/// The parts of a reference to a document begin as operators do, and are fields.
fn is_reference(name: &str) -> bool {
    matches!(name, "$ref" | "$id" | "$db")
}

fn is_pathless(name: &str) -> bool {
    name.starts_with('$') && !is_reference(name)
}

fn pathless(element: &Element<'_>) -> RawDocumentBuf {
    let name = element.name();
    let mut out = DocumentWriter::new();
    match (name, element.value()) {
        ("$and" | "$or" | "$nor", RawBsonRef::Array(branches)) => {
            out.begin_array(name);
            for branch in items(branches) {
                match branch.value() {
                    RawBsonRef::Document(branch) => {
                        let branch = filter(branch);
                        out.push(RawBsonRef::Document(&branch));
                    }
                    other => out.push(constant(other).as_raw_bson_ref()),
                }
            }
            out.end();
        }
        ("$expr", value) => out.append(name, expression(value).as_raw_bson_ref()),
        ("$text", RawBsonRef::Document(options)) => out.append_doc(name, &constants(options)),
        // What a function is written as is no matter of the shape.
        ("$where", _) => out.append_str(name, "?javascript"),
        (_, value) => out.append_str(name, &literal(value)),
    }
    out.finish()
}

/// What is asked of a field: each operator by itself.
fn of_field(path: &str, value: RawBsonRef<'_>, conditions: &mut Vec<RawDocumentBuf>) {
    let name = mark::path(path);
    let mut add = |test: RawDocumentBuf| {
        let mut out = DocumentWriter::new();
        out.append_doc(&name, &test);
        conditions.push(out.finish());
    };
    match value {
        RawBsonRef::Document(document) if holds_operators(document) => {
            tests(document).into_iter().for_each(add);
        }
        RawBsonRef::RegularExpression(pattern) => add(regex(!pattern.options.as_str().is_empty())),
        other => add(rawdoc! { "$eq": literal(other).as_ref() }),
    }
}

fn holds_operators(document: &RawDocument) -> bool {
    let first = elements(document).next();
    first.is_some_and(|first| is_pathless(first.name()))
}

fn regex(has_options: bool) -> RawDocumentBuf {
    let mut test = rawdoc! { "$regex": "?string" };
    if has_options {
        test.append(cstr!("$options"), "?string");
    }
    test
}

/// The tests in `{$gt: 1, $lt: 2}`.
fn tests(operators: &RawDocument) -> Vec<RawDocumentBuf> {
    let has = |name: &str| elements(operators).any(|element| element.name() == name);
    // A search for what is near is one condition with its distances.
    if has("$near") || has("$nearSphere") || has("$geoNear") {
        return vec![geo(operators)];
    }
    let mut found = Vec::new();
    for element in elements(operators) {
        match element.name() {
            "$options" if has("$regex") => {}
            "$regex" => found.push(regex(has("$options") || has_options(element.value()))),
            _ => found.push(test(&element)),
        }
    }
    found
}

fn has_options(pattern: RawBsonRef<'_>) -> bool {
    let pattern = pattern.as_regex();
    pattern.is_some_and(|pattern| !pattern.options.as_str().is_empty())
}

fn test(element: &Element<'_>) -> RawDocumentBuf {
    let (name, value) = (element.name(), element.value());
    let mut out = DocumentWriter::new();
    match (name, value) {
        ("$ne", value) => {
            out.append_doc("$not", &rawdoc! { "$eq": literal(value).as_ref() });
        }
        ("$nin", value) => {
            out.append_doc("$not", &rawdoc! { "$in": literal(value).as_ref() });
        }
        ("$not", RawBsonRef::Document(inner)) => out.append_doc(name, &merged(tests(inner))),
        ("$not", RawBsonRef::RegularExpression(pattern)) => {
            out.append_doc(name, &regex(!pattern.options.as_str().is_empty()));
        }
        ("$elemMatch", RawBsonRef::Document(inner)) => out.append_doc(name, &of_items(inner)),
        ("$all", RawBsonRef::Array(array)) => {
            let is_nested = |item: &Element<'_>| {
                let item = item.value();
                item.as_document().is_some_and(holds_operators)
            };
            match items(array).any(|item| is_nested(&item)) {
                true => {
                    out.begin_array(name);
                    for item in items(array) {
                        match item.value() {
                            RawBsonRef::Document(inner) if holds_operators(inner) => {
                                let inner = merged(tests(inner));
                                out.push(RawBsonRef::Document(&inner));
                            }
                            other => out.push(constant(other).as_raw_bson_ref()),
                        }
                    }
                    out.end();
                }
                false => out.append_str(name, &literal(value)),
            }
        }
        // Names of types are part of what is asked.
        ("$type", value) => out.append(name, value),
        ("$geoWithin" | "$geoIntersects" | "$within", RawBsonRef::Document(inner)) => {
            out.append_doc(name, &geo(inner));
        }
        (_, value) => out.append_str(name, &literal(value)),
    }
    out.finish()
}

/// Tests of one value, side by side.
fn merged(tests: Vec<RawDocumentBuf>) -> RawDocumentBuf {
    let mut out = DocumentWriter::new();
    for test in &tests {
        out.append_all(test);
    }
    out.finish()
}

/// What is asked of items: of values by operators, of documents by a filter.
fn of_items(inner: &RawDocument) -> RawDocumentBuf {
    let first = elements(inner).next();
    let of_values = first.is_some_and(|first| {
        is_pathless(first.name()) && !matches!(first.name(), "$and" | "$or" | "$nor" | "$where")
    });
    match of_values {
        true => merged(tests(inner)),
        false => filter(inner),
    }
}

/// Kinds of shapes stay, coordinates go.
fn geo(document: &RawDocument) -> RawDocumentBuf {
    let mut out = DocumentWriter::new();
    for element in elements(document) {
        let shown = match (element.name(), element.value()) {
            (name, RawBsonRef::Document(inner)) if name.starts_with('$') || name == "crs" => {
                RawBson::Document(geo(inner))
            }
            ("type", RawBsonRef::String(kind)) => RawBson::String(kind.to_owned()),
            (_, value) => constant(value),
        };
        out.append(element.name(), shown.as_raw_bson_ref());
    }
    out.finish()
}
