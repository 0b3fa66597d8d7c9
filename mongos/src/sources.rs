//! Other collections, read through the router while a pipeline runs.

use std::sync::Arc;

use banyan_document::Collator;
use banyan_query::pipeline::{Documents, ForeignQuery, GeoNear, Pipeline, Sources};
use banyan_query::sort::SortPattern;
use banyan_query::view::Resolved;
use banyan_query::{Budget, Context, JavaScript, QueryError};
use banyan_wire::{CommandError, Outgoing, ReadMode, RequestOptions};
use bson::raw::cstr;
use bson::{RawArrayBuf, RawDocument, RawDocumentBuf, rawdoc};
use tokio::runtime::Handle;
use tokio::task::block_in_place;

use crate::answer::Answer;
use crate::catalog::Route;
use crate::collation;
use crate::ending::Ending;
use crate::errors::failed;
use crate::javascript::RemoteEngine;
use crate::merge::{Merge, Order, Remote, Shape};
use crate::router::Router;
use crate::targeting;
use crate::views::Told;

/// Other collections, read through the router while a pipeline runs.
#[derive(Clone)]
pub struct RouterSources {
    router: Arc<Router>,
    database: String,
    /// The collation of the whole aggregation; those of other collections do not count.
    collator: Option<Collator>,
    /// For what has to be parsed.
    budget: Budget,
    /// Views may have scripts.
    javascript: Option<Arc<dyn JavaScript>>,
    runtime: Handle,
}

impl RouterSources {
    /// Call on a runtime with several threads: a read waits on the thread that runs the pipeline.
    pub fn new(
        router: Arc<Router>,
        database: &str,
        collator: Option<Collator>,
        budget: Budget,
        ending: &Arc<Ending>,
    ) -> RouterSources {
        RouterSources {
            javascript: RemoteEngine::of(&router, ending),
            router,
            database: database.to_owned(),
            collator,
            budget,
            runtime: Handle::current(),
        }
    }

    /// The documents of a view that a stage behind it asks for, where one shard does not have all that
    /// the view reads.
    fn of_view(
        &self,
        database: &str,
        view: &Resolved,
        asked: Option<RawDocumentBuf>,
    ) -> Result<Documents, QueryError> {
        let stages = view.stages.iter().chain(&asked);
        let stages: Vec<&RawDocument> = stages.map(|stage| &**stage).collect();
        let context = Context {
            collator: self.collator.clone(),
            budget: self.budget.clone(),
            javascript: self.javascript.clone(),
            ..Context::default()
        };
        let split = Pipeline::parse(&stages, &context)?.split();
        let mut command = rawdoc! {"aggregate": view.collection.as_str()};
        command.append(cstr!("pipeline"), RawArrayBuf::from_iter(split.shard));
        command.append(cstr!("cursor"), rawdoc! {});
        let collation = collation::explicit(self.collator.as_ref());
        command.append(cstr!("collation"), collation);
        let targets = |route: &Route| targeting::of_pipeline(route, &stages, &command);
        let ns = format!("{database}.{}", view.collection);
        let order = split.order.map(|order| order.pattern);
        let open = open(&self.router, &ns, &command, &targets, order.as_ref());
        let merge = block_in_place(|| self.runtime.block_on(open)).map_err(failed)?;
        let input = Blocking {
            merge,
            runtime: self.runtime.clone(),
        };
        let sources = RouterSources {
            database: database.to_owned(),
            ..self.clone()
        };
        Ok(Box::new(split.merge.run(input, Some(Arc::new(sources)))?))
    }
}

impl RouterSources {
    /// The documents that lie near a point, the closest of all shards first.
    fn near(
        &self,
        database: &str,
        collection: &str,
        near: &GeoNear,
    ) -> Result<Documents, QueryError> {
        let stage = near.to_bound_document()?;
        let mut command = rawdoc! {"aggregate": collection};
        command.append(cstr!("pipeline"), RawArrayBuf::from_iter([stage.clone()]));
        command.append(cstr!("cursor"), rawdoc! {});
        let collation = collation::explicit(self.collator.as_ref());
        command.append(cstr!("collation"), collation);
        let targets = |route: &Route| targeting::of_pipeline(route, &[&*stage], &command);
        let ns = format!("{database}.{collection}");
        let order = near.order()?.pattern;
        let open = open(&self.router, &ns, &command, &targets, Some(&order));
        match block_in_place(|| self.runtime.block_on(open)) {
            Ok(merge) => Ok(Box::new(Blocking {
                merge,
                runtime: self.runtime.clone(),
            })),
            Err(error) => match Told::of(&error) {
                Some(told) => self.of_view(database, &told.resolved, Some(stage)),
                None => Err(failed(error)),
            },
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
        let database = database.unwrap_or(&self.database);
        if let Some(near) = query.near() {
            return self.near(database, collection, near);
        }
        let filter = query.to_document();
        let mut command = match query.is_scored() {
            // What it sends to a router brings the scores along.
            true => rawdoc! {
                "aggregate": collection,
                "pipeline": [{ "$match": filter.clone() }],
                "cursor": {},
                "needsMerge": true,
            },
            false => rawdoc! {"find": collection, "filter": filter.clone()},
        };
        command.append(
            cstr!("collation"),
            collation::explicit(self.collator.as_ref()),
        );
        let targets = |route: &Route| targeting::of_filter(route, &filter, &command);
        let ns = format!("{database}.{collection}");
        let open = open(&self.router, &ns, &command, &targets, None);
        let opened = block_in_place(|| self.runtime.block_on(open));
        let merge = match opened {
            Ok(merge) => merge,
            Err(error) => {
                return match Told::of(&error) {
                    Some(told) => {
                        let asked = (!filter.is_empty()).then(|| rawdoc! {"$match": filter});
                        self.of_view(database, &told.resolved, asked)
                    }
                    None => Err(failed(error)),
                };
            }
        };
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

/// Opens a read on every shard that can have matching documents.
async fn open(
    router: &Router,
    ns: &str,
    command: &RawDocument,
    targets: &(dyn Fn(&Route) -> Vec<Arc<str>> + Sync),
    order: Option<&SortPattern>,
) -> Result<Merge, CommandError> {
    let (database, _) = ns.split_once('.').unwrap_or((ns, ""));
    router
        .with_route(ns, false, |route| async move {
            let Some(route) = route else {
                return Ok(Merge::new(Vec::new(), Shape::default()));
            };
            let requests = targets(&route)
                .into_iter()
                .map(|shard| {
                    let mut command = command.to_owned();
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
            let shape = Shape {
                sort: order.cloned().map(Order::By),
                ..Shape::default()
            };
            Ok(Merge::new(remotes, shape))
        })
        .await
}
