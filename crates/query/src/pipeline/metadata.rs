//! What the stages of a pipeline ask of documents beside their fields, and where that is dropped.

use std::sync::Arc;

use super::drop_fields::DropFields;
use super::facet::Facet;
use super::matching::Match;
use super::member::Member;
use super::near_query::GeoNear;
use crate::context::Context;
use crate::error::QueryError;
use crate::metadata::{Metadata, MetadataSet, no_sort};

/// The last of these stages at which documents still have what they brought beside their fields: behind
/// a `$facet` there are others.
pub(super) fn last_with_metadata(members: &[Member]) -> Option<usize> {
    let last = members.len().checked_sub(1)?;
    let facet = members.iter().position(|member| member.stage.is::<Facet>());
    match facet {
        Some(facet) if facet < last => Some(facet.saturating_sub(1)),
        _ => Some(last),
    }
}

/// What the stages of a pipeline ask for, one after the other.
#[derive(Default)]
pub(super) struct Asked {
    all: MetadataSet,
    /// The last member that asks.
    last: usize,
}

impl Asked {
    /// Takes note of what the stage asks for that is the last of these.
    pub fn note(
        &mut self,
        asked: MetadataSet,
        members: &[Member],
        in_facet: bool,
    ) -> Result<(), QueryError> {
        let Some(first) = asked.first() else {
            return Ok(());
        };
        let Some((stage, before)) = members.split_last() else {
            return Ok(());
        };
        if stage.stage.is::<Match>() {
            return Err(first.missing());
        }
        let is_at_the_start = !in_facet && before.iter().all(|member| member.stage.is::<Match>());
        if asked.has(Metadata::SortKey) && is_at_the_start && stage.stage.name() == "$project" {
            return Err(no_sort());
        }
        self.all = self.all.and(asked);
        self.last = last_with_metadata(members).unwrap_or(0);
        Ok(())
    }

    /// What a `$facet` asks of the documents that come into it.
    pub fn of_places(&self) -> MetadataSet {
        self.all.only_of_places()
    }

    /// Has it dropped behind the last stage that asks; all that is asked for.
    pub fn settle(
        self,
        members: &mut Vec<Member>,
        context: &Context,
    ) -> Result<MetadataSet, QueryError> {
        if self.all.is_empty() {
            return Ok(self.all);
        }
        let near = members
            .first()
            .and_then(|first| first.stage.get::<GeoNear>());
        match near.cloned() {
            None if context.metadata_may_be_missing => {}
            None => self.all.check_places()?,
            Some(near) if self.all.is_of_places() => {
                if let Some(first) = members.first_mut() {
                    first.stage = Arc::new(near.telling());
                }
            }
            Some(_) => {}
        }
        DropFields::Metadata.insert_behind(self.last, members);
        Ok(self.all)
    }
}
