//! What a router wants of a statement that does not say on which shard its document is: a step of
//! those in [`super::without_shard_key`]. It is said in the shard version, as `withoutShardKey`.

use banyan_wire::{CommandError, ErrorCode};
use bson::oid::ObjectId;
use bson::{RawBsonRef, RawDocument};

use super::shard_rules::Versions;
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

#[cfg(test)]
mod tests {
    use bson::{RawDocumentBuf, cstr, rawdoc};

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
