//! Where a pipeline's documents come from, if not from its own collection: other collections for
//! `$lookup`, and the stages that are answered by the node itself.

use std::sync::Arc;

use banyan_document::Collator;
use banyan_execution::by_id;
use banyan_execution::error::plan_killed;
use banyan_execution::{
    Executor, InterruptSlot, LaterStates, Planned, ReadView, Request, Rest, Row,
};
use banyan_query::QueryError;
use banyan_query::canonical::CanonicalQuery;
use banyan_query::pipeline::{Documents, ForeignQuery, Pipeline, Sources};
use banyan_storage::{Catalog, Collection, Namespace, Snapshot};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};
use parking_lot::Mutex;

use super::coll_stats::append_storage_stats;
use super::{current_op, plan_cache};
use crate::access::administration::user_name;
use crate::access::check::is_true;
use crate::access::identity::digest_of;
use crate::context::CommandContext;
use crate::cursors::first;
use crate::operations;
use crate::params;
use crate::reads::later_states;
use crate::virtual_collections::{config, local};

/// The names of the other collections that a pipeline reads.
fn others(ctx: &CommandContext<'_>, pipeline: &Pipeline) -> Vec<Namespace> {
    let names = pipeline.collections_read().into_iter();
    names
        .map(|(database, name)| {
            Namespace::new(database.as_deref().unwrap_or(ctx.database()), &name)
        })
        .collect()
}

/// Lets the role learn what it has to know of them.
pub async fn prepare(ctx: &CommandContext<'_>, pipeline: &Pipeline) {
    let Some(role) = ctx.node.role().filter(|_| ctx.is_routed()) else {
        return;
    };
    for other in others(ctx, pipeline) {
        role.prepare_local(other).await;
    }
}

/// The other collections that a pipeline reads, as of one moment. `None` if it reads none.
pub fn of(
    ctx: &CommandContext<'_>,
    pipeline: &Pipeline,
    slot: &Arc<InterruptSlot>,
) -> Result<Option<Arc<dyn Sources>>, CommandError> {
    let others = others(ctx, pipeline);
    if others.is_empty() {
        return Ok(None);
    }
    let role = ctx.node.role().filter(|_| ctx.is_routed());
    let check = || match role {
        Some(role) => others.iter().try_for_each(|other| role.check_local(other)),
        None => Ok(()),
    };
    check()?;
    let later = later_states(ctx, None);
    let view = ctx.view();
    // One may have been sharded since, and a part of it have left.
    check()?;
    if let Some(later) = &later {
        let found = others.iter().filter_map(|other| view.0.find(other));
        later.reads(found.map(|collection| collection.id));
    }
    let state = Arc::new(State {
        view: Mutex::new(Some(view)),
        later,
    });
    let reader: Arc<dyn Rest> = state.clone();
    slot.add_resting(Arc::downgrade(&reader));
    Ok(Some(Arc::new(Collections {
        state,
        database: ctx.database().to_owned(),
        slot: slot.clone(),
        collator: pipeline.collator().cloned(),
    })))
}

/// One state of all collections.
struct State {
    /// `None` while its cursor rests.
    view: Mutex<Option<(Arc<Catalog>, Snapshot)>>,
    /// Those that it may go on in, if there are any.
    later: Option<LaterStates>,
}

impl State {
    fn view(&self) -> Result<(Arc<Catalog>, Snapshot), QueryError> {
        let mut view = self.view.lock();
        if let Some((catalog, snapshot)) = &*view {
            return Ok((catalog.clone(), snapshot.clone()));
        }
        let Some(later) = &self.later else {
            return Err(plan_killed("the state that it reads was let go"));
        };
        Ok(view.insert(later.open()?).clone())
    }
}

impl Rest for State {
    fn rest(&self) {
        if self.later.is_some() {
            *self.view.lock() = None;
        }
    }

    fn holds_snapshot(&self) -> bool {
        let later = self.later.as_ref();
        self.view.lock().is_some() || later.is_some_and(LaterStates::keeps_snapshot)
    }
}

struct Collections {
    state: Arc<State>,
    database: String,
    slot: Arc<InterruptSlot>,
    /// The collation of the whole aggregation; those of other collections do not count.
    collator: Option<Collator>,
}

impl Sources for Collections {
    fn is_indexed(
        &self,
        database: Option<&str>,
        collection: &str,
        path: &str,
    ) -> Result<bool, QueryError> {
        let (catalog, _) = self.state.view()?;
        let found = catalog.get(database.unwrap_or(&self.database), collection);
        Ok(found.is_some_and(|collection| {
            collection.all_indexes().any(|index| {
                let first = index.pattern.fields.first();
                !index.hidden
                    && index.partial_filter.is_none()
                    && index.pattern.collator == self.collator
                    && first.is_some_and(|(field, _)| field.to_string() == path)
            })
        }))
    }

    fn documents(
        &self,
        database: Option<&str>,
        collection: &str,
        query: &ForeignQuery,
    ) -> Result<Documents, QueryError> {
        let (catalog, snapshot) = self.state.view()?;
        let database = database.unwrap_or(&self.database);
        if let Some(found) = catalog.get(database, collection)
            && let Some(id) = query.id()
            && let Some(index) = found.id_index()
            && by_id::serves(index, id, query.collator())
        {
            let record = by_id::lookup(found, &snapshot, id)?;
            let document = record.map(|record| Ok(RawDocument::to_owned(&record)));
            return Ok(Box::new(document.into_iter()));
        }
        let request = Request {
            query: Arc::new(CanonicalQuery::of_filter(query.filter()?)),
            ..Request::default()
        };
        let view = ReadView {
            collection: catalog.get(database, collection).cloned(),
            snapshot,
            later: self.state.later.clone(),
        };
        let executor = Planned::new(view, request)?.open(&self.slot)?;
        let resting = Resting::new(executor, &self.slot);
        Ok(Box::new(resting.map(|row| row.map(Row::into_owned))))
    }
}

/// A plan inside of a pipeline, that rests with its cursor.
struct Resting(Arc<RestingPlan>);

struct RestingPlan(Mutex<Executor>);

impl Resting {
    fn new(executor: Executor, slot: &InterruptSlot) -> Resting {
        let plan = Arc::new(RestingPlan(Mutex::new(executor)));
        let reader: Arc<dyn Rest> = plan.clone();
        slot.add_resting(Arc::downgrade(&reader));
        Resting(plan)
    }
}

impl Iterator for Resting {
    type Item = Result<Row, QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.0.lock().next()
    }
}

impl Rest for RestingPlan {
    fn rest(&self) {
        self.0.lock().save();
    }

    fn holds_snapshot(&self) -> bool {
        self.0.lock().holds_snapshot()
    }
}

/// What a source stage such as `$collStats` yields.
pub fn documents(
    ctx: &CommandContext<'_>,
    collection: Option<&str>,
    stage: &str,
    argument: &RawDocument,
) -> Result<Vec<RawDocumentBuf>, CommandError> {
    match stage {
        "$collStats" => {
            if let Some(stats) =
                local::stats(ctx.node, ctx.database(), collection.unwrap_or_default())
            {
                let namespace = format!("local.{}", collection.unwrap_or_default());
                return Ok(vec![rawdoc! { "ns": namespace, "storageStats": stats }]);
            }
            let (name, found) = existing(ctx, collection)?;
            coll_stats(ctx, name, &found, argument).map(|document| vec![document])
        }
        "$indexStats" => {
            let (_, found) = existing(ctx, collection)?;
            Ok(found
                .indexes
                .iter()
                .map(|index| index_stats(ctx, index))
                .collect())
        }
        "$currentOp" => {
            ctx.interrupt();
            let all = flag(argument, "allUsers");
            let operations = ctx.node.operations.all();
            let shown = operations
                .iter()
                .filter(|one| all || current_op::is_own(ctx, one));
            Ok(shown.map(|one| operations::describe(one)).collect())
        }
        "$listLocalSessions" | "$listSessions" => Ok(sessions(ctx, argument)),
        "$planCacheStats" => plan_cache::stats(ctx, collection, argument),
        other => Err(CommandError::new(
            ErrorCode::NotImplemented,
            format!("the stage {other} is not implemented"),
        )),
    }
}

fn flag(options: &RawDocument, name: &str) -> bool {
    banyan_document::field(options, name).is_some_and(is_true)
}

/// The client's own sessions, or everybody's.
fn sessions(ctx: &CommandContext<'_>, options: &RawDocument) -> Vec<RawDocumentBuf> {
    let Some(own) = first::owner(ctx).filter(|_| !flag(options, "allUsers")) else {
        return config::sessions(ctx.node).collect();
    };
    let Some(RawBsonRef::Array(users)) = banyan_document::field(options, "users") else {
        return config::sessions_of(ctx.node, &[own]).collect();
    };
    let names = users.into_iter().flatten();
    let names = names.filter_map(|user| user_name(user, ctx.database()));
    let named: Vec<_> = names.map(|name| digest_of(&name)).collect();
    config::sessions_of(ctx.node, &named).collect()
}

fn existing<'a>(
    ctx: &CommandContext<'_>,
    collection: Option<&'a str>,
) -> Result<(&'a str, Arc<Collection>), CommandError> {
    let name = collection.unwrap_or_default();
    let found = ctx
        .node
        .replica
        .store
        .catalog()
        .get(ctx.database(), name)
        .cloned();
    found.map(|found| (name, found)).ok_or_else(|| {
        CommandError::new(
            ErrorCode::NamespaceNotFound,
            format!("Collection [{}.{name}] not found.", ctx.database()),
        )
    })
}

fn coll_stats(
    ctx: &CommandContext<'_>,
    name: &str,
    collection: &Collection,
    argument: &RawDocument,
) -> Result<RawDocumentBuf, CommandError> {
    let mut document = rawdoc! {
        "ns": format!("{}.{name}", ctx.database()),
        "host": ctx.node.info.address.as_str(),
        "localTime": bson::DateTime::now(),
    };
    for (name, value) in argument.iter().flatten() {
        match name.as_str() {
            "storageStats" => {
                let scale = value
                    .as_document()
                    .and_then(|options| options.get("scale").ok().flatten())
                    .and_then(params::number)
                    .unwrap_or(1)
                    .max(1);
                let mut stats = RawDocumentBuf::new();
                append_storage_stats(&mut stats, Some(collection), scale);
                document.append(cstr!("storageStats"), stats);
            }
            "count" => {
                let count = i64::try_from(collection.documents()).unwrap_or(i64::MAX);
                document.append(cstr!("count"), count);
            }
            "latencyStats" | "queryExecStats" => {
                return Err(CommandError::new(
                    ErrorCode::NotImplemented,
                    format!("$collStats with {} is not supported", name.as_str()),
                ));
            }
            other => {
                return Err(CommandError::new(
                    ErrorCode::Location(40415),
                    format!("BSON field '$collStats.{other}' is an unknown field."),
                ));
            }
        }
    }
    Ok(document)
}

fn index_stats(ctx: &CommandContext<'_>, index: &banyan_storage::Index) -> RawDocumentBuf {
    let mut document = rawdoc! { "name": index.name.as_str() };
    if let Ok(key) = index.spec.get_document("key") {
        document.append(cstr!("key"), key);
    }
    document.append(cstr!("host"), ctx.node.info.address.as_str());
    document.append(cstr!("spec"), index.spec.clone());
    document
}
