//! The fields of `mapReduce` and of its two internal parts.

use banyan_document::Collator;
use banyan_node::collation::Asked;
use banyan_node::context::CommandContext;
use banyan_node::names::check_collection_name;
use banyan_node::params::{self, Field};
use banyan_script::MapReduceSpec;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

/// What is read.
pub struct Input<'a> {
    pub collection: &'a str,
    pub query: Option<&'a RawDocument>,
    pub sort: Option<&'a RawDocument>,
    pub limit: Option<u64>,
    pub collation: Asked,
}

impl Input<'_> {
    pub fn collator(&self, ctx: &CommandContext<'_>) -> Option<Collator> {
        self.collation.collator(ctx, self.collection)
    }
}

impl<'a> Input<'a> {
    pub fn parse(ctx: &CommandContext<'a>) -> Result<Input<'a>, CommandError> {
        let document = |name| match ctx.field(name) {
            Some(field) => field.document_or_null(),
            None => Ok(None),
        };
        let sort = document("sort")?;
        if sort.is_some_and(RawDocument::is_empty) {
            let text = "The mapReduce sort option must have at least one sort key";
            return Err(CommandError::new(ErrorCode::Location(15976), text));
        }
        Ok(Input {
            collection: ctx.collection()?,
            query: document("query")?.filter(|query| !query.is_empty()),
            sort,
            limit: limit(ctx)?,
            collation: ctx
                .field("collation")
                .map_or(Ok(Asked::default()), Asked::parse)?,
        })
    }
}

fn limit(ctx: &CommandContext<'_>) -> Result<Option<u64>, CommandError> {
    let limit = match ctx.field("limit") {
        Some(field) if !field.is_null() => match field.value {
            RawBsonRef::Double(limit) if limit.is_nan() => -1,
            _ => field.i64()?,
        },
        _ => 0,
    };
    // 0 means "no limit" to drivers and shells of the 2.x servers.
    let limit = u64::try_from(limit).map_err(|_| {
        let text = "The limit specified to mapReduce must be positive";
        CommandError::new(ErrorCode::Location(15958), text)
    })?;
    Ok(Some(limit).filter(|limit| *limit > 0))
}

/// What every form of the command takes and what only has to be well formed.
pub fn check(ctx: &CommandContext<'_>) -> Result<(), CommandError> {
    for name in ["verbose", "jsMode", BYPASS] {
        flag(ctx, name)?;
    }
    Ok(())
}

/// Lets results be that the validator of their collection does not accept.
pub const BYPASS: &str = "bypassDocumentValidation";

/// A boolean and nothing that stands for one.
pub fn flag(ctx: &CommandContext<'_>, name: &'static str) -> Result<bool, CommandError> {
    match ctx.field(name) {
        Some(field) if !field.is_null() => match field.value {
            RawBsonRef::Boolean(flag) => Ok(flag),
            _ => Err(field.wrong_type("type 'bool'")),
        },
        _ => Ok(false),
    }
}

/// The functions and their variables. `with_map`: the command has a map function of its own.
pub fn functions(
    ctx: &CommandContext<'_>,
    with_map: bool,
    collator: Option<Collator>,
) -> Result<MapReduceSpec, CommandError> {
    if !ctx.node.info.scripting {
        return Err(CommandError::new(
            ErrorCode::Location(31_264),
            "Cannot run server-side javascript without the javascript engine enabled",
        ));
    }
    let mut variables = RawDocumentBuf::new();
    if let Some(field) = ctx.field("scope").filter(|field| !field.is_null()) {
        let scope = field
            .document()
            .map_err(|_| bad("'scope' must be an object"))?;
        variables = scope.to_owned();
    }
    let map = match with_map {
        true => Some(function(ctx.required("map")?, &mut variables)?),
        false => None,
    };
    let reduce = function(ctx.required("reduce")?, &mut variables)?;
    let finalize = match ctx.field("finalize") {
        Some(field) if !field.is_null() => Some(function(field, &mut variables)?),
        _ => None,
    };
    let scope = Some(variables).filter(|variables| !variables.is_empty());
    Ok(MapReduceSpec {
        map,
        reduce,
        finalize,
        scope,
        collator,
    })
}

/// A function as code or text; the variables that come with code join those of the command.
fn function(field: Field<'_>, variables: &mut RawDocumentBuf) -> Result<String, CommandError> {
    match field.value {
        RawBsonRef::String(source) | RawBsonRef::JavaScriptCode(source) => Ok(source.to_owned()),
        RawBsonRef::JavaScriptCodeWithScope(code) => {
            for (name, value) in code.scope.iter().flatten() {
                variables.append(name, value);
            }
            Ok(code.code.to_owned())
        }
        _ => Err(CommandError::new(
            ErrorCode::BadValue,
            format!("'{}' must be of string or code type", field.name),
        )),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Replace,
    Merge,
    Reduce,
}

/// Where the results go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Out {
    Inline,
    Collection {
        mode: Mode,
        database: String,
        collection: String,
        /// Whether the command named the database: the reply then does, too.
        names_database: bool,
    },
}

impl Out {
    pub fn parse(ctx: &CommandContext<'_>) -> Result<Out, CommandError> {
        let field = ctx.required("out")?;
        let out = match field.value {
            RawBsonRef::String(name) => Out::Collection {
                mode: Mode::Replace,
                database: ctx.database().to_owned(),
                collection: name.to_owned(),
                names_database: false,
            },
            RawBsonRef::Document(out) => Out::parse_document(ctx, out)?,
            _ => return Err(bad("'out' must be either a string or an object")),
        };
        if let Out::Collection {
            database,
            collection,
            ..
        } = &out
        {
            check_target(database, collection)?;
        }
        Ok(out)
    }

    fn parse_document(ctx: &CommandContext<'_>, out: &RawDocument) -> Result<Out, CommandError> {
        if let Some(inline) = out.get("inline").ok().flatten() {
            return Out::inline(out, inline);
        }
        let mut target = None;
        let mut database = None;
        let mut is_known = true;
        for field in params::fields("mapReduce", out) {
            let mode = match field.name {
                "replace" | "normal" => Mode::Replace,
                "merge" => Mode::Merge,
                "reduce" => Mode::Reduce,
                "db" => {
                    let name = field.str();
                    database = Some(name.map_err(|_| bad("db field value must be string"))?);
                    continue;
                }
                "nonAtomic" | "sharded" => {
                    Out::check_flag(field)?;
                    continue;
                }
                _ => {
                    is_known = false;
                    continue;
                }
            };
            let collection = field.str().map_err(|_| {
                let name = field.name;
                bad(&format!(
                    "'{name}' supports only string consisting of output collection name"
                ))
            })?;
            is_known &= target.is_none();
            target = Some((mode, collection));
        }
        let Some((mode, collection)) = target else {
            return Err(bad("'out' requires 'replace', 'merge' or 'reduce'"));
        };
        if !is_known {
            return Err(bad(
                "'out' supports only output type with collection name, optional 'sharded' and \
                 optional 'db'",
            ));
        }
        Ok(Out::Collection {
            mode,
            database: database.unwrap_or(ctx.database()).to_owned(),
            collection: collection.to_owned(),
            names_database: database.is_some(),
        })
    }

    fn inline(out: &RawDocument, inline: RawBsonRef<'_>) -> Result<Out, CommandError> {
        if out.iter().count() > 1 {
            let text = "'inline' must be specified alone";
            return Err(CommandError::new(ErrorCode::InvalidOptions, text));
        }
        match params::number(inline) {
            Some(1) => Ok(Out::Inline),
            _ => Err(bad("'inline' takes only numeric '1'")),
        }
    }

    /// Writes are never held up for others here, whatever `nonAtomic` says. Drivers of the 2.x
    /// servers say false, the default of their time.
    fn check_flag(field: Field<'_>) -> Result<(), CommandError> {
        match (field.name, field.value) {
            ("sharded", RawBsonRef::Boolean(true)) => Err(CommandError::new(
                ErrorCode::NotImplemented,
                "map-reduce cannot write into a sharded collection yet",
            )),
            (_, RawBsonRef::Boolean(_)) => Ok(()),
            (name, _) => Err(bad(&format!("{name} field value must be boolean"))),
        }
    }
}

/// Whether results may be written there.
fn check_target(database: &str, collection: &str) -> Result<(), CommandError> {
    if database.is_empty() || collection.is_empty() {
        let text = format!("Invalid output namespace {database}.{collection} for MapReduce");
        return Err(CommandError::new(ErrorCode::InvalidNamespace, text));
    }
    if collection.starts_with('$') {
        let text = format!("error with target namespace: Invalid collection name: {collection}");
        return Err(CommandError::new(ErrorCode::IllegalOperation, text));
    }
    if collection.starts_with("system.") {
        let text = format!("Can't output mapReduce results to special collection {collection}");
        return Err(CommandError::new(ErrorCode::Location(17385), text));
    }
    check_collection_name(database, collection)
}

fn bad(text: &str) -> CommandError {
    CommandError::new(ErrorCode::BadValue, text)
}

/// Whether the reply is to tell the times of the parts.
pub fn is_verbose(ctx: &CommandContext<'_>) -> Result<bool, CommandError> {
    flag(ctx, "verbose")
}
