//! What projections and stages ask to know of documents beside their fields.

use banyan_query::QueryError;
use banyan_query::metadata::{Metadata, MetadataSet};
use banyan_query::sort::SortPattern;
use bson::{RawArrayBuf, cstr};

use super::{Member, Operator, Progress, Run, Stage, pass_on};
use crate::row::Row;
use crate::shares::Share;

/// Adds it, in fields that are dropped before anybody sees them. Distances are told by what finds
/// documents by them.
#[derive(Clone)]
pub struct TellMetadata {
    asked: MetadataSet,
    /// What the documents are sorted by.
    sort: Option<SortPattern>,
}

impl TellMetadata {
    pub fn new(asked: MetadataSet, sort: Option<SortPattern>) -> TellMetadata {
        TellMetadata { asked, sort }
    }

    fn tell(&self, member: &mut Member) -> Result<(), QueryError> {
        let Some(row) = member.row.take() else {
            return Ok(());
        };
        let sort_key = match &self.sort {
            Some(sort) if self.asked.has(Metadata::SortKey) => sort.key_values(&row)?,
            _ => RawArrayBuf::new(),
        };
        let mut document = row.into_owned();
        if let Some(key) = &member.key
            && self.asked.has(Metadata::IndexKey)
        {
            document.append(cstr!("$indexKey"), &**key);
        }
        if self.asked.has(Metadata::RecordId) {
            document.append(cstr!("$recordId"), member.record.to_bson());
        }
        if self.asked.has(Metadata::SortKey) {
            document.append(cstr!("$sortKey"), sort_key);
        }
        member.row = Some(Row::Owned(document));
        Ok(())
    }
}

impl Operator for TellMetadata {
    fn name(&self) -> &'static str {
        "METADATA"
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
        let mut new = out.get_mut(before..).unwrap_or_default().iter_mut();
        new.try_for_each(|member| self.tell(member))?;
        Ok((works, progress))
    }

    fn part(&self, _: &Share) -> Option<Box<dyn Operator>> {
        Some(Box::new(self.clone()))
    }

    fn passes_on(&self) -> bool {
        true
    }

    fn is_shown(&self) -> bool {
        false
    }
}
