//! What the stages of a pipeline ask of documents beside their fields, and where that is dropped.

use std::sync::Arc;

use super::drop_fields::DropFields;
use super::matching::Match;
use super::member::Member;
use super::near_query::GeoNear;
use crate::error::QueryError;
use crate::metadata::{Metadata, MetadataSet, no_sort};

/// What the stages of a pipeline ask for, one after the other.
#[derive(Default)]
pub(super) struct Asked {
    all: MetadataSet,
    /// The last member that asks.
    last: usize,
}

impl Asked {
    /// Takes note of what the stage asks for that is the last of these.
    pub fn note(&mut self, asked: MetadataSet, members: &[Member]) -> Result<(), QueryError> {
        let Some(first) = asked.first() else {
            return Ok(());
        };
        let Some((stage, before)) = members.split_last() else {
            return Ok(());
        };
        if stage.stage.is::<Match>() {
            return Err(first.missing());
        }
        let is_at_the_start = before.iter().all(|member| member.stage.is::<Match>());
        if asked.has(Metadata::SortKey) && is_at_the_start && stage.stage.name() == "$project" {
            return Err(no_sort());
        }
        self.all = self.all.and(asked);
        self.last = before.len();
        Ok(())
    }

    /// Has it dropped behind the last stage that asks; all that is asked for.
    pub fn settle(self, members: &mut Vec<Member>) -> Result<MetadataSet, QueryError> {
        if self.all.is_empty() {
            return Ok(self.all);
        }
        let near = members
            .first()
            .and_then(|first| first.stage.get::<GeoNear>());
        match near.cloned() {
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
