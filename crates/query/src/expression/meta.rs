//! $meta: what is known of a document beside its fields

use bson::RawBsonRef;

use super::field::FieldPath;
use super::node::ExpressionNode;
use super::operator::Operator;
use super::parse::Parser;
use super::value::error;
use crate::error::QueryError;
use crate::metadata::Metadata;
use crate::text;

pub(super) const OPERATORS: &[Operator] = &[Operator::special("$meta", meta)];

/// What documents of a server without these searches, and without time series, never bring.
const NEVER_THERE: &[&str] = &[
    "randVal",
    "searchHighlights",
    "searchScore",
    "searchScoreDetails",
    "timeseriesBucketMaxTime",
    "timeseriesBucketMinTime",
];

fn meta(value: RawBsonRef<'_>, parser: &mut Parser<'_>) -> Result<ExpressionNode, QueryError> {
    let RawBsonRef::String(name) = value else {
        return error(17307, "$meta only supports string arguments");
    };
    match name {
        "textScore" => {
            text::ask_score(parser.context.text.as_ref())?;
            Ok(ExpressionNode::Field(FieldPath::text_score()))
        }
        name if NEVER_THERE.contains(&name) => Ok(ExpressionNode::Missing),
        name => match Metadata::named(name) {
            Some(metadata) => {
                parser.context.metadata.ask(metadata);
                Ok(ExpressionNode::Field(FieldPath::metadata(metadata)))
            }
            None => error(17308, format!("Unsupported argument to $meta: {name}")),
        },
    }
}
