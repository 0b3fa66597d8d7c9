//! `setIndexCommitQuorum`: an index build that is under way waits for other members than it began
//! with.

use std::collections::HashSet;

use banyan_access::check::Access;
use banyan_security::Action;
use banyan_storage::{BuildId, Collection, Namespace};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, rawdoc};

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::index_builds::quorum;
use crate::params::Field;

pub static SPEC: CommandSpec = CommandSpec::new("setIndexCommitQuorum", Run::Inline(run))
    .access(Access::Collection(Action::CreateIndex))
    .needs(Needs::Primary)
    .help("changes which members an index build waits for")
    .fields(&["indexNames", "commitQuorum"])
    .takes_concern()
    .lenient();

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let node = ctx.node;
    let namespace = Namespace::new(ctx.database(), ctx.collection()?);
    let names = names(ctx.required("indexNames")?)?;
    let field = ctx.required("commitQuorum")?;
    let wanted = quorum::read_field(field)?;
    let catalog = node.replica.store.catalog();
    let Some(collection) = catalog.find(&namespace) else {
        return Err(CommandError::new(
            ErrorCode::NamespaceNotFound,
            format!("Collection '{namespace}' was not found."),
        ));
    };
    let not_found = |text: String| CommandError::new(ErrorCode::IndexNotFound, text);
    if names.is_empty() {
        return Err(not_found(format!(
            "Cannot set a new commit quorum on an index build in collection '{namespace}' without \
             providing any indexes."
        )));
    }
    let missing = || {
        not_found(format!(
            "Cannot find an index build on collection '{namespace}' with the provided index names"
        ))
    };
    let build = build_of(collection, &names).ok_or_else(missing)?;
    quorum::check(node, field, &wanted)?;
    match node.index_builds.set_quorum(&build, wanted) {
        true => Ok(rawdoc! { "ok": 1.0 }),
        false => Err(missing()),
    }
}

fn names<'a>(field: Field<'a>) -> Result<HashSet<&'a str>, CommandError> {
    let RawBsonRef::Array(names) = field.value else {
        return Err(field.wrong_type("type 'array'"));
    };
    let name = |(place, value): (usize, RawBsonRef<'a>)| match value {
        RawBsonRef::String(name) => Ok(name),
        other => Err(CommandError::new(
            ErrorCode::TypeMismatch,
            format!(
                "BSON field '{}.indexNames.{place}' is the wrong type '{}', expected type 'string'",
                SPEC.name,
                banyan_document::kind::name(&other)
            ),
        )),
    };
    names.into_iter().flatten().enumerate().map(name).collect()
}

/// The build of these indexes and no others.
fn build_of(collection: &Collection, names: &HashSet<&str>) -> Option<BuildId> {
    let mut builds = collection.builds.iter();
    let found = builds.find(|build| {
        let own: HashSet<&str> = build.indexes.iter().map(|index| &*index.name).collect();
        !build.is_committed && own == *names
    });
    found.map(|build| build.id)
}
