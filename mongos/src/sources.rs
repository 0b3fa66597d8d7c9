//! Other collections, read through the router while a pipeline runs.

use std::sync::Arc;

use banyan_document::Collator;
use banyan_query::pipeline::{Documents, ForeignQuery, Sources};
use banyan_query::{ErrorKind, QueryError};
use banyan_wire::{CommandError, Outgoing, ReadMode, RequestOptions};
use bson::raw::cstr;
use bson::{RawDocument, RawDocumentBuf, rawdoc};
use tokio::runtime::Handle;
use tokio::task::block_in_place;

use crate::answer::Answer;
use crate::collation;
use crate::merge::{Merge, Remote, Shape};
use crate::router::Router;
use crate::targeting;

/// Other collections, read through the router while a pipeline runs.
pub struct RouterSources {
    router: Arc<Router>,
    database: String,
    /// The collation of the whole aggregation; those of other collections do not count.
    collator: Option<Collator>,
    runtime: Handle,
}

impl RouterSources {
    /// Call on a runtime with several threads: a read waits on the thread that runs the pipeline.
    pub fn new(router: Arc<Router>, database: &str, collator: Option<Collator>) -> RouterSources {
        RouterSources {
            router,
            database: database.to_owned(),
            collator,
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
        query: &ForeignQuery,
    ) -> Result<Documents, QueryError> {
        let filter = query.to_document();
        let database = database.unwrap_or(&self.database);
        let collation = collation::explicit(self.collator.as_ref());
        let open = open(&self.router, database, collection, &filter, &collation);
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
    collation: &RawDocument,
) -> Result<Merge, CommandError> {
    let ns = format!("{database}.{collection}");
    router
        .with_route(&ns, false, |route| async move {
            let Some(route) = route else {
                return Ok(Merge::new(Vec::new(), Shape::default()));
            };
            let mut command = rawdoc! {"find": collection};
            command.append(cstr!("filter"), filter);
            command.append(cstr!("collation"), collation);
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
            let read = RequestOptions::read(ReadMode::Primary);
            let mut remotes = Vec::new();
            for answer in router.send_all(requests, read).await {
                remotes.push(Remote::open(answer.and_then(Answer::checked)?, None)?);
            }
            Ok(Merge::new(remotes, Shape::default()))
        })
        .await
}
