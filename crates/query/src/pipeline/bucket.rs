//! $bucket, as the `$group` and `$sort` it is short for

use std::sync::Arc;

use bson::{RawArray, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use banyan_document::{DocumentWriter, canonical_rank, compare_collated};

use super::stage::Stage;
use super::{group, sort};
use crate::context::Context;
use crate::error::QueryError;
use crate::expression::Expression;
use crate::expression::value::{describe, error, items, show, type_name};

pub(super) fn parse(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let RawBsonRef::Document(document) = value else {
        return error(
            40201,
            format!(
                "Argument to $bucket stage must be an object, but found type: {}.",
                type_name(Some(value))
            ),
        );
    };
    let group = Spec::parse(document, context)?.group();
    group::parse(RawBsonRef::Document(&group), context, out)?;
    sort::parse(
        RawBsonRef::Document(&bson::rawdoc! {"_id": 1}),
        context,
        out,
    )
}

struct Spec<'a> {
    group_by: RawBsonRef<'a>,
    boundaries: Vec<RawBson>,
    default: Option<RawBson>,
    output: Option<&'a RawDocument>,
}

impl<'a> Spec<'a> {
    fn parse(document: &'a RawDocument, context: &Context) -> Result<Spec<'a>, QueryError> {
        let (mut group_by, mut boundaries, mut default, mut output) = (None, None, None, None);
        for (name, value) in document.iter().map_while(Result::ok) {
            match (name.as_str(), value) {
                ("groupBy", value) => group_by = Some(check_group_by(value)?),
                ("boundaries", RawBsonRef::Array(array)) => {
                    boundaries = Some(check_boundaries(array, context)?);
                }
                ("boundaries", other) => {
                    return error(
                        40200,
                        format!(
                            "The $bucket 'boundaries' field must be an array, but found type: {}.",
                            type_name(Some(other))
                        ),
                    );
                }
                ("default", value) => {
                    let parse = || Expression::parse(value, context);
                    let expression = context.folding.at_once(parse)?;
                    let Some(value) = expression.as_constant() else {
                        return error(
                            40195,
                            format!(
                                "The $bucket 'default' field must be a constant expression, but \
                                 found: {}.",
                                show(value)
                            ),
                        );
                    };
                    default = Some(value.into());
                }
                ("output", RawBsonRef::Document(value)) => output = Some(value),
                ("output", other) => {
                    return error(
                        40196,
                        format!(
                            "The $bucket 'output' field must be an object, but found type: {}.",
                            type_name(Some(other))
                        ),
                    );
                }
                (other, _) => {
                    return error(40197, format!("Unrecognized option to $bucket: {other}."));
                }
            }
        }
        let (Some(group_by), Some(boundaries)) = (group_by, boundaries) else {
            return error(
                40198,
                "$bucket requires 'groupBy' and 'boundaries' to be specified.",
            );
        };
        check_default(&boundaries, default.as_ref(), context)?;
        Ok(Spec {
            group_by,
            boundaries,
            default,
            output,
        })
    }

    /// `{$group: {..., _id: {$switch: ...}}}`: a bucket is named by its lower boundary. The output comes
    /// first, as its errors are reported before those of the expression that is grouped by.
    fn group(&self) -> RawDocumentBuf {
        let mut writer = DocumentWriter::new();
        match self.output {
            Some(output) => writer.append_all(output),
            None => {
                writer.begin_document("count");
                writer.append_i32("$sum", 1);
                writer.end();
            }
        }
        writer.begin_document("_id");
        writer.begin_document("$switch");
        writer.begin_array("branches");
        for pair in self.boundaries.windows(2) {
            let [low, high] = pair else { continue };
            writer.push_document();
            writer.begin_document("case");
            writer.begin_array("$and");
            for (operator, bound) in [("$gte", low), ("$lt", high)] {
                writer.push_document();
                writer.begin_array(operator);
                writer.push(self.group_by);
                push_literal(&mut writer, bound);
                writer.end();
                writer.end();
            }
            writer.end();
            writer.end();
            writer.begin_document("then");
            writer.append("$literal", low.as_raw_bson_ref());
            writer.end();
            writer.end();
        }
        writer.end();
        if let Some(default) = &self.default {
            writer.begin_document("default");
            writer.append("$literal", default.as_raw_bson_ref());
            writer.end();
        }
        writer.end();
        writer.end();
        writer.finish()
    }
}

fn push_literal(writer: &mut DocumentWriter, value: &RawBson) {
    writer.push_document();
    writer.append("$literal", value.as_raw_bson_ref());
    writer.end();
}

/// Whether a value is written as something to group by: a path or an operator, known or not.
pub(super) fn is_expression(value: RawBsonRef<'_>) -> bool {
    match value {
        RawBsonRef::String(path) => path.starts_with('$'),
        RawBsonRef::Document(document) => document
            .iter()
            .next()
            .and_then(Result::ok)
            .is_some_and(|(name, _)| name.as_str().starts_with('$')),
        _ => false,
    }
}

fn check_group_by(value: RawBsonRef<'_>) -> Result<RawBsonRef<'_>, QueryError> {
    if !is_expression(value) {
        return error(
            40202,
            format!(
                "The $bucket 'groupBy' field must be defined as a $-prefixed path or an \
                 expression, but found: {}.",
                show(value)
            ),
        );
    }
    Ok(value)
}

fn check_boundaries(array: &RawArray, context: &Context) -> Result<Vec<RawBson>, QueryError> {
    let mut boundaries: Vec<RawBson> = Vec::new();
    for item in items(array) {
        let parse = || Expression::parse(item, context);
        let expression = context.folding.at_once(parse)?;
        match expression.as_constant() {
            Some(value) => boundaries.push(value.into()),
            None => {
                return error(
                    40191,
                    format!(
                        "The $bucket 'boundaries' field must be an array of constant values, but \
                         found value: {}.",
                        show(item)
                    ),
                );
            }
        }
    }
    if boundaries.len() < 2 {
        return error(
            40192,
            format!(
                "The $bucket 'boundaries' field must have at least 2 values, but found {} \
                 value(s).",
                boundaries.len()
            ),
        );
    }
    for (index, pair) in boundaries.windows(2).enumerate() {
        let [low, high] = pair else { continue };
        let (low, high) = (low.as_raw_bson_ref(), high.as_raw_bson_ref());
        if canonical_rank(&low) != canonical_rank(&high) {
            return error(
                40193,
                format!(
                    "All values in the the 'boundaries' option to $bucket must have the same \
                     type. Found conflicting types {} and {}.",
                    type_name(Some(low)),
                    type_name(Some(high))
                ),
            );
        }
        if compare_collated(low, high, context.collator.as_ref()).is_ge() {
            return error(
                40194,
                format!(
                    "The 'boundaries' option to $bucket must be sorted, but elements {index} and \
                     {} are not in ascending order ({} is not less than {}).",
                    index + 1,
                    describe(Some(low)),
                    describe(Some(high))
                ),
            );
        }
    }
    Ok(boundaries)
}

/// The default bucket must not lie between the others.
fn check_default(
    boundaries: &[RawBson],
    default: Option<&RawBson>,
    context: &Context,
) -> Result<(), QueryError> {
    let compare = |a, b| compare_collated(a, b, context.collator.as_ref());
    let (Some(default), Some(low), Some(high)) = (default, boundaries.first(), boundaries.last())
    else {
        return Ok(());
    };
    let default = default.as_raw_bson_ref();
    let (low, high) = (low.as_raw_bson_ref(), high.as_raw_bson_ref());
    if canonical_rank(&default) == canonical_rank(&low)
        && compare(default, low).is_ge()
        && compare(default, high).is_lt()
    {
        return error(
            40199,
            "The $bucket 'default' field must be less than the lowest boundary or greater than or \
             equal to the highest boundary.",
        );
    }
    Ok(())
}
