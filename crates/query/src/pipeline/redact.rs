//! $redact: keeps, prunes or descends into each level of a document

use std::sync::Arc;

use bson::{RawBsonRef, RawDocument};

use banyan_document::{DocumentWriter, elements, items};

use super::stage::{Division, Stage};
use super::stage_run::{Flow, Next, StageRun, Start};
use crate::context::Context;
use crate::error::QueryError;
use crate::expression::value::{describe, error};
use crate::expression::{Arena, PartExpression};

pub(super) fn parse(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let expression = PartExpression::parse(value, context)?;
    out.push(Arc::new(Redact {
        expression,
        is_filtered: false,
    }));
    Ok(())
}

#[derive(Debug)]
pub struct Redact {
    expression: PartExpression,
    /// What the `$match` behind it says of values alone is asked before it as well.
    is_filtered: bool,
}

impl Redact {
    /// The same, once it was looked at what may be asked before it. `None`: it was already.
    pub(super) fn filtered(&self) -> Option<Redact> {
        (!self.is_filtered).then(|| Redact {
            expression: self.expression.clone(),
            is_filtered: true,
        })
    }
}

impl Stage for Redact {
    fn name(&self) -> &'static str {
        "$redact"
    }

    fn serialize(&self, out: &mut DocumentWriter) {
        out.append(self.name(), self.expression.source());
    }

    fn split(&self) -> Division {
        Division::Shards
    }

    fn makes_at_most_one(&self) -> bool {
        true
    }

    fn run(self: Arc<Self>, start: &Start<'_>) -> Result<Box<dyn StageRun>, QueryError> {
        Ok(Box::new(RedactRun {
            expression: self.expression.bind(start.variables),
        }))
    }
}

struct RedactRun {
    expression: PartExpression,
}

enum Decision {
    Keep,
    Prune,
    Descend,
}

/// A document, level by level.
struct Levels<'a> {
    expression: &'a PartExpression,
    root: &'a RawDocument,
}

impl Levels<'_> {
    fn decide(&self, level: &RawDocument) -> Result<Decision, QueryError> {
        let arena = Arena::new();
        match self.expression.evaluate(self.root, level, &arena)? {
            Some(RawBsonRef::String("keep")) => Ok(Decision::Keep),
            Some(RawBsonRef::String("prune")) => Ok(Decision::Prune),
            Some(RawBsonRef::String("descend")) => Ok(Decision::Descend),
            other => error(
                17053,
                format!(
                    "$redact's expression should not return anything aside from the variables \
                     $$KEEP, $$DESCEND, and $$PRUNE, but returned {}",
                    describe(other)
                ),
            ),
        }
    }

    /// The fields of a level that is descended into.
    fn descend(
        &self,
        document: &RawDocument,
        writer: &mut DocumentWriter,
    ) -> Result<(), QueryError> {
        for element in elements(document) {
            match element.value() {
                RawBsonRef::Document(inner) => match self.decide(inner)? {
                    Decision::Keep => writer.append_element(&element),
                    Decision::Prune => {}
                    Decision::Descend => {
                        writer.begin_document(element.name());
                        self.descend(inner, writer)?;
                        writer.end();
                    }
                },
                RawBsonRef::Array(array) => {
                    writer.begin_array(element.name());
                    self.descend_array(array, writer)?;
                    writer.end();
                }
                _ => writer.append_element(&element),
            }
        }
        Ok(())
    }

    fn descend_array(
        &self,
        array: &bson::RawArray,
        writer: &mut DocumentWriter,
    ) -> Result<(), QueryError> {
        for item in items(array) {
            match item.value() {
                RawBsonRef::Document(inner) => match self.decide(inner)? {
                    Decision::Keep => writer.push_element(&item),
                    Decision::Prune => {}
                    Decision::Descend => {
                        writer.push_document();
                        self.descend(inner, writer)?;
                        writer.end();
                    }
                },
                RawBsonRef::Array(inner) => {
                    writer.push_array();
                    self.descend_array(inner, writer)?;
                    writer.end();
                }
                _ => writer.push_element(&item),
            }
        }
        Ok(())
    }
}

impl StageRun for RedactRun {
    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        let levels = Levels {
            expression: &self.expression,
            root: document,
        };
        match levels.decide(document)? {
            Decision::Keep => next.push(document),
            Decision::Prune => Ok(Flow::Continue),
            Decision::Descend => {
                let mut writer = DocumentWriter::with_capacity(document.as_bytes().len());
                levels.descend(document, &mut writer)?;
                next.push(&writer.finish())
            }
        }
    }
}
