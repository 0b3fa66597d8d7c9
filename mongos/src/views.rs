//! Views that read what is on several shards.
//!
//! A view is nothing that the router knows of: its name is that of a collection that is not sharded,
//! and the shard that is home to its database answers what reads it. Where that takes more than this
//! shard has, the shard says what the view comes to, and the router runs the aggregation of the
//! collection below it ([`banyan_query::view`]).

use banyan_query::view::Resolved;
use banyan_wire::{CommandError, ErrorCode, Request};
use bson::{RawDocument, RawDocumentBuf};

use crate::context::{CommandResult, Context};
use crate::fields;

/// What a shard that cannot answer says of a view.
pub struct Told {
    /// The view's full name.
    pub view: String,
    pub resolved: Resolved,
}

/// A request like the client's for what its command comes to.
pub fn request(context: &Context<'_>, name: &str, body: RawDocumentBuf) -> Request {
    let own = context.request;
    Request {
        request_id: own.request_id,
        database: own.database.clone(),
        name: name.to_owned(),
        body: body.into(),
        sequences: Vec::new(),
        more_to_come: false,
        exhaust_allowed: false,
        origin: own.origin,
    }
}

impl Told {
    fn of_reply(reply: &RawDocument) -> Option<Told> {
        if fields::is_ok(reply) {
            return None;
        }
        Told::of(&CommandError::from_reply(reply)?)
    }

    /// Of the outcome of sending a command to its shards.
    pub fn of_outcome(outcome: &CommandResult) -> Option<Told> {
        match outcome {
            Ok(reply) => Told::of_reply(reply),
            Err(error) => Told::of(error),
        }
    }

    pub fn of(error: &CommandError) -> Option<Told> {
        if error.code != ErrorCode::CommandOnShardedViewNotSupportedOnMongod {
            return None;
        }
        let told = error.extra.as_ref()?.get_document("resolvedView").ok()?;
        Some(Told {
            view: told.get_str("view").ok()?.to_owned(),
            resolved: Resolved::from_document(told)?,
        })
    }
}
