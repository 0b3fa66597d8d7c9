//! $documents: documents that the stage itself names

use std::sync::Arc;

use bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use banyan_document::DocumentWriter;

use super::project;
use super::stage::Stage;
use super::stage_run::{Drained, Flow, Next, StageRun, Start};
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::{describe, error, items, type_name};
use crate::expression::{Expression, is_operator};

#[derive(Debug)]
pub struct LiteralDocuments {
    expression: Expression,
    /// None if they depend on the variables of a `$lookup`, or fail.
    known: Option<Vec<RawBson>>,
}

pub(super) fn parse(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    if value.as_document().is_some_and(RawDocument::is_empty) {
        return error(
            51270,
            "An empty sub-projection is not a valid value. Found empty object at path",
        );
    }
    let operator = value
        .as_document()
        .and_then(|document| document.iter().next()?.ok());
    if let Some((name, _)) = operator
        && name.as_str().starts_with('$')
        && !is_operator(name.as_str())
    {
        return error(31325, format!("Unknown expression {name}"));
    }
    let is_object = operator.is_some_and(|(name, _)| !name.as_str().starts_with('$'));
    let parse = || match is_object {
        true => parse_object(value, context),
        false => Expression::parse(value, context),
    };
    let (expression, slots) = context.scope.recording(parse);
    let expression = expression?;
    let known = match slots.is_empty() {
        // What is wrong with them is told when they are read.
        true => evaluate(&expression).ok(),
        false => None,
    };
    out.push(Arc::new(LiteralDocuments { expression, known }));
    Ok(())
}

/// An object is no array, which is told when the documents are read. MongoDB has the argument
/// stand in a `$project`, and reads an object as a part of that.
fn parse_object(value: RawBsonRef<'_>, context: &Context) -> Result<Expression, QueryError> {
    let mut projection = DocumentWriter::new();
    projection.append("documents", value);
    let projection = projection.finish();
    project::parse_project(RawBsonRef::Document(&projection), context, &mut Vec::new())?;
    let mut literal = DocumentWriter::new();
    literal.append("$literal", value);
    Expression::parse(RawBsonRef::Document(&literal.finish()), context)
}

fn evaluate(expression: &Expression) -> Result<Vec<RawBson>, QueryError> {
    match expression.evaluate_owned(&RawDocumentBuf::new())? {
        Some(RawBson::Array(array)) => Ok(items(&array).map(Into::into).collect()),
        _ => error(5858203, "an array is expected"),
    }
}

fn document(item: RawBsonRef<'_>) -> Result<&RawDocument, QueryError> {
    item.as_document().ok_or_else(|| {
        let message = format!(
            "'newRoot' expression  must evaluate to an object, but resulting value was: {}. Type \
             of resulting value: '{}'.",
            describe(Some(item)),
            type_name(Some(item))
        );
        QueryError::new(ErrorKind::Location(40228), message)
    })
}

impl Stage for LiteralDocuments {
    fn name(&self) -> &'static str {
        "$documents"
    }

    fn serialize(&self, out: &mut DocumentWriter) {
        out.append(self.name(), self.expression.source());
    }

    fn is_source(&self) -> bool {
        true
    }

    fn run(self: Arc<Self>, start: &Start<'_>) -> Result<Box<dyn StageRun>, QueryError> {
        let documents = match &self.known {
            Some(documents) => documents.clone(),
            None => evaluate(&self.expression.bind(start.variables))?,
        };
        Ok(Box::new(DocumentsRun {
            documents: documents.into_iter(),
        }))
    }
}

struct DocumentsRun {
    documents: std::vec::IntoIter<RawBson>,
}

impl StageRun for DocumentsRun {
    /// There is no input: this is the first stage.
    fn push(&mut self, _: &RawDocument, _: &mut Next<'_>) -> Result<Flow, QueryError> {
        Ok(Flow::Stop)
    }

    fn drain(&mut self, next: &mut Next<'_>) -> Result<Drained, QueryError> {
        match self.documents.next() {
            None => Ok(Drained::Done),
            // What is no document is told when its turn has come.
            Some(item) => match next.push(document(item.as_raw_bson_ref())?)? {
                Flow::Continue | Flow::Full => Ok(Drained::More),
                Flow::Stop => Ok(Drained::Done),
            },
        }
    }
}
