//! What was worked out for a document before it is taken.

use bson::RawBson;

use crate::error::QueryError;
use crate::expression::Value;

/// What the expressions of a group have come to for one document.
pub(in crate::pipeline) struct Evaluated {
    id: Option<RawBson>,
    /// An argument that fails does no harm where its accumulator needs none any more.
    arguments: Vec<Result<Option<RawBson>, QueryError>>,
}

impl Evaluated {
    pub(super) fn new(
        id: Option<RawBson>,
        arguments: Vec<Result<Option<RawBson>, QueryError>>,
    ) -> Evaluated {
        Evaluated { id, arguments }
    }

    pub fn id(&self) -> Value<'_> {
        self.id.as_ref().map(RawBson::as_raw_bson_ref)
    }

    pub fn argument(&self, at: usize) -> Result<Value<'_>, QueryError> {
        match self.arguments.get(at) {
            None => Ok(None),
            Some(Err(error)) => Err(error.clone()),
            Some(Ok(value)) => Ok(value.as_ref().map(RawBson::as_raw_bson_ref)),
        }
    }
}
