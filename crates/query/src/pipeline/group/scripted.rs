//! A `$group` whose expressions call scripts: they are worked out for many documents before any of them
//! is taken.

use bson::{RawBson, RawBsonRef, RawDocument};

use super::GroupRun;
use crate::error::QueryError;
use crate::expression::Value;
use crate::pipeline::ahead::Scripted;
use crate::pipeline::stage_run::{Flow, Next};

/// What the expressions of a group have come to for one document.
pub(in crate::pipeline) struct Evaluated {
    id: Option<RawBson>,
    /// An argument that fails does no harm where its accumulator needs none any more.
    arguments: Vec<Result<Option<RawBson>, QueryError>>,
}

impl Evaluated {
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

impl Scripted for GroupRun {
    type Found = Evaluated;

    fn work_out(&mut self, document: &RawDocument) -> Result<Evaluated, QueryError> {
        self.arena.reset();
        let root = self.arena.root(document).expecting(self.reads);
        let id = self.group.id.shown(self.id.evaluate_at(root)?);
        let owned = |value: Option<RawBsonRef<'_>>| value.map(RawBson::from);
        let arguments = self.arguments.iter();
        Ok(Evaluated {
            id: owned(id),
            arguments: arguments
                .map(|argument| argument.evaluate_at(root).map(owned))
                .collect(),
        })
    }

    fn hand_on(
        &mut self,
        document: &RawDocument,
        found: Evaluated,
        next: &mut Next<'_>,
    ) -> Result<Flow, QueryError> {
        self.add(document, Some(&found), next.budget)?;
        Ok(Flow::Continue)
    }
}
