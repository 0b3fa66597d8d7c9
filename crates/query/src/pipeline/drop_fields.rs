//! `$_internalDropMetadata` and `$_internalDropTextScore`: behind the last stage that may ask for
//! what goes with documents as fields, these leave them. No client writes them; a router sends them to
//! shards.

use std::collections::BTreeSet;
use std::sync::Arc;

use banyan_document::DocumentWriter;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use super::limit::{Limit, Skip};
use super::member::Member;
use super::stage::{Changes, Division, Reads, Stage};
use super::stage_run::{Flow, Next, StageRun, Start};
use crate::context::Context;
use crate::error::QueryError;
use crate::metadata::without_metadata;
use crate::text::without_score;
use crate::variables::Slots;

pub(super) const METADATA: &str = "$_internalDropMetadata";
pub(super) const TEXT_SCORE: &str = "$_internalDropTextScore";

/// Which fields are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DropFields {
    /// What `$meta` tells of documents, other than the score of a search.
    Metadata,
    TextScore,
}

pub(super) fn parse_metadata(
    _: RawBsonRef<'_>,
    _: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    out.push(Arc::new(DropFields::Metadata));
    Ok(())
}

pub(super) fn parse_text_score(
    _: RawBsonRef<'_>,
    _: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    out.push(Arc::new(DropFields::TextScore));
    Ok(())
}

impl DropFields {
    pub(super) fn is(self, stage: &dyn Stage) -> bool {
        stage.get::<DropFields>() == Some(&self)
    }

    /// Puts the stage behind the member with the number `last` and the limits that follow it: these go
    /// with the sort in front of them.
    pub(super) fn insert_behind(self, last: usize, members: &mut Vec<Member>) {
        let is_limit = |member: &&Member| member.stage.is::<Limit>() || member.stage.is::<Skip>();
        let behind = members.get(last + 1..).unwrap_or_default();
        let limits = behind.iter().take_while(is_limit).count();
        let member = Member {
            stage: Arc::new(self),
            slots: Slots::default(),
        };
        members.insert((last + 1 + limits).min(members.len()), member);
    }

    fn dropped(self, document: &RawDocument) -> Option<RawDocumentBuf> {
        match self {
            DropFields::Metadata => without_metadata(document),
            DropFields::TextScore => without_score(document),
        }
    }
}

impl Stage for DropFields {
    fn name(&self) -> &'static str {
        match self {
            DropFields::Metadata => METADATA,
            DropFields::TextScore => TEXT_SCORE,
        }
    }

    fn serialize(&self, out: &mut DocumentWriter) {
        out.begin_document(self.name());
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

    fn makes_at_most_one(&self) -> bool {
        true
    }

    fn run(self: Arc<Self>, _: &Start<'_>) -> Result<Box<dyn StageRun>, QueryError> {
        Ok(Box::new(DropRun(*self)))
    }
}

struct DropRun(DropFields);

impl StageRun for DropRun {
    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        match self.0.dropped(document) {
            Some(dropped) => next.push(&dropped),
            None => next.push(document),
        }
    }
}
