//! The fields of `mapReduce` and of its two internal parts.

use banyan_node::context::{CommandContext, check_collection_name};
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
}

impl<'a> Input<'a> {
    pub fn parse(ctx: &CommandContext<'a>) -> Result<Input<'a>, CommandError> {
        let document = |name| match ctx.field(name) {
            Some(field) => Ok(field
                .document_or_null()?
                .filter(|document: &&RawDocument| !document.is_empty())),
            None => Ok::<_, CommandError>(None),
        };
        let limit = match ctx.field("limit") {
            Some(field) if !field.is_null() => field.i64()?,
            _ => 0,
        };
        // 0 has meant "no limit" to the drivers of all times.
        let limit = u64::try_from(limit).map_err(|_| {
            let text = "The limit specified to mapReduce must be positive";
            CommandError::new(ErrorCode::Location(15958), text)
        })?;
        Ok(Input {
            collection: ctx.collection()?,
            query: document("query")?,
            sort: document("sort")?,
            limit: Some(limit).filter(|limit| *limit > 0),
        })
    }
}

/// The functions and their variables. `with_map`: the command has a map function of its own.
pub fn functions(ctx: &CommandContext<'_>, with_map: bool) -> Result<MapReduceSpec, CommandError> {
    let mut variables = RawDocumentBuf::new();
    if let Some(field) = ctx.field("scope")
        && let Some(scope) = field.document_or_null()?
    {
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
            check_collection_name(database, collection)?;
        }
        Ok(out)
    }

    fn parse_document(ctx: &CommandContext<'_>, out: &RawDocument) -> Result<Out, CommandError> {
        let mut target = None;
        let mut database = None;
        let mut is_known = true;
        for field in params::fields("mapReduce", out) {
            match field.name {
                "inline" => return Ok(Out::Inline),
                "replace" | "normal" => target = Some((Mode::Replace, field.str()?)),
                "merge" => target = Some((Mode::Merge, field.str()?)),
                "reduce" => target = Some((Mode::Reduce, field.str()?)),
                "db" => database = Some(field.str()?),
                // Writes are never held up for others here, whatever it says.
                "nonAtomic" => {}
                "sharded" if field.bool()? => {
                    return Err(CommandError::new(
                        ErrorCode::NotImplemented,
                        "map-reduce cannot write into a sharded collection yet",
                    ));
                }
                "sharded" => {}
                _ => is_known = false,
            }
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
}

fn bad(text: &str) -> CommandError {
    CommandError::new(ErrorCode::BadValue, text)
}

/// Whether the reply is to tell the times of the parts.
pub fn is_verbose(ctx: &CommandContext<'_>) -> Result<bool, CommandError> {
    ctx.field("verbose").map_or(Ok(false), |field| field.bool())
}
