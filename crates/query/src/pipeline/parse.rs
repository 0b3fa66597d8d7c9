//! Parsing pipelines, those inside of stages among them.

use std::sync::Arc;

use bson::{RawArray, RawBsonRef, RawDocument};

use super::member::Member;
use super::sequence::Pipeline;
use super::stage::Stage;
use super::table::{self, Form, Place, Row};
use super::{optimizer, source};
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::{error, items};

/// More stages than anyone writes by hand.
const STAGES_MAX: usize = 1000;

impl Pipeline {
    /// Parses the stages and puts them into the form in which they run.
    pub fn parse(stages: &[&RawDocument], context: &Context) -> Result<Pipeline, QueryError> {
        let mut members = Pipeline::members(stages, context)?;
        optimizer::optimize(&mut members, &context.budget)?;
        Ok(Pipeline {
            members,
            budget: context.budget.clone(),
            collator: context.collator.clone(),
        })
    }

    /// The stages as they were written.
    pub(super) fn members(
        stages: &[&RawDocument],
        context: &Context,
    ) -> Result<Vec<Member>, QueryError> {
        if stages.len() > STAGES_MAX {
            return Err(QueryError::new(
                ErrorKind::Location(7749501),
                format!("Pipeline length must be no longer than {STAGES_MAX} stages"),
            ));
        }
        let (mut members, mut parsed) = (Vec::with_capacity(stages.len()), Vec::new());
        for (index, stage) in stages.iter().enumerate() {
            let position = Position {
                first: index == 0,
                last: index + 1 == stages.len(),
            };
            let parse = || parse_stage(stage, position, context, &mut parsed);
            let (result, slots) = context.scope.recording(parse);
            result?;
            members.extend(parsed.drain(..).map(|stage| Member { stage, slots }));
        }
        Ok(members)
    }
}

/// Where a stage stands in what the user wrote.
#[derive(Clone, Copy)]
struct Position {
    first: bool,
    last: bool,
}

/// Parses one stage; some are short for several.
fn parse_stage(
    stage: &RawDocument,
    position: Position,
    context: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let mut elements = stage.iter().map_while(Result::ok);
    let (Some((name, argument)), None) = (elements.next(), elements.next()) else {
        return error(
            40323,
            "A pipeline stage specification object must contain exactly one field.",
        );
    };
    let name = name.as_str();
    let Some(row) = table::find(name) else {
        return error(40324, format!("Unrecognized pipeline stage name: '{name}'"));
    };
    match row.place {
        Place::First if !position.first => {
            return error(
                40602,
                format!("{name} is only valid as the first stage in a pipeline"),
            );
        }
        Place::Last if !position.last => {
            return error(
                40601,
                format!("{name} can only be the final stage in the pipeline"),
            );
        }
        _ => {}
    }
    match row.form {
        Form::Parsed(parse) => parse(argument, context, out),
        Form::Nesting(parse) => parse(argument, context, parse_inner, out),
        Form::Source => source::parse(row.name, argument, out),
        Form::Missing => Err(QueryError::new(
            ErrorKind::NotImplemented,
            format!("the stage {name} is not implemented yet"),
        )),
    }
}

/// Parses the pipeline inside a stage (`$facet`, `$lookup`, `$merge`, `$unionWith`).
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
    check(|row| row.place == Place::Last || row.name == "$changeStream")?;
    let pipeline = Pipeline::parse(&stages, context)?;
    if operator == "$facet" {
        check(|row| !row.in_facet)?;
    }
    Ok(pipeline)
}
