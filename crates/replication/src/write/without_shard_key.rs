//! Statements that change one document of a sharded collection and do not say on which shard it is.
//!
//! A router goes about them in steps. It has all shards on which the document may be look for one,
//! which changes nothing, and then has one shard change it: the one with the first document in the
//! order of the statement's sort, or any that has found some. Where the statement has an order, the
//! document is named by its `_id`, and the shard changes that one or none. In any case the shard
//! matches the document again, under its latch: if nothing matches any more, nothing is changed,
//! and the router begins anew. An upsert for which no shard has found anything goes to the shard
//! that is to have the new document.
//!
//! At most one shard is asked to change something at any time, and the next one only after the one
//! before has said that it has changed nothing. What is left is a numbered statement that is sent
//! again, since nobody knows what has become of the first try, which may be under way still. Each try
//! therefore begins with a look at all shards. One that has carried the statement out says so instead
//! of looking: the owner of a range knows what was done to its documents, as sessions' histories move
//! with ranges ([`crate::sessions::histories`]), and the document that was changed matched the same
//! filter, so its range's owner is among those that are asked. For an upsert all shards of the
//! collection are, as its new document may be anywhere. And a change by an earlier try is refused from
//! the moment of the look on ([`crate::sessions::attempts`]). A shard that is asked by the one try and
//! not by the other has got or given ranges between the two, and refuses the earlier one for its version.
//!
//! That nothing was found is not recorded, here as elsewhere: a router therefore has nothing changed by
//! a try whose client has gone, which may have been told so by a later one.
//!
//! What the router wants is said in the version that it sends with the statement, as
//! `withoutShardKey`.

use banyan_query::QueryError;
use banyan_wire::{CommandError, ErrorCode};
use bson::oid::ObjectId;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr};

use super::modify::{self, Target};
use super::shard_rules::Versions;
use super::staging::Staging;
use crate::errors;
use crate::sessions::attempts::Attempt;

const FIELD: &str = "withoutShardKey";

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Step<'a> {
    /// Say which document it would be.
    Look,
    /// Say which document an upsert would insert.
    Make,
    /// Change a document that is here: the one with this `_id`, or any.
    Change { id: Option<RawBsonRef<'a>> },
    /// Do everything that the statement says. A document that it inserts, and that has no `_id` of
    /// its own, gets this one.
    Upsert { id: Option<ObjectId> },
}

/// What a router wants of a statement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Routed<'a> {
    pub step: Step<'a>,
    /// Which try of a numbered statement this is.
    pub attempt: Option<Attempt>,
}

impl<'a> Routed<'a> {
    /// `None`: this is no statement of that kind.
    pub fn of(versions: &Versions<'a>) -> Result<Option<Routed<'a>>, CommandError> {
        let Some(RawBsonRef::Document(version)) = versions.shard else {
            return Ok(None);
        };
        match banyan_document::field(version, FIELD) {
            None => Ok(None),
            Some(RawBsonRef::Document(said)) => Routed::parse(said).map(Some),
            Some(_) => Err(unclear()),
        }
    }

    fn parse(said: &'a RawDocument) -> Result<Routed<'a>, CommandError> {
        let field = |name| banyan_document::field(said, name);
        let id = field("_id");
        let step = match field("step") {
            Some(RawBsonRef::String("look")) => Step::Look,
            Some(RawBsonRef::String("make")) => Step::Make,
            Some(RawBsonRef::String("change")) => Step::Change { id },
            Some(RawBsonRef::String("upsert")) => Step::Upsert {
                id: id.and_then(|id| id.as_object_id()),
            },
            _ => return Err(unclear()),
        };
        let attempt = match (field("attempt"), field("try")) {
            (Some(RawBsonRef::Int64(number)), Some(RawBsonRef::ObjectId(id))) => {
                Some(Attempt { number, id })
            }
            _ => None,
        };
        Ok(Routed { step, attempt })
    }

    /// The `_id` of the only document that may be changed.
    pub fn only(&self) -> Option<RawBsonRef<'a>> {
        match self.step {
            Step::Change { id } => id,
            _ => None,
        }
    }

    /// Whether a document may be inserted where none matches.
    pub fn may_insert(&self) -> bool {
        !matches!(self.step, Step::Change { .. })
    }

    /// The `_id` of an inserted document that brings none.
    pub fn inserted_id(&self) -> Option<ObjectId> {
        match self.step {
            Step::Upsert { id } => id,
            _ => None,
        }
    }
}

fn unclear() -> CommandError {
    CommandError::new(
        ErrorCode::FailedToParse,
        format!("'{FIELD}' must be a document with a 'step'"),
    )
}

/// What the router is told that asks before anything is to be done; `None`: the statement is to be
/// carried out. `make`: the document that an upsert would insert.
pub async fn told(
    staging: &mut Staging<'_>,
    target: &Target<'_>,
    make: impl FnOnce() -> Result<RawDocumentBuf, QueryError>,
) -> Result<Option<RawDocumentBuf>, CommandError> {
    let Some(routed) = staging.routed else {
        return Ok(None);
    };
    let mut told = RawDocumentBuf::new();
    match routed.step {
        Step::Look => {
            staging.begin_attempt()?;
            if let Some(candidate) = modify::look(staging, target).await? {
                told.append(cstr!("candidate"), candidate);
            }
        }
        Step::Make => told.append(cstr!("made"), make().map_err(errors::query)?),
        Step::Change { .. } | Step::Upsert { .. } => {
            staging.check_attempt()?;
            return Ok(None);
        }
    }
    Ok(Some(told))
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    fn read(said: RawBsonRef<'_>) -> Result<Option<RawDocumentBuf>, CommandError> {
        let mut version = RawDocumentBuf::new();
        version.append(cstr!("withoutShardKey"), said);
        let versions = Versions {
            shard: Some(RawBsonRef::Document(&version)),
            database: None,
        };
        let routed = Routed::of(&versions)?;
        Ok(routed.map(|routed| rawdoc! { "step": format!("{:?}", routed.step) }))
    }

    #[test]
    fn a_step_is_said_clearly() {
        assert_eq!(Routed::of(&Versions::default()).unwrap(), None);
        let said = rawdoc! { "step": "change", "_id": 5 };
        let step = read(RawBsonRef::Document(&said)).unwrap().unwrap();
        assert!(step.get_str("step").unwrap().contains("Int32(5)"));
        for unclear in [rawdoc! {}, rawdoc! { "step": 1 }, rawdoc! { "step": "x" }] {
            assert!(read(RawBsonRef::Document(&unclear)).is_err());
        }
        assert!(read(RawBsonRef::Int32(1)).is_err());
    }

    #[test]
    fn only_an_upsert_inserts() {
        let id = ObjectId::new();
        let routed = |step| Routed {
            step,
            attempt: None,
        };
        assert!(!routed(Step::Change { id: None }).may_insert());
        assert_eq!(
            routed(Step::Upsert { id: Some(id) }).inserted_id(),
            Some(id)
        );
        assert_eq!(routed(Step::Look).only(), None);
    }
}
