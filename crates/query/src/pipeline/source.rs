//! First stages that only the node can answer: $collStats, $indexStats, ...

use std::sync::Arc;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use banyan_document::DocumentWriter;

use super::stage::Stage;
use super::stage_run::{Pass, StageRun, Start};
use crate::error::{ErrorKind, QueryError};

#[derive(Debug)]
pub struct Source {
    pub name: &'static str,
    pub argument: RawDocumentBuf,
}

pub(super) fn parse(
    name: &'static str,
    value: RawBsonRef<'_>,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let RawBsonRef::Document(argument) = value else {
        return Err(QueryError::new(
            ErrorKind::FailedToParse,
            format!("the argument of {name} must be an object"),
        ));
    };
    out.push(Arc::new(Source {
        name,
        argument: RawDocument::to_owned(argument),
    }));
    Ok(())
}

impl Stage for Source {
    fn name(&self) -> &'static str {
        self.name
    }

    fn serialize(&self, out: &mut DocumentWriter) {
        out.append_doc(self.name, &self.argument);
    }

    fn is_source(&self) -> bool {
        true
    }

    /// Whoever runs the pipeline answers the stage, and pushes its documents.
    fn run(self: Arc<Self>, _: &Start<'_>) -> Result<Box<dyn StageRun>, QueryError> {
        Ok(Box::new(Pass))
    }
}
