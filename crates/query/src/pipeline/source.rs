//! First stages that only the node can answer: $collStats, $indexStats, ...

use std::sync::Arc;

use bson::{RawBsonRef, RawDocumentBuf};

use banyan_document::DocumentWriter;

use super::sequence::Pipeline;
use super::source_name::{COLL_STATS, CURRENT_OP, INDEX_STATS, LIST_LOCAL_SESSIONS};
use super::source_options;
use super::stage::Stage;
use super::stage_run::{Pass, StageRun, Start};
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::error;

/// Whether a first stage is about a collection.
pub(super) fn needs_collection(stage: &dyn Stage) -> bool {
    !stage.is_source() || matches!(stage.name(), COLL_STATS | INDEX_STATS)
}

/// What is said where a stage that is about the whole server is asked elsewhere.
pub fn outside_admin(stage: &str) -> String {
    format!("{stage} must be run against the 'admin' database with {{aggregate: 1}}")
}

/// Why a first stage cannot run on a collection.
pub(super) fn refuses_collection(stage: &dyn Stage) -> Option<String> {
    match stage.name() {
        CURRENT_OP => Some(outside_admin(CURRENT_OP)),
        LIST_LOCAL_SESSIONS => Some(format!(
            "{LIST_LOCAL_SESSIONS} must be run against the database with {{aggregate: 1}}, not a \
             collection"
        )),
        _ => None,
    }
}

/// The node answers these stages where a request's own pipeline begins with one. A pipeline inside
/// another is given documents of a collection instead, which would be a wrong answer.
pub(super) fn check_inner(pipeline: &Pipeline, within: &str) -> Result<(), QueryError> {
    match pipeline.source().and_then(|stage| stage.get::<Source>()) {
        None => Ok(()),
        Some(source) => Err(QueryError::new(
            ErrorKind::NotImplemented,
            format!("{} inside {within} is not implemented", source.name),
        )),
    }
}

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
    let argument = source_options::document(name, value)?;
    out.push(Arc::new(Source {
        name,
        argument: source_options::checked(name, argument)?.into_owned(),
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
