//! Writing what comes out of a pipeline: `$out` and `$merge`.

use std::sync::Arc;

use banyan_document::{Collator, DocumentWriter};
use banyan_query::pipeline::{self, WhenNotMatched};
use banyan_wire::{CommandError, ErrorCode};
use bson::oid::ObjectId;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use super::nested;
use crate::catalog::Route;
use crate::collation;
use crate::context::Context;
use crate::cursors::Cursor;
use crate::errors::query_error;
use crate::fields;
use crate::router::Router;

/// Documents written at once by `$out` and `$merge`.
const WRITE_DOCUMENTS: usize = 1000;

/// `$out`: writes a new collection and puts it in the place of the old one, indexes kept.
pub async fn replace(
    context: &Context<'_>,
    database: Option<String>,
    collection: &str,
    cursor: &mut Cursor,
) -> Result<(), CommandError> {
    let database = database.unwrap_or_else(|| context.request.database.clone());
    let target = format!("{database}.{collection}");
    let route = context.router.catalog.route_or_create(&target).await?;
    if route.is_sharded() {
        let text = format!("namespace '{target}' is sharded so it can't be used for $out");
        return Err(CommandError::new(ErrorCode::Location(17017), text));
    }
    let fresh = format!("tmp.agg_out.{}", ObjectId::new().to_hex());
    let mut unfinished = Unfinished {
        router: context.router.clone(),
        ns: Some(format!("{database}.{fresh}")),
    };
    fill_and_rename(context, &database, collection, &fresh, cursor).await?;
    unfinished.ns = None;
    Ok(())
}

/// A collection that is dropped again unless it is finished: the command may fail, or be cut off
/// at its deadline.
struct Unfinished {
    router: Arc<Router>,
    ns: Option<String>,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let Some(ns) = self.ns.take() else { return };
        let router = self.router.clone();
        // Without a runtime the process is ending.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        runtime.spawn(async move {
            let command = rawdoc! {"_configsvrDropCollection": ns.as_str()};
            if let Err(error) = router.on_config("admin", &command).await
                && error.code != ErrorCode::NamespaceNotFound
            {
                tracing::warn!(ns, %error, "an unfinished output could not be dropped");
            }
            router.catalog.forget(&ns);
        });
    }
}

async fn fill_and_rename(
    context: &Context<'_>,
    database: &str,
    collection: &str,
    fresh: &str,
    cursor: &mut Cursor,
) -> Result<(), CommandError> {
    let indexes = indexes_of(context, database, collection).await?;
    let mut create = rawdoc! {"create": fresh};
    for (name, value) in options_of(context, database, collection)
        .await?
        .iter()
        .flatten()
    {
        create.append(name, value);
    }
    nested::run(context, database, create).await?;
    create_indexes(context, database, fresh, &indexes).await?;
    loop {
        let batch = cursor.batch(WRITE_DOCUMENTS).await?;
        if batch.is_empty() {
            break;
        }
        let mut insert = DocumentWriter::new();
        insert.append_str("insert", fresh);
        insert.begin_array("documents");
        batch
            .iter()
            .for_each(|document| insert.push(RawBsonRef::Document(document)));
        insert.end();
        pass_on_bypass(context, &mut insert);
        let reply = nested::run(context, database, insert.finish()).await?;
        if let Some(error) = CommandError::from_write_reply(&reply) {
            return Err(error);
        }
    }
    let rename = rawdoc! {
        "renameCollection": format!("{database}.{fresh}"),
        "to": format!("{database}.{collection}"),
        "dropTarget": true,
    };
    nested::run(context, "admin", rename).await?;
    Ok(())
}

/// Validators count for what is written unless the request says that they do not.
fn pass_on_bypass(context: &Context<'_>, write: &mut DocumentWriter) {
    const BYPASS: &str = "bypassDocumentValidation";
    if let Some(bypass) = context.request.get(BYPASS) {
        write.append(BYPASS, bypass);
    }
}

/// The options of a collection, if there is one.
async fn options_of(
    context: &Context<'_>,
    database: &str,
    collection: &str,
) -> Result<RawDocumentBuf, CommandError> {
    let list = rawdoc! {
        "listCollections": 1, "filter": { "name": collection, "type": "collection" },
    };
    let listed = nested::run(context, database, list).await?;
    let cursor = listed.get_document("cursor").ok();
    let batch = cursor.and_then(|cursor| cursor.get_array("firstBatch").ok());
    let first = batch.and_then(|batch| batch.get_document(0).ok());
    let options = first.and_then(|first| first.get_document("options").ok());
    Ok(options.map(RawDocument::to_owned).unwrap_or_default())
}

/// The specifications of a collection's indexes, if there is one.
async fn indexes_of(
    context: &Context<'_>,
    database: &str,
    collection: &str,
) -> Result<Vec<RawDocumentBuf>, CommandError> {
    let listed = nested::run(context, database, rawdoc! {"listIndexes": collection}).await;
    let listed = match listed {
        Ok(listed) => listed,
        Err(error) if error.code == ErrorCode::NamespaceNotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let cursor = listed.get_document("cursor").ok();
    let batch = cursor.and_then(|cursor| cursor.get_array("firstBatch").ok());
    let indexes = batch.into_iter().flatten().flatten();
    let documents = indexes.filter_map(|index| index.as_document().map(RawDocument::to_owned));
    Ok(documents.collect())
}

fn is_id_index(index: &RawDocument) -> bool {
    index.get_str("name").is_ok_and(|name| name == "_id_")
}

async fn create_indexes(
    context: &Context<'_>,
    database: &str,
    collection: &str,
    indexes: &[RawDocumentBuf],
) -> Result<(), CommandError> {
    let mut create = DocumentWriter::new();
    create.append_str("createIndexes", collection);
    create.begin_array("indexes");
    let mut any = false;
    for index in indexes.iter().filter(|index| !is_id_index(index)) {
        create.push_document();
        create.append_all(index);
        if index.get_document("collation").is_err() {
            create.append_doc("collation", &collation::explicit(None));
        }
        create.end();
        any = true;
    }
    create.end();
    if any {
        nested::run(context, database, create.finish()).await?;
    }
    Ok(())
}

/// Unless the stage says by what a document is known, that is the shard key and `_id`.
fn with_identity(merge: &pipeline::Merge, route: &Route) -> pipeline::Merge {
    let mut merge = merge.clone();
    if let (true, Some(table)) = (merge.on.is_empty(), &route.table) {
        let fields = table.pattern().fields().iter();
        merge.on = fields.map(|field| field.path().to_string()).collect();
        if !merge.on.iter().any(|path| path == "_id") {
            merge.on.push("_id".to_owned());
        }
    }
    merge
}

/// `$merge`: each document is an upsert, or what the stage says instead.
pub async fn merge(
    context: &Context<'_>,
    merge: &pipeline::Merge,
    collator: Option<&Collator>,
    cursor: &mut Cursor,
) -> Result<(), CommandError> {
    let database = merge
        .database
        .clone()
        .unwrap_or_else(|| context.request.database.clone());
    let target = format!("{database}.{}", merge.collection);
    let route = context.router.catalog.route_or_create(&target).await?;
    let indexes = indexes_of(context, &database, &merge.collection).await?;
    let indexes = indexes.iter().map(|index| &**index);
    merge.finds_one(indexes, collator).map_err(query_error)?;
    let merge = &with_identity(merge, &route);
    loop {
        let batch = cursor.batch(WRITE_DOCUMENTS).await?;
        if batch.is_empty() {
            return Ok(());
        }
        let documents = batch.iter().map(|document| &**document);
        let write = merge.command(documents).map_err(query_error)?;
        let mut command = DocumentWriter::new();
        command.append_all(&write);
        pass_on_bypass(context, &mut command);
        let reply = nested::run(context, &database, command.finish()).await?;
        if let Some(error) = CommandError::from_write_reply(&reply) {
            return Err(error);
        }
        let found = fields::get_number(&reply, "n").unwrap_or(0);
        if merge.when_not_matched == WhenNotMatched::Fail && found < batch.len() as i64 {
            let text = "$merge could not find a matching document in the target collection for at \
                        least one document in the source collection";
            return Err(CommandError::new(
                ErrorCode::MergeStageNoMatchingDocument,
                text,
            ));
        }
    }
}
