//! Which shards a statement has to go to.

use std::sync::Arc;

use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument};

use crate::catalog::Route;
use crate::fields;

/// Where one statement of a write goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    One(Arc<str>),
    Many(Vec<Arc<str>>),
}

impl Target {
    pub fn shards(&self) -> &[Arc<str>] {
        match self {
            Target::One(shard) => std::slice::from_ref(shard),
            Target::Many(shards) => shards,
        }
    }

    fn of(mut shards: Vec<Arc<str>>) -> Target {
        if shards.len() == 1 {
            Target::One(shards.remove(0))
        } else {
            Target::Many(shards)
        }
    }
}

/// The shards that a filter reaches. Under a collation that is not simple, strings that differ
/// in bytes may be equal, so bounds say nothing.
pub fn of_filter(route: &Route, filter: &RawDocument, holder: &RawDocument) -> Vec<Arc<str>> {
    if has_collation(holder) {
        route.shards()
    } else {
        route.shards_of_filter(filter)
    }
}

fn has_collation(holder: &RawDocument) -> bool {
    match fields::get(holder, "collation") {
        Some(RawBsonRef::Document(collation)) => {
            !collation.is_empty() && collation.get_str("locale").ok() != Some("simple")
        }
        _ => false,
    }
}

pub fn of_insert(route: &Route, document: &RawDocument) -> Result<Target, CommandError> {
    match &route.table {
        None => Ok(Target::One(route.database.primary.clone())),
        Some(table) => match table.find_document(document) {
            Ok(chunk) => Ok(Target::One(chunk.shard.clone())),
            Err(error) => Err(CommandError::new(
                ErrorCode::ShardKeyNotFound,
                error.to_string(),
            )),
        },
    }
}

pub fn of_update(route: &Route, statement: &RawDocument) -> Result<Target, CommandError> {
    let filter = filter(statement)?;
    let shards = of_filter(route, filter, statement);
    let Some(table) = &route.table else {
        return Ok(Target::of(shards));
    };
    let upsert = fields::get_flag(statement, "upsert");
    let multi = fields::get_flag(statement, "multi");
    if upsert {
        // The one shard where the document would be born has to be known.
        let key = table.pattern().key_of_filter(filter);
        let replacement = || replacement(statement).and_then(|u| table.pattern().key_of(u).ok());
        return match key.or_else(replacement) {
            Some(key) => Ok(Target::One(table.find(&key).shard.clone())),
            None => Err(CommandError::new(
                ErrorCode::ShardKeyNotFound,
                "An upsert on a sharded collection must contain the shard key and have the simple \
                 collation",
            )),
        };
    }
    if multi || shards.len() == 1 || has_exact_id(filter) {
        return Ok(Target::of(shards));
    }
    if let Some(document) = replacement(statement)
        && let Ok(chunk) = table.find_document(document)
    {
        return Ok(Target::One(chunk.shard.clone()));
    }
    Err(CommandError::new(
        ErrorCode::InvalidOptions,
        "A {multi:false} update on a sharded collection must contain an exact match on _id or \
         contain the shard key",
    ))
}

pub fn of_delete(route: &Route, statement: &RawDocument) -> Result<Target, CommandError> {
    let filter = filter(statement)?;
    let shards = of_filter(route, filter, statement);
    let many = fields::get_number(statement, "limit").unwrap_or(0) == 0;
    if many || shards.len() == 1 || has_exact_id(filter) {
        return Ok(Target::of(shards));
    }
    Err(CommandError::new(
        ErrorCode::ShardKeyNotFound,
        "A single delete on a sharded collection must contain an exact match on _id or contain \
         the shard key",
    ))
}

fn filter(statement: &RawDocument) -> Result<&RawDocument, CommandError> {
    match fields::get(statement, "q") {
        Some(RawBsonRef::Document(filter)) => Ok(filter),
        _ => Err(CommandError::new(
            ErrorCode::TypeMismatch,
            "BSON field 'q' is missing or of the wrong type, expected type 'object'",
        )),
    }
}

/// The new document of a replacement; `None` for operators and pipelines.
fn replacement(statement: &RawDocument) -> Option<&RawDocument> {
    match fields::get(statement, "u") {
        Some(RawBsonRef::Document(u)) => {
            let first = u.iter_elements().next()?.ok()?;
            (!first.key().as_str().starts_with('$')).then_some(u)
        }
        _ => None,
    }
}

fn has_exact_id(filter: &RawDocument) -> bool {
    match fields::get(filter, "_id") {
        None | Some(RawBsonRef::RegularExpression(_)) => false,
        Some(RawBsonRef::Document(value)) => {
            let mut names = value.iter_elements().flatten();
            names.all(|e| !e.key().as_str().starts_with('$') || e.key().as_str() == "$eq")
        }
        Some(_) => true,
    }
}
