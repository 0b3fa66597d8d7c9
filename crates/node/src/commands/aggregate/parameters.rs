//! What an `aggregate` asks for, and which form it has.

use banyan_query::Context;
use banyan_query::pipeline::Pipeline;
use banyan_query::view::Resolved;
use banyan_replication::set::write_concern::WriteConcern;
use banyan_storage::Namespace;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArray, RawBsonRef, RawDocument};

use crate::collation::Asked;
use crate::collection_uuid;
use crate::commands::validation::BYPASS;
use crate::commands::{change_stream, time_series, write_report};
use crate::context::CommandContext;
use crate::errors;
use crate::names::check_outline;
use crate::params::{self, Field};
use crate::reads::{add_needs_of_view, query_context};
use crate::views;

/// What fields of all commands have to be that the parser of this one reads as its own.
pub(super) fn check_form(field: Field<'_>) -> Result<(), CommandError> {
    match field.name {
        "maxTimeMS" if !field.is_null() => check_time(field),
        "readConcern" | "runtimeConstants" => field.document_or_null().map(drop),
        BYPASS => field.bool().map(drop),
        collection_uuid::FIELD => collection_uuid::check_form(field),
        "needsMerge" | "fromMongos" | "isMapReduceCommand" => field.strict_bool().map(drop),
        _ => Ok(()),
    }
}

/// How long it may take, as far as this command's own parser looks at it.
fn check_time(field: Field<'_>) -> Result<(), CommandError> {
    match field.i64()? {
        0.. => Ok(()),
        milliseconds => Err(CommandError::new(
            ErrorCode::Location(51024),
            format!("BSON field 'maxTimeMS' value must be >= 0, actual value '{milliseconds}'"),
        )),
    }
}

pub(super) fn check_explained(field: Field<'_>) -> Result<(), CommandError> {
    match field.name {
        "writeConcern" => {
            if let Some(concern) = field.document_or_null()? {
                WriteConcern::parse(concern)?;
            }
            Err(CommandError::new(
                ErrorCode::FailedToParse,
                "Aggregation explain does not support the 'writeConcern' option",
            ))
        }
        _ => Ok(()),
    }
}

/// What an `aggregate` asks for.
#[derive(Default)]
pub struct Parameters<'a> {
    /// `None` for `aggregate: 1`.
    pub collection: Option<&'a str>,
    pub stages: Vec<&'a RawDocument>,
    pub hint: Option<RawBsonRef<'a>>,
    pub variables: Option<&'a RawDocument>,
    pub explain: bool,
    pub has_cursor: bool,
    pub collation: Asked,
    pub allow_disk_use: Option<bool>,
    /// The view that the client reads, and what it comes to; the rest is about the collection below
    /// it.
    pub view: Option<(&'a str, &'a Resolved)>,
}

impl<'a> Parameters<'a> {
    pub fn parse(database: &str, body: &'a RawDocument) -> Result<Parameters<'a>, CommandError> {
        let mut parameters = Parameters::default();
        let mut pipeline = None;
        for (position, field) in params::fields("aggregate", body).enumerate() {
            match field.name {
                _ if position == 0 => parameters.collection = target(database, field.value)?,
                "pipeline" => {
                    pipeline = Some(field.value.as_array().ok_or_else(|| {
                        CommandError::new(
                            ErrorCode::TypeMismatch,
                            "'pipeline' option must be specified as an array",
                        )
                    })?);
                }
                "hint" => parameters.hint = write_report::hint(field)?,
                "let" => parameters.variables = field.document_or_null()?,
                "explain" => parameters.explain = field.strict_bool()?,
                "cursor" => parameters.has_cursor = true,
                "allowDiskUse" => parameters.allow_disk_use = Some(field.strict_bool()?),
                "collation" => parameters.collation = Asked::parse(field)?,
                _ => {}
            }
        }
        let pipeline = pipeline.ok_or_else(|| params::missing_field("aggregate", "pipeline"))?;
        parameters.stages = stages(pipeline)?;
        Ok(parameters)
    }

    pub fn pipeline(&self, context: &Context) -> Result<Pipeline, CommandError> {
        let has_collection = self.collection.is_some();
        Pipeline::parse_of_command(&self.stages, context, has_collection).map_err(errors::query)
    }

    /// What the pipeline is parsed in.
    pub fn context(&self, ctx: &CommandContext<'_>) -> Result<Context, CommandError> {
        let collator = self
            .collation
            .collator(ctx, self.collection.unwrap_or_default());
        if let Some(allowed) = self.allow_disk_use {
            ctx.budget().allow_disk(allowed);
        }
        let collection = self.collection.unwrap_or_default();
        let mut context = query_context(ctx, collection, self.variables, collator)?;
        if self.view.is_some() {
            add_needs_of_view(ctx, collection, &self.stages, &mut context);
        }
        Ok(context)
    }

    /// Whether all that it does is what a `find` can do with its filter and projection.
    pub(super) fn only_projects(&self) -> bool {
        let is = |stage: &&RawDocument, wanted: &str| {
            let mut names = stage.iter().flatten().map(|(name, _)| name.as_str());
            names.next() == Some(wanted)
        };
        match self.stages.split_last() {
            Some((last, before)) => {
                is(last, "$project") && before.iter().all(|stage| is(stage, "$match"))
            }
            None => true,
        }
    }

    /// What the client reads.
    pub fn namespace(&self, database: &str) -> String {
        let view = self.view.map(|(name, _)| name);
        let name = view.or(self.collection).unwrap_or("$cmd.aggregate");
        format!("{database}.{name}")
    }

    /// What the collection comes to, if it is a view.
    pub(super) fn resolved(
        &self,
        ctx: &CommandContext<'_>,
    ) -> Result<Option<Resolved>, CommandError> {
        let Some(name) = self.collection else {
            return Ok(None);
        };
        if change_stream::starts(&self.stages) {
            views::refuse(&ctx.node.replica, &Namespace::new(ctx.database(), name))?;
            return Ok(None);
        }
        // What is told of a collection is not told of the one below a view.
        let first = self.stages.first().and_then(|stage| stage.iter().next());
        match first {
            Some(Ok((stage, _))) if stage.as_str() == "$collStats" => Ok(None),
            // Measurements have indexes, as views have none.
            Some(Ok((stage, _)))
                if stage.as_str() == "$indexStats" && time_series::named(ctx, name).is_some() =>
            {
                Ok(None)
            }
            _ => views::resolve(ctx, name),
        }
    }
}

fn target<'a>(database: &str, value: RawBsonRef<'a>) -> Result<Option<&'a str>, CommandError> {
    match value {
        RawBsonRef::String(name) => {
            // A name that no collection can have is that of one that does not exist.
            check_outline(database, name)?;
            if name == "$cmd.aggregate" {
                return Err(CommandError::new(
                    ErrorCode::InvalidNamespace,
                    format!("Invalid namespace specified '{database}.{name}'"),
                ));
            }
            Ok(Some(name))
        }
        value if params::number(value) == Some(1) => Ok(None),
        value if params::number(value).is_none() => Err(CommandError::new(
            ErrorCode::TypeMismatch,
            format!(
                "collection name has invalid type {}",
                banyan_document::kind::name(&value)
            ),
        )),
        _ => Err(CommandError::new(
            ErrorCode::FailedToParse,
            "Invalid command format: the 'aggregate' field must specify a collection name or 1",
        )),
    }
}

fn stages(pipeline: &RawArray) -> Result<Vec<&RawDocument>, CommandError> {
    pipeline
        .into_iter()
        .map(|stage| match stage {
            Ok(RawBsonRef::Document(stage)) => Ok(stage),
            _ => Err(CommandError::new(
                ErrorCode::TypeMismatch,
                "Each element of the 'pipeline' array must be an object",
            )),
        })
        .collect()
}
