//! The other collections that a pipeline reads, those below views among them.

use banyan_query::pipeline::{Output, Pipeline};
use banyan_query::text::{SearchedIndex, TextContext};
use banyan_query::view::Resolved;
use banyan_query::{Context, ErrorKind, QueryError};
use banyan_replication::views::may_be;
use banyan_storage::{Catalog, Namespace, Snapshot};
use banyan_wire::CommandError;
use bson::RawDocument;

use super::lookup::resolve_in;
use crate::context::CommandContext;
use crate::errors;

/// A collection, or a view that stands for one.
pub struct Foreign {
    pub namespace: Namespace,
    /// What it comes to, if it is a view.
    pub view: Option<Resolved>,
    /// The view in whose pipeline it was met, as its place in the list.
    pub within: Option<usize>,
}

/// A state in which names are looked up, taken once it is needed.
struct State<'a> {
    catalog: &'a Catalog,
    snapshot: &'a dyn Fn() -> Snapshot,
}

/// The other collections that a pipeline reads in the state that the command reads.
pub fn of(ctx: &CommandContext<'_>, pipeline: &Pipeline) -> Result<Vec<Foreign>, CommandError> {
    let catalog = match &ctx.view {
        Some(view) => view.catalog.clone(),
        None => ctx.node.replica.store.catalog(),
    };
    let state = State {
        catalog: &catalog,
        snapshot: &|| ctx.view().1,
    };
    find(&state, ctx.database(), pipeline).map_err(errors::query)
}

/// All of them; what stands below a view comes behind it. Views have to compare strings as the
/// pipeline does.
fn find(
    state: &State<'_>,
    database: &str,
    pipeline: &Pipeline,
) -> Result<Vec<Foreign>, QueryError> {
    let mut found: Vec<Foreign> = Vec::new();
    add(&mut found, database, pipeline, None);
    let context = Context {
        collator: pipeline.collator().cloned(),
        budget: pipeline.budget().clone(),
        // What a view searches in is looked for once it is read.
        text: Some(TextContext::new(SearchedIndex::Elsewhere)),
        ..Context::default()
    };
    if let Some((named, name)) = pipeline.output().map(Output::target) {
        let database = named.unwrap_or(database);
        let view = match may_be(state.catalog, database, name) {
            true => resolve_in(state.catalog, &(state.snapshot)(), database, name)?,
            false => None,
        };
        if let Some(view) = view {
            check_collation(&view, pipeline, &Namespace::new(database, name))?;
        }
    }
    let mut at = 0;
    while let Some(namespace) = found.get(at).map(|foreign| foreign.namespace.clone()) {
        let (database, name) = (namespace.database(), namespace.collection());
        let resolved = match may_be(state.catalog, database, name) {
            true => resolve_in(state.catalog, &(state.snapshot)(), database, name)?,
            false => None,
        };
        if let Some(resolved) = resolved {
            check_collation(&resolved, pipeline, &namespace)?;
            let stages: Vec<&RawDocument> = resolved.stages.iter().map(|stage| &**stage).collect();
            let inner = Pipeline::parse(&stages, &context)?;
            push(
                &mut found,
                Namespace::new(database, &resolved.collection),
                Some(at),
            );
            add(&mut found, database, &inner, Some(at));
            found[at].view = Some(resolved);
        }
        at += 1;
    }
    Ok(found)
}

fn check_collation(
    view: &Resolved,
    pipeline: &Pipeline,
    namespace: &Namespace,
) -> Result<(), QueryError> {
    match view.collator.as_ref() == pipeline.collator() {
        true => Ok(()),
        false => Err(QueryError::new(
            ErrorKind::OptionNotSupportedOnView,
            format!("Cannot override a view's default collation: {namespace}"),
        )),
    }
}

fn add(found: &mut Vec<Foreign>, database: &str, pipeline: &Pipeline, within: Option<usize>) {
    for (named, name) in pipeline.collections_read() {
        let database = named.as_deref().unwrap_or(database);
        push(found, Namespace::new(database, &name), within);
    }
}

fn push(found: &mut Vec<Foreign>, namespace: Namespace, within: Option<usize>) {
    if found.iter().all(|known| known.namespace != namespace) {
        found.push(Foreign {
            namespace,
            view: None,
            within,
        });
    }
}

/// The view that the pipeline itself names and that leads to the collection at this place.
pub fn through(all: &[Foreign], at: usize) -> Option<&Foreign> {
    let mut foreign = all.get(at)?;
    while let Some(above) = foreign.within {
        foreign = all.get(above)?;
    }
    foreign.view.is_some().then_some(foreign)
}
