//! The router's part of a pipeline: running it over the shards' results, reading other
//! collections for it, and writing what comes out.

use std::sync::Arc;

use banyan_document::DocumentWriter;
use banyan_query::pipeline::{
    self, Documents, Execution, Flow, Sources, WhenMatched, WhenNotMatched,
};
use banyan_query::{ErrorKind, QueryError};
use banyan_wire::{CommandError, Doc, ErrorCode, Outgoing, ReadMode, Request, Treatment};
use bson::oid::ObjectId;
use bson::raw::cstr;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use tokio::runtime::Handle;
use tokio::task::block_in_place;

use crate::commands::{self, Context, query_error};
use crate::cursors::Cursor;
use crate::dispatch::Answer;
use crate::ending::Ending;
use crate::fields;
use crate::merge::{Merge, Remote, Shape};
use crate::router::Router;
use crate::targeting;

/// Documents written at once by `$out` and `$merge`.
const WRITE_DOCUMENTS: usize = 1000;

/// A pipeline over the merged results of the shards.
pub struct Piped {
    source: Option<Merge>,
    execution: Execution,
    pub ending: Arc<Ending>,
}

impl Piped {
    pub fn new(source: Merge, execution: Execution, ending: Arc<Ending>) -> Piped {
        Piped {
            source: Some(source),
            execution,
            ending,
        }
    }

    pub async fn next(&mut self) -> Result<Option<Doc>, CommandError> {
        loop {
            if let Some(document) = self.execution.pop().map_err(query_error)? {
                return Ok(Some(document.into()));
            }
            let Some(source) = &mut self.source else {
                if self.execution.drain().map_err(query_error)? {
                    continue;
                }
                return Ok(None);
            };
            let flow = match self.ending.while_awaited(source.next()).await? {
                Some(document) => self.execution.push(&document).map_err(query_error)?,
                None => Flow::Stop,
            };
            if flow == Flow::Stop {
                source.kill().await;
                self.source = None;
            }
        }
    }

    pub async fn kill(&mut self) {
        if let Some(mut source) = self.source.take() {
            source.kill().await;
        }
    }
}

/// Other collections, read through the router while a pipeline runs.
pub struct RouterSources {
    router: Arc<Router>,
    database: String,
    runtime: Handle,
}

impl RouterSources {
    /// Call on a runtime with several threads: a read waits on the thread that runs the pipeline.
    pub fn new(router: Arc<Router>, database: &str) -> RouterSources {
        RouterSources {
            router,
            database: database.to_owned(),
            runtime: Handle::current(),
        }
    }
}

impl Sources for RouterSources {
    /// The shards know; asking them for each document is never worse than fetching everything.
    fn is_indexed(&self, _: Option<&str>, _: &str, _: &str) -> Result<bool, QueryError> {
        Ok(true)
    }

    fn documents(
        &self,
        database: Option<&str>,
        collection: &str,
        filter: &RawDocument,
    ) -> Result<Documents, QueryError> {
        let database = database.unwrap_or(&self.database);
        let open = open(&self.router, database, collection, filter);
        let merge = block_in_place(|| self.runtime.block_on(open)).map_err(failed)?;
        Ok(Box::new(Blocking {
            merge,
            runtime: self.runtime.clone(),
        }))
    }
}

/// A read as an iterator.
struct Blocking {
    merge: Merge,
    runtime: Handle,
}

impl Iterator for Blocking {
    type Item = Result<RawDocumentBuf, QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = block_in_place(|| self.runtime.block_on(self.merge.next()));
        match next {
            Ok(document) => document.map(|document| Ok(RawDocument::to_owned(&document))),
            Err(error) => Some(Err(failed(error))),
        }
    }
}

fn failed(error: CommandError) -> QueryError {
    QueryError::new(
        ErrorKind::Location(error.code.code().unsigned_abs()),
        error.message,
    )
}

/// Opens a find on every shard that can have matching documents.
async fn open(
    router: &Router,
    database: &str,
    collection: &str,
    filter: &RawDocument,
) -> Result<Merge, CommandError> {
    let ns = format!("{database}.{collection}");
    router
        .with_route(&ns, false, |route| async move {
            let Some(route) = route else {
                return Ok(Merge::new(Vec::new(), Shape::default()));
            };
            let mut command = rawdoc! {"find": collection};
            command.append(cstr!("filter"), filter);
            let requests = targeting::of_filter(&route, filter, &command)
                .into_iter()
                .map(|shard| {
                    let mut command = command.clone();
                    for (name, value) in route.versions(&shard).iter().flatten() {
                        command.append(name, value);
                    }
                    (shard, Outgoing::command(database, &command))
                })
                .collect();
            let read = Treatment::read(ReadMode::Primary);
            let mut remotes = Vec::new();
            for answer in router.send_all(requests, read).await {
                remotes.push(Remote::open(answer.and_then(Answer::checked)?, None)?);
            }
            Ok(Merge::new(remotes, Shape::default()))
        })
        .await
}

/// Runs a command of this router's own; its failure is an error.
async fn internal(
    context: &Context<'_>,
    database: &str,
    body: RawDocumentBuf,
) -> Result<RawDocumentBuf, CommandError> {
    let request = Request::command(database, body);
    let inner = Context {
        request: &request,
        ..*context
    };
    let Some((_, spec)) = commands::find(&request.name) else {
        return Err(CommandError::new(
            ErrorCode::CommandNotFound,
            request.name.clone(),
        ));
    };
    let reply = (spec.run)(&inner).await?;
    match CommandError::from_reply(&reply) {
        Some(error) => Err(error),
        None => Ok(reply),
    }
}

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
    internal(context, database, rawdoc! {"create": fresh}).await?;
    copy_indexes(context, database, collection, fresh).await?;
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
        let reply = internal(context, database, insert.finish()).await?;
        if let Some(error) = CommandError::from_write_reply(&reply) {
            return Err(error);
        }
    }
    let rename = rawdoc! {
        "renameCollection": format!("{database}.{fresh}"),
        "to": format!("{database}.{collection}"),
        "dropTarget": true,
    };
    internal(context, "admin", rename).await?;
    Ok(())
}

async fn copy_indexes(
    context: &Context<'_>,
    database: &str,
    from: &str,
    to: &str,
) -> Result<(), CommandError> {
    let listed = internal(context, database, rawdoc! {"listIndexes": from}).await;
    let listed = match listed {
        Ok(listed) => listed,
        Err(error) if error.code == ErrorCode::NamespaceNotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let cursor = listed.get_document("cursor").ok();
    let batch = cursor.and_then(|cursor| cursor.get_array("firstBatch").ok());
    let mut create = DocumentWriter::new();
    create.append_str("createIndexes", to);
    create.begin_array("indexes");
    let mut any = false;
    for index in batch
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|index| index.as_document())
    {
        if index.get_str("name").is_ok_and(|name| name != "_id_") {
            create.push(RawBsonRef::Document(index));
            any = true;
        }
    }
    create.end();
    if any {
        internal(context, database, create.finish()).await?;
    }
    Ok(())
}

/// `$merge`: each document is an upsert, or what the stage says instead.
pub async fn merge(
    context: &Context<'_>,
    merge: &pipeline::Merge,
    cursor: &mut Cursor,
) -> Result<(), CommandError> {
    let database = merge
        .database
        .clone()
        .unwrap_or_else(|| context.request.database.clone());
    context
        .router
        .catalog
        .route_or_create(&format!("{database}.{}", merge.collection))
        .await?;
    loop {
        let batch = cursor.batch(WRITE_DOCUMENTS).await?;
        if batch.is_empty() {
            return Ok(());
        }
        let mut update = DocumentWriter::new();
        update.append_str("update", &merge.collection);
        update.begin_array("updates");
        for document in &batch {
            push_statement(&mut update, merge, document)?;
        }
        update.end();
        let reply = internal(context, &database, update.finish()).await?;
        if let Some(error) = CommandError::from_write_reply(&reply) {
            return Err(error);
        }
        let found = fields::get_number(&reply, "n").unwrap_or(0);
        if merge.when_not_matched == WhenNotMatched::Fail && found < batch.len() as i64 {
            let text = "$merge could not find a matching document in the target collection for at \
                        least one document in the source collection";
            return Err(CommandError::new(ErrorCode::Location(13113), text));
        }
    }
}

fn push_statement(
    out: &mut DocumentWriter,
    merge: &pipeline::Merge,
    document: &RawDocument,
) -> Result<(), CommandError> {
    out.push_document();
    out.begin_document("q");
    let on: &[String] = if merge.on.is_empty() {
        &["_id".to_owned()]
    } else {
        &merge.on
    };
    for name in on {
        let value = fields::get(document, name).ok_or_else(|| {
            let text = "$merge write error: 'on' field cannot be missing, null or an array";
            CommandError::new(ErrorCode::Location(51132), text)
        })?;
        out.append(name, value);
    }
    out.end();
    match &merge.when_matched {
        WhenMatched::Replace => out.append_doc("u", document),
        WhenMatched::Merge => {
            out.begin_document("u");
            out.append_doc("$set", document);
            out.end();
        }
        WhenMatched::KeepExisting => {
            out.begin_document("u");
            out.append_doc("$setOnInsert", document);
            out.end();
        }
        WhenMatched::Fail | WhenMatched::Pipeline(_) => {
            let text = "this whenMatched mode of $merge is not supported through a router";
            return Err(CommandError::new(ErrorCode::NotImplemented, text));
        }
    }
    out.append_bool("upsert", merge.when_not_matched == WhenNotMatched::Insert);
    out.append_bool("multi", false);
    out.end();
    Ok(())
}
