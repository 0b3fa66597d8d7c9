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

pub(super) fn parse_out(
    value: RawBsonRef<'_>,
    _: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let (database, collection) = out_target(value)?;
    out.push(Arc::new(Write {
        output: Output::Replace {
            database: database.map(Into::into),
            collection: collection.into(),
        },
        argument: value.into(),
    }));
    Ok(())
}

pub(super) fn parse_merge(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    out.push(Arc::new(Write {
        output: Output::Merge(Merge::parse(value, context)?),
        argument: value.into(),
    }));
    Ok(())
}
