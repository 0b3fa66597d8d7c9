//! Where a pipeline's documents come from, if not from its own collection: other collections for
//! `$lookup`, and the stages that are answered by the node itself.

use std::sync::Arc;

use banyan_access::administration::user_name;
use banyan_access::check::is_true;
use banyan_access::identity::digest_of;
use banyan_document::Collator;
use banyan_execution::by_id;
use banyan_execution::error::plan_killed;
use banyan_execution::plan::near::searched_path;
use banyan_execution::plan::summary::Summary;
use banyan_execution::{
    Executor, InterruptSlot, LaterStates, Planned, ReadView, Request, Rest, Row,
};
use banyan_query::canonical::{CanonicalQuery, TextScore};
use banyan_query::cluster_catalog;
use banyan_query::filter::Filter;
use banyan_query::pipeline::{
    Documents, ForeignQuery, GeoNear, Pipeline, ReadCost, Sources, outside_admin,
};
use banyan_query::query_settings::QuerySettings;
use banyan_query::view::Resolved;
use banyan_query::{Budget, Context, ErrorKind, JavaScript, QueryError};
use banyan_replication::views::may_be;
use banyan_storage::{Catalog, Collection, Index, Namespace, Snapshot};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};
use parking_lot::Mutex;

use super::coll_stats::{self, append_storage_stats};
use super::time_series::{self, indexes::to_measurements};
use super::{
    current_op, list_catalog, list_cluster_catalog, plan_cache, query_settings, query_stats,
};
use crate::context::CommandContext;
use crate::cursors::first;
use crate::operations;
use crate::params;
use crate::query_notes::allowed_indexes;
use crate::reads::{later_states, text_context_in};
use crate::views;
use crate::virtual_collections::{config, local};

const CURRENT_OP: &str = "$currentOp";

/// The other collections that a pipeline reads, as of one moment. `None` if it reads none.
pub fn of(
    ctx: &CommandContext<'_>,
    pipeline: &Pipeline,
    slot: &Arc<InterruptSlot>,
) -> Result<Option<Arc<dyn Sources>>, CommandError> {
    let reads = !pipeline.collections_read().is_empty();
    if !reads && pipeline.output().is_none() {
        return Ok(None);
    }
    let others = views::foreign::of(ctx, pipeline)?;
    if !reads {
        return Ok(None);
    }
    let role = ctx.node.role().filter(|_| ctx.is_routed());
    let check = || match role {
        Some(role) => {
            let mut names = others.iter().map(|other| &other.namespace);
            names.try_for_each(|name| role.check_local(name))
        }
        None => Ok(()),
    };
    check()?;
    let later = later_states(ctx, None);
    let view = ctx.view();
    // One may have been sharded since, and a part of it have left.
    check()?;
    if let Some(later) = &later {
        let found = others.iter();
        let found = found.filter_map(|other| view.0.find(&other.namespace));
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
        settings: ctx.query.settings.clone(),
        collator: pipeline.collator().cloned(),
        budget: pipeline.budget().clone(),
        javascript: ctx.node.javascript(ctx.interrupt()),
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

#[derive(Clone)]
struct Collections {
    state: Arc<State>,
    database: String,
    slot: Arc<InterruptSlot>,
    /// What holds for the whole aggregation.
    settings: Option<Arc<QuerySettings>>,
    /// The collation of the whole aggregation; those of other collections do not count.
    collator: Option<Collator>,
    budget: Budget,
    /// Views may have scripts.
    javascript: Option<Arc<dyn JavaScript>>,
}

impl Collections {
    fn with_settings<'r>(
        &self,
        request: Request<'r>,
        database: &str,
        collection: &str,
    ) -> Request<'r> {
        Request {
            settings: allowed_indexes(self.settings.as_deref(), database, collection),
            ..request
        }
    }

    /// What the name comes to, if it is a view's.
    fn resolve(
        &self,
        (catalog, snapshot): &(Arc<Catalog>, Snapshot),
        database: &str,
        name: &str,
    ) -> Result<Option<Resolved>, QueryError> {
        match may_be(catalog, database, name) {
            true => views::resolve_in(catalog, snapshot, database, name),
            false => Ok(None),
        }
    }

    /// The documents of a view that match.
    fn of_view(
        &self,
        (catalog, snapshot): (Arc<Catalog>, Snapshot),
        database: &str,
        view: &Resolved,
        query: &ForeignQuery,
    ) -> Result<Documents, QueryError> {
        let matching = match query.near() {
            Some(near) => Some(near.to_bound_document()?),
            None => {
                let filter = query.to_document();
                (!filter.is_empty()).then(|| rawdoc! { "$match": filter })
            }
        };
        let stages: Vec<&RawDocument> = view
            .stages
            .iter()
            .chain(&matching)
            .map(|stage| &**stage)
            .collect();
        let context = Context {
            collator: self.collator.clone(),
            budget: self.budget.clone(),
            javascript: self.javascript.clone(),
            text: Some(text_context_in(catalog.clone(), database, &view.collection)),
            names_metadata: true,
            ..Context::default()
        };
        let mut pipeline = Pipeline::parse(&stages, &context)?;
        if let Some(source) = pipeline.source() {
            return Err(QueryError::new(
                ErrorKind::NotImplemented,
                format!("a view that begins with {} is not read so", source.name()),
            ));
        }
        let near = pipeline.first().and_then(|first| first.get::<GeoNear>());
        let request = match near.cloned() {
            Some(near) => {
                pipeline.remove_first();
                near_request(&catalog, database, &view.collection, &near, &self.budget)?
            }
            None => {
                let mut filters = Vec::new();
                while let Some(matching) = pipeline.take_match() {
                    filters.push(matching.filter);
                }
                let filters = filters.iter().map(|filter| &**filter);
                let filter = Filter::conjunction(filters, self.collator.clone(), &self.budget)?;
                let query = CanonicalQuery {
                    text_score: match pipeline.needs_text_score() {
                        true => TextScore::Kept,
                        false => TextScore::Unused,
                    },
                    metadata: pipeline.metadata(),
                    ..CanonicalQuery::of_filter(Arc::new(filter))
                };
                Request {
                    query: Arc::new(query),
                    ..Request::default()
                }
            }
        };
        let read = ReadView {
            collection: catalog.get(database, &view.collection).cloned(),
            snapshot,
            later: self.state.later.clone(),
        };
        let request = self.with_settings(request, database, &view.collection);
        let executor = Planned::new(read, request)?.open(&self.slot)?;
        let input = Resting::new(executor, query.cost(), &self.slot);
        let sources = Collections {
            database: database.to_owned(),
            ..self.clone()
        };
        Ok(Box::new(pipeline.run(input, Some(Arc::new(sources)))?))
    }
}

impl Sources for Collections {
    fn is_indexed(
        &self,
        database: Option<&str>,
        collection: &str,
        path: &str,
    ) -> Result<bool, QueryError> {
        let state = self.state.view()?;
        let database = database.unwrap_or(&self.database);
        let view = self.resolve(&state, database, collection)?;
        if view.as_ref().is_some_and(|view| !view.only_matches()) {
            return Ok(false);
        }
        let below = view.as_ref().map_or(collection, |view| &view.collection);
        let found = state.0.get(database, below);
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
        let state = self.state.view()?;
        let database = database.unwrap_or(&self.database);
        if let Some(view) = self.resolve(&state, database, collection)? {
            return self.of_view(state, database, &view, query);
        }
        let (catalog, snapshot) = state;
        if let Some(found) = catalog.get(database, collection)
            && query.metadata().is_empty()
            && let Some(ids) = query.ids()
            && let Some(index) = found.id_index()
            && let Some(keys) = keys_of(index, ids, query.collator())
        {
            let (found, slot) = (found.clone(), self.slot.clone());
            let cost = query.cost().cloned();
            if let Some(cost) = &cost {
                cost.note_index(&index.name);
            }
            let read = keys.into_iter().filter_map(move |key| {
                let checked = slot.check();
                let read = checked.and_then(|()| by_id::read(&found, &snapshot, &key));
                let read = read.transpose()?;
                if let Some(cost) = cost.as_ref().filter(|_| read.is_ok()) {
                    cost.add(1, 1);
                }
                Some(read.map(|record| RawDocument::to_owned(&record)))
            });
            return Ok(Box::new(read));
        }
        let request = match query.near() {
            Some(near) => near_request(&catalog, database, collection, near, &self.budget)?,
            None => {
                let text_score = match query.is_scored() {
                    true => TextScore::Kept,
                    false => TextScore::Unused,
                };
                let query = CanonicalQuery {
                    text_score,
                    metadata: query.metadata(),
                    ..CanonicalQuery::of_filter(query.filter()?)
                };
                Request {
                    query: Arc::new(query),
                    keeps_metadata: true,
                    ..Request::default()
                }
            }
        };
        let view = ReadView {
            collection: catalog.get(database, collection).cloned(),
            snapshot,
            later: self.state.later.clone(),
        };
        let request = self.with_settings(request, database, collection);
        let executor = Planned::new(view, request)?.open(&self.slot)?;
        let resting = Resting::new(executor, query.cost(), &self.slot);
        Ok(Box::new(resting.map(|row| row.map(Row::into_owned))))
    }
}

/// As many documents are found without a plan.
const IDS_MAX: usize = 1024;

/// The keys of values in an index on `_id`, each once and in their order. `None`: there are many, or it
/// does not find what the query means by them.
fn keys_of(index: &Index, ids: &[RawBson], collator: Option<&Collator>) -> Option<Vec<Vec<u8>>> {
    let serves = |id: &RawBson| by_id::serves(index, id.as_raw_bson_ref(), collator);
    if ids.len() > IDS_MAX || !ids.iter().all(serves) {
        return None;
    }
    let keys = ids.iter().map(|id| by_id::key(index, id.as_raw_bson_ref()));
    let mut keys: Vec<Vec<u8>> = keys.collect();
    keys.sort_unstable();
    keys.dedup();
    Some(keys)
}

/// What finds the documents that a `$geoNear` asks for.
pub fn near_filter(
    catalog: &Catalog,
    database: &str,
    collection: &str,
    near: &GeoNear,
) -> Result<Arc<Filter>, QueryError> {
    let found = catalog.get(database, collection);
    let namespace = format!("{database}.{collection}");
    let path = searched_path(found.map(|found| &**found), &namespace, near.key.as_deref())?;
    near.filter(&path)
}

/// What is asked of a collection whose documents are wanted near a point.
fn near_request(
    catalog: &Catalog,
    database: &str,
    collection: &str,
    near: &GeoNear,
    budget: &Budget,
) -> Result<Request<'static>, QueryError> {
    let filter = near_filter(catalog, database, collection, near)?;
    Ok(Request {
        query: Arc::new(CanonicalQuery::of_filter(filter)),
        near: Some(near.fields.clone()),
        budget: budget.clone(),
        ..Request::default()
    })
}

/// A plan inside of a pipeline, that rests with its cursor.
struct Resting(Arc<RestingPlan>);

struct RestingPlan {
    executor: Mutex<Executor>,
    /// Where it is added up what it has cost.
    cost: Option<Arc<ReadCost>>,
}

impl Drop for RestingPlan {
    fn drop(&mut self) {
        let Some(cost) = &self.cost else { return };
        let stats = &self.executor.get_mut().stats;
        cost.add(stats.keys(), stats.documents());
        if matches!(stats.summary, Summary::Scan) {
            cost.note_scan();
        }
        for index in stats.summary.indexes() {
            cost.note_index(&index.name);
        }
    }
}

impl Resting {
    fn new(executor: Executor, cost: Option<&Arc<ReadCost>>, slot: &InterruptSlot) -> Resting {
        let plan = Arc::new(RestingPlan {
            executor: Mutex::new(executor),
            cost: cost.cloned(),
        });
        let reader: Arc<dyn Rest> = plan.clone();
        slot.add_resting(Arc::downgrade(&reader));
        Resting(plan)
    }
}

impl Iterator for Resting {
    type Item = Result<Row, QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.executor.lock().next()
    }
}

impl Rest for RestingPlan {
    fn rest(&self) {
        self.executor.lock().save();
    }

    fn holds_snapshot(&self) -> bool {
        self.executor.lock().holds_snapshot()
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
            let found = existing(ctx, collection);
            match found {
                Ok((name, found)) => stats_of(ctx, name, Some(&*found), argument),
                Err(error) => {
                    let name = collection.unwrap_or_default();
                    let namespace = Namespace::new(ctx.database(), name);
                    let measured = time_series::named(ctx, name).filter(|_| !counts(argument));
                    if let Some((buckets, _)) = measured {
                        return Ok(vec![stats_of(ctx, name, Some(&*buckets), argument)?]);
                    }
                    match views::is_view(&ctx.node.replica, &namespace)? {
                        true => stats_of(ctx, name, None, argument),
                        // How long operations on it took is told of any name.
                        false if only_latencies(argument) => stats_of(ctx, name, None, argument),
                        false => Err(error),
                    }
                }
            }
            .map(|document| vec![document])
        }
        "$indexStats" => {
            if let Ok((_, found)) = existing(ctx, collection) {
                let indexes = found.indexes.iter();
                return Ok(indexes
                    .map(|index| index_stats(ctx, index, &index.spec))
                    .collect());
            }
            let measured = collection.and_then(|name| time_series::named(ctx, name));
            let Some((buckets, series)) = measured else {
                return Ok(Vec::new());
            };
            let told = buckets.indexes.iter().filter_map(|index| {
                let spec = to_measurements(&index.spec, &series)?;
                Some(index_stats(ctx, index, &spec))
            });
            Ok(told.collect())
        }
        CURRENT_OP => {
            check_place(ctx, CURRENT_OP)?;
            ctx.interrupt();
            Ok(current_operations(ctx, argument))
        }
        "$listCatalog" => list_catalog::documents(ctx, collection),
        cluster_catalog::STAGE => list_cluster_catalog::documents(ctx, collection, argument),
        "$listSessions" if (ctx.database(), collection) != ("config", Some("system.sessions")) => {
            Err(elsewhere(
                "$listSessions may only be run against config.system.sessions",
            ))
        }
        "$listLocalSessions" | "$listSessions" => Ok(sessions(ctx, argument)),
        "$planCacheStats" => plan_cache::stats(ctx, collection, argument),
        query_stats::STAGE => query_stats::documents(ctx, collection, argument),
        query_settings::STAGE => query_settings::documents(ctx, collection, argument),
        other => Err(CommandError::new(
            ErrorCode::NotImplemented,
            format!("the stage {other} is not implemented"),
        )),
    }
}

/// What runs, and the cursors that wait to be read, where that is asked for.
fn current_operations(ctx: &CommandContext<'_>, options: &RawDocument) -> Vec<RawDocumentBuf> {
    let all = flag(options, "allUsers");
    let host = &*ctx.node.info.address;
    let operations = ctx.node.operations.all();
    let shown = operations
        .iter()
        .filter(|one| all || current_op::is_own(ctx, one));
    let mut described: Vec<_> = shown.map(|one| operations::describe(one, host)).collect();
    if flag(options, "idleConnections") {
        described.extend(current_op::idle_connections(ctx, !all, &operations));
    }
    if flag(options, "idleCursors") {
        let sees_all = all || !ctx.node.access.is_enforced();
        let own = first::user(ctx);
        let cursors = ctx
            .node
            .cursors
            .idle(|opener| sees_all || opener.user == own);
        described.extend(cursors.iter().map(|cursor| cursor.describe(host)));
    }
    described
}

/// Whether a first stage may be asked of this database, whether it is run or explained.
pub fn check_place(ctx: &CommandContext<'_>, stage: &str) -> Result<(), CommandError> {
    match stage {
        CURRENT_OP if ctx.database() != "admin" => Err(elsewhere(&outside_admin(stage))),
        _ => Ok(()),
    }
}

/// A stage is asked about another namespace than its own.
fn elsewhere(why: &str) -> CommandError {
    CommandError::new(ErrorCode::InvalidNamespace, why)
}

fn flag(options: &RawDocument, name: &str) -> bool {
    banyan_document::field(options, name).is_some_and(is_true)
}

/// The client's own sessions, or everybody's.
fn sessions(ctx: &CommandContext<'_>, options: &RawDocument) -> Vec<RawDocumentBuf> {
    let Some(own) = first::user(ctx).filter(|_| !flag(options, "allUsers")) else {
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

/// Whether it is asked how many documents there are, which buckets do not tell of measurements.
fn counts(argument: &RawDocument) -> bool {
    ["count", "queryExecStats"]
        .iter()
        .any(|name| banyan_document::field(argument, name).is_some())
}

/// Whether nothing is asked for that only a collection has.
fn only_latencies(argument: &RawDocument) -> bool {
    let mut names = argument.iter().flatten().map(|(name, _)| name);
    names.all(|name| name.as_str() == "latencyStats")
}

/// The parts of `$collStats`, in the order in which they are told.
const STATS: [&str; 4] = ["latencyStats", "storageStats", "count", "queryExecStats"];

/// Of a view, which has no `collection`, nothing is told that is a collection's.
fn stats_of(
    ctx: &CommandContext<'_>,
    own: &str,
    collection: Option<&Collection>,
    argument: &RawDocument,
) -> Result<RawDocumentBuf, CommandError> {
    let mut document = rawdoc! {
        "ns": format!("{}.{own}", ctx.database()),
        "host": ctx.node.info.address.as_str(),
        "localTime": bson::DateTime::now(),
    };
    let mut names = argument.iter().flatten().map(|(name, _)| name.as_str());
    if let Some(unknown) = names.find(|name| !STATS.contains(name)) {
        return Err(CommandError::new(
            ErrorCode::Location(40415),
            format!("BSON field '$collStats.{unknown}' is an unknown field."),
        ));
    }
    let usage = || collection.map(|collection| ctx.node.top.of(collection.id));
    for name in STATS {
        let Some(value) = banyan_document::field(argument, name) else {
            continue;
        };
        if collection.is_none() && name != "latencyStats" {
            views::refuse(&ctx.node.replica, &Namespace::new(ctx.database(), own))?;
        }
        match name {
            "storageStats" => {
                let scale = value
                    .as_document()
                    .and_then(|options| options.get("scale").ok().flatten())
                    .and_then(params::number)
                    .unwrap_or(1)
                    .max(1);
                let mut stats = RawDocumentBuf::new();
                append_storage_stats(&mut stats, collection, scale);
                document.append(cstr!("storageStats"), stats);
            }
            "count" => {
                let count = collection.map_or(0, |collection| collection.documents());
                let count = i64::try_from(count).unwrap_or(i64::MAX);
                document.append(cstr!("count"), coll_stats::number(count));
            }
            "latencyStats" => {
                let latencies = coll_stats::latencies(&usage().unwrap_or_default(), value)?;
                document.append(cstr!("latencyStats"), latencies);
            }
            _ => {
                let scans = coll_stats::scans(&usage().unwrap_or_default(), value)?;
                document.append(cstr!("queryExecStats"), scans);
            }
        }
    }
    Ok(document)
}

fn index_stats(
    ctx: &CommandContext<'_>,
    index: &banyan_storage::Index,
    spec: &RawDocument,
) -> RawDocumentBuf {
    let mut document = rawdoc! { "name": index.name.as_str() };
    if let Ok(key) = spec.get_document("key") {
        document.append(cstr!("key"), key);
    }
    document.append(cstr!("host"), ctx.node.info.address.as_str());
    let (operations, since) = index.uses();
    let operations = i64::try_from(operations).unwrap_or(i64::MAX);
    let since = bson::DateTime::from_system_time(since);
    document.append(
        cstr!("accesses"),
        rawdoc! { "ops": operations, "since": since },
    );
    document.append(cstr!("spec"), spec.to_owned());
    document
}
