//! `createIndexes`: indexes over what is there and what comes.

use std::borrow::Cow;
use std::sync::Arc;

use banyan_access::check::Access;
use banyan_document::time_series::TimeSeries;
use banyan_query::view;
use banyan_replication::write::catalog_ops;
use banyan_security::Action;
use banyan_storage::{Collection, IndexBuild, Namespace};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::clustered::{self, CLUSTERED_OPTION, EXPIRE};
use super::create;
use super::geo_indexes;
use super::index_expiry;
use super::index_outline;
use super::index_specification as specification;
use super::known_indexes::{identical, is_known, is_text};
use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use super::time_series;
use crate::collection_uuid;
use crate::context::CommandContext;
use crate::errors;
use crate::forms;
use crate::index_builds::{self, Begun, quorum};
use crate::index_changes;
use crate::params::{self, Field};
use crate::views;

pub static SPEC: CommandSpec = CommandSpec::new("createIndexes", Run::Future(run))
    .access(Access::Collection(Action::CreateIndex))
    .aliases(&["createindexes"])
    .writes()
    .fields(&[
        "indexes",
        "commitQuorum",
        "ignoreUnknownIndexOptions",
        "v",
        collection_uuid::FIELD,
    ])
    .required(&["indexes"])
    .form(check_form);

/// What a field has to be, whatever the others are.
fn check_form(field: Field<'_>) -> Result<(), CommandError> {
    match field.name {
        "indexes" => forms::documents(field),
        collection_uuid::FIELD => collection_uuid::check_form(field),
        "ignoreUnknownIndexOptions" => field.bool().map(drop),
        "commitQuorum" if !field.is_null() => quorum::read_field(field).map(drop),
        _ => Ok(()),
    }
}

const INDEXES_MAX: usize = 64;

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(create_indexes(ctx))
}

async fn create_indexes(ctx: &CommandContext<'_>) -> CommandResult {
    let node = ctx.node;
    let namespace = Namespace::new(ctx.database(), ctx.collection()?);
    if namespace.collection() == view::COLLECTION {
        return Err(CommandError::new(
            ErrorCode::InvalidNamespace,
            format!("cannot write to {namespace}"),
        ));
    }
    create::refuse_reserved(&namespace)?;
    let measured = time_series::named(ctx, namespace.collection());
    let asked = Asked::parse(ctx, measured.as_ref())?;
    let quorum = ctx.field("commitQuorum").filter(|field| !field.is_null());
    let quorum = quorum.map(|field| quorum::parse(node, field)).transpose()?;
    if measured.is_none() {
        views::refuse(&node.replica, &namespace)?;
        collection_uuid::check(ctx, namespace.collection())?;
        asked.refuse_hidden(&namespace)?;
    }
    let asked = asked.normalized()?;
    let (namespace, created) = match measured {
        Some((buckets, _)) => (buckets.namespace.clone(), false),
        None => {
            // What is refused makes no collection.
            if node.replica.store.catalog().find(&namespace).is_none() {
                refuse_clustered(&asked)?;
                let none = Present::none(&namespace);
                fresh(ctx, &none, asked.clone())?;
            }
            let context = ctx.write_context();
            let created = catalog_ops::create_if_missing(&context, &namespace, None).await?;
            (namespace, created)
        }
    };
    let (builds, reply) = begin(ctx, &namespace, asked, quorum, created).await?;
    for begun in &builds {
        node.index_builds.wait(node, begun, ctx.interrupt()).await?;
    }
    Ok(reply)
}

/// Starts what is not there; what is to be waited for, and the answer if it comes to a good end.
async fn begin(
    ctx: &CommandContext<'_>,
    namespace: &Namespace,
    asked: Vec<RawDocumentBuf>,
    quorum: Option<RawDocumentBuf>,
    created: bool,
) -> Result<(Vec<Begun>, RawDocumentBuf), CommandError> {
    let node = ctx.node;
    let term = node.replica.writable_term()?;
    let namespaces = [namespace];
    let locks = node.replica.locks.exclusive_giving_way(&namespaces);
    let _locks = ctx.write_context().lock(locks, None).await?;
    index_changes::check_routing(ctx, namespace)?;
    let Some(collection) = node.replica.store.catalog().find(namespace).cloned() else {
        return Err(CommandError::new(
            ErrorCode::NamespaceNotFound,
            "the collection was dropped",
        ));
    };
    // Another command may be building what this one asks for: it is waited for.
    let named = |build: &&Arc<IndexBuild>| {
        let mut names = build.indexes.iter().map(|index| index.name.as_str());
        let is_asked = |name| {
            asked
                .iter()
                .any(|spec| spec.get_str("name").ok() == Some(name))
        };
        names.any(is_asked)
    };
    let mut builds: Vec<Begun> = collection
        .builds
        .iter()
        .filter(named)
        .map(|build| Begun::joined(&collection, build))
        .collect();
    let count = asked.len();
    let fresh = fresh(ctx, &Present::of(&collection), asked)?;
    let outcome = Outcome {
        asked: count,
        fresh: fresh.len(),
        created,
        quorum: quorum::told(node, quorum.as_deref()),
    };
    if !fresh.is_empty() {
        builds.extend(index_builds::start(node, &collection, &fresh, quorum, term).await?);
    }
    Ok((builds, outcome.reply(&collection)))
}

/// The list as the command would leave it, and what it would answer.
pub fn plan(
    ctx: &CommandContext<'_>,
    collection: &Arc<Collection>,
) -> Result<(Vec<RawDocumentBuf>, RawDocumentBuf), CommandError> {
    let asked = Asked::parse(ctx, None)?.normalized()?;
    let count = asked.len();
    let fresh = fresh(ctx, &Present::of(collection), asked)?;
    let outcome = Outcome {
        asked: count,
        fresh: fresh.len(),
        created: false,
        quorum: None,
    };
    let reply = outcome.reply(collection);
    let mut list = index_changes::list(collection);
    list.extend(fresh);
    Ok((list, reply))
}

/// The specifications in the command, whose outlines are right.
struct Asked<'a> {
    specs: Vec<Cow<'a, RawDocument>>,
    /// What those over buckets were asked as, of which collection.
    originals: Option<(Vec<&'a RawDocument>, &'a TimeSeries)>,
    ignores_unknown: bool,
}

impl<'a> Asked<'a> {
    fn parse(
        ctx: &'a CommandContext<'_>,
        measured: Option<&'a (Arc<Collection>, TimeSeries)>,
    ) -> Result<Asked<'a>, CommandError> {
        let ignores_unknown = ctx.field("ignoreUnknownIndexOptions");
        let ignores_unknown = ignores_unknown
            .map(|field| field.bool())
            .transpose()?
            .unwrap_or(false);
        if let Some(format) = ctx.field("v").filter(|field| !field.is_null()) {
            format.i64()?;
        }
        let asked = ctx.required("indexes")?;
        let asked: Vec<_> = asked
            .array()?
            .into_iter()
            .flatten()
            .filter(|item| !params::is_null(*item))
            .map(|item| match item {
                RawBsonRef::Document(spec) => Ok(spec),
                _ => Err(ctx.required("indexes")?.wrong_type("type 'object'")),
            })
            .collect::<Result<_, CommandError>>()?;
        if asked.is_empty() {
            return Err(CommandError::new(
                ErrorCode::BadValue,
                "Must specify at least one index to create",
            ));
        }
        // What they are over buckets is worked out before anything else is said of them.
        let on_buckets = |spec| match measured {
            Some((buckets, series)) => {
                let collator = buckets.collator.as_ref();
                time_series::indexes::to_buckets(spec, series, collator).map(Cow::Owned)
            }
            None => Ok(Cow::Borrowed(spec)),
        };
        let originals = measured.map(|(_, series)| (asked.clone(), series));
        let asked = asked.into_iter().map(on_buckets).map(|spec| {
            let spec = spec?;
            Ok(match ignores_unknown {
                true => Cow::Owned(index_outline::without_unknown(&spec)),
                false => spec,
            })
        });
        let specs: Vec<Cow<'_, RawDocument>> = asked.collect::<Result<_, CommandError>>()?;
        for spec in &specs {
            index_outline::check(spec, ignores_unknown)
                .map_err(|error| in_specification(spec, error))?;
        }
        Ok(Asked {
            specs,
            originals,
            ignores_unknown,
        })
    }

    /// The collections that are the server's own have all their indexes used, except buckets.
    fn refuse_hidden(&self, namespace: &Namespace) -> Result<(), CommandError> {
        let collection = namespace.collection();
        let is_own = collection.starts_with("system.")
            && collection != "system.profile"
            && !collection.starts_with("system.buckets.");
        let mut specs = self.specs.iter();
        match is_own && specs.any(|spec| spec.get("hidden").is_ok_and(|hidden| hidden.is_some())) {
            true => Err(CommandError::new(
                ErrorCode::BadValue,
                "Can't hide index on system collection",
            )),
            false => Ok(()),
        }
    }

    /// As they are kept.
    fn normalized(&self) -> Result<Vec<RawDocumentBuf>, CommandError> {
        // Of all of them it is looked at first when documents are over, then what strings are
        // compared by.
        for check in [index_outline::check_expiry, index_outline::check_collation] {
            for spec in &self.specs {
                check(spec).map_err(|error| unless_named(spec, error))?;
            }
        }
        let normalized = self.specs.iter().enumerate().map(|(at, spec)| {
            let kept = index_outline::normalize(spec, self.ignores_unknown);
            let kept = kept.map_err(|error| unless_named(spec, error))?;
            let original = self.originals.as_ref();
            let original = original.and_then(|(asked, series)| Some((asked.get(at)?, series)));
            Ok(match original {
                Some((asked, series)) => time_series::indexes::with_original(kept, asked, series),
                None => kept,
            })
        });
        normalized.collect()
    }
}

/// What indexes are asked for of.
struct Present<'a> {
    namespace: &'a Namespace,
    /// `None`: it is to be made.
    collection: Option<&'a Collection>,
    /// The indexes that it has, and those that are being built.
    indexes: Vec<RawDocumentBuf>,
}

impl<'a> Present<'a> {
    fn of(collection: &'a Collection) -> Present<'a> {
        let indexes = collection.indexes.iter();
        let indexes = indexes.chain(collection.building_indexes());
        Present {
            namespace: &collection.namespace,
            collection: Some(collection),
            indexes: indexes.map(|index| index.spec.clone()).collect(),
        }
    }

    fn none(namespace: &'a Namespace) -> Present<'a> {
        Present {
            namespace,
            collection: None,
            indexes: vec![rawdoc! { "v": 2, "key": { "_id": 1 }, "name": catalog_ops::ID_INDEX }],
        }
    }

    fn has_documents(&self, ctx: &CommandContext<'_>) -> Result<bool, CommandError> {
        let Some(collection) = self.collection else {
            return Ok(false);
        };
        let (_, snapshot) = ctx.view();
        let (documents, _) = snapshot.counts(collection.id).map_err(errors::storage)?;
        Ok(documents > 0)
    }

    fn is_capped(&self) -> bool {
        self.collection
            .is_some_and(|collection| collection.is_capped)
    }

    fn collation(&self) -> Option<RawDocumentBuf> {
        let collator = self.collection?.collator.as_ref()?;
        Some(collator.collation().to_document())
    }
}

/// Those of the asked indexes that are not there yet, if all of them may be.
fn fresh(
    ctx: &CommandContext<'_>,
    present: &Present<'_>,
    asked: Vec<RawDocumentBuf>,
) -> Result<Vec<RawDocumentBuf>, CommandError> {
    let rules = ctx.node.index_rules(present.namespace);
    let mut fresh: Vec<RawDocumentBuf> = Vec::new();
    for spec in asked {
        let is_clustered = match present.collection {
            Some(collection) => clustered::is_asked_for(collection, &spec),
            None => Ok(false),
        };
        if is_clustered.map_err(|error| in_specification(&spec, error))? {
            in_collection(present.collation(), spec)?;
            continue;
        }
        let spec = in_collection(present.collation(), spec)?;
        if is_known(present.indexes.iter(), &spec)? {
            continue;
        }
        if is_known(fresh.iter(), &spec)? {
            return Err(identical(&spec, present.has_documents(ctx)?));
        }
        check_text(present.indexes.iter().chain(&fresh), &spec)?;
        if present.is_capped() && spec.get(EXPIRE).is_ok_and(|seconds| seconds.is_some()) {
            return Err(CommandError::new(
                ErrorCode::CannotCreateIndex,
                "Cannot create TTL index on a capped collection",
            ));
        }
        if let (Ok(key), Ok(collation)) = (spec.get_document("key"), spec.get_document("collation"))
        {
            geo_indexes::check_collation(key, collation)?;
        }
        refuse_unique_hash(&spec)?;
        geo_indexes::check_plane(&spec)?;
        if let Some(rules) = &rules {
            if spec.get_bool("prepareUnique").unwrap_or(false) {
                return Err(CommandError::new(
                    ErrorCode::NotImplemented,
                    "an index of a sharded collection with 'prepareUnique' is not supported",
                ));
            }
            rules.check_new(&spec)?;
        }
        fresh.push(spec);
    }
    if present.indexes.len() + fresh.len() > INDEXES_MAX {
        return Err(CommandError::new(
            ErrorCode::CannotCreateIndex,
            format!(
                "add index fails, too many indexes for {}",
                present.namespace
            ),
        ));
    }
    Ok(fresh)
}

/// Two values may have one hash.
fn refuse_unique_hash(spec: &RawDocument) -> Result<(), CommandError> {
    let key = spec.get_document("key").into_iter();
    let mut orders = key.flat_map(|key| key.iter().flatten());
    let is_hashed = orders.any(|(_, order)| order == RawBsonRef::String("hashed"));
    match is_hashed && spec.get_bool("unique").unwrap_or(false) {
        true => Err(CommandError::new(
            ErrorCode::Location(16764),
            "Currently hashed indexes cannot guarantee uniqueness. Use a regular index.",
        )),
        false => Ok(()),
    }
}

/// A clustered collection is made as such or not at all.
fn refuse_clustered(asked: &[RawDocumentBuf]) -> Result<(), CommandError> {
    let is_clustered = |spec: &RawDocumentBuf| spec.get_bool(CLUSTERED_OPTION).unwrap_or(false);
    match asked.iter().any(is_clustered) {
        true => Err(clustered::location(
            6100900,
            "Cannot implicitly create a new collection with createIndex 'clustered' option",
        )),
        false => Ok(()),
    }
}

/// What a command has come to.
struct Outcome {
    asked: usize,
    /// Of those, the ones that were not there.
    fresh: usize,
    created: bool,
    /// Who is waited for, on a set.
    quorum: Option<RawBson>,
}

impl Outcome {
    fn reply(self, collection: &Collection) -> RawDocumentBuf {
        let before = collection.indexes.len() + collection.building_indexes().count();
        let count = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
        let mut reply = rawdoc! {
            "numIndexesBefore": count(before),
            "numIndexesAfter": count(before + self.fresh),
        };
        if self.fresh > 0 || self.created {
            reply.append(cstr!("createdCollectionAutomatically"), self.created);
            if let Some(quorum) = self.quorum {
                reply.append(cstr!("commitQuorum"), quorum);
            }
        }
        if self.fresh == 0 {
            reply.append(cstr!("note"), "all indexes already exist");
        } else if self.fresh < self.asked {
            reply.append(cstr!("note"), "index already exists");
        }
        reply.append(cstr!("ok"), 1.0);
        reply
    }
}

/// The same for errors of which some show the specification already.
fn unless_named(spec: &RawDocument, error: CommandError) -> CommandError {
    match index_expiry::names_specification(&error) {
        true => error,
        false => in_specification(spec, error),
    }
}

fn in_specification(spec: &RawDocument, mut error: CommandError) -> CommandError {
    let shown = errors::shown(RawBsonRef::Document(spec));
    error.message = format!(
        "Error in specification {shown} :: caused by :: {}",
        error.message
    );
    error
}

/// A collection has one text index, whose strings are compared by no collation.
fn check_text<'a>(
    mut others: impl Iterator<Item = &'a RawDocumentBuf>,
    spec: &RawDocument,
) -> Result<(), CommandError> {
    if !is_text(spec) {
        return Ok(());
    }
    let refuse = |message: String| Err(CommandError::new(ErrorCode::CannotCreateIndex, message));
    if let Ok(collation) = spec.get_document("collation") {
        return refuse(format!(
            "Index type 'text' does not support collation: {}",
            errors::shown(RawBsonRef::Document(collation))
        ));
    }
    match others.find(|known| is_text(known)) {
        Some(known) => refuse(format!(
            "only one text index per collection allowed, found existing text index \"{}\"",
            known.get_str("name").unwrap_or_default()
        )),
        None => Ok(()),
    }
}

/// The specification in its collection, which has this collation: an index that names none has that,
/// and of the simple one nothing is kept.
fn in_collection(
    default: Option<RawDocumentBuf>,
    spec: RawDocumentBuf,
) -> Result<RawDocumentBuf, CommandError> {
    let wanted = match spec.get_document("collation") {
        Ok(named) => Some(named.to_owned()).filter(|named| *named != specification::simple()),
        // The first format of keys knows no collations.
        Err(_) if spec.get_i32("v").is_ok_and(|version| version == 1) => None,
        Err(_) => default.clone(),
    };
    let is_id = spec
        .get_str("name")
        .is_ok_and(|name| name == catalog_ops::ID_INDEX);
    if is_id && wanted != default {
        let shown = |collation: Option<RawDocumentBuf>| {
            errors::shown(RawBsonRef::Document(
                &collation.unwrap_or_else(specification::simple),
            ))
        };
        return Err(CommandError::new(
            ErrorCode::BadValue,
            format!(
                "The _id index must have the same collation as the collection. Index collation: \
                 {}, collection collation: {}",
                shown(wanted),
                shown(default)
            ),
        ));
    }
    let mut kept = RawDocumentBuf::new();
    for (name, value) in spec.iter().flatten() {
        if !matches!(name.as_str(), "collation" | "prepareUnique") {
            kept.append(name, value);
        }
    }
    if let Some(collation) = wanted {
        kept.append(cstr!("collation"), collation);
    }
    if spec.get_bool("prepareUnique").unwrap_or(false) {
        kept.append(cstr!("prepareUnique"), true);
    }
    Ok(kept)
}
