//! A `$group` whose expressions call scripts: they are worked out for many documents before any of them
//! is taken.

use bson::{RawBson, RawBsonRef, RawDocument};

use super::evaluated::Evaluated;
use super::run::GroupRun;
use crate::error::QueryError;
use crate::pipeline::ahead::Scripted;
use crate::pipeline::stage_run::{Flow, Next};

impl Scripted for GroupRun {
    type Found = Evaluated;

    fn work_out(&mut self, document: &RawDocument) -> Result<Evaluated, QueryError> {
        self.arena.reset();
        let root = self.arena.root(document).expecting(self.reads);
        let id = self.group.id.shown(self.id.evaluate_at(root)?);
        let owned = |value: Option<RawBsonRef<'_>>| value.map(RawBson::from);
        let arguments = self.arguments.iter();
        let arguments = arguments.map(|argument| argument.evaluate_at(root).map(owned));
        Ok(Evaluated::new(owned(id), arguments.collect()))
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
