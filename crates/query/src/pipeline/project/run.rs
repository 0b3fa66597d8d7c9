//! A projection at work.

use std::sync::Arc;

use bson::{RawDocument, RawDocumentBuf};

use banyan_document::DocumentWriter;

use super::projector::{Mode, Projector};
use crate::error::QueryError;
use crate::expression::Arena;
use crate::pipeline::ahead::Scripted;
use crate::pipeline::dependencies::Needed;
use crate::pipeline::stage_run::{Flow, Next, StageRun};
use crate::variables::Variables;

pub(super) struct ProjectRun {
    pub projector: Arc<Projector>,
    pub needed: Needed,
    pub variables: Variables,
    pub arena: Arena,
}

impl StageRun for ProjectRun {
    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        let projected = self.work_out(document)?;
        self.hand_on(document, projected, next)
    }
}

impl Scripted for ProjectRun {
    type Found = RawDocumentBuf;

    fn ask(&mut self, document: &RawDocument) -> Result<(), QueryError> {
        // Little comes before what is computed.
        if self.projector.mode == Mode::Inclusion {
            return Ok(());
        }
        self.arena.reset();
        self.projector
            .compute(document, &self.arena, &self.variables)
    }

    fn work_out(&mut self, document: &RawDocument) -> Result<RawDocumentBuf, QueryError> {
        self.arena.reset();
        let mut writer = DocumentWriter::with_capacity(document.as_bytes().len());
        let (arena, variables) = (&self.arena, &self.variables);
        self.projector
            .apply(document, arena, variables, &self.needed, &mut writer)?;
        Ok(writer.finish())
    }

    fn hand_on(
        &mut self,
        _: &RawDocument,
        projected: RawDocumentBuf,
        next: &mut Next<'_>,
    ) -> Result<Flow, QueryError> {
        next.push(&projected)
    }
}
