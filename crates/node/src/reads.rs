//! What commands that read documents have in common: the state that they see, what they may
//! compute with, and the plan that they run.

use std::sync::Arc;

use banyan_document::Collator;
use banyan_execution::{
    CreatedFrom, Documents, Executor, LaterStates, Planned, ReadView, Request, ShardFilter,
};
use banyan_query::canonical::{self, CanonicalQuery};
use banyan_query::text::{SearchedIndex, TextContext, TextIndexes};
use banyan_query::{Context, Filter, let_variables};
use banyan_storage::{Catalog, Namespace, Snapshot};
use banyan_wire::CommandError;
use bson::RawDocument;

use crate::collation::Asked;
use crate::context::CommandContext;
use crate::errors;
use crate::query_notes::allowed_indexes;
use crate::virtual_collections::local;
use banyan_replication::oplog::{self, view::Order};

/// A request of a command that is ready to run.
pub enum Ready<'a> {
    Planned(Planned<'a>),
    /// Over documents that are not stored.
    Virtual(Executor),
}

impl Ready<'_> {
    /// Whether so few records will be looked at that it can be done in place.
    pub fn is_small(&self) -> bool {
        matches!(self, Ready::Planned(planned) if planned.is_small())
    }

    /// Begins to run.
    pub fn open(self, ctx: &CommandContext<'_>) -> Result<Executor, CommandError> {
        let executor = match self {
            Ready::Virtual(executor) => return Ok(executor),
            Ready::Planned(planned) => planned.open(ctx.slot()).map_err(errors::query)?,
        };
        ctx.run_plan(&executor.stats);
        Ok(executor)
    }
}

/// Plans a request on one of the collections of the command's database. Nothing is read.
pub fn plan<'a>(
    ctx: &CommandContext<'_>,
    collection: &str,
    mut request: Request<'a>,
) -> Result<Ready<'a>, CommandError> {
    let documents = virtual_documents(ctx, collection, &request)?;
    let later = |ownership: &Option<_>| later_states(ctx, ownership.clone());
    let (owned, later) = view_with(ctx, collection, later)?;
    let OwnedView {
        ownership,
        catalog,
        snapshot,
    } = owned;
    let mut view = ReadView {
        collection: None,
        snapshot,
        later: None,
    };
    if let Some(documents) = documents {
        let executor = Executor::over(documents, &view, &request, ctx.slot());
        return Ok(Ready::Virtual(executor));
    }
    view.collection = catalog.get(ctx.database(), collection).cloned();
    view.later = later;
    if let Some(later) = &view.later {
        later.reads(view.collection.iter().map(|collection| collection.id));
    }
    request.shard_filter = ownership;
    let settings = ctx.query.settings.as_deref();
    request.settings = allowed_indexes(settings, ctx.database(), collection);
    let planned = Planned::new(view, request).map_err(errors::query)?;
    Ok(Ready::Planned(planned))
}

/// How many documents there are in a collection in the state that the command sees, where that is
/// known without looking at them.
pub fn known_count(
    ctx: &CommandContext<'_>,
    collection: &str,
) -> Result<Option<u64>, CommandError> {
    let view = owned_view(ctx, collection)?;
    let is_virtual = local::may_be_virtual(ctx.database(), collection);
    if is_virtual || view.ownership.is_some() || view.snapshot.has_overlay() {
        return Ok(None);
    }
    let Some(collection) = view.catalog.get(ctx.database(), collection) else {
        return Ok(Some(0));
    };
    let counts = view.snapshot.counts(collection.id);
    let (documents, _) = counts.map_err(errors::storage)?;
    Ok(Some(u64::try_from(documents).unwrap_or_default()))
}

/// The documents of a collection that is not stored. `None`: it is.
fn virtual_documents(
    ctx: &CommandContext<'_>,
    collection: &str,
    request: &Request<'_>,
) -> Result<Option<Documents>, CommandError> {
    if !local::may_be_virtual(ctx.database(), collection) {
        return Ok(None);
    }
    let order = Order {
        times: oplog::view::times(&request.query.filter.to_document()),
        reverse: request.query.order == canonical::Order::Natural { reverse: true },
        tailable: false,
    };
    local::documents(ctx.node, ctx.database(), collection, &order)
}

/// The documents of a collection that match, for whoever asks for no more than that of them.
pub fn matching<'a>(
    ctx: &CommandContext<'_>,
    collection: &str,
    filter: Option<&'a RawDocument>,
    collation: &Asked,
) -> Result<Request<'a>, CommandError> {
    let collator = collation.collator(ctx, collection);
    let context = query_context(ctx, collection, None, collator)?;
    let matching = match filter {
        Some(filter) => Filter::of_query(filter, &context).map_err(errors::query)?,
        None => Filter::all_in(context.collator),
    };
    Ok(Request {
        query: Arc::new(CanonicalQuery::of_filter(Arc::new(matching))),
        created_from: CreatedFrom {
            filter,
            ..CreatedFrom::default()
        },
        ..Request::default()
    })
}

/// What runs JavaScript.
const SCRIPTED: [&[u8]; 3] = [b"$where\0", b"$function\0", b"$accumulator\0"];

/// The query crate's context of a command on a collection: its `let`, its collation, its time, and
/// what can be searched in.
pub fn query_context(
    ctx: &CommandContext<'_>,
    collection: &str,
    variables: Option<&RawDocument>,
    collator: Option<Collator>,
) -> Result<Context, CommandError> {
    let mut context = Context {
        collator,
        budget: ctx.budget(),
        ..Context::default()
    };
    if ctx.node.replication.is_replica_set() {
        context.cluster_time = Some(ctx.node.replica.clock.now());
    }
    if may_hold(ctx, &SCRIPTED) {
        context.javascript = ctx.node.javascript(ctx.interrupt());
    }
    context.names_metadata = may_hold(ctx, &[b"$meta\0"]);
    if may_hold(ctx, &[b"$out\0", b"$merge\0"]) {
        context.database = Some(ctx.database().into());
    }
    if may_hold(ctx, &[b"$text\0"]) {
        context.text = Some(text_context(ctx, collection));
    }
    if let Some(variables) = variables {
        let_variables::define(&mut context, variables).map_err(errors::query)?;
    }
    Ok(context)
}

/// Adds what the stages of a view need, which are not in the request.
pub fn add_needs_of_view(
    ctx: &CommandContext<'_>,
    collection: &str,
    stages: &[&RawDocument],
    context: &mut Context,
) {
    context.javascript = ctx.node.javascript(ctx.interrupt());
    let hold = |name: &[u8]| stages.iter().any(|stage| names(stage.as_bytes(), &[name]));
    context.names_metadata |= hold(b"$meta\0");
    if context.text.is_none() && hold(b"$text\0") {
        context.text = Some(text_context(ctx, collection));
    }
}

/// The text index of a collection, if it has one.
fn text_context(ctx: &CommandContext<'_>, collection: &str) -> TextContext {
    let (catalog, _) = ctx.view();
    let mut context = text_context_in(catalog, ctx.database(), collection);
    let needs_merge = ctx.body().get_bool("needsMerge");
    context.is_for_router = needs_merge.unwrap_or(false);
    context
}

/// The same in a state of the catalog.
pub fn text_context_in(catalog: Arc<Catalog>, database: &str, collection: &str) -> TextContext {
    let known = KnownIndexes {
        catalog,
        database: database.to_owned(),
    };
    let own = known.of(None, collection);
    TextContext::new(own).with_others(Arc::new(known))
}

/// The text indexes of a state of the catalog.
#[derive(Debug)]
struct KnownIndexes {
    catalog: Arc<Catalog>,
    database: String,
}

impl TextIndexes for KnownIndexes {
    fn of(&self, database: Option<&str>, collection: &str) -> SearchedIndex {
        let database = database.unwrap_or(&self.database);
        let Some(known) = self.catalog.get(database, collection) else {
            return SearchedIndex::NoCollection(format!("{database}.{collection}"));
        };
        let text = known.indexes.iter().find_map(|index| {
            let (text, _) = index.kind.text().filter(|_| !index.hidden)?;
            Some(text.clone())
        });
        text.map_or(SearchedIndex::Missing, SearchedIndex::Here)
    }
}

/// Whether one of these operators may be in the request: what they need costs something, and few
/// commands have them. Their names are given with the zero byte that ends them.
fn may_hold(ctx: &CommandContext<'_>, operators: &[&[u8]]) -> bool {
    let mut documents = ctx
        .request
        .sequences
        .iter()
        .flat_map(|sequence| sequence.docs());
    names(ctx.body().as_bytes(), operators)
        || documents.any(|document| names(document.as_bytes(), operators))
}

/// Whether one of these names may be in a document.
fn names(mut bytes: &[u8], operators: &[&[u8]]) -> bool {
    while let Some(at) = bytes.iter().position(|byte| *byte == b'$') {
        bytes = &bytes[at..];
        if operators.iter().any(|name| bytes.starts_with(name)) {
            return true;
        }
        bytes = &bytes[1..];
    }
    false
}

/// Where a cursor goes on after it has been idle. A read of a certain time keeps to its state; one
/// that a router sent goes on as long as what this shard may answer is there, and is registered for
/// that before its state is taken.
pub fn later_states(
    ctx: &CommandContext<'_>,
    ownership: Option<Arc<dyn ShardFilter>>,
) -> Option<LaterStates> {
    if ctx.view.is_some() {
        return None;
    }
    let store = ctx.node.replica.store.clone();
    Some(match ctx.node.role().filter(|_| ctx.is_routed()) {
        Some(_) => LaterStates::preserving(store, ctx.node.range_preservers.preserve(ownership)),
        None => LaterStates::newest(store),
    })
}

/// What a read sees of a collection: a state, and which documents in it this shard may answer.
pub struct OwnedView {
    pub ownership: Option<Arc<dyn ShardFilter>>,
    pub catalog: Arc<Catalog>,
    pub snapshot: Snapshot,
}

/// The state that a command reads, and what this shard may answer of the collection in it.
pub fn owned_view(ctx: &CommandContext<'_>, collection: &str) -> Result<OwnedView, CommandError> {
    let (view, ()) = view_with(ctx, collection, |_| ())?;
    Ok(view)
}

/// As [`owned_view`], with what is to be done when it is known what this shard may answer, and the
/// state is not taken yet.
fn view_with<T>(
    ctx: &CommandContext<'_>,
    collection: &str,
    before: impl FnOnce(&Option<Arc<dyn ShardFilter>>) -> T,
) -> Result<(OwnedView, T), CommandError> {
    let role = ctx.node.role().filter(|_| ctx.is_routed());
    let ownership = match role {
        Some(role) => {
            let namespace = Namespace::new(ctx.database(), collection);
            role.check(&namespace, ctx.versions(), false)?
        }
        None => None,
    };
    let done = before(&ownership);
    let (catalog, snapshot) = ctx.view();
    if let Some(role) = role {
        // A range may have left since, and its documents been removed before the snapshot.
        let namespace = Namespace::new(ctx.database(), collection);
        role.check(&namespace, ctx.versions(), false)?;
    }
    let view = OwnedView {
        ownership,
        catalog,
        snapshot,
    };
    Ok((view, done))
}
