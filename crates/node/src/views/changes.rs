//! Views come, change and go.

use std::collections::HashMap;

use banyan_query::Context;
use banyan_query::pipeline::Pipeline;
use banyan_query::text::{SearchedIndex, TextContext};
use banyan_query::view::graph::{self, Node};
use banyan_query::view::{self, View};
use banyan_replication::locks::Lock;
use banyan_replication::views::{definition, is_view};
use banyan_replication::write::views::Definitions;
use banyan_storage::Namespace;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use super::lookup::definitions;
use crate::context::CommandContext;
use crate::errors;
use crate::names::check_collection_name;
use crate::params::{self, Field};
use crate::reads::query_context;

/// What `create` and `collMod` say of a view's pipeline.
pub fn stages(field: Field<'_>) -> Result<Vec<RawDocumentBuf>, CommandError> {
    let mut stages = Vec::new();
    for (index, stage) in field.array()?.into_iter().flatten().enumerate() {
        match stage {
            RawBsonRef::Document(stage) => stages.push(stage.to_owned()),
            // Left out, as in MongoDB.
            value if params::is_null(value) => {}
            value => {
                let name = format!("{}.{index}", field.name);
                let item = Field {
                    command: field.command,
                    name: &name,
                    value,
                };
                return Err(item.wrong_type("type 'object'"));
            }
        }
    }
    Ok(stages)
}

/// What they say of what it reads.
pub fn on(field: Field<'_>) -> Result<&str, CommandError> {
    match field.str()? {
        "" => Err(CommandError::new(
            ErrorCode::BadValue,
            "'viewOn' cannot be empty",
        )),
        name => Ok(name),
    }
}

/// Keeps a view's name, and all definitions of its database, for one who changes them.
async fn lock(ctx: &CommandContext<'_>, name: &Namespace) -> Result<Vec<Lock>, CommandError> {
    let definitions = Definitions::namespace(ctx.database());
    ctx.lock_exclusive(&[name, &definitions]).await
}

pub async fn create(
    ctx: &CommandContext<'_>,
    name: &Namespace,
    view: View,
) -> Result<(), CommandError> {
    let reserved = |why: &str| Err(CommandError::new(ErrorCode::InvalidNamespace, why));
    if name.collection() == view::COLLECTION {
        return reserved(
            "Cannot create a view called 'system.views': this is a reserved system namespace",
        );
    }
    if name.collection().starts_with("system.") {
        return reserved(
            "View name cannot start with 'system.', which is reserved for system namespaces",
        );
    }
    check_collection_name(ctx.database(), &view.on)?;
    let replica = &ctx.node.replica;
    replica.writable_term()?;
    let locks = lock(ctx, name).await?;
    if replica.store.catalog().find(name).is_some() || is_view(replica, name)? {
        return Err(CommandError::new(
            ErrorCode::NamespaceExists,
            format!("Namespace already exists: {name}"),
        ));
    }
    ctx.compute(|| check(ctx, name, &view)).await?;
    let definitions = Definitions::open(ctx.write_context(), locks, true).await?;
    definitions.insert(&view.to_document(name.as_str())).await
}

/// Gives a view another pipeline, or has it read something else; what is not named stays.
pub async fn modify(
    ctx: &CommandContext<'_>,
    name: &Namespace,
    on: Option<&str>,
    stages: Option<Vec<RawDocumentBuf>>,
) -> Result<(), CommandError> {
    if let Some(on) = on {
        check_collection_name(ctx.database(), on)?;
    }
    let replica = &ctx.node.replica;
    replica.writable_term()?;
    let locks = lock(ctx, name).await?;
    let (catalog, snapshot) = replica.view();
    let found = definition(&catalog, &snapshot, name).map_err(errors::query)?;
    let Some(found) = found else {
        return Err(CommandError::new(
            ErrorCode::NamespaceNotFound,
            "ns does not exist",
        ));
    };
    if on.is_none() && stages.is_none() {
        return Ok(());
    }
    let mut view = View::parse(&found).map_err(errors::query)?;
    if let Some(on) = on {
        on.clone_into(&mut view.on);
    }
    if let Some(stages) = stages {
        view.stages = stages;
    }
    ctx.compute(|| check(ctx, name, &view)).await?;
    let definitions = Definitions::open(ctx.write_context(), locks, false).await?;
    definitions.replace(&view.to_document(name.as_str())).await
}

/// False: there is none of this name any more.
pub async fn drop(ctx: &CommandContext<'_>, name: &Namespace) -> Result<bool, CommandError> {
    let replica = &ctx.node.replica;
    replica.writable_term()?;
    let locks = lock(ctx, name).await?;
    if !is_view(replica, name)? {
        return Ok(false);
    }
    let definitions = Definitions::open(ctx.write_context(), locks, false).await?;
    definitions.remove(name.as_str()).await?;
    Ok(true)
}

/// Whether a view may be defined so, by itself and among the others of its database.
fn check(ctx: &CommandContext<'_>, name: &Namespace, view: &View) -> Result<(), CommandError> {
    ctx.interrupt();
    let database = name.database();
    let stages: Vec<&RawDocument> = view.stages.iter().map(|stage| &**stage).collect();
    let context = Context {
        // What is searched in is looked for once the view is read.
        text: Some(TextContext::new(SearchedIndex::Elsewhere)),
        ..query_context(ctx, &view.on, None, view.collator.clone())?
    };
    let parsed = refuse_stages(ctx, name, &stages)
        .and_then(|()| Pipeline::parse_of_view(&stages, &context).map_err(errors::query));
    let pipeline = parsed.map_err(|error| match error.code {
        // What is no stage at all is noticed before anything else.
        ErrorCode::Location(40323 | 40324) => error,
        _ => CommandError {
            message: format!(
                "Invalid pipeline for view {name} :: caused by :: {}",
                error.message
            ),
            ..error
        },
    })?;
    let (catalog, snapshot) = ctx.node.replica.view();
    let mut nodes = HashMap::new();
    for document in definitions(&catalog, &snapshot, database, ctx.slot())? {
        ctx.check_interrupt()?;
        if let (Some(other), Ok(other_view)) =
            (view::name(&document, database), View::parse(&document))
        {
            let node = Node::known(&other_view, database, &context);
            nodes.insert(other.to_owned(), node);
        }
    }
    let own = name.collection();
    nodes.insert(own.to_owned(), Node::new(view, database, &pipeline));
    graph::check(database, own, &nodes).map_err(errors::query)
}

/// Refuses a first stage that does not read the collection below, and stages that write.
fn refuse_stages(
    ctx: &CommandContext<'_>,
    view: &Namespace,
    stages: &[&RawDocument],
) -> Result<(), CommandError> {
    let name = |stage: &RawDocument| {
        let first = stage.iter().next().and_then(Result::ok);
        first.map_or("", |(name, _)| name.as_str()).to_owned()
    };
    let writes = |stage: &&RawDocument| matches!(name(stage).as_str(), "$out" | "$merge");
    if let Some(at) = stages.iter().position(writes) {
        let stage = stages.get(at).map(|stage| name(stage)).unwrap_or_default();
        return Err(CommandError::new(
            ErrorCode::OptionNotSupportedOnView,
            format!(
                "The aggregation stage {stage} in location {at} of the pipeline cannot be used in \
                 the view definition of {view} because it writes to disk"
            ),
        ));
    }
    let first = stages.first().map(|stage| name(stage)).unwrap_or_default();
    let code = match first.as_str() {
        "$changeStream" if !ctx.node.replication.is_replica_set() => {
            return Err(CommandError::new(
                ErrorCode::Location(40573),
                "The $changeStream stage is only supported on replica sets",
            ));
        }
        "$changeStream" => ErrorCode::OptionNotSupportedOnView,
        "$documents" | "$currentOp" | "$listSessions" | "$listLocalSessions" => {
            ErrorCode::InvalidNamespace
        }
        _ => return Ok(()),
    };
    let text = format!("'{first}' cannot be used in a view definition");
    Err(CommandError::new(code, text))
}

/// What `drop` answers for a view.
pub fn dropped(name: &Namespace) -> RawDocumentBuf {
    rawdoc! { "ns": name.as_str(), "ok": 1.0 }
}

/// What stands in the definition of a view that a client asks for.
pub fn unsupported(option: &str) -> CommandError {
    CommandError::new(
        ErrorCode::InvalidOptions,
        format!("option not supported on a view: {option}"),
    )
}
