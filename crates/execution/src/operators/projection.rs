//! PROJECTION_DEFAULT, PROJECTION_SIMPLE and PROJECTION_COVERED: the parts of documents that are
//! asked for.

use std::sync::Arc;

use banyan_query::QueryError;
use banyan_query::filter::Filter;
use banyan_query::javascript::ahead;
use banyan_query::metadata::without_metadata;
use banyan_query::projection;
use banyan_query::sort::SortPattern;
use banyan_query::text::without_score;
use banyan_storage::RecordId;
use bson::{RawDocument, RawDocumentBuf, cstr};

use super::{
    Counts, Explainer, Member, MemberRef, Operator, Progress, Run, Stage, Visitor, pass_on,
    visit_all, visit_on,
};
use crate::row::Row;
use crate::shares::Share;

/// What becomes of each document on its way out.
#[derive(Clone, Default)]
pub struct Output {
    pub projection: Option<Arc<projection::Projection>>,
    /// What the projection was parsed from.
    pub source: Option<RawDocumentBuf>,
    /// The filter, for projections that ask where in an array it matched.
    pub positions: Option<Arc<Filter>>,
    pub show_record_id: bool,
    /// Keys are wanted, and the documents are found without any.
    pub has_no_key: bool,
    /// Documents have scores, which do not go out.
    pub drops_score: bool,
    /// So with what else is known of them.
    pub drops_metadata: bool,
    /// What a router merges them by, which they bring.
    pub merge_order: Option<SortPattern>,
}

impl Output {
    /// Whether documents come back as they are.
    pub fn is_identity(&self) -> bool {
        self.projection.is_none()
            && !self.show_record_id
            && !self.has_no_key
            && !self.drops_score
            && !self.drops_metadata
            && self.merge_order.is_none()
    }

    /// The document as it goes out.
    pub fn apply(&self, row: Row, record: &RecordId) -> Result<Row, QueryError> {
        if self.is_identity() {
            return Ok(row);
        }
        self.sent(&row, record, Vec::new()).map(Row::Owned)
    }

    /// A document that does not go out as it is, with what a router needs to know of it. It may be
    /// written over what is in the buffer.
    fn sent(
        &self,
        document: &RawDocument,
        record: &RecordId,
        buffer: Vec<u8>,
    ) -> Result<RawDocumentBuf, QueryError> {
        let mut sent = match self.has_no_key {
            true => RawDocumentBuf::new(),
            false => self.shape(document, record, buffer)?,
        };
        if let Some(order) = &self.merge_order {
            order.append_key(document, &mut sent)?;
        }
        Ok(sent)
    }

    /// A document as it goes out that does not as it is.
    fn shape(
        &self,
        document: &RawDocument,
        record: &RecordId,
        buffer: Vec<u8>,
    ) -> Result<RawDocumentBuf, QueryError> {
        let mut shaped = match &self.projection {
            None => document.to_owned(),
            Some(projection) => {
                let position = match &self.positions {
                    Some(filter) => filter.matches_with_position(document)?,
                    None => None,
                };
                projection.apply_over(document, position, buffer)?
            }
        };
        if self.drops_score
            && let Some(dropped) = without_score(&shaped)
        {
            shaped = dropped;
        }
        if self.drops_metadata
            && let Some(dropped) = without_metadata(&shaped)
        {
            shaped = dropped;
        }
        if self.show_record_id {
            shaped.append(cstr!("$recordId"), record.to_bson());
        }
        Ok(shaped)
    }

    /// Whether scripts have a part in it.
    fn calls_script(&self) -> bool {
        !self.has_no_key && self.projection.as_ref().is_some_and(|p| p.calls_script())
    }
}

pub struct Projection {
    output: Output,
    covered: Option<Covered>,
    calls_script: bool,
}

/// How documents come that were read from the keys of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Covered {
    /// With fields that are not asked for.
    More,
    /// As they are asked for.
    Exactly,
}

impl Projection {
    /// Of whole documents.
    pub fn new(output: Output) -> Projection {
        Projection {
            calls_script: output.calls_script(),
            output,
            covered: None,
        }
    }

    pub fn covered(output: Output, covered: Covered) -> Projection {
        Projection {
            calls_script: output.calls_script(),
            output,
            covered: Some(covered),
        }
    }
}

impl Projection {
    /// Whether what is found goes out as it is.
    fn sends_as_found(&self) -> bool {
        let is_bare = !self.output.show_record_id && self.output.merge_order.is_none();
        self.covered == Some(Covered::Exactly) && is_bare || self.output.is_identity()
    }

    /// The scripts of all of the members are run together.
    fn apply_together(&self, members: &mut [Member]) -> Result<(), QueryError> {
        let rows: Vec<Option<(&RawDocument, &RecordId)>> = members
            .iter()
            .map(|member| Some((member.row.as_deref()?, &member.record)))
            .collect();
        let shaped = ahead::for_all(&rows, |row| match row {
            Some((document, record)) => self.output.sent(document, record, Vec::new()).map(Some),
            None => Ok(None),
        })?;
        for (member, shaped) in members.iter_mut().zip(shaped) {
            member.row = shaped.map(Row::Owned);
        }
        Ok(())
    }
}

impl Operator for Projection {
    fn name(&self) -> &'static str {
        match (&self.output.projection, self.covered) {
            (None, Some(_)) => "PROJECTION_COVERED",
            (Some(projection), Some(_)) if projection.names_fields() => "PROJECTION_COVERED",
            (Some(projection), None) if projection.names_fields() => "PROJECTION_SIMPLE",
            _ => "PROJECTION_DEFAULT",
        }
    }

    fn next(
        &mut self,
        inputs: &mut [Stage],
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<(u64, Progress), QueryError> {
        let before = out.len();
        let (works, progress) = pass_on(inputs, run, most, out)?;
        let new = out.get_mut(before..).unwrap_or_default();
        if self.sends_as_found() {
            return Ok((works, progress));
        }
        if self.calls_script {
            self.apply_together(new)?;
            return Ok((works, progress));
        }
        for member in new.iter_mut() {
            if let Some(row) = member.row.take() {
                member.row = Some(self.output.apply(row, &member.record)?);
            }
        }
        Ok((works, progress))
    }

    fn visit(
        &mut self,
        inputs: &mut [Stage],
        run: &mut Run<'_>,
        most: usize,
        visitor: Visitor<'_>,
    ) -> Result<(u64, u64, Progress), QueryError> {
        if self.calls_script {
            let mut members = Vec::with_capacity(most);
            let (works, progress) = self.next(inputs, run, most, &mut members)?;
            visit_all(&members, visitor)?;
            return Ok((works, members.len() as u64, progress));
        }
        if self.sends_as_found() {
            return visit_on(inputs, run, most, visitor);
        }
        let output = &self.output;
        let mut buffer = Vec::new();
        visit_on(inputs, run, most, &mut |member| {
            let sent = output.sent(member.document, member.record, std::mem::take(&mut buffer))?;
            visitor(MemberRef {
                document: &sent,
                ..member
            })?;
            buffer = sent.into_bytes();
            Ok(())
        })
    }

    fn calls_script(&self) -> bool {
        self.calls_script
    }

    fn part(&self, _: &Share) -> Option<Box<dyn Operator>> {
        Some(Box::new(Projection {
            output: self.output.clone(),
            covered: self.covered,
            calls_script: self.calls_script,
        }))
    }

    fn passes_on(&self) -> bool {
        true
    }

    /// Not where nobody asked for anything but the record's id.
    fn is_shown(&self) -> bool {
        self.output.projection.is_some() || self.covered.is_some()
    }

    fn describe(&self, stage: &mut RawDocumentBuf, _: &Counts, _: Explainer) {
        let source = self.output.source.clone().unwrap_or_default();
        stage.append(cstr!("transformBy"), source);
    }
}
