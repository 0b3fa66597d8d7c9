//! `listIndexes`: the indexes of a collection, as they were asked for.

use banyan_access::check::Access;
use banyan_security::Action;
use banyan_storage::{Index, IndexBuild};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawDocumentBuf, rawdoc};

use super::table::{CommandResult, CommandSpec, Run};
use crate::context::CommandContext;
use crate::cursors::first;
use crate::params;
use crate::views;
use crate::virtual_collections::profile;

pub static SPEC: CommandSpec = CommandSpec::new("listIndexes", Run::Inline(run))
    .access(Access::Collection(Action::ListIndexes))
    .aliases(&["listindexes"])
    .fields(&["cursor", BUILD_UUIDS, BUILD_INFO])
    .computes();

const BUILD_UUIDS: &str = "includeBuildUUIDs";
const BUILD_INFO: &str = "includeIndexBuildInfo";

/// What is told of indexes that are being built, besides their specifications.
#[derive(Clone, Copy)]
enum Shown {
    Specs,
    Uuids,
    Info,
}

impl Shown {
    fn ready(self, index: &Index) -> RawDocumentBuf {
        match self {
            Shown::Specs | Shown::Uuids => index.spec.clone(),
            Shown::Info => rawdoc! { "spec": index.spec.clone() },
        }
    }

    fn building(self, index: &Index, build: &IndexBuild) -> RawDocumentBuf {
        let (spec, uuid) = (index.spec.clone(), params::uuid(&build.id));
        match self {
            Shown::Specs => spec,
            Shown::Uuids => rawdoc! { "buildUUID": uuid, "spec": spec },
            Shown::Info => {
                rawdoc! { "indexBuildInfo": { "buildUUID": uuid }, "spec": spec }
            }
        }
    }
}

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let name = ctx.collection()?;
    let catalog = ctx.node.replica.store.catalog();
    let Some(collection) = catalog.get(ctx.database(), name) else {
        if profile::exists(ctx.node, ctx.database(), name) {
            return first::reply_with_list(ctx, ctx.namespace()?, Vec::new());
        }
        views::refuse_named(ctx)?;
        return Err(CommandError::new(
            ErrorCode::NamespaceNotFound,
            format!("ns does not exist: {}.{name}", ctx.database()),
        ));
    };
    let flag = |name| ctx.field(name).map_or(Ok(false), |field| field.bool());
    let shown = match (flag(BUILD_UUIDS)?, flag(BUILD_INFO)?) {
        (true, true) => {
            return Err(CommandError::new(
                ErrorCode::InvalidOptions,
                "The includeBuildUUIDs flag and includeBuildIndexInfo flag cannot both be set to \
                 true",
            ));
        }
        (true, false) => Shown::Uuids,
        (false, true) => Shown::Info,
        (false, false) => Shown::Specs,
    };
    let ready = collection.all_indexes().map(|index| shown.ready(index));
    let mut listed: Vec<RawDocumentBuf> = ready.collect();
    for build in &collection.builds {
        let building = build.indexes.iter();
        listed.extend(building.map(|index| shown.building(index, build)));
    }
    first::reply_with_list(ctx, ctx.namespace()?, listed)
}
