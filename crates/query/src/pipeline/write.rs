//! $out and $merge: where results are written. The node does the writing.

use std::sync::Arc;

use banyan_document::{DocumentWriter, field};
use bson::{RawBson, RawBsonRef};

use super::merge::Merge;
use super::output::Output;
use super::stage::Stage;
use super::stage_run::{Pass, StageRun, Start};
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::{error, type_name};

/// The stage that says where.
#[derive(Debug)]
struct Write {
    output: Output,
    argument: RawBson,
}

impl Stage for Write {
    fn name(&self) -> &'static str {
        self.output.stage_name()
    }

    fn serialize(&self, out: &mut DocumentWriter) {
        out.append(self.name(), self.argument.as_raw_bson_ref());
    }

    fn output(&self) -> Option<&Output> {
        Some(&self.output)
    }

    /// Whoever runs the pipeline writes its results.
    fn run(self: Arc<Self>, _: &Start<'_>) -> Result<Box<dyn StageRun>, QueryError> {
        Ok(Box::new(Pass))
    }
}

/// What `db` or `coll` names.
fn name_of<'a>(option: &str, value: RawBsonRef<'a>) -> Result<&'a str, QueryError> {
    let RawBsonRef::String(name) = value else {
        let found = type_name(Some(value));
        return error(
            13111,
            format!("wrong type for field ({option}) {found} != string"),
        );
    };
    Ok(name)
}

/// The target of `$out`: the database where it is named, and the collection.
pub(super) fn out_target(value: RawBsonRef<'_>) -> Result<(Option<&str>, &str), QueryError> {
    let (database, collection) = match value {
        RawBsonRef::String(collection) => (None, collection),
        RawBsonRef::Document(document) => {
            let (database, collection) = (field(document, "db"), field(document, "coll"));
            let (Some(database), Some(collection), 2) =
                (database, collection, document.iter().count())
            else {
                return error(
                    16994,
                    "If an object is passed to $out it must have exactly 2 fields: 'db' and \
                     'coll'",
                );
            };
            (Some(name_of("db", database)?), name_of("coll", collection)?)
        }
        other => {
            return error(
                16990,
                format!(
                    "$out only supports a string or object argument, but found {}",
                    type_name(Some(other))
                ),
            );
        }
    };
    if collection.is_empty() {
        return Err(QueryError::new(
            ErrorKind::InvalidNamespace,
            "Invalid $out target namespace, the collection has no name",
        ));
    }
    Ok((database, collection))
}

/// Collections and databases in which no results are written.
fn check_target(
    output: &Output,
    context: &Context,
    (system_collection, own_database): (u32, u32),
) -> Result<(), QueryError> {
    let name = output.stage_name();
    let (database, collection) = output.target();
    if collection.starts_with("system.") {
        let message = format!("Cannot {name} to special collection: {collection}");
        return error(system_collection, message);
    }
    let database = database.or(context.database.as_deref());
    if let Some(database @ ("admin" | "config" | "local")) = database {
        let message = format!("Cannot {name} to internal database: {database}");
        return error(own_database, message);
    }
    Ok(())
}

pub(super) fn parse_out(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let (database, collection) = out_target(value)?;
    let output = Output::Replace {
        database: database.map(Into::into),
        collection: collection.into(),
    };
    check_target(&output, context, (17_385, 31_321))?;
    out.push(Arc::new(Write {
        output,
        argument: value.into(),
    }));
    Ok(())
}

pub(super) fn parse_merge(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let output = Output::Merge(Merge::parse(value, context)?);
    check_target(&output, context, (31_319, 31_320))?;
    out.push(Arc::new(Write {
        output,
        argument: value.into(),
    }));
    Ok(())
}
