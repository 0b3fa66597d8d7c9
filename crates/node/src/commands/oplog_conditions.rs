//! The conditions of an `applyOps` (`preCondition`): what documents have to be before anything is done.

use banyan_document::kind;
use banyan_query::Context;
use banyan_query::filter::Filter;
use banyan_storage::Namespace;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use crate::context::CommandContext;
use crate::errors;

pub const FIELD: &str = "preCondition";

/// Each finds one document, which has to match; no document is an empty one.
pub async fn check(ctx: &CommandContext<'_>) -> Result<(), CommandError> {
    let Some(field) = ctx.field(FIELD).filter(|field| !field.is_null()) else {
        return Ok(());
    };
    for item in field.array()?.into_iter().flatten() {
        let RawBsonRef::Document(condition) = item else {
            let found = kind::name(&item);
            return Err(CommandError::new(
                ErrorCode::TypeMismatch,
                format!("a condition in 'applyOps.{FIELD}' is of type '{found}', not 'object'"),
            ));
        };
        holds(ctx, condition).await?;
    }
    Ok(())
}

async fn holds(ctx: &CommandContext<'_>, condition: &RawDocument) -> Result<(), CommandError> {
    let namespace = namespace(condition)?;
    let (database, collection) = (namespace.database(), namespace.collection());
    {
        let (catalog, _) = ctx.view();
        if catalog.get(database, collection).is_none() {
            return Err(CommandError::new(
                ErrorCode::NamespaceNotFound,
                format!("collection in ns does not exist: {namespace}"),
            ));
        }
    }
    let (query, wanted) = (object(condition, "q")?, object(condition, "res")?);
    // A query may be within a document of its own, with an order beside it.
    let within = banyan_document::field(query, "query").and_then(|query| query.as_document());
    let mut find = rawdoc! { "find": collection, "limit": 1, "singleBatch": true };
    find.append(cstr!("filter"), within.unwrap_or(query).to_owned());
    let order = banyan_document::field(query, "orderby").and_then(|order| order.as_document());
    if let (Some(_), Some(order)) = (within, order) {
        find.append(cstr!("sort"), order.to_owned());
    }
    let reply = ctx.nested(database, find).await?;
    let cursor = reply.get_document("cursor").ok();
    let batch = cursor.and_then(|cursor| cursor.get_array("firstBatch").ok());
    let found = batch.and_then(|batch| batch.get_document(0).ok());
    let found = found.map_or_else(RawDocumentBuf::new, RawDocument::to_owned);
    let filter = Filter::parse(wanted, &Context::default()).map_err(errors::query)?;
    if filter.try_matches(&found).map_err(errors::query)? {
        return Ok(());
    }
    let mut told = rawdoc! { "got": found };
    told.append(cstr!("whatFailed"), condition.to_owned());
    let error = CommandError::new(ErrorCode::BadValue, "preCondition failed");
    Err(error.with_extra(told))
}

fn namespace(condition: &RawDocument) -> Result<Namespace, CommandError> {
    let refuse = |message| CommandError::new(ErrorCode::InvalidNamespace, message);
    let ns = match banyan_document::field(condition, "ns") {
        Some(RawBsonRef::String(ns)) => ns,
        other => {
            let found = other.map_or("missing", |value| kind::name(&value));
            return Err(refuse(format!(
                "ns in preCondition must be a string, but found type: {found}"
            )));
        }
    };
    let split = ns.split_once('.');
    let split =
        split.filter(|(database, collection)| !database.is_empty() && !collection.is_empty());
    let (database, collection) = split.ok_or_else(|| refuse(format!("invalid ns: {ns}")))?;
    Ok(Namespace::new(database, collection))
}

fn object<'a>(condition: &'a RawDocument, name: &str) -> Result<&'a RawDocument, CommandError> {
    match banyan_document::field(condition, name) {
        Some(RawBsonRef::Document(document)) => Ok(document),
        found => Err(CommandError::new(
            ErrorCode::Location(10065),
            format!(
                "invalid parameter: expected an object ({})",
                if found.is_some() { name } else { "" }
            ),
        )),
    }
}
