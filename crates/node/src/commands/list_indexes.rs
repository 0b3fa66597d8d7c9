//! `listIndexes`: the indexes of a collection, as they were asked for.

use banyan_access::check::Access;
use banyan_replication::time_series;
use banyan_security::Action;
use banyan_storage::{Index, IndexBuild};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use super::table::{CommandResult, CommandSpec, Run};
use super::time_series::indexes::to_measurements;
use crate::context::CommandContext;
use crate::cursors::first;
use crate::params;
use crate::views;
use crate::virtual_collections::profile;

pub static SPEC: CommandSpec = CommandSpec::new("listIndexes", Run::Inline(run))
    .access(Access::Collection(Action::ListIndexes))
    .aliases(&["listindexes"])
    .fields(&["cursor", BUILD_UUIDS, BUILD_INFO])
    .form(check_form)
    // What it names are the buckets by then.
    .ignored(&["isTimeseriesNamespace"])
    .computes();

const BUILD_UUIDS: &str = "includeBuildUUIDs";
const BUILD_INFO: &str = "includeIndexBuildInfo";

/// What a field has to be, whatever the others are.
fn check_form(field: params::Field<'_>) -> Result<(), CommandError> {
    match (field.name, field.value) {
        ("cursor", _) if !field.is_null() => params::batch_size_of(field).map(drop),
        ("isTimeseriesNamespace", RawBsonRef::Boolean(_)) => Ok(()),
        ("isTimeseriesNamespace", _) if !field.is_null() => Err(field.wrong_type("type 'bool'")),
        _ => Ok(()),
    }
}

/// What is told of indexes that are being built, besides their specifications.
#[derive(Clone, Copy)]
enum Shown {
    Specs,
    Uuids,
    Info,
}

impl Shown {
    fn ready(self, spec: RawDocumentBuf) -> RawDocumentBuf {
        match self {
            Shown::Specs | Shown::Uuids => spec,
            Shown::Info => rawdoc! { "spec": spec },
        }
    }

    fn building(self, spec: RawDocumentBuf, build: &IndexBuild) -> RawDocumentBuf {
        let uuid = params::uuid(&build.id);
        match self {
            Shown::Specs => spec,
            Shown::Uuids => rawdoc! { "buildUUID": uuid, "spec": spec },
            Shown::Info => {
                rawdoc! { "indexBuildInfo": { "buildUUID": uuid }, "spec": spec }
            }
        }
    }
}

/// The order in which a specification is shown, however it was written.
const ORDER: &[&str] = &[
    "v",
    "key",
    "name",
    "ns",
    "background",
    "unique",
    "hidden",
    "partialFilterExpression",
    "sparse",
    "expireAfterSeconds",
    "storageEngine",
    "weights",
    "default_language",
    "language_override",
    "textIndexVersion",
    "2dsphereIndexVersion",
    "bits",
    "min",
    "max",
    "coarsestIndexedLevel",
    "finestIndexedLevel",
    "collation",
    "wildcardProjection",
];

fn in_order(spec: &RawDocument) -> RawDocumentBuf {
    let place = |name: &str| ORDER.iter().position(|known| *known == name);
    let mut fields: Vec<_> = spec.iter().flatten().collect();
    fields.sort_by_key(|(name, _)| place(name.as_str()).unwrap_or(ORDER.len()));
    let mut shown = RawDocumentBuf::new();
    for (name, value) in fields {
        shown.append(name, value);
    }
    shown
}

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let name = ctx.existing_collection()?;
    let catalog = ctx.node.replica.store.catalog();
    let measured = time_series::find(&catalog, ctx.database(), name);
    let buckets = measured.as_ref().map(|(buckets, _)| buckets);
    let Some(collection) = catalog.get(ctx.database(), name).or(buckets) else {
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
    let series = measured.as_ref().map(|(_, series)| series);
    // That buckets lie in the order of their `_id` is nobody's index.
    let clustered = collection.clustered_index.iter();
    let clustered = clustered.filter(|_| time_series::of(collection).is_none());
    let spec = |index: &Index| match series {
        Some(series) => Some(in_order(&to_measurements(&index.spec, series)?)),
        None => Some(in_order(&index.spec)),
    };
    let ready = clustered.chain(&collection.indexes);
    let ready = ready.filter_map(|index| Some(shown.ready(spec(index)?)));
    let mut listed: Vec<RawDocumentBuf> = ready.collect();
    for build in &collection.builds {
        let building = build.indexes.iter();
        listed.extend(building.filter_map(|index| Some(shown.building(spec(index)?, build))));
    }
    first::reply_with_list(ctx, ctx.namespace()?, listed)
}
