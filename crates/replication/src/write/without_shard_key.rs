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
//! What the router wants is said in the version that it sends with the statement
//! ([`super::routed`]).

use banyan_query::QueryError;
use banyan_wire::CommandError;
use bson::{RawDocumentBuf, cstr};

use super::modify::{self, Target};
use super::routed::Step;
use super::staging::Staging;
use crate::errors;

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
