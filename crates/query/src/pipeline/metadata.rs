//! `$_internalDropMetadata`: behind the last stage that asks what is known of documents beside their
//! fields, that leaves them. No client writes it.

use std::collections::BTreeSet;
use std::sync::Arc;

use banyan_document::DocumentWriter;
use bson::{RawBsonRef, RawDocument};

use super::limit::{Limit, Skip};
use super::matching::Match;
use super::member::Member;
use super::near_query::GeoNear;
use super::stage::{Changes, Division, Reads, Stage};
use super::stage_run::{Flow, Next, StageRun, Start};
use crate::context::Context;
use crate::error::QueryError;
use crate::metadata::{Metadata, MetadataSet, no_sort, without_metadata};
use crate::variables::Slots;

pub(super) const NAME: &str = "$_internalDropMetadata";

#[derive(Clone, Copy, Debug)]
pub struct DropMetadata;

pub(super) fn parse(
    _: RawBsonRef<'_>,
    _: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    out.push(Arc::new(DropMetadata));
    Ok(())
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
        let mut at = self.last + 1;
        // A limit goes with the sort in front of it.
        let is_passing = |member: &Member| member.stage.is::<Limit>() || member.stage.is::<Skip>();
        while members.get(at).is_some_and(is_passing) {
            at += 1;
        }
        let stage: Arc<dyn Stage> = Arc::new(DropMetadata);
        let slots = Slots::default();
        members.insert(at.min(members.len()), Member { stage, slots });
        Ok(self.all)
    }
}

impl Stage for DropMetadata {
    fn name(&self) -> &'static str {
        NAME
    }

    fn serialize(&self, out: &mut DocumentWriter) {
        out.begin_document(NAME);
        out.end();
    }

    fn reads(&self, _: &mut BTreeSet<String>) -> Reads {
        Reads::AndPasses
    }

    fn changes(&self) -> Changes {
        Changes::nothing()
    }

    fn split(&self) -> Division {
        Division::Shards
    }

    fn run(self: Arc<Self>, _: &Start<'_>) -> Result<Box<dyn StageRun>, QueryError> {
        Ok(Box::new(DropRun))
    }
}

struct DropRun;

impl StageRun for DropRun {
    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        match without_metadata(document) {
            Some(dropped) => next.push(&dropped),
            None => next.push(document),
        }
    }
}
