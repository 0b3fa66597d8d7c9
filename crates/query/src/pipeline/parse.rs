//! Parsing pipelines, those inside of stages among them.

use std::sync::Arc;

use bson::{RawArray, RawBsonRef, RawDocument};

use super::documents::LiteralDocuments;
use super::group::Group;
use super::matching::Match;
use super::member::Member;
use super::metadata::{Asked, last_with_metadata};
use super::near_query::GeoNear;
use super::sequence::Pipeline;
use super::stage::Stage;
use super::table::{self, Form, Place, Row};
use super::{optimizer, outline, series_near, source, text_score};
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::{error, items};
use crate::metadata::MetadataSet;
use crate::text::TextContext;

/// More stages than anyone writes by hand.
const STAGES_MAX: usize = 1000;

impl Pipeline {
    /// Parses the stages and puts them into the form in which they run.
    pub fn parse(stages: &[&RawDocument], context: &Context) -> Result<Pipeline, QueryError> {
        Pipeline::parse_checked(stages, context, |_| Ok(()))
    }

    /// The same of the definition of a view: a constant that fails does so once the view is read.
    pub fn parse_of_view(
        stages: &[&RawDocument],
        context: &Context,
    ) -> Result<Pipeline, QueryError> {
        let context = Context {
            metadata_may_be_missing: true,
            ..context.clone()
        };
        let parse = || Pipeline::parse(stages, &context);
        context.folding.ignoring_failures(parse)
    }

    /// The same of a command, which is about a collection or about a database.
    pub fn parse_of_command(
        stages: &[&RawDocument],
        context: &Context,
        has_collection: bool,
    ) -> Result<Pipeline, QueryError> {
        Pipeline::parse_checked(stages, context, |members| {
            check_beginning(members, has_collection)
        })
    }

    /// `check` comes before what constants fail with.
    fn parse_checked(
        stages: &[&RawDocument],
        context: &Context,
        check: impl FnOnce(&[Member]) -> Result<(), QueryError>,
    ) -> Result<Pipeline, QueryError> {
        let parse = || {
            outline::check(stages)?;
            let (members, metadata) = Pipeline::members(stages, context)?;
            check(&members)?;
            Ok((members, metadata))
        };
        let (mut members, metadata) = context.folding.after_parsing(parse)?;
        series_near::resolve(&mut members, context)?;
        optimizer::optimize(&mut members, &context.budget)?;
        let is_near = |member: &Member| member.stage.is::<GeoNear>();
        if members.iter().skip(1).any(is_near) {
            return error(
                40603,
                "$geoNear is only valid as the first stage in an optimized pipeline",
            );
        }
        Ok(Pipeline {
            members,
            budget: context.budget.clone(),
            collator: context.collator.clone(),
            needs_text_score: context.text.as_ref().is_some_and(TextContext::is_asked),
            metadata,
        })
    }

    /// Whether each stage is known and those that hold others do so in the right form, as far as
    /// that is said before any stage is parsed.
    pub fn check_outline(stages: &RawArray) -> Result<(), QueryError> {
        let stages: Vec<_> = items(stages)
            .filter_map(|stage| stage.as_document())
            .collect();
        Pipeline::check_outlines(&stages)
    }

    /// The same of stages that are known to be documents.
    pub fn check_outlines(stages: &[&RawDocument]) -> Result<(), QueryError> {
        outline::check(stages)
    }

    /// The stages as they were written, and what they need to know of documents.
    pub(super) fn members(
        stages: &[&RawDocument],
        context: &Context,
    ) -> Result<(Vec<Member>, MetadataSet), QueryError> {
        if stages.len() > STAGES_MAX {
            return Err(QueryError::new(
                ErrorKind::Location(7749501),
                format!("Pipeline length must be no longer than {STAGES_MAX} stages"),
            ));
        }
        let (mut members, mut parsed) = (Vec::with_capacity(stages.len()), Vec::new());
        // The last stage that asks for the scores of a search.
        let mut scored = None;
        let mut asked = Asked::default();
        // Told once all stages are known to be well formed.
        let mut misplaced = None;
        let asked_before = context.metadata.take();
        let first = stages.first().and_then(|stage| stage.iter().next()?.ok());
        let in_change_stream = first.is_some_and(|(name, _)| name.as_str() == "$changeStream");
        for (index, stage) in stages.iter().enumerate() {
            let position = Position {
                first: index == 0,
                last: index + 1 == stages.len(),
                in_change_stream,
            };
            // Filters that may be moved forward are worked out before all else.
            let rank = match is_moved(stage, members.last()) {
                true => index,
                false => stages.len() + index,
            };
            let parse = || {
                let stage = || parse_stage(stage, context, &mut parsed);
                context.folding.at_place(rank, stage)
            };
            misplaced = misplaced.or_else(|| check_place(stage, position).err());
            let (result, slots) = context.scope.recording(parse);
            result.map_err(|error| text_score::misplaced(error, index, context.in_facet))?;
            if context.text.is_some() {
                text_score::check_places(&parsed, index)?;
            }
            members.extend(parsed.drain(..).map(|stage| Member { stage, slots }));
            if context.text.as_ref().is_some_and(TextContext::take_asked) {
                scored = last_with_metadata(&members);
            }
            asked.note(context.metadata.take(), &members, context.in_facet)?;
        }
        if let Some(error) = misplaced {
            return Err(error);
        }
        if context.in_facet {
            if let Some(text) = context.text.as_ref().filter(|_| scored.is_some()) {
                text.ask();
            }
            context
                .metadata
                .restore(asked_before.and(asked.of_places()));
            return Ok((members, MetadataSet::default()));
        }
        if let Some(text) = &context.text {
            text_score::drop_scores(&mut members, scored, text, context)?;
        }
        let metadata = asked.settle(&mut members, context)?;
        context.metadata.restore(asked_before);
        Ok((members, metadata))
    }
}

/// Whether a pipeline begins with what brings its own documents, where there is no collection, and
/// else not with documents that it names.
fn check_beginning(members: &[Member], has_collection: bool) -> Result<(), QueryError> {
    let first = members.first().map(|member| &*member.stage);
    let message = match first {
        Some(stage) if has_collection && stage.is::<LiteralDocuments>() => {
            let name = stage.name();
            format!("'{name}' can only be run with {{aggregate: 1}}")
        }
        Some(stage) if has_collection => match source::refuses_collection(stage) {
            Some(message) => message,
            None => return Ok(()),
        },
        Some(stage) if source::needs_collection(stage) => {
            let name = stage.name();
            format!("{{aggregate: 1}} is not valid for '{name}'; a collection is required.")
        }
        None if !has_collection => "{aggregate: 1} is not valid for an empty pipeline.".into(),
        _ => return Ok(()),
    };
    Err(QueryError::new(ErrorKind::InvalidNamespace, message))
}

/// Whether a stage is a `$match` that MongoDB tries to move before the stage that it follows.
fn is_moved(stage: &RawDocument, after: Option<&Member>) -> bool {
    let name = stage.iter().next().and_then(Result::ok);
    let is_match = name.is_some_and(|(name, _)| name.as_str() == "$match");
    let moves = |member: &Member| {
        let stage = &*member.stage;
        stage.is_filter_transparent() && !stage.is::<Match>() || stage.is::<Group>()
    };
    is_match && after.is_some_and(moves)
}

/// Where a stage stands in what the user wrote.
#[derive(Clone, Copy)]
struct Position {
    first: bool,
    last: bool,
    in_change_stream: bool,
}

/// Whether the stage may stand where it does.
fn check_place(stage: &RawDocument, position: Position) -> Result<(), QueryError> {
    let name = stage.iter().next().and_then(Result::ok);
    let name = name.map_or("", |(name, _)| name.as_str());
    let Some(row) = table::find(name) else {
        return Ok(());
    };
    match row.place {
        Place::First if !position.first => error(
            40602,
            format!("{name} is only valid as the first stage in a pipeline"),
        ),
        Place::Last if !position.last => error(
            40601,
            format!("{name} can only be the final stage in the pipeline"),
        ),
        Place::ChangeStreamEnd if !position.in_change_stream => Err(QueryError::new(
            ErrorKind::IllegalOperation,
            format!("{name} can only be used in a $changeStream pipeline"),
        )),
        Place::ChangeStreamEnd if !position.last => error(
            7_182_802,
            format!("{name} must be the last stage in the pipeline"),
        ),
        _ => Ok(()),
    }
}

/// Parses one stage; some are short for several.
fn parse_stage(
    stage: &RawDocument,
    context: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let (row, argument) = outline::only_field(stage)?;
    match row.form {
        Form::Parsed(parse) => parse(argument, context, out),
        Form::Nesting(parse) => parse(argument, context, parse_inner, out),
        Form::Source => source::parse(row.name, argument, out),
    }
}

/// Parses the pipeline inside a stage (`$facet`, `$lookup`, `$unionWith`).
fn parse_inner(
    operator: &str,
    array: &RawArray,
    context: &Context,
) -> Result<Pipeline, QueryError> {
    let (mut stages, mut rows) = (Vec::new(), Vec::new());
    for item in items(array) {
        let RawBsonRef::Document(stage) = item else {
            return Err(QueryError::new(
                ErrorKind::TypeMismatch,
                "Each element of the 'pipeline' array must be an object",
            ));
        };
        stages.push(stage);
        let name = stage.iter().next().and_then(Result::ok);
        let row = name.and_then(|(name, _)| table::find(name.as_str()));
        rows.extend(row);
    }
    let code = if operator == "$facet" { 40600 } else { 51047 };
    let check = |is_refused: fn(&Row) -> bool| match rows.iter().find(|row| is_refused(row)) {
        None => Ok(()),
        Some(row) => error(
            code,
            format!(
                "{} is not allowed to be used within a {operator} stage",
                row.name
            ),
        ),
    };
    let is_misplaced: fn(&Row) -> bool =
        |row| row.place == Place::Last || row.name == "$changeStream";
    // In a stage that reads no other collection there is nothing to search in.
    let reads = matches!(operator, "$lookup" | "$unionWith");
    let inner = Context {
        text: match &context.text {
            Some(text) if !reads => Some(text.of_input()),
            text => text.clone(),
        },
        in_facet: !reads,
        ..context.clone()
    };
    let pipeline = Pipeline::parse(&stages, &inner)?;
    check(is_misplaced)?;
    if operator == "$facet" {
        check(|row| !row.in_facet)?;
        if let Some(stage) = stages
            .iter()
            .find(|stage| outline::is_kept_out_of_facets(stage))
        {
            let name = stage.iter().next().and_then(Result::ok);
            let name = name.map_or("", |(name, _)| name.as_str());
            return error(
                40600,
                format!("{name} is not allowed to be used within a $facet stage"),
            );
        }
    }
    Ok(pipeline)
}
