//! The cursor of a change stream. A `getMore` that finds nothing waits for the next applied entry.

use std::sync::Arc;

use banyan_query::Context;
use banyan_query::pipeline::{
    Match, Pipeline, Projector, Redact, ReplaceRoot, SplitLargeEvent, Stage,
};
use banyan_replication::change_stream::{Options, Progress, Scope, Stream};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use crate::context::CommandContext;
use crate::cursors::{Cursor, Following, Tail};
use crate::errors;

/// Whether a pipeline is a change stream's.
pub fn starts(stages: &[&RawDocument]) -> bool {
    first(stages).is_some()
}

fn first<'a>(stages: &[&'a RawDocument]) -> Option<RawBsonRef<'a>> {
    let (name, argument) = stages.first()?.iter().next()?.ok()?;
    (name.as_str() == "$changeStream").then_some(argument)
}

/// What each event may go through: anything that handles one by itself and leaves it one.
fn is_permitted(stage: &dyn Stage) -> bool {
    stage.is::<SplitLargeEvent>()
        || stage.is::<Match>()
        || stage.is::<Projector>()
        || stage.is::<ReplaceRoot>()
        || stage.is::<Redact>()
}

/// Opens the stream that an `aggregate` asks for.
pub fn open(
    ctx: &CommandContext<'_>,
    collection: Option<&str>,
    namespace: String,
    stages: &[&RawDocument],
    context: &Context,
) -> Result<Cursor, CommandError> {
    let node = ctx.node;
    let mut options = Options::parse(first(stages))?;
    if !node.replication.is_replica_set() {
        return Err(CommandError::new(
            ErrorCode::Location(40573),
            "The $changeStream stage is only supported on replica sets",
        ));
    }
    check_read_concern(ctx)?;
    let scope = Scope::of(ctx.database(), collection, &options)?;
    let mut pipeline = Pipeline::parse(stages, context).map_err(errors::query)?;
    pipeline.remove_first();
    options.splits = pipeline.stages().any(|stage| stage.is::<SplitLargeEvent>());
    if let Some(stage) = pipeline.stages().find(|stage| !is_permitted(&***stage)) {
        return Err(CommandError::new(
            ErrorCode::IllegalOperation,
            format!(
                "{} is not permitted in a $changeStream pipeline",
                stage.name()
            ),
        ));
    }
    ctx.interrupt();
    let slot = ctx.slot().clone();
    let execution = pipeline.start(None).map_err(errors::query)?;
    let known = Arc::downgrade(node);
    let images = move || {
        let node = known.upgrade()?;
        let parameters = node.cluster_parameters.known(&node.replica);
        parameters.images_expire_after
    };
    let stream = Stream::open(
        node.log.clone(),
        scope,
        &options,
        execution,
        slot.clone(),
        Arc::new(images),
    )?;
    let following = stream.progress();
    let mut cursor = Cursor::new(namespace, Box::new(stream), slot);
    cursor.tail = Tail::Waits;
    cursor.following = Some(following);
    Ok(cursor)
}

/// A stream shows what a majority has, and can show nothing else.
fn check_read_concern(ctx: &CommandContext<'_>) -> Result<(), CommandError> {
    let level = ctx
        .generic
        .read_concern
        .and_then(|concern| concern.get_str("level").ok());
    match level {
        None | Some("majority") => Ok(()),
        Some(level) => Err(CommandError::new(
            ErrorCode::InvalidOptions,
            format!(
                "Aggregation stage $changeStream cannot run with a readConcern other than \
                 'majority'. Current readConcern: {level}"
            ),
        )),
    }
}

impl Following for Progress {
    fn resume_token(&self, pending: bool) -> RawDocumentBuf {
        Progress::resume_token(self, pending)
    }

    fn is_behind(&self) -> bool {
        Progress::is_behind(self)
    }

    fn is_close(&self) -> bool {
        Progress::is_close(self)
    }

    fn is_invalidated(&self) -> bool {
        Progress::is_invalidated(self)
    }
}
