//! Options of `create` that say nothing to this engine: checked as they are in MongoDB, and kept
//! where a listing shows them.

use banyan_document::Number;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use super::clustered::{CLUSTERED, location};
use super::engine_options;
use super::index_outline;
use super::index_specification as specification;
use crate::context::CommandContext;
use crate::forms;
use crate::params::{self, Field};

/// What they come to.
pub struct Others {
    /// Those that are kept with the collection.
    pub kept: RawDocumentBuf,
    /// `autoIndexId`, which is kept before them.
    pub automatic: Option<bool>,
    /// What the reply says besides.
    pub note: Option<&'static str>,
}

impl Others {
    /// Looks at those that can be judged whether or not there is such a collection.
    pub fn check(ctx: &CommandContext<'_>) -> Result<(), CommandError> {
        let given = |name| ctx.field(name).filter(|field: &Field<'_>| !field.is_null());
        if let Some(field) = given("flags") {
            field.i64()?;
        }
        if let Some(field) = given("encryptedFields") {
            refuse_encrypted(ctx, field)?;
        }
        given("indexOptionDefaults")
            .map(index_defaults)
            .transpose()
            .map(drop)
    }

    /// Whether the index over `_id` has the collation of the collection, which is to be this one.
    pub fn check_id_collation(
        ctx: &CommandContext<'_>,
        collation: Option<&RawDocument>,
    ) -> Result<(), CommandError> {
        match id_index(ctx) {
            Some(field) => check_id_collation(field.document()?, collation),
            None => Ok(()),
        }
    }

    /// Looks at what is asked of the index over `_id`, but for its collation.
    pub fn check_id_index(ctx: &CommandContext<'_>) -> Result<(), CommandError> {
        let Some(field) = id_index(ctx) else {
            return Ok(());
        };
        let given = |name| ctx.field(name).is_some_and(|field| !field.is_null());
        if given("autoIndexId") {
            return Err(invalid("'idIndex' is not allowed with 'autoIndexId'"));
        }
        let index = field.document()?;
        check_id_index(index, &under_own_name(index))
    }

    pub fn parse(ctx: &CommandContext<'_>) -> Result<Others, CommandError> {
        let given = |name| ctx.field(name).filter(|field: &Field<'_>| !field.is_null());
        let mut others = Others {
            kept: RawDocumentBuf::new(),
            automatic: None,
            note: None,
        };
        let engines = given("storageEngine")
            .map(engine_options::parse)
            .transpose()?;
        let defaults = given("indexOptionDefaults")
            .map(index_defaults)
            .transpose()?;
        for (name, document) in [
            (bson::cstr!("storageEngine"), engines),
            (bson::cstr!("indexOptionDefaults"), defaults),
        ] {
            if let Some(document) = document.filter(|document| says_something(document)) {
                others.kept.append(name, document.to_owned());
            }
        }
        // Those of such collections are refused with what else these cannot have.
        let is_series = given("timeseries").is_some();
        let automatic = given("autoIndexId").map(|field| field.bool()).transpose()?;
        if automatic.is_some() {
            others.note = Some(
                "The autoIndexId option is deprecated and will be removed in a future release",
            );
        }
        let automatic = automatic.filter(|_| !is_series);
        let id_index = given("idIndex").filter(|_| !is_series && given(CLUSTERED).is_none());
        match automatic {
            Some(false) if ctx.database() != "local" && given("viewOn").is_none() => {
                return Err(location(
                    50001,
                    "collections outside of the local database need an index over _id",
                ));
            }
            _ => others.automatic = automatic,
        }
        if let Some(field) = id_index
            && field
                .document()?
                .get_str("name")
                .is_ok_and(|name| name.is_empty() || name.contains('\0'))
        {
            return Err(CommandError::new(
                ErrorCode::CannotCreateIndex,
                "an index name cannot be empty or contain NUL bytes",
            ));
        }
        Ok(others)
    }
}

fn invalid(message: &str) -> CommandError {
    CommandError::new(ErrorCode::InvalidOptions, message)
}

fn bad(message: &str) -> CommandError {
    CommandError::new(ErrorCode::BadValue, message)
}

/// Views and time-series collections have no encrypted fields.
pub fn encrypted_elsewhere() -> CommandError {
    location(
        6346401,
        "Encrypted fields cannot be used with views or timeseries collections",
    )
}

/// Queries on encrypted fields are for members of sets, and not made here.
fn refuse_encrypted(ctx: &CommandContext<'_>, field: Field<'_>) -> Result<(), CommandError> {
    check_encrypted_form(field)?;
    let is_set = ctx.node.replication.is_replica_set();
    let present = |name| ctx.field(name).is_some_and(|field| !field.is_null());
    if present("viewOn") || present("timeseries") {
        return Err(encrypted_elsewhere());
    }
    if present("capped") {
        return Err(location(
            6367301,
            "Encrypted fields cannot be used with capped collections",
        ));
    }
    match is_set {
        true => Ok(()),
        false => Err(location(
            6346402,
            "Encrypted collections are not supported on standalone",
        )),
    }
}

/// What `encryptedFields` has to be, whatever other fields are.
pub fn check_encrypted_form(field: Field<'_>) -> Result<(), CommandError> {
    const PARSER: &str = "create.encryptedFields";
    const COLLECTIONS: [&str; 3] = ["escCollection", "eccCollection", "ecocCollection"];
    let mut has_fields = false;
    for field in params::fields(PARSER, field.document()?) {
        match field.name {
            "fields" => {
                forms::documents(field)?;
                has_fields = true;
            }
            name if COLLECTIONS.contains(&name) && field.is_null() => {}
            name if COLLECTIONS.contains(&name) => {
                field.str()?;
            }
            other => return Err(params::unknown_field(PARSER, other)),
        }
    }
    match has_fields {
        true => Ok(()),
        false => Err(params::missing_field(PARSER, "fields")),
    }
}

/// Whether options of engines are worth keeping: none, or null for some, are not.
fn says_something(options: &RawDocument) -> bool {
    options
        .iter()
        .flatten()
        .any(|(_, value)| !params::is_null(value))
}

/// What `indexOptionDefaults` has to be, whatever other fields are.
pub fn check_defaults_form(field: Field<'_>) -> Result<(), CommandError> {
    match index_defaults(field) {
        // Which engines there are is asked later.
        Err(error) if error.code != ErrorCode::InvalidOptions => Err(error),
        _ => Ok(()),
    }
}

/// The format of keys of the index over `_id`, where it is asked for.
pub fn id_format(ctx: &CommandContext<'_>) -> Option<i32> {
    let index = ctx.field("idIndex")?.value.as_document()?;
    let format = index.get("v").ok().flatten().and_then(Number::from_raw)?;
    format.to_i32_exact()
}

fn index_defaults(field: Field<'_>) -> Result<&RawDocument, CommandError> {
    const PARSER: &str = "create.indexOptionDefaults";
    let defaults = field.document()?;
    for field in params::given(PARSER, defaults, &["storageEngine"]) {
        engine_options::parse(field?)?;
    }
    Ok(defaults)
}

/// `idIndex`, where a collection with such an index is to be made.
fn id_index<'a>(ctx: &'a CommandContext<'_>) -> Option<Field<'a>> {
    let given = |name| ctx.field(name).filter(|field: &Field<'_>| !field.is_null());
    let is_special = given("timeseries").is_some() || given("viewOn").is_some();
    given("idIndex").filter(|_| !is_special)
}

/// The specification under the name that the index over `_id` has: any that is given will do.
fn under_own_name(index: &RawDocument) -> RawDocumentBuf {
    let mut named = RawDocumentBuf::new();
    for (name, value) in index.iter().flatten() {
        match (name.as_str(), value) {
            ("name", RawBsonRef::String(_)) => {}
            _ => named.append(name, value),
        }
    }
    named.append(bson::cstr!("name"), "_id_");
    named
}

/// The index over `_id`, which nobody makes another way.
fn check_id_index(index: &RawDocument, named: &RawDocument) -> Result<(), CommandError> {
    // What it is to be is judged as any index first, under a name that none of them is refused for.
    index_outline::check_form(named, false)?;
    if index.get("name").ok().flatten().is_none() {
        return Err(CommandError::new(
            ErrorCode::FailedToParse,
            "The 'name' field is a required property of an index specification",
        ));
    }
    index_outline::check_id_options(index)?;
    let key = index.get_document("key").ok();
    if !key.is_some_and(specification::is_id_key) {
        return Err(bad("The field 'key' for an _id index must be {_id: 1}"));
    }
    key.map_or(Ok(()), specification::check_id_key)?;
    specification::normalize(named).map(drop)
}

fn check_id_collation(
    index: &RawDocument,
    collation: Option<&RawDocument>,
) -> Result<(), CommandError> {
    let normalized = specification::normalize(&under_own_name(index))?;
    let own = normalized.get_document("collation").ok();
    let own = own.filter(|own| **own != *specification::simple());
    // One of the old format cannot have that of the collection.
    let is_old = index
        .get("v")
        .is_ok_and(|v| v.and_then(params::number) == Some(1));
    let names_none = index.get("collation").ok().flatten().is_none() && !is_old;
    match own.is_none() && names_none || own == collation {
        true => Ok(()),
        false => Err(bad(
            "'idIndex' must have the same collation as the collection.",
        )),
    }
}
