//! `applyOps`: operations as MongoDB's oplog has them, done one after another, as a tool does that
//! brings a dump with its oplog back.
//!
//! Each becomes the command that does the same. The first that fails ends it.

use std::pin::Pin;

use banyan_access::apply_ops;
use banyan_access::check::Access;
use banyan_document::kind;
use banyan_execution::by_id;
use banyan_query::diff::apply_oplog;
use banyan_wire::{CommandError, ErrorCode};
use bson::spec::BinarySubtype;
use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::oplog_conditions;
use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use super::validation::BYPASS;
use crate::context::CommandContext;
use crate::errors;

pub static SPEC: CommandSpec = CommandSpec::new("applyOps", Run::Future(run))
    .access(Access::Checked(apply_ops::apply_ops))
    .help("does what entries of an oplog say")
    .writes()
    .lenient();

/// Operations may be inside of each other this deep.
const DEPTH_MAX: usize = 10;
/// A document that others change all the time is read again so often.
const ATTEMPTS_MAX: usize = 100;

/// What a field of an entry of the oplog has to be.
#[derive(Clone, Copy)]
enum Form {
    Any,
    Bool,
    Date,
    Image,
    Long,
    Number,
    Object,
    StatementIds,
    Tenant,
    Timestamp,
    Uuid,
}

/// What an entry of the oplog may have.
const FIELDS: &[(&str, Form)] = &[
    ("_id", Form::Any),
    ("b", Form::Bool),
    ("destinedRecipient", Form::Any),
    ("donorApplyOpsIndex", Form::Number),
    ("donorOpTime", Form::Object),
    ("fromMigrate", Form::Bool),
    ("fromTenantMigration", Form::Uuid),
    ("h", Form::Long),
    ("lsid", Form::Object),
    ("needsRetryImage", Form::Image),
    ("ns", Form::Any),
    ("o", Form::Any),
    ("o2", Form::Object),
    ("op", Form::Any),
    ("postImageOpTime", Form::Object),
    ("preImageOpTime", Form::Object),
    ("prevOpTime", Form::Object),
    ("stmtId", Form::StatementIds),
    ("t", Form::Long),
    ("tid", Form::Tenant),
    ("ts", Form::Timestamp),
    ("txnNumber", Form::Long),
    ("ui", Form::Uuid),
    ("v", Form::Number),
    ("wall", Form::Date),
];

impl Form {
    fn check(self, name: &str, value: RawBsonRef<'_>) -> Result<(), CommandError> {
        let is_number = |value| banyan_document::Number::from_raw(value).is_some();
        let (fits, expected) = match self {
            Form::Any => (true, ""),
            Form::Bool => (matches!(value, RawBsonRef::Boolean(_)), "bool"),
            Form::Date => (matches!(value, RawBsonRef::DateTime(_)), "date"),
            Form::Long => (matches!(value, RawBsonRef::Int64(_)), "long"),
            Form::Number => (is_number(value), "long"),
            Form::Object => (matches!(value, RawBsonRef::Document(_)), "object"),
            Form::Timestamp => (matches!(value, RawBsonRef::Timestamp(_)), "timestamp"),
            Form::StatementIds => match value {
                RawBsonRef::Array(ids) => (ids.into_iter().flatten().all(is_number), "int"),
                id => (is_number(id), "int"),
            },
            Form::Uuid => match value {
                RawBsonRef::Binary(id) => (id.subtype == BinarySubtype::Uuid, "UUID"),
                _ => (false, "binData"),
            },
            Form::Image => match value {
                RawBsonRef::String("preImage" | "postImage") => (true, ""),
                RawBsonRef::String(other) => {
                    return Err(refuse(
                        ErrorCode::BadValue,
                        format!(
                            "Enumeration value '{other}' for field 'OplogEntryBase.{name}' is not \
                             a valid value."
                        ),
                    ));
                }
                _ => (false, "string"),
            },
            Form::Tenant if !matches!(value, RawBsonRef::ObjectId(_)) => {
                let found = kind::name(&value);
                return Err(refuse(
                    ErrorCode::BadValue,
                    format!("OplogEntryBase.{name} has to be an ObjectId, and is {found}"),
                ));
            }
            Form::Tenant => (true, ""),
        };
        match fits {
            true => Ok(()),
            false => Err(wrong_field(name, value, expected)),
        }
    }
}

fn wrong_field(name: &str, value: RawBsonRef<'_>, expected: &str) -> CommandError {
    refuse(
        ErrorCode::TypeMismatch,
        format!(
            "BSON field 'OplogEntryBase.{name}' is the wrong type '{}', expected type '{expected}'",
            kind::name(&value)
        ),
    )
}

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let operations = match ctx.argument() {
            Some(RawBsonRef::Array(operations)) => operations,
            other => return Err(wrong_type("applyOps", "array", other)),
        };
        let operations = listed(operations)?;
        let upserts = ctx.field("alwaysUpsert").filter(|field| !field.is_null());
        let options = Options {
            upserts: upserts
                .map(|field| field.bool())
                .transpose()?
                .unwrap_or(true),
            bypasses: ctx
                .field(BYPASS)
                .is_some_and(|field| banyan_document::is_true(field.value)),
        };
        check_mode(ctx)?;
        if ctx.field("prepare").is_some_and(|field| !field.is_null()) {
            let message = "applyOps command can't have 'prepare' field";
            return Err(refuse(ErrorCode::BadValue, message));
        }
        oplog_conditions::check(ctx).await?;
        let mut results = RawArrayBuf::new();
        let mut applied = 0;
        for operation in &operations {
            if operation.op == "n" {
                continue;
            }
            let done = apply(ctx, &options, operation, 0).await;
            if let Err(Failure::Command(error)) = done {
                return Err(error);
            }
            applied += 1;
            results.push(done.is_ok());
            if let Err(Failure::Operation(error)) = done {
                let mut told = rawdoc! { "applied": applied };
                told.append(cstr!("results"), results);
                for (name, value) in error.extra.iter().flat_map(|extra| extra.iter().flatten()) {
                    told.append(name, value);
                }
                return Err(CommandError::new(error.code, error.message).with_extra(told));
            }
        }
        let mut reply = rawdoc! { "applied": applied };
        reply.append(cstr!("results"), results);
        reply.append(cstr!("ok"), 1.0);
        Ok(reply)
    })
}

struct Options {
    /// What is not there is inserted by an update.
    upserts: bool,
    bypasses: bool,
}

/// Whose fault it is.
enum Failure {
    /// The whole is refused as it is.
    Command(CommandError),
    Operation(CommandError),
}

impl From<CommandError> for Failure {
    fn from(error: CommandError) -> Failure {
        Failure::Operation(error)
    }
}

/// An entry of the oplog.
struct Operation<'a> {
    op: &'a str,
    ns: &'a str,
    document: &'a RawDocument,
}

fn refuse(code: ErrorCode, message: impl Into<String>) -> CommandError {
    CommandError::new(code, message)
}

fn wrong_type(name: &str, expected: &str, value: Option<RawBsonRef<'_>>) -> CommandError {
    let (code, found) = match &value {
        Some(value) => (ErrorCode::TypeMismatch, kind::name(value)),
        None => (ErrorCode::NoSuchKey, "missing"),
    };
    let message = format!("Wrong type for '{name}'. Expected a {expected}, got a {found}.");
    refuse(code, message)
}

/// The operations, as far as they have to be right before any of them is done.
fn listed(operations: &bson::RawArray) -> Result<Vec<Operation<'_>>, CommandError> {
    let mut listed = Vec::new();
    for (position, item) in operations.into_iter().flatten().enumerate() {
        let RawBsonRef::Document(document) = item else {
            return Err(wrong_type(&position.to_string(), "object", Some(item)));
        };
        let get = |name| banyan_document::field(document, name);
        let illegal = |message: String| refuse(ErrorCode::IllegalOperation, message);
        let op = match get("op") {
            Some(RawBsonRef::String("")) => {
                return Err(illegal(format!(
                    "\"op\" field value cannot be empty: {position}"
                )));
            }
            Some(RawBsonRef::String(op)) => op,
            None => return Err(wrong_type("", "string", None)),
            other => return Err(wrong_type("op", "string", other)),
        };
        let ns = match get("ns") {
            Some(RawBsonRef::String("")) if op != "n" => {
                return Err(illegal(format!(
                    "\"ns\" field value cannot be empty when op type is not 'n': {position}"
                )));
            }
            Some(RawBsonRef::String(ns)) => ns,
            None => {
                return Err(illegal(format!(
                    "op does not contain required \"ns\" field: {position}"
                )));
            }
            Some(_) => return Err(illegal(format!("\"ns\" field is not a string: {position}"))),
        };
        match get("o") {
            Some(RawBsonRef::Document(_)) => {}
            None if op == "c" => return Err(wrong_type("", "object", None)),
            other if op == "c" => return Err(wrong_type("o", "object", other)),
            _ => {}
        }
        listed.push(Operation { op, ns, document });
    }
    Ok(listed)
}

fn check_mode(ctx: &CommandContext<'_>) -> Result<(), CommandError> {
    let Some(mode) = ctx.field("oplogApplicationMode") else {
        return Ok(());
    };
    match mode.str()? {
        "InitialSync" | "Recovering" | "Secondary" | "ApplyOps" => Ok(()),
        other => Err(refuse(
            ErrorCode::FailedToParse,
            format!(
                "Could not parse oplogApplicationMode :: caused by :: Invalid oplog application \
                 mode provided: {other}"
            ),
        )),
    }
}

impl<'a> Operation<'a> {
    fn get(&self, name: &str) -> Option<RawBsonRef<'a>> {
        banyan_document::field(self.document, name)
    }

    /// A field that has to be a document.
    fn object(&self, name: &str) -> Result<&'a RawDocument, CommandError> {
        match self.get(name) {
            Some(RawBsonRef::Document(document)) => Ok(document),
            Some(other) if other != RawBsonRef::Null => Err(wrong_field(name, other, "object")),
            _ => Err(refuse(
                ErrorCode::Location(40414),
                format!("BSON field 'OplogEntryBase.{name}' is missing but a required field"),
            )),
        }
    }

    fn check_fields(&self) -> Result<(), CommandError> {
        for element in banyan_document::elements(self.document) {
            let (name, value) = (element.name(), element.value());
            match FIELDS.iter().find(|(known, _)| *known == name) {
                Some(_) if value == RawBsonRef::Null => {}
                Some((_, form)) => form.check(name, value)?,
                None => {
                    return Err(refuse(
                        ErrorCode::Location(40415),
                        format!("BSON field 'OplogEntryBase.{name}' is an unknown field."),
                    ));
                }
            }
        }
        Ok(())
    }

    fn collection(&self) -> Result<(&'a str, &'a str), CommandError> {
        let split = self.ns.split_once('.');
        split
            .filter(|(database, collection)| !database.is_empty() && !collection.is_empty())
            .ok_or_else(|| {
                refuse(
                    ErrorCode::InvalidNamespace,
                    format!("invalid ns: {}", self.ns),
                )
            })
    }

    fn id(
        &self,
        document: Option<&'a RawDocument>,
        what: &str,
    ) -> Result<RawBsonRef<'a>, CommandError> {
        let id = document.and_then(|document| banyan_document::field(document, "_id"));
        id.ok_or_else(|| {
            refuse(
                ErrorCode::NoSuchKey,
                format!(
                    "Failed to apply {what} due to missing _id: {}",
                    errors::shown(RawBsonRef::Document(self.document))
                ),
            )
        })
    }

    /// The collection that is meant has to be there.
    fn check_collection(&self, ctx: &CommandContext<'_>) -> Result<(), CommandError> {
        let (database, collection) = self.collection()?;
        let missing = |message| Err(refuse(ErrorCode::NamespaceNotFound, message));
        let (catalog, _) = ctx.view();
        let found = catalog.get(database, collection);
        if found.is_none() && self.op != "d" {
            return missing(format!(
                "cannot apply insert or update operation on a non-existent namespace {}: {:?}",
                self.ns, self.document
            ));
        }
        let Some(RawBsonRef::Binary(uuid)) = self.get("ui") else {
            return Ok(());
        };
        match found {
            Some(found) if found.uuid[..] == *uuid.bytes => Ok(()),
            _ => missing(format!(
                "Failed to apply operation due to missing collection: {:?}",
                self.document
            )),
        }
    }
}

type Applied<'f> = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send + 'f>>;

fn apply<'f>(
    ctx: &'f CommandContext<'_>,
    options: &'f Options,
    operation: &'f Operation<'_>,
    depth: usize,
) -> Applied<'f> {
    Box::pin(async move {
        ctx.check_interrupt()?;
        operation.check_fields()?;
        match operation.op {
            "n" => Ok(()),
            "i" => insert(ctx, options, operation).await.map_err(Failure::from),
            "u" => update(ctx, options, operation).await.map_err(Failure::from),
            "d" => delete(ctx, operation).await.map_err(Failure::from),
            "c" => command(ctx, options, operation, depth).await,
            other => Err(Failure::Operation(refuse(
                ErrorCode::BadValue,
                format!(
                    "Enumeration value '{other}' for field 'OplogEntryBase.op' is not a valid \
                     value."
                ),
            ))),
        }
    })
}

/// The document with that `_id`, whatever the `_id` is.
fn with_id(id: RawBsonRef<'_>) -> RawDocumentBuf {
    let mut is = RawDocumentBuf::new();
    is.append(cstr!("$eq"), id);
    rawdoc! { "_id": is }
}

async fn run_statement(
    ctx: &CommandContext<'_>,
    options: &Options,
    (database, collection): (&str, &str),
    statement: RawDocumentBuf,
) -> CommandResult {
    let mut body = rawdoc! { "update": collection };
    body.append(cstr!("updates"), RawArrayBuf::from_iter([statement]));
    body.append(cstr!("bypassDocumentValidation"), options.bypasses);
    ctx.nested(database, body).await
}

fn statement(filter: RawDocumentBuf, update: &RawDocument, upserts: bool) -> RawDocumentBuf {
    let mut statement = rawdoc! { "q": filter };
    statement.append(cstr!("u"), update);
    statement.append(cstr!("upsert"), upserts);
    statement
}

/// Whoever is there already is replaced: an entry may be applied again.
async fn insert(
    ctx: &CommandContext<'_>,
    options: &Options,
    operation: &Operation<'_>,
) -> Result<(), CommandError> {
    let document = operation.object("o")?;
    operation.check_collection(ctx)?;
    let id = operation.id(Some(document), "insert")?;
    let place = operation.collection()?;
    run_statement(ctx, options, place, statement(with_id(id), document, true)).await?;
    Ok(())
}

async fn update(
    ctx: &CommandContext<'_>,
    options: &Options,
    operation: &Operation<'_>,
) -> Result<(), CommandError> {
    let update = operation.object("o")?;
    operation.check_collection(ctx)?;
    let query = operation.get("o2").and_then(|o2| o2.as_document());
    let id = operation.id(query, "update")?;
    let place = operation.collection()?;
    let upserts = options.upserts || operation.get("b") == Some(RawBsonRef::Boolean(true));
    let version = banyan_document::field(update, "$v");
    let replaces = banyan_document::field(update, "_id").is_some();
    match version.map(|version| banyan_document::Number::from_raw(version)) {
        _ if replaces => {}
        None => {}
        Some(Some(version)) if version.to_i64_exact() == Some(1) => {}
        Some(Some(version)) if version.to_i64_exact() == Some(2) => {
            return differ(ctx, (options, upserts), operation, id, update).await;
        }
        Some(_) => {
            return Err(refuse(
                ErrorCode::Location(4772600),
                format!(
                    "Expected _id field or $v field missing or $v:1/$v:2, but got: $v: {}",
                    version.map(errors::shown).unwrap_or_default()
                ),
            ));
        }
    }
    let mut plain = RawDocumentBuf::new();
    for (name, value) in update.iter().flatten() {
        match name.as_str() {
            "$v" => {}
            name if !replaces && !name.starts_with('$') => {
                return Err(refuse(
                    ErrorCode::FailedToParse,
                    format!(
                        "Unknown modifier: {name}. Expected a valid update modifier or \
                         pipeline-style update specified as an array"
                    ),
                ));
            }
            _ => plain.append(name, value),
        }
    }
    if plain.is_empty() {
        // It changes nothing, and replaces nothing either.
        plain.append(cstr!("$set"), RawDocumentBuf::new());
    }
    let written = statement(with_id(id), &plain, upserts);
    let reply = run_statement(ctx, options, place, written).await;
    let reply = match replaces {
        true => reply.map_err(keeps_id)?,
        false => reply?,
    };
    match matched(&reply) {
        0 => Err(not_updated(operation, update)),
        _ => Ok(()),
    }
}

/// What MongoDB says where the document would have another `_id`.
fn keeps_id(error: CommandError) -> CommandError {
    match error.code {
        ErrorCode::ImmutableField => refuse(
            ErrorCode::Location(13596),
            "in Collection::updateDocument _id mismatch",
        ),
        _ => error,
    }
}

fn matched(reply: &RawDocument) -> i64 {
    let n = banyan_document::field(reply, "n").and_then(banyan_document::Number::from_raw);
    n.map_or(0, |n| n.to_i64_saturating())
}

fn not_updated(operation: &Operation<'_>, update: &RawDocument) -> CommandError {
    let first = banyan_document::elements(update).next();
    let what = match first.is_some_and(|first| first.name().starts_with('$')) {
        true => "Failed to apply update",
        false => "Update of non-mod failed",
    };
    refuse(
        ErrorCode::UpdateOperationFailed,
        format!("{what}: {:?}", operation.document),
    )
}

/// An update that is told as a difference: of the document as it is, and only while it is so.
async fn differ(
    ctx: &CommandContext<'_>,
    (options, upserts): (&Options, bool),
    operation: &Operation<'_>,
    id: RawBsonRef<'_>,
    update: &RawDocument,
) -> Result<(), CommandError> {
    let diff = match banyan_document::field(update, "diff") {
        Some(RawBsonRef::Document(diff)) => diff,
        other => {
            let found = other.map_or("missing", |value| kind::name(&value));
            return Err(refuse(
                ErrorCode::Location(4772601),
                format!("Expected 'diff' field to be an object, instead got type: {found}"),
            ));
        }
    };
    let place = operation.collection()?;
    for _ in 0..ATTEMPTS_MAX {
        let before = {
            let (catalog, snapshot) = ctx.view();
            match catalog.get(place.0, place.1) {
                Some(found) => by_id::lookup(found, &snapshot, id)
                    .map_err(errors::query)?
                    .map(|record| RawDocument::to_owned(&record)),
                None => None,
            }
        };
        let (filter, from) = match before {
            Some(before) => {
                let mut literal = RawDocumentBuf::new();
                literal.append(cstr!("$literal"), &*before);
                let same = RawArrayBuf::from_iter([
                    bson::RawBson::from("$$ROOT"),
                    bson::RawBson::Document(literal),
                ]);
                let mut filter = with_id(id);
                filter.append(cstr!("$expr"), rawdoc! { "$eq": same });
                (filter, before)
            }
            None if upserts => {
                let mut seed = RawDocumentBuf::new();
                seed.append(cstr!("_id"), id);
                (with_id(id), seed)
            }
            None => return Err(not_updated(operation, update)),
        };
        let is_new = from.iter().count() == 1 && upserts;
        let after = apply_oplog(&from, diff).map_err(errors::query)?;
        let written = statement(filter, &after, is_new);
        let reply = run_statement(ctx, options, place, written).await;
        if matched(&reply.map_err(keeps_id)?) > 0 {
            return Ok(());
        }
        ctx.check_interrupt()?;
    }
    Err(refuse(
        ErrorCode::WriteConflict,
        "the document of an update changed again and again",
    ))
}

async fn delete(ctx: &CommandContext<'_>, operation: &Operation<'_>) -> Result<(), CommandError> {
    let document = operation.object("o")?;
    let (database, collection) = operation.collection()?;
    let id = operation.id(Some(document), "delete")?;
    operation.check_collection(ctx)?;
    let mut statement = rawdoc! { "q": with_id(id) };
    statement.append(cstr!("limit"), 1);
    let mut body = rawdoc! { "delete": collection };
    body.append(cstr!("deletes"), RawArrayBuf::from_iter([statement]));
    ctx.nested(database, body).await?;
    Ok(())
}

/// Commands that entries hold, and what need not be an error of each: the entry may have been applied
/// before.
const COMMANDS: &[(&str, &[ErrorCode])] = &[
    (
        "collMod",
        &[ErrorCode::IndexNotFound, ErrorCode::NamespaceNotFound],
    ),
    ("create", &[ErrorCode::NamespaceExists]),
    ("drop", &[ErrorCode::NamespaceNotFound]),
    ("dropDatabase", &[ErrorCode::NamespaceNotFound]),
    (
        "dropIndexes",
        &[ErrorCode::IndexNotFound, ErrorCode::NamespaceNotFound],
    ),
    (
        "renameCollection",
        &[ErrorCode::NamespaceNotFound, ErrorCode::NamespaceExists],
    ),
];

async fn command(
    ctx: &CommandContext<'_>,
    options: &Options,
    operation: &Operation<'_>,
    depth: usize,
) -> Result<(), Failure> {
    let o = operation.object("o")?;
    let first = banyan_document::elements(o).next();
    let name = first.as_ref().map_or("", |first| first.name());
    let name = match name {
        "deleteIndexes" => "dropIndexes",
        name => name,
    };
    let is_build = matches!(
        name,
        "abortIndexBuild" | "commitIndexBuild" | "createIndexes" | "startIndexBuild"
    );
    let known = COMMANDS.iter().find(|(known, _)| *known == name);
    if known.is_none() && !is_build && name != "applyOps" {
        return Err(Failure::Command(refuse(
            ErrorCode::BadValue,
            format!(
                "Unknown oplog entry command type: {name} Object field: {}",
                errors::shown(RawBsonRef::Document(o))
            ),
        )));
    }
    let (database, _) = operation.collection()?;
    if is_build {
        return Err(Failure::Operation(refuse(
            ErrorCode::CommandNotSupported,
            format!("The {name} operation is not supported in applyOps mode"),
        )));
    }
    if name == "applyOps" {
        return apply_inner(ctx, options, o, depth + 1).await;
    }
    let passed = known.map_or(&[][..], |(_, passed)| passed);
    let mut body = RawDocumentBuf::new();
    for (position, (field, value)) in o.iter().flatten().enumerate() {
        match (position, field.as_str()) {
            (0, _) if name == "dropIndexes" => body.append(cstr!("dropIndexes"), value),
            // What the log alone needs.
            (_, "$db" | "$v" | "key" | "uuid" | "stayTemp" | "temp" | "autoIndexId" | "o2") => {}
            // That may be the collection that went.
            (_, "dropTarget") => {
                body.append(cstr!("dropTarget"), banyan_document::is_true(value));
            }
            _ => body.append(field, value),
        }
    }
    let on = match name {
        "renameCollection" => "admin",
        _ => database,
    };
    match ctx.nested(on, body).await {
        Err(error) if passed.contains(&error.code) => Ok(()),
        Err(error) => Err(Failure::Operation(error)),
        Ok(_) => Ok(()),
    }
}

fn apply_inner<'f>(
    ctx: &'f CommandContext<'_>,
    options: &'f Options,
    o: &'f RawDocument,
    depth: usize,
) -> Applied<'f> {
    Box::pin(async move {
        if depth >= DEPTH_MAX {
            let message = "applyOps is nested too deep";
            return Err(Failure::Command(refuse(ErrorCode::FailedToParse, message)));
        }
        let says = |name| banyan_document::field(o, name).is_some_and(banyan_document::is_true);
        if says("prepare") {
            return Err(Failure::Operation(refuse(
                ErrorCode::Location(51145),
                "prepare applyOps oplog entry is only used internally by secondaries.",
            )));
        }
        if says("partialTxn") {
            return Err(Failure::Operation(refuse(
                ErrorCode::Location(31056),
                "applyOps command can't have 'partialTxn' field.",
            )));
        }
        let list = match banyan_document::field(o, "applyOps") {
            Some(RawBsonRef::Array(list)) => list,
            other => return Err(Failure::Command(wrong_type("applyOps", "array", other))),
        };
        for operation in &listed(list).map_err(Failure::Command)? {
            apply(ctx, options, operation, depth).await?;
        }
        Ok(())
    })
}
