//! $fill: values for fields that are null or missing
//!
//! It is short for a `$setWindowFields` with the methods and an `$addFields` with the expressions.

use std::sync::Arc;

use bson::{RawArray, RawBsonRef, RawDocument, RawDocumentBuf};

use banyan_document::DocumentWriter;

use super::specification::{Fields, Kind, missing, wrong_type};
use super::stage::Stage;
use super::{project, window};
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::{error, items, type_name};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    /// The last value that was observed.
    LastObserved,
    /// On the line between the values before and behind.
    Linear,
}

const KNOWN: &[(&str, Kind)] = &[
    ("partitionBy", Kind::Document),
    ("partitionByFields", Kind::Array),
    ("sortBy", Kind::Document),
    ("output", Kind::Document),
];
const KNOWN_OF_OUTPUT: &[(&str, Kind)] = &[("method", Kind::String), ("value", Kind::Any)];

pub(super) fn parse(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let RawBsonRef::Document(source) = value else {
        return Err(QueryError::new(
            ErrorKind::FailedToParse,
            format!(
                "The $fill stage specification must be an object, found {}",
                type_name(Some(value))
            ),
        ));
    };
    let fields = Fields::new("$fill", source, KNOWN)?;
    let partition = fields.document("partitionBy");
    let partition_fields = fields.array("partitionByFields");
    let order = fields.document("sortBy");
    let output = fields
        .document("output")
        .ok_or_else(|| missing("$fill.output"))?;
    if partition.is_some() && partition_fields.is_some() {
        return error(
            6050204,
            "Maximum one of 'partitionBy' and 'partitionByFields' can be specified in '$fill'",
        );
    }
    if output.is_empty() {
        return error(
            6050203,
            "The output field in '$fill' must contain an object with at least one element",
        );
    }
    let by_fields = partition_fields.map(object_of_fields).transpose()?;
    let partition = partition.or(by_fields.as_deref());
    let (methods, values) = outputs(output)?;
    if !methods.is_empty() {
        let windows = written(partition, order, &methods);
        window::parse(RawBsonRef::Document(&windows), context, out)?;
    }
    match values {
        Some(values) => project::parse_add_fields(RawBsonRef::Document(&values), context, out),
        None => Ok(()),
    }
}

/// `{a: "$a", ...}`.
fn object_of_fields(names: &RawArray) -> Result<RawDocumentBuf, QueryError> {
    let mut writer = DocumentWriter::new();
    for (index, item) in items(names).enumerate() {
        let RawBsonRef::String(name) = item else {
            let name = format!("$fill.partitionByFields.{index}");
            return Err(wrong_type(&name, item, "type 'string'"));
        };
        writer.append_str(name, &format!("${name}"));
    }
    Ok(writer.finish())
}

type Outputs<'a> = (Vec<(&'a str, Method)>, Option<RawDocumentBuf>);

/// The fields that are filled by a method, and an `$addFields` for the others.
fn outputs(output: &RawDocument) -> Result<Outputs<'_>, QueryError> {
    let (mut methods, mut values, mut any) = (Vec::new(), DocumentWriter::new(), false);
    for (path, how) in output.iter().map_while(Result::ok) {
        let RawBsonRef::Document(how) = how else {
            return error(
                6050200,
                "Each fill output specification must be an object with exactly one field",
            );
        };
        let how = Fields::new("$fill", how, KNOWN_OF_OUTPUT)?;
        match (how.string("method"), how.get("value")) {
            (Some(_), Some(_)) => {
                return error(
                    6050201,
                    "Each fill output specification must have exactly one of 'method' or 'value' \
                     fields, not both",
                );
            }
            (Some("locf"), None) => methods.push((path.as_str(), Method::LastObserved)),
            (Some("linear"), None) => methods.push((path.as_str(), Method::Linear)),
            (Some(_), None) => return error(6050202, "Method must be either locf or linear"),
            (None, Some(value)) => {
                any = true;
                values.begin_document(path.as_str());
                values.begin_array("$ifNull");
                values.push(RawBsonRef::String(&format!("${path}")));
                values.push(value);
                values.end();
                values.end();
            }
            (None, None) => {}
        }
    }
    Ok((methods, any.then(|| values.finish())))
}

/// The `$setWindowFields` that fills by a method.
fn written(
    partition: Option<&RawDocument>,
    order: Option<&RawDocument>,
    methods: &[(&str, Method)],
) -> RawDocumentBuf {
    let mut writer = DocumentWriter::new();
    partition
        .into_iter()
        .for_each(|by| writer.append_doc("partitionBy", by));
    order
        .into_iter()
        .for_each(|by| writer.append_doc("sortBy", by));
    writer.begin_document("output");
    for (path, method) in methods {
        writer.begin_document(path);
        let name = match method {
            Method::LastObserved => "$locf",
            Method::Linear => "$linearFill",
        };
        writer.append_str(name, &format!("${path}"));
        writer.end();
    }
    writer.end();
    writer.finish()
}
