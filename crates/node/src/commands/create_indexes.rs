//! `createIndexes`: indexes over what is there and what comes.

use std::sync::Arc;

use banyan_access::check::Access;
use banyan_document::Collator;
use banyan_document::key::{KeyPattern, KeyPatternError};
use banyan_document::time_series::TimeSeries;
use banyan_query::projection::Projection;
use banyan_query::{Context, view};
use banyan_replication::write::catalog_ops;
use banyan_security::Action;
use banyan_storage::{Collection, IndexBuild, Namespace};
use banyan_text::{Definition, TextError};
use banyan_wire::{CommandError, ErrorCode};
use bson::raw::CString;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::clustered::{self, CLUSTERED_OPTION, EXPIRE};
use super::geo_indexes;
use super::index_expiry;
use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use super::time_series;
use crate::collation;
use crate::context::CommandContext;
use crate::errors;
use crate::index_builds::{self, Begun, quorum};
use crate::index_changes;
use crate::params::{self, Field};

pub static SPEC: CommandSpec = CommandSpec::new("createIndexes", Run::Future(run))
    .access(Access::Collection(Action::CreateIndex))
    .aliases(&["createindexes"])
    .writes()
    .fields(&["indexes", "commitQuorum"])
    .ignored(&["ignoreUnknownIndexOptions", "v"]);

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
    let measured = time_series::named(ctx, namespace.collection());
    let asked = asked(ctx, measured.as_ref().map(|(_, series)| series))?;
    let quorum = ctx.field("commitQuorum");
    let quorum = quorum.map(|field| quorum::parse(node, field)).transpose()?;
    let (namespace, created) = match measured {
        Some((buckets, _)) => (buckets.namespace.clone(), false),
        None => {
            if node.replica.store.catalog().find(&namespace).is_none() {
                refuse_clustered(&asked)?;
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
    let fresh = fresh(ctx, &collection, asked)?;
    if !fresh.is_empty() {
        builds.extend(index_builds::start(node, &collection, &fresh, quorum, term).await?);
    }
    Ok((builds, reply(&collection, fresh.len(), created)))
}

/// The list as the command would leave it, and what it would answer.
pub fn plan(
    ctx: &CommandContext<'_>,
    collection: &Arc<Collection>,
) -> Result<(Vec<RawDocumentBuf>, RawDocumentBuf), CommandError> {
    let fresh = fresh(ctx, collection, asked(ctx, None)?)?;
    let reply = reply(collection, fresh.len(), false);
    let mut list = index_changes::list(collection);
    list.extend(fresh);
    Ok((list, reply))
}

/// The specifications in the command, as they are kept.
fn asked(
    ctx: &CommandContext<'_>,
    series: Option<&TimeSeries>,
) -> Result<Vec<RawDocumentBuf>, CommandError> {
    let asked = params::documents(ctx.required("indexes")?)?;
    if asked.is_empty() {
        return Err(CommandError::new(
            ErrorCode::BadValue,
            "Must specify at least one index to create",
        ));
    }
    asked
        .into_iter()
        .map(|spec| {
            let on_buckets = series
                .map(|series| time_series::indexes::to_buckets(spec, series))
                .transpose()?;
            let spec = on_buckets.as_deref().unwrap_or(spec);
            normalize(spec).map_err(|error| match index_expiry::names_specification(&error) {
                true => error,
                false => in_specification(spec, error),
            })
        })
        .collect()
}

/// Those of the asked indexes that are not there yet, if all of them may be.
fn fresh(
    ctx: &CommandContext<'_>,
    collection: &Arc<Collection>,
    asked: Vec<RawDocumentBuf>,
) -> Result<Vec<RawDocumentBuf>, CommandError> {
    let rules = ctx.node.index_rules(&collection.namespace);
    let mut fresh: Vec<RawDocumentBuf> = Vec::new();
    for spec in asked {
        let is_clustered = clustered::is_asked_for(collection, &spec);
        if is_clustered.map_err(|error| in_specification(&spec, error))? {
            continue;
        }
        let spec = in_collection(collection, spec)?;
        if is_known(collection, &fresh, &spec)? {
            continue;
        }
        check_text(collection, &fresh, &spec)?;
        if collection.is_capped && spec.get(EXPIRE).is_ok_and(|seconds| seconds.is_some()) {
            return Err(CommandError::new(
                ErrorCode::CannotCreateIndex,
                "Cannot create TTL index on a capped collection",
            ));
        }
        geo_indexes::check_plane(&spec)?;
        if let Some(rules) = &rules {
            rules.check_new(&spec)?;
        }
        fresh.push(spec);
    }
    let present = collection.indexes.len() + collection.building_indexes().count();
    if present + fresh.len() > INDEXES_MAX {
        return Err(CommandError::new(
            ErrorCode::CannotCreateIndex,
            format!(
                "add index fails, too many indexes for {}",
                collection.namespace
            ),
        ));
    }
    Ok(fresh)
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

fn reply(collection: &Collection, fresh: usize, created: bool) -> RawDocumentBuf {
    let before = collection.indexes.len() + collection.building_indexes().count();
    let count = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    let mut reply = rawdoc! {
        "numIndexesBefore": count(before),
        "numIndexesAfter": count(before + fresh),
    };
    if fresh == 0 {
        reply.append(cstr!("note"), "all indexes already exist");
    } else {
        reply.append(cstr!("createdCollectionAutomatically"), created);
    }
    reply.append(cstr!("ok"), 1.0);
    reply
}

fn in_specification(spec: &RawDocument, mut error: CommandError) -> CommandError {
    let shown = errors::shown(RawBsonRef::Document(spec));
    error.message = format!(
        "Error in specification {shown} :: caused by :: {}",
        error.message
    );
    error
}

/// A specification as it is kept: `v`, `key`, `name`, then the options.
fn normalize(spec: &RawDocument) -> Result<RawDocumentBuf, CommandError> {
    let (mut key, mut name, mut collation, mut version) = (None, None, None, None);
    let (mut expires, mut background) = (None, None);
    let mut options = RawDocumentBuf::new();
    // Those of text indexes, which say nothing of any other.
    let mut text_options = RawDocumentBuf::new();
    // The square of an index over points, shown behind the others.
    let mut plane_options = RawDocumentBuf::new();
    for (option, value) in spec.iter().flatten() {
        let field = Field {
            command: "createIndexes.indexes",
            name: option.as_str(),
            value,
        };
        match option.as_str() {
            "key" => key = Some(field.document()?),
            "name" => name = Some(field.str()?.to_owned()),
            "unique" | "hidden" => {
                if flag(field)? {
                    options.append(option, true);
                }
            }
            "sparse" => options.append(option, flag(field)?),
            // Says nothing of how an index is built; those who compare indexes look at it.
            "background" => background = Some(flag(field)?),
            "partialFilterExpression" => {
                let filter = field.document()?;
                if !errors::parse_filter(filter)?.suits_an_index() {
                    return Err(CommandError::new(
                        ErrorCode::CannotCreateIndex,
                        format!(
                            "Expression not supported in partial index: {}",
                            errors::shown(value)
                        ),
                    ));
                }
                options.append(option, value);
            }
            EXPIRE => expires = Some(index_expiry::of_new(field, spec)?),
            "collation" => collation = Some(completed_collation(field)?),
            "wildcardProjection" => {
                check_wildcard_projection(field)?;
                options.append(option, value);
            }
            "2dsphereIndexVersion" => version = Some(field.i64()?),
            // What else they may be, the completed specification says.
            "weights" if matches!(value, RawBsonRef::String(_)) => {}
            "weights" => {
                field.document()?;
            }
            "default_language" | "language_override" => {
                text_options.append(option, field.str()?);
            }
            "textIndexVersion" if params::number(value).is_none() => {
                return Err(CommandError::new(
                    ErrorCode::TypeMismatch,
                    format!(
                        "The field 'textIndexVersion' must be a number, but got {}",
                        banyan_document::kind::name(&value)
                    ),
                ));
            }
            "textIndexVersion" => text_options.append(option, value),
            "bits" | "min" | "max" => {
                plane_options.append(option, geo_indexes::plane_option(field)?)
            }
            CLUSTERED_OPTION => match field.bool()? {
                true => options.append(option, true),
                false => {
                    return Err(clustered::location(
                        6492800,
                        "Value 'false' for field 'clustered' is invalid",
                    ));
                }
            },
            "v" | "ns" | "dropDups" | "safe" | "storageEngine" | "prepareUnique" => {}
            other => {
                return Err(CommandError::new(
                    ErrorCode::InvalidIndexSpecificationOption,
                    format!(
                        "The field '{other}' is not valid for an index specification. \
                         Specification: {}",
                        errors::shown(RawBsonRef::Document(spec))
                    ),
                ));
            }
        }
    }
    let key = key.ok_or_else(|| {
        CommandError::new(
            ErrorCode::FailedToParse,
            "The 'key' field is a required property of an index specification",
        )
    })?;
    let text = text_definition(spec, key)?;
    if text.is_none() && matches!(spec.get("weights"), Ok(Some(_))) {
        return Err(CommandError::new(
            ErrorCode::CannotCreateIndex,
            format!(
                "Invalid index specification {}; the field 'weights' can only be specified with \
                 text indexes",
                errors::shown(RawBsonRef::Document(spec))
            ),
        ));
    }
    let given = key;
    let key = text.as_ref().map_or(key, |text| &*text.key);
    let pattern = check_pattern(key)?;
    check_wildcard_options(key, &pattern, &options)?;
    if let Some(seconds) = expires {
        index_expiry::check_key(key, &pattern, spec)?;
        options.append(cstr!("expireAfterSeconds"), seconds);
    }
    if pattern.has_geo_field() && !pattern.has_plane_field() {
        options.append(
            cstr!("2dsphereIndexVersion"),
            geo_indexes::sphere_version(version)?,
        );
    }
    for option in ["bits", "min", "max"] {
        if let Ok(Some(value)) = plane_options.get(option) {
            append(&mut options, option, value);
        }
    }
    if pattern.has_plane_field() {
        geo_indexes::check_grid(&options)?;
    }
    let mut fields = key.iter().flatten();
    let is_id = match (fields.next(), fields.next()) {
        (Some((name, RawBsonRef::String(_))), None) if name.as_str() == "_id" => false,
        (Some((name, order)), None) if name.as_str() == "_id" => {
            if params::number(order) != Some(1) {
                return Err(CommandError::new(
                    ErrorCode::BadValue,
                    format!(
                        "The field 'key' for an _id index must be {{_id: 1}}, but got {}",
                        errors::shown(RawBsonRef::Document(key))
                    ),
                ));
            }
            true
        }
        _ => false,
    };
    let name = match name {
        _ if is_id => catalog_ops::ID_INDEX.to_owned(),
        Some(name) if name.is_empty() || name == "*" => {
            return Err(CommandError::new(
                ErrorCode::BadValue,
                format!("The index name '{name}' is not valid."),
            ));
        }
        Some(name) => name,
        None => catalog_ops::index_name(given),
    };
    let mut normalized = rawdoc! { "v": 2, "key": key.to_owned(), "name": name };
    if let Some(background) = background.filter(|_| !is_id) {
        normalized.append(cstr!("background"), background);
    }
    for (option, value) in options.iter().flatten() {
        normalized.append(option, value);
    }
    match &text {
        Some(text) => text.append_options(&mut normalized),
        None => {
            for (option, value) in text_options.iter().flatten() {
                normalized.append(option, value);
            }
        }
    }
    if let Some(collation) = collation {
        if matches!(spec.get("v"), Ok(Some(v)) if params::number(v) == Some(1)) {
            return Err(CommandError::new(
                ErrorCode::CannotCreateIndex,
                "cannot create an index with the 'collation' option and v=1",
            ));
        }
        normalized.append(cstr!("collation"), collation);
    }
    Ok(normalized)
}

fn flag(field: Field<'_>) -> Result<bool, CommandError> {
    field.bool().map_err(|_| {
        CommandError::new(
            ErrorCode::TypeMismatch,
            format!(
                "The field '{0} has value {0}: {1}, which is not convertible to bool",
                field.name,
                errors::shown(field.value)
            ),
        )
    })
}

/// What is kept of a text index. `None`: it is none.
fn text_definition(
    spec: &RawDocument,
    key: &RawDocument,
) -> Result<Option<Definition>, CommandError> {
    let is_text = |value| matches!(value, RawBsonRef::String(banyan_text::PLUGIN));
    if !key.iter().flatten().any(|(_, value)| is_text(value)) {
        return Ok(None);
    }
    let completed = banyan_text::complete(spec);
    let refused =
        |error: TextError| CommandError::new(ErrorCode::from_code(error.code()), error.to_string());
    completed.map(Some).map_err(refused)
}

/// Whether a specification, as it is kept, is that of a text index.
fn is_text(spec: &RawDocument) -> bool {
    let key = spec.get_document("key");
    key.is_ok_and(|key| key.get_str(banyan_text::TERM_FIELD).is_ok())
}

/// A collection has one text index, whose strings are compared by no collation.
fn check_text(
    collection: &Collection,
    fresh: &[RawDocumentBuf],
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
    let existing = collection.indexes.iter();
    let existing = existing.chain(collection.building_indexes());
    let mut existing = existing.map(|index| &index.spec).chain(fresh);
    match existing.find(|known| is_text(known)) {
        Some(known) => refuse(format!(
            "only one text index per collection allowed, found existing text index \"{}\"",
            known.get_str("name").unwrap_or_default()
        )),
        None => Ok(()),
    }
}

/// What an index over all fields may not be, and who may have a projection.
fn check_wildcard_options(
    key: &RawDocument,
    pattern: &KeyPattern,
    options: &RawDocument,
) -> Result<(), CommandError> {
    let has = |name: &str| options.get(name).is_ok_and(|option| option.is_some());
    if !pattern.is_wildcard() {
        return match has("wildcardProjection") {
            true => Err(CommandError::new(
                ErrorCode::BadValue,
                "The field 'wildcardProjection' is only allowed in an 'wildcard' index",
            )),
            false => Ok(()),
        };
    }
    for option in ["unique", "sparse"] {
        if options.get_bool(option).unwrap_or(false) {
            return Err(CommandError::new(
                ErrorCode::CannotCreateIndex,
                format!("Index type 'wildcard' does not support the {option} option"),
            ));
        }
    }
    if has("wildcardProjection") && key.get("$**").is_ok_and(|field| field.is_none()) {
        return Err(CommandError::new(
            ErrorCode::FailedToParse,
            "The field 'wildcardProjection' is only allowed when 'key' is {\"$**\": ±1}",
        ));
    }
    Ok(())
}

/// A projection that chooses fields and computes none.
fn check_wildcard_projection(field: Field<'_>) -> Result<(), CommandError> {
    let projection = field.document()?;
    if projection.is_empty() {
        return Err(CommandError::new(
            ErrorCode::FailedToParse,
            "The 'wildcardProjection' field can't be an empty object",
        ));
    }
    refuse_computed(projection)?;
    let parsed = Projection::parse(projection, &Context::default());
    parsed.map(drop).map_err(|error| {
        let mut error = errors::query(error);
        error.message = format!(
            "Failed to parse: wildcardProjection :: caused by :: {}",
            error.message
        );
        error
    })
}

fn refuse_computed(projection: &RawDocument) -> Result<(), CommandError> {
    let refuse = |code, message: &str| {
        let message = format!("Failed to parse: wildcardProjection :: caused by :: {message}");
        Err(CommandError::new(ErrorCode::Location(code), message))
    };
    for (name, value) in projection.iter().flatten() {
        let first = match value {
            RawBsonRef::Document(inner) => {
                let operator = inner.iter().flatten().next();
                operator.is_some_and(|(name, _)| name.as_str().starts_with('$'))
            }
            value => params::number(value).is_none() && !matches!(value, RawBsonRef::Boolean(_)),
        };
        if first {
            let message = "Bad projection specification, cannot use computed fields when parsing a \
                           spec in kBanComputedFields mode";
            return refuse(51271, message);
        }
        if name.as_str().split('.').any(|part| part.starts_with('$')) {
            let message = "FieldPath field names may not start with '$'. Consider using $getField \
                           or $setField.";
            return refuse(16410, message);
        }
        if let RawBsonRef::Document(inner) = value {
            refuse_computed(inner)?;
        }
    }
    Ok(())
}

/// `{locale: "simple"}`, or another collation with all its fields.
fn completed_collation(field: Field<'_>) -> Result<RawDocumentBuf, CommandError> {
    let given = field.document()?;
    if given.is_empty() {
        return Err(CommandError::new(
            ErrorCode::BadValue,
            "The field 'collation' cannot be an empty object.",
        ));
    }
    let collator = Collator::parse(given).map_err(collation::error)?;
    Ok(collator.map_or_else(simple, |collator| collator.collation().to_document()))
}

fn simple() -> RawDocumentBuf {
    rawdoc! { "locale": "simple" }
}

/// The specification in its collection: an index that names no collation has the collection's, and
/// of the simple one nothing is kept.
fn in_collection(
    collection: &Collection,
    spec: RawDocumentBuf,
) -> Result<RawDocumentBuf, CommandError> {
    let default = collection.collator.as_ref();
    let default = default.map(|collator| collator.collation().to_document());
    let wanted = match spec.get_document("collation") {
        Ok(named) => Some(named.to_owned()).filter(|named| *named != simple()),
        Err(_) => default.clone(),
    };
    let is_id = spec
        .get_str("name")
        .is_ok_and(|name| name == catalog_ops::ID_INDEX);
    if is_id && wanted != default {
        let shown = |collation: Option<RawDocumentBuf>| {
            errors::shown(RawBsonRef::Document(&collation.unwrap_or_else(simple)))
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
        if name.as_str() != "collation" {
            kept.append(name, value);
        }
    }
    if let Some(collation) = wanted {
        kept.append(cstr!("collation"), collation);
    }
    Ok(kept)
}

fn append(document: &mut RawDocumentBuf, name: &str, value: RawBsonRef<'_>) {
    if let Ok(name) = CString::try_from(name) {
        document.append(name, value);
    }
}

fn check_pattern(key: &RawDocument) -> Result<KeyPattern, CommandError> {
    let refuse = |message: String| Err(CommandError::new(ErrorCode::CannotCreateIndex, message));
    for (_, value) in key.iter().flatten() {
        match value {
            RawBsonRef::String("hashed" | "2dsphere" | "2d" | banyan_text::PLUGIN) => {}
            RawBsonRef::String("geoHaystack") => {
                let message = "GeoHaystack indexes cannot be created in version 5.0 and above";
                return refuse(message.to_owned());
            }
            RawBsonRef::String(kind) => return refuse(format!("Unknown index plugin '{kind}'")),
            _ => {}
        }
    }
    KeyPattern::parse(key).map_err(|error: KeyPatternError| {
        let code = match error {
            KeyPatternError::ManyPlanes => ErrorCode::Location(16800),
            KeyPatternError::PlaneNotFirst => ErrorCode::Location(16801),
            _ => ErrorCode::CannotCreateIndex,
        };
        CommandError::new(code, error.to_string())
    })
}

fn equivalent(name: &str, spec: &RawDocument, known: &RawDocument) -> CommandError {
    CommandError::new(
        ErrorCode::IndexOptionsConflict,
        format!(
            "An equivalent index already exists with {name}. Requested index: {}, existing index: \
             {}",
            errors::shown(RawBsonRef::Document(spec)),
            errors::shown(RawBsonRef::Document(known))
        ),
    )
}

/// Whether the same index is there already; another one of its name or pattern is an error.
fn is_known(
    collection: &Arc<Collection>,
    fresh: &[RawDocumentBuf],
    spec: &RawDocument,
) -> Result<bool, CommandError> {
    let name = spec.get_str("name").unwrap_or("");
    let pattern = check_pattern(
        spec.get_document("key")
            .map_err(|error| CommandError::new(ErrorCode::InternalError, error.to_string()))?,
    )?;
    let existing = collection.indexes.iter();
    let existing = existing.chain(collection.building_indexes());
    let existing = existing.map(|index| &index.spec);
    for known in existing.chain(fresh) {
        let known_key = known.get_document("key").ok();
        let known_pattern = known_key.and_then(|key| KeyPattern::parse(key).ok());
        let same =
            |option: &&str| known.get(option).ok().flatten() == spec.get(option).ok().flatten();
        // Indexes of one pattern with different collations are different indexes.
        let same_pattern = known_pattern.is_some_and(|p| catalog_ops::same_pattern(&p, &pattern))
            && same(&"collation");
        let same_name = known.get_str("name").is_ok_and(|known| known == name);
        let is_set = |spec: &RawDocument, flag| spec.get_bool(flag).unwrap_or(false);
        let same_flag = |flag| is_set(known, flag) == is_set(spec, flag);
        let same_options = [
            "partialFilterExpression",
            "wildcardProjection",
            "2dsphereIndexVersion",
            "bits",
            "min",
            "max",
            "weights",
            "default_language",
            "language_override",
            "textIndexVersion",
        ]
        .iter()
        .all(same)
            && ["unique", "sparse"].into_iter().all(same_flag);
        match (same_name, same_pattern) {
            (_, true) if same_options && !same(&EXPIRE) => {
                let name = match same_name {
                    true => "the same name but different options",
                    false => "a different name and options",
                };
                return Err(equivalent(name, spec, known));
            }
            (true, true) if same_options => return Ok(true),
            (_, true) if !same_options && (is_text(known) || pattern.has_plane_field()) => {
                let name = match same_name {
                    true => "the same name but different options",
                    false => "a different name and options",
                };
                return Err(equivalent(name, spec, known));
            }
            (true, _) => {
                return Err(CommandError::new(
                    ErrorCode::IndexKeySpecsConflict,
                    format!(
                        "An existing index has the same name as the requested index. When index \
                         names are not specified, they are auto generated and can cause conflicts. \
                         Please refer to our documentation. Requested index: {}, existing index: {}",
                        errors::shown(RawBsonRef::Document(spec)),
                        errors::shown(RawBsonRef::Document(known))
                    ),
                ));
            }
            (false, true) if same_options => {
                return Err(CommandError::new(
                    ErrorCode::IndexOptionsConflict,
                    format!(
                        "Index already exists with a different name: {}",
                        known.get_str("name").unwrap_or("")
                    ),
                ));
            }
            _ => {}
        }
    }
    Ok(false)
}
