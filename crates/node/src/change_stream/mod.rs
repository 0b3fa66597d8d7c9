//! Change streams: `$changeStream` in an aggregation.
//!
//! A stream reads the log behind what is applied ([`crate::oplog::reader`]), so it shows what is
//! committed, on any member, and reading holds up no writer. Every operation has a time of its own;
//! a [`token`] names the one after which a client goes on, and holds nothing that another member
//! would not know. [`event`] makes MongoDB's events of operations: what a collection was called, how
//! an update was written and how the document was before lie in the log and beside it
//! ([`crate::write::names`]). [`scope`] says which of them a stream is about and which end it.
//!
//! [`stream`] is the cursor: each entry is read once, what the rest of the pipeline lets through
//! goes out, and at the end of the log the token moves with the time. A `getMore` that finds nothing
//! waits for the next applied entry.

mod event;
mod options;
mod scope;
mod stream;
mod token;

use banyan_query::Context;
use banyan_query::pipeline::{Pipeline, Stage};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument};

use crate::commands::aggregate::Parameters;
use crate::context::CommandContext;
use crate::cursors::{Cursor, Tail};
use crate::errors;
use options::Options;
use scope::Scope;
use stream::Stream;

/// Whether a pipeline is a change stream's.
pub fn starts(stages: &[&RawDocument]) -> bool {
    first(stages).is_some()
}

fn first<'a>(stages: &[&'a RawDocument]) -> Option<RawBsonRef<'a>> {
    let (name, argument) = stages.first()?.iter().next()?.ok()?;
    (name.as_str() == "$changeStream").then_some(argument)
}

/// What each event may go through: anything that handles one by itself and leaves it one.
fn is_permitted(stage: &Stage) -> bool {
    matches!(
        stage,
        Stage::Match(_)
            | Stage::Project(_)
            | Stage::AddFields(_)
            | Stage::ReplaceRoot(_)
            | Stage::Redact(_)
    )
}

/// Opens the stream that an `aggregate` asks for.
pub fn open(
    ctx: &CommandContext<'_>,
    parameters: &Parameters<'_>,
    context: &Context,
) -> Result<Cursor, CommandError> {
    let node = ctx.node;
    if !node.replication.is_replica_set() {
        return Err(CommandError::new(
            ErrorCode::Location(40573),
            "The $changeStream stage is only supported on replica sets",
        ));
    }
    check_read_concern(ctx)?;
    let options = Options::parse(first(&parameters.stages))?;
    let scope = Scope::of(ctx.database(), parameters.collection, &options)?;
    let mut pipeline = Pipeline::parse(&parameters.stages, context).map_err(errors::query)?;
    pipeline.remove_first();
    if let Some(stage) = pipeline.stages().iter().find(|stage| !is_permitted(stage)) {
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
    let namespace = parameters.namespace(ctx.database());
    let execution = pipeline.start(None).map_err(errors::query)?;
    let stream = Stream::open(node.clone(), scope, &options, execution, slot.clone())?;
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
