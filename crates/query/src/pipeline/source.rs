//! First stages that only the node can answer: $collStats, $indexStats, ...

use std::sync::Arc;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use banyan_document::DocumentWriter;

use super::stage::Stage;
use super::stage_run::{Pass, StageRun, Start};
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::error;

pub(super) const LIST_CATALOG: &str = "$listCatalog";

/// Of the whole cluster, which only a router sees.
pub(super) fn of_router(
    _: RawBsonRef<'_>,
    _: &Context,
    _: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    error(
        6_789_101,
        "The $shardedDataDistribution stage can only be run on mongoS",
    )
}

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
    if name == LIST_CATALOG
        && value
            .as_document()
            .is_none_or(|argument| !argument.is_empty())
    {
        return error(
            6_200_600,
            "The $listCatalog stage specification must be an empty object",
        );
    }
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
