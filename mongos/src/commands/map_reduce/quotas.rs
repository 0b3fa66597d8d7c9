//! A limit over several shards: how many documents each of them is to map.
//!
//! Without a sort any documents will do, and the shards share the work. With one, it is the first
//! of all shards together that are wanted: they are looked up by their sort keys alone.

use std::sync::Arc;

use banyan_document::DocumentWriter;
use banyan_query::sort::SortPattern;
use banyan_wire::{CommandError, Outgoing};
use bson::{RawBsonRef, RawDocument};

use super::super::forward;
use crate::catalog::Route;
use crate::collation;
use crate::context::Context;
use crate::errors::query_error;
use crate::fields;
use crate::merge::{Merge, Order, Shape};

/// Each shard that has something to map, with its limit. At least one is left, to say what is wrong
/// with the command, and to answer the result of nothing.
pub async fn of(
    context: &Context<'_>,
    route: &Route,
    shards: Vec<Arc<str>>,
) -> Result<Vec<(Arc<str>, Option<i64>)>, CommandError> {
    let body = &context.request.body;
    let limit = match limit(body) {
        Some(limit) if shards.len() > 1 => limit,
        // Passed on as it is.
        _ => return Ok(shards.into_iter().map(|shard| (shard, None)).collect()),
    };
    let sort = fields::document(body, "sort")?
        .filter(|sort| !sort.is_empty() && fields::get(sort, "$natural").is_none());
    let quotas = match sort {
        Some(sort) => first(context, route, &shards, sort, limit).await?,
        None => divide(limit, counts(context, route, &shards, limit).await?),
    };
    let mut quotas: Vec<(Arc<str>, Option<i64>)> = quotas
        .into_iter()
        .filter(|(_, quota)| *quota > 0)
        .map(|(shard, quota)| (shard, Some(quota)))
        .collect();
    if quotas.is_empty() {
        quotas.extend(shards.into_iter().take(1).map(|shard| (shard, Some(1))));
    }
    Ok(quotas)
}

/// The limit, if it is one; the shards know what to say of others.
fn limit(body: &RawDocument) -> Option<i64> {
    let limit = match fields::get(body, "limit")? {
        RawBsonRef::Decimal128(limit) => limit.to_string().parse::<f64>().ok()? as i64,
        other => fields::number(other)?,
    };
    (limit > 0).then_some(limit)
}

/// Under `limit` in all, as evenly as what the shards have allows.
fn divide(limit: i64, mut counts: Vec<(Arc<str>, i64)>) -> Vec<(Arc<str>, i64)> {
    counts.sort_by_key(|(_, count)| *count);
    let mut left = limit;
    let mut shards_left = counts.len() as i64;
    for (_, count) in &mut counts {
        // Those with little come first; what they leave falls to the others.
        *count = (*count).min(left.div_euclid(shards_left.max(1)));
        left -= *count;
        shards_left -= 1;
    }
    counts
}

async fn counts(
    context: &Context<'_>,
    route: &Route,
    shards: &[Arc<str>],
    limit: i64,
) -> Result<Vec<(Arc<str>, i64)>, CommandError> {
    let mut command = begin(context, "count", "query");
    command.append_i64("limit", limit);
    let requests = for_each(route, shards, &command.finish());
    let answers = forward::gather(context, requests, false).await?;
    let count = |answer: crate::answer::Answer| {
        let n = fields::get_number(&answer.reply, "n").unwrap_or(0);
        (answer.shard, n)
    };
    Ok(answers.into_iter().map(count).collect())
}

async fn first(
    context: &Context<'_>,
    route: &Route,
    shards: &[Arc<str>],
    sort: &RawDocument,
    limit: i64,
) -> Result<Vec<(Arc<str>, i64)>, CommandError> {
    let collator = collation::of(route.table.as_ref(), &context.request.body)?;
    let pattern = SortPattern::parse(sort, collator.as_ref()).map_err(query_error)?;
    let mut command = begin(context, "find", "filter");
    command.append_doc("sort", sort);
    command.append_i64("limit", limit);
    command.append_doc("projection", &sorted_fields(sort));
    let requests = for_each(route, shards, &command.finish());
    let answers = context
        .router
        .send_all(requests, context.request_options(false))
        .await;
    let remotes = forward::open_all(context, answers).await?;
    let shape = Shape {
        sort: Some(Order::By(pattern)),
        limit: u64::try_from(limit).ok(),
        ..Shape::default()
    };
    let shares = Merge::new(remotes, shape).shares().await?;
    Ok(shares.into_iter().collect())
}

/// The whole top-level fields that a sort looks into: parts of arrays would sort differently.
fn sorted_fields(sort: &RawDocument) -> bson::RawDocumentBuf {
    let mut names: Vec<&str> = Vec::new();
    for element in banyan_document::elements(sort) {
        let name = element.name().split('.').next().unwrap_or_default();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let mut projection = DocumentWriter::new();
    for name in &names {
        projection.append_i32(name, 1);
    }
    if !names.contains(&"_id") {
        projection.append_i32("_id", 0);
    }
    projection.finish()
}

/// A read of the collection, with the query and what else holds for all parts of the command.
fn begin(context: &Context<'_>, name: &str, filter: &str) -> DocumentWriter {
    let mut command = DocumentWriter::new();
    for (index, element) in banyan_document::elements(&context.request.body).enumerate() {
        match element.name() {
            _ if index == 0 => command.append_element_as(name, &element),
            "query" if !matches!(element.value(), RawBsonRef::Null) => {
                command.append_element_as(filter, &element);
            }
            "maxTimeMS" | "comment" | "readConcern" | "$readPreference" | "lsid" | "$db" => {
                command.append_element(&element);
            }
            _ => {}
        }
    }
    command
}

fn for_each(
    route: &Route,
    shards: &[Arc<str>],
    command: &RawDocument,
) -> Vec<(Arc<str>, Outgoing)> {
    let request = |shard: &Arc<str>| {
        let outgoing = forward::passed_on(command, &[], &route.versions(shard));
        (shard.clone(), outgoing)
    };
    shards.iter().map(request).collect()
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    fn divided(limit: i64, counts: &[i64]) -> Vec<i64> {
        let counts = counts.iter().map(|&count| ("shard".into(), count));
        let divided = divide(limit, counts.collect());
        divided.into_iter().map(|(_, quota)| quota).collect()
    }

    #[test]
    fn shards_share_a_limit_evenly() {
        assert_eq!(divided(10, &[10, 10]), [5, 5]);
        assert_eq!(divided(10, &[2, 10, 10]), [2, 4, 4]);
        assert_eq!(divided(10, &[10, 0, 3]), [0, 3, 7]);
        assert_eq!(divided(10, &[3, 3]), [3, 3]);
        assert_eq!(divided(1, &[1, 1, 1]), [0, 0, 1]);
        assert_eq!(divided(11, &[11, 11]), [5, 6]);
        assert_eq!(divided(5, &[]), Vec::<i64>::new());
    }

    #[test]
    fn a_sort_needs_the_whole_fields_that_it_looks_into() {
        assert_eq!(
            sorted_fields(&rawdoc! { "a.b": 1, "c": -1, "a.0": 1 }),
            rawdoc! { "a": 1, "c": 1, "_id": 0 }
        );
        assert_eq!(sorted_fields(&rawdoc! { "_id": 1 }), rawdoc! { "_id": 1 });
    }

    #[test]
    fn only_a_positive_number_is_a_limit() {
        let decimal: bson::Decimal128 = "3".parse().unwrap();
        for (body, expected) in [
            (rawdoc! { "limit": 10 }, Some(10)),
            (rawdoc! { "limit": decimal }, Some(3)),
            (rawdoc! { "limit": 0 }, None),
            (rawdoc! { "limit": -1 }, None),
            (rawdoc! { "limit": "x" }, None),
            (rawdoc! { "limit": f64::NAN }, None),
            (rawdoc! {}, None),
        ] {
            assert_eq!(limit(&body), expected, "{body:?}");
        }
    }
}
