//! PROJECTION_DEFAULT and PROJECTION_SIMPLE: the parts of documents that are asked for.

use std::sync::Arc;

use banyan_query::QueryError;
use banyan_query::filter::Filter;
use banyan_query::projection::Projection;
use banyan_storage::Collection;
use bson::{RawDocument, RawDocumentBuf, cstr};

use super::{Counts, Explainer, Member, Operator, Progress, Run};
use crate::row::Row;

/// What becomes of each document on its way out.
#[derive(Clone, Default)]
pub struct Output {
    pub projection: Option<Arc<Projection>>,
    /// What the projection was parsed from.
    pub source: Option<RawDocumentBuf>,
    /// The filter, for projections that ask where in an array it matched.
    pub positions: Option<Arc<Filter>>,
    pub show_record_id: bool,
}

impl Output {
    /// Whether documents come back as they are.
    pub fn is_identity(&self) -> bool {
        self.projection.is_none() && !self.show_record_id
    }

    /// The document as it goes out.
    pub fn apply(&self, row: Row, record: u64) -> Result<Row, QueryError> {
        if self.is_identity() {
            return Ok(row);
        }
        let document: &RawDocument = &row;
        let mut shaped = match &self.projection {
            None => document.to_owned(),
            Some(projection) => {
                let position = match &self.positions {
                    Some(filter) => filter.matches_with_position(document)?,
                    None => None,
                };
                projection.apply(document, position)?
            }
        };
        if self.show_record_id {
            let record = i64::try_from(record).unwrap_or(i64::MAX);
            shaped.append(cstr!("$recordId"), record);
        }
        Ok(Row::Owned(shaped))
    }
}

pub struct ProjectionDefault {
    input: Box<dyn Operator>,
    output: Output,
    counts: Counts,
}

impl ProjectionDefault {
    pub fn new(input: Box<dyn Operator>, output: Output) -> ProjectionDefault {
        ProjectionDefault {
            input,
            output,
            counts: Counts::default(),
        }
    }
}

impl Operator for ProjectionDefault {
    fn next(
        &mut self,
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<Progress, QueryError> {
        let before = out.len();
        let progress = self.input.next(run, most, out)?;
        let new = out.get_mut(before..).unwrap_or_default();
        for member in new.iter_mut() {
            if let Some(row) = member.row.take() {
                member.row = Some(self.output.apply(row, member.record)?);
            }
        }
        let advanced = new.len();
        self.counts.note(advanced as u64, advanced, progress);
        Ok(progress)
    }

    fn save(&mut self) {
        self.input.save();
        self.counts.saves += 1;
    }

    fn restore(&mut self, collection: &Collection) -> Result<(), QueryError> {
        self.counts.restores += 1;
        self.input.restore(collection)
    }

    fn produced(&self) -> u64 {
        self.input.produced()
    }

    fn explain(&self, explainer: &Explainer) -> RawDocumentBuf {
        let Some(projection) = &self.output.projection else {
            // Nobody asked for anything but the record's id.
            return self.input.explain(explainer);
        };
        let name = match projection.is_simple() {
            true => "PROJECTION_SIMPLE",
            false => "PROJECTION_DEFAULT",
        };
        let mut stage = explainer.stage(name, None, &self.counts);
        let source = self.output.source.clone().unwrap_or_default();
        stage.append(cstr!("transformBy"), source);
        explainer.over(stage, &*self.input)
    }
}
