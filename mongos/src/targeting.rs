//! Which shards a statement has to go to.

use std::sync::Arc;

use banyan_document::collation::holds_strings;
use banyan_query::bounds::{self, Conjunction, Interval};
use banyan_query::text::{SearchedIndex, TextContext};
use banyan_query::{Context, Filter};
use banyan_sharding::{RoutingTable, ShardKey, ValueRange};
use banyan_wire::params::{self, Field, missing_field};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use crate::catalog::Route;
use crate::collation;
use crate::errors::query_error;
use crate::fields;

/// Where one statement of a write goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    One(Arc<str>),
    /// All of them carry it out.
    Many(Vec<Arc<str>>),
    /// One of them carries it out, see [`crate::without_shard_key`].
    AnyOf(Vec<Arc<str>>),
}

impl Target {
    pub fn shards(&self) -> &[Arc<str>] {
        match self {
            Target::One(shard) => std::slice::from_ref(shard),
            Target::Many(shards) | Target::AnyOf(shards) => shards,
        }
    }

    fn of(mut shards: Vec<Arc<str>>) -> Target {
        if shards.len() == 1 {
            Target::One(shards.remove(0))
        } else {
            Target::Many(shards)
        }
    }

    fn any_of(shards: Vec<Arc<str>>) -> Target {
        match shards.as_slice() {
            [only] => Target::One(only.clone()),
            _ => Target::AnyOf(shards),
        }
    }
}

/// The shards that a filter reaches. One that is wrong reaches them all, which say so.
pub fn of_filter(route: &Route, filter: &RawDocument, holder: &RawDocument) -> Vec<Arc<str>> {
    match &route.table {
        Some(table) if !filter.is_empty() => match parse(table, filter, holder) {
            Ok(filter) => shards_of(table, &filter),
            Err(_) => route.shards(),
        },
        _ => route.shards(),
    }
}

/// The shards that a leading `$match` leaves.
pub fn of_pipeline(route: &Route, stages: &[&RawDocument], holder: &RawDocument) -> Vec<Arc<str>> {
    let empty = RawDocumentBuf::new();
    let asked = stages.first().and_then(|stage| {
        let near = || fields::get(stage, "$geoNear")?.as_document();
        fields::get(stage, "$match").or_else(|| fields::get(near()?, "query"))
    });
    let filter = match asked {
        Some(RawBsonRef::Document(filter)) => filter,
        _ => &empty,
    };
    of_filter(route, filter, holder)
}

/// Shard keys are in the simple order: what a filter with another collation says of strings reaches
/// all shards.
fn shards_of(table: &RoutingTable, filter: &Filter) -> Vec<Arc<str>> {
    let conjunction = Conjunction::of(filter);
    let mut intervals = Vec::new();
    for field in table.pattern().fields() {
        intervals.push(bounds::intervals_of(&conjunction, field.path()));
    }
    let mut fields = intervals.iter();
    let ranges = table.pattern().ranges(|_| {
        let values = fields.next()?.as_ref()?;
        Some(values.iter().map(value_range).collect())
    });
    table.shards_to_ask(&ranges)
}

fn value_range<'a>(interval: &'a Interval<'_>) -> ValueRange<'a> {
    ValueRange {
        lower: interval.lower.value.get(),
        lower_inclusive: interval.lower.inclusive,
        upper: interval.upper.value.get(),
        upper_inclusive: interval.upper.inclusive,
    }
}

/// The shard key that a filter asks for by equality on every field, if it does.
pub fn key_of(table: &RoutingTable, filter: &Filter) -> Option<ShardKey> {
    let conjunction = Conjunction::of(filter);
    let pattern = table.pattern();
    pattern.key_of_values(|path| bounds::equality_of(&conjunction, path))
}

/// Reads a filter that a shard will run. `holder`: the command or statement that may name a
/// collation.
pub fn parse(
    table: &RoutingTable,
    filter: &RawDocument,
    holder: &RawDocument,
) -> Result<Filter, CommandError> {
    let context = Context {
        collator: collation::of(Some(table), holder)?,
        text: Some(TextContext::new(SearchedIndex::Elsewhere)),
        runs_elsewhere: true,
        ..Context::default()
    };
    Filter::of_query(filter, &context).map_err(query_error)
}

pub fn of_insert(route: &Route, document: &RawDocument) -> Result<Target, CommandError> {
    match &route.table {
        None => Ok(Target::One(route.database.primary.clone())),
        // No collection takes it, whatever its shard key.
        Some(_) if matches!(fields::get(document, "_id"), Some(RawBsonRef::Array(_))) => {
            Err(CommandError::new(
                ErrorCode::InvalidIdField,
                "The '_id' value cannot be of type array",
            ))
        }
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
    let filter = statement_filter(UPDATE, statement)?;
    let Some(table) = &route.table else {
        return Ok(Target::of(route.shards()));
    };
    let filter = parse(table, filter, statement)?;
    let upsert = fields::get_flag(statement, "upsert");
    let multi = fields::get_flag(statement, "multi");
    if !multi {
        return Ok(match upsert || !has_exact_id(table, &filter) {
            true => of_one(table, &filter, upsert),
            false => Target::of(shards_of(table, &filter)),
        });
    }
    if !upsert {
        return Ok(Target::of(shards_of(table, &filter)));
    }
    // The one shard where the document would be born has to be known.
    match (key_of(table, &filter), route.shards().as_slice()) {
        (Some(key), _) => Ok(Target::One(table.find(&key).shard.clone())),
        (None, [only]) => Ok(Target::One(only.clone())),
        (None, _) => Err(CommandError::new(
            ErrorCode::ShardKeyNotFound,
            "An upsert on a sharded collection must contain the shard key and have the simple \
             collation",
        )),
    }
}

/// Where one document is that a filter means, or is to be inserted if there is none.
pub fn of_one(table: &RoutingTable, filter: &Filter, upsert: bool) -> Target {
    if !upsert {
        return Target::any_of(shards_of(table, filter));
    }
    match key_of(table, filter) {
        Some(key) => Target::One(table.find(&key).shard.clone()),
        // The update may say more of the new document than the filter.
        None => Target::any_of(table.shards().cloned().collect()),
    }
}

pub fn of_delete(route: &Route, statement: &RawDocument) -> Result<Target, CommandError> {
    let filter = statement_filter(DELETE, statement)?;
    let Some(table) = &route.table else {
        return Ok(Target::of(route.shards()));
    };
    let filter = parse(table, filter, statement)?;
    let many = fields::get(statement, "limit").and_then(params::deletes_all) != Some(false);
    Ok(match many || has_exact_id(table, &filter) {
        true => Target::of(shards_of(table, &filter)),
        false => of_one(table, &filter, false),
    })
}

/// What errors call the statements of an `update` and of a `delete`.
const UPDATE: &str = "update.updates";
const DELETE: &str = "delete.deletes";

/// Refuses a statement whose filter is none, whatever else it says: where it goes is read from that, and
/// from the limit of a delete.
pub fn check_update(statement: &RawDocument) -> Result<(), CommandError> {
    statement_filter(UPDATE, statement).map(drop)
}

pub fn check_delete(statement: &RawDocument) -> Result<(), CommandError> {
    statement_filter(DELETE, statement)?;
    let limit = fields::get(statement, "limit");
    let limit = limit.ok_or_else(|| missing_field(DELETE, "limit"))?;
    match params::deletes_all(limit) {
        Some(_) => Ok(()),
        None => Err(CommandError::new(
            ErrorCode::FailedToParse,
            "The limit field in delete objects must be 0 or 1",
        )),
    }
}

fn statement_filter<'a>(
    parser: &'static str,
    statement: &'a RawDocument,
) -> Result<&'a RawDocument, CommandError> {
    match fields::get(statement, "q") {
        Some(value) => Field {
            command: parser,
            name: "q",
            value,
        }
        .document(),
        None => Err(missing_field(parser, "q")),
    }
}

/// Whether one document at most can be meant. Of ids that are or hold strings, that is known where
/// the collation is that of the collection and of its index on `_id`.
fn has_exact_id(table: &RoutingTable, filter: &Filter) -> bool {
    let alike = filter.collator() == table.default_collator();
    let mut equalities = filter.equalities().into_iter();
    equalities.any(|(path, value)| {
        path.parts().len() == 1 && path.head() == "_id" && (alike || !holds_strings(&value))
    })
}

#[cfg(test)]
mod tests {
    use bson::oid::ObjectId;
    use bson::spec::BinarySubtype;
    use bson::{Binary, RawBson, RawDocumentBuf, Timestamp, rawdoc};

    use super::*;

    /// Chunks of `key` cut at the given numbers, each on a shard of its own.
    fn table(key: RawDocumentBuf, cuts: &[i32]) -> RoutingTable {
        let name = key.iter().next().unwrap().unwrap().0.as_str().to_owned();
        let at = |value: RawBson| {
            let mut bound = RawDocumentBuf::new();
            bound.append(bson::raw::CString::try_from(name.as_str()).unwrap(), value);
            bound
        };
        let mut bounds = vec![RawBson::MinKey];
        bounds.extend(cuts.iter().map(|cut| RawBson::Int64(i64::from(*cut))));
        bounds.push(RawBson::MaxKey);
        let chunks: Vec<_> = bounds
            .windows(2)
            .enumerate()
            .map(|(n, pair)| {
                rawdoc! {
                    "_id": ObjectId::from_bytes([n as u8; 12]),
                    "min": at(pair[0].clone()),
                    "max": at(pair[1].clone()),
                    "shard": format!("shard{n}"),
                    "lastmod": Timestamp { time: 1, increment: n as u32 },
                }
            })
            .collect();
        let collection = rawdoc! {
            "_id": "test.posts",
            "lastmodEpoch": ObjectId::from_bytes([7; 12]),
            "timestamp": Timestamp { time: 100, increment: 1 },
            "uuid": Binary { subtype: BinarySubtype::Uuid, bytes: vec![5; 16] },
            "key": key,
            "unique": false,
        };
        RoutingTable::build(&collection, chunks.iter().map(|chunk| &**chunk)).unwrap()
    }

    fn reach(table: &RoutingTable, filter: RawDocumentBuf) -> String {
        let filter = parse(table, &filter, &rawdoc! {}).unwrap();
        let shards = shards_of(table, &filter);
        let shards: Vec<_> = shards.iter().map(|shard| &shard["shard".len()..]).collect();
        shards.join(" ")
    }

    #[test]
    fn a_filter_reaches_only_the_shards_it_must() {
        let table = table(rawdoc! { "id": 1 }, &[10, 20]);
        let reach = |filter| reach(&table, filter);
        assert_eq!(reach(rawdoc! {}), "0 1 2");
        assert_eq!(reach(rawdoc! { "other": 5 }), "0 1 2");
        assert_eq!(reach(rawdoc! { "id": 15 }), "1");
        assert_eq!(reach(rawdoc! { "id": { "$eq": 15 } }), "1");
        assert_eq!(reach(rawdoc! { "id": { "$in": [1, 25] } }), "0 2");
        assert_eq!(reach(rawdoc! { "id": { "$gte": 10, "$lt": 20 } }), "1");
        assert_eq!(reach(rawdoc! { "id": { "$gte": 10, "$lte": 20 } }), "1 2");
        assert_eq!(reach(rawdoc! { "id": { "$lt": "x" } }), "2");
        assert_eq!(reach(rawdoc! { "$or": [{ "id": 1 }, { "id": 15 }] }), "0 1");
        assert_eq!(
            reach(rawdoc! { "$or": [{ "id": 1 }, { "x": 15 }] }),
            "0 1 2"
        );
        let both = rawdoc! { "$and": [{ "id": { "$gt": 12 } }, { "id": 15 }] };
        assert_eq!(reach(both), "1");
        assert_eq!(reach(rawdoc! { "id": { "$ne": 15 } }), "0 1 2");
        assert_eq!(reach(rawdoc! { "id": { "$not": { "$lt": 10 } } }), "0 1 2");
        assert_eq!(reach(rawdoc! { "id": null_value() }), "0");
        assert_eq!(reach(rawdoc! { "id": RawBson::MaxKey }), "2");
        assert_eq!(reach(rawdoc! { "$expr": { "$gte": ["$id", 20] } }), "2");
        assert_eq!(
            reach(rawdoc! { "$expr": { "$eq": ["$id", "$$v"] }, "id": 15 }),
            "1"
        );
        assert_eq!(reach(rawdoc! { "$where": "1", "id": 15 }), "1");
        // Nothing can match, but somebody has to say so.
        assert_eq!(reach(rawdoc! { "id": { "$lt": 5, "$gt": 8 } }).len(), 1);
    }

    fn null_value() -> RawBson {
        RawBson::Null
    }

    #[test]
    fn a_hashed_key_is_reached_by_equality_only() {
        let table = table(rawdoc! { "id": "hashed" }, &[0]);
        let one = reach(&table, rawdoc! { "id": 15 });
        assert!(one == "0" || one == "1");
        assert_eq!(reach(&table, rawdoc! { "id": { "$gt": 15 } }), "0 1");
        assert_eq!(reach(&table, rawdoc! { "id": { "$ne": 15 } }), "0 1");
    }

    #[test]
    fn a_key_comes_out_of_equalities() {
        let table = table(rawdoc! { "a.b": 1 }, &[10]);
        let key = |filter: RawDocumentBuf| {
            key_of(&table, &parse(&table, &filter, &rawdoc! {}).unwrap()).is_some()
        };
        assert!(key(rawdoc! { "a.b": 1 }));
        assert!(key(rawdoc! { "a": { "b": 1 } }));
        assert!(key(
            rawdoc! { "$and": [{ "a.b": { "$in": [1] } }, { "c": 1 }] }
        ));
        assert!(!key(rawdoc! { "a.b": { "$gt": 1 } }));
        assert!(!key(rawdoc! { "a.b": [1] }));
    }
}
