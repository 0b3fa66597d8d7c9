//! What a `$group` groups by.

use banyan_document::{DocumentWriter, elements};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::field::check_name;
use crate::expression::value::error;
use crate::expression::{ComputedFields, Expression, Value, is_operator};

#[derive(Clone, Debug)]
pub(super) struct Key {
    pub expression: Expression,
    /// What an object of one field is where the field has no value: null stands there, as
    /// MongoDB has it. With more fields the field is missing.
    of_nothing: Option<RawDocumentBuf>,
}

impl Key {
    pub fn parse(value: RawBsonRef<'_>, context: &Context) -> Result<Key, QueryError> {
        let mut of_nothing = None;
        if let RawBsonRef::Document(document) = value {
            match elements(document).next() {
                Some(first) if first.name().starts_with('$') => check_operator(first.name())?,
                Some(_) => {
                    check_fields(document)?;
                    of_nothing = with_null(document);
                }
                None => {}
            }
        }
        Ok(Key {
            expression: Expression::parse(value, context)?,
            of_nothing,
        })
    }

    /// The same over documents in which these fields are not computed yet.
    pub fn with_computed(&self, computed: &mut ComputedFields<'_>) -> Option<Key> {
        Some(Key {
            expression: self.expression.with_computed(computed)?,
            of_nothing: self.of_nothing.clone(),
        })
    }

    /// The key that the expression has come to.
    pub fn shown<'k>(&'k self, value: Value<'k>) -> Value<'k> {
        match (value, &self.of_nothing) {
            (Some(RawBsonRef::Document(document)), Some(of_nothing)) if document.is_empty() => {
                Some(RawBsonRef::Document(of_nothing))
            }
            _ => value,
        }
    }
}

fn check_operator(name: &str) -> Result<(), QueryError> {
    if is_operator(name) {
        return Ok(());
    }
    Err(QueryError::new(
        ErrorKind::InvalidPipelineOperator,
        format!("Unrecognized expression '{name}'"),
    ))
}

/// A number or a boolean would be an inclusion, as in a projection.
fn check_fields(document: &RawDocument) -> Result<(), QueryError> {
    let is_inclusion = |value| {
        matches!(
            value,
            RawBsonRef::Boolean(_)
                | RawBsonRef::Int32(_)
                | RawBsonRef::Int64(_)
                | RawBsonRef::Double(_)
                | RawBsonRef::Decimal128(_)
        )
    };
    for element in elements(document) {
        if is_inclusion(element.value()) {
            return error(17390, "$group does not support inclusion-style expressions");
        }
        if element.name().is_empty() {
            check_name(element.name())?;
        }
    }
    Ok(())
}

fn with_null(document: &RawDocument) -> Option<RawDocumentBuf> {
    let mut fields = elements(document);
    let name = fields.next()?;
    if fields.next().is_some() {
        return None;
    }
    let mut writer = DocumentWriter::new();
    writer.append_null(name.name());
    Some(writer.finish())
}
