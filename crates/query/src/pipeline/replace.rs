//! $replaceRoot and $replaceWith

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use banyan_document::{DocumentWriter, elements};

use super::ahead::{Ahead, Scripted};
use super::stage::{Division, Reads, Stage};
use super::stage_run::{Flow, Next, StageRun, Start};
use crate::context::Context;
use crate::error::QueryError;
use crate::expression::value::{check_depth, describe, error, type_name};
use crate::expression::{Arena, Expression};
use crate::metadata::{self, is_metadata};
use crate::text::{TEXT_SCORE_FIELD, score_of};

#[derive(Debug)]
pub struct ReplaceRoot {
    expression: Expression,
    /// What error messages call the result.
    called: &'static str,
    /// Whether results keep the score of a search.
    is_scored: bool,
    /// Whether they keep what is known of the documents that they are made of.
    keeps_metadata: bool,
}

impl Stage for ReplaceRoot {
    fn name(&self) -> &'static str {
        match self.called {
            NEW_ROOT => "$replaceRoot",
            _ => "$replaceWith",
        }
    }

    fn serialize(&self, out: &mut DocumentWriter) {
        if self.called != NEW_ROOT {
            return out.append(self.name(), self.expression.source());
        }
        out.begin_document(self.name());
        out.append("newRoot", self.expression.source());
        out.end();
    }

    fn reads(&self, paths: &mut BTreeSet<String>) -> Reads {
        if self.is_scored {
            paths.insert(TEXT_SCORE_FIELD.to_owned());
        }
        if self.keeps_metadata {
            paths.extend(metadata::field_names().map(str::to_owned));
        }
        match self.expression.dependencies(paths) {
            true => Reads::Only,
            false => Reads::Everything,
        }
    }

    fn split(&self) -> Division {
        Division::Shards
    }

    fn is_one_to_one(&self) -> bool {
        true
    }

    fn run(self: Arc<Self>, start: &Start<'_>) -> Result<Box<dyn StageRun>, QueryError> {
        let run = ReplaceRun {
            expression: self.expression.bind(start.variables),
            called: self.called,
            is_scored: self.is_scored,
            keeps_metadata: self.keeps_metadata,
            arena: Arena::new(),
        };
        let calls_script = start.may_keep() && self.expression.calls_script();
        Ok(Ahead::of(run, calls_script, start))
    }
}

const NEW_ROOT: &str = "'newRoot' expression ";
const REPLACEMENT: &str = "'replacement document' ";

pub(super) fn parse_root(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let RawBsonRef::Document(document) = value else {
        return error(
            40229,
            format!(
                "expected an object as specification for $replaceRoot stage, got {}",
                type_name(Some(value))
            ),
        );
    };
    let mut new_root = None;
    for (name, value) in document.iter().map_while(Result::ok) {
        match name.as_str() {
            "newRoot" => new_root = Some(value),
            other => {
                return error(
                    40415,
                    format!("BSON field '$replaceRoot.{other}' is an unknown field."),
                );
            }
        }
    }
    let Some(new_root) = new_root else {
        return error(
            40414,
            "BSON field '$replaceRoot.newRoot' is missing but a required field",
        );
    };
    let expression = Expression::parse(new_root, context)?;
    out.push(Arc::new(ReplaceRoot {
        expression,
        called: NEW_ROOT,
        is_scored: context.text.is_some(),
        keeps_metadata: context.names_metadata,
    }));
    Ok(())
}

pub(super) fn parse_with(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let expression = Expression::parse(value, context)?;
    out.push(Arc::new(ReplaceRoot {
        expression,
        called: REPLACEMENT,
        is_scored: context.text.is_some(),
        keeps_metadata: context.names_metadata,
    }));
    Ok(())
}

struct ReplaceRun {
    expression: Expression,
    called: &'static str,
    is_scored: bool,
    keeps_metadata: bool,
    arena: Arena,
}

impl StageRun for ReplaceRun {
    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        self.arena.reset();
        next.push(&self.result(document)?)
    }
}

impl Scripted for ReplaceRun {
    type Found = RawDocumentBuf;

    fn work_out(&mut self, document: &RawDocument) -> Result<RawDocumentBuf, QueryError> {
        self.arena.reset();
        self.result(document).map(Cow::into_owned)
    }

    fn hand_on(
        &mut self,
        _: &RawDocument,
        result: RawDocumentBuf,
        next: &mut Next<'_>,
    ) -> Result<Flow, QueryError> {
        next.push(&result)
    }
}

impl ReplaceRun {
    fn result<'r>(&'r self, document: &'r RawDocument) -> Result<Cow<'r, RawDocument>, QueryError> {
        match self.expression.evaluate(document, &self.arena)? {
            Some(RawBsonRef::Document(result)) => {
                check_depth(RawBsonRef::Document(result))?;
                let score = score_of(document).filter(|_| self.is_scored);
                if score.is_none() && !self.keeps_metadata {
                    return Ok(Cow::Borrowed(result));
                }
                let mut told = DocumentWriter::new();
                told.append_all(result);
                if let Some(score) = score {
                    told.append(TEXT_SCORE_FIELD, RawBsonRef::Double(score));
                }
                for element in elements(document) {
                    if self.keeps_metadata && is_metadata(element.name()) {
                        told.append_element(&element);
                    }
                }
                Ok(Cow::Owned(told.finish()))
            }
            other => error(
                40228,
                format!(
                    "{} must evaluate to an object, but resulting value was: {}. Type of \
                     resulting value: '{}'. Input document: {}",
                    self.called,
                    describe(other),
                    type_name(other),
                    describe(Some(RawBsonRef::Document(document)))
                ),
            ),
        }
    }
}
