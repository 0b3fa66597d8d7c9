//! $out and $merge: where results are written. The node does the writing.

use std::sync::Arc;

use banyan_document::DocumentWriter;
use bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use super::output::{Merge, Output, WhenMatched, WhenNotMatched};
use super::sequence::ParseInner;
use super::stage::Stage;
use super::stage_run::{Pass, StageRun, Start};
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::{error, items, type_name};

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

pub(super) fn parse_out(
    value: RawBsonRef<'_>,
    _: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let (database, collection) = match value {
        RawBsonRef::String(collection) => (None, collection),
        RawBsonRef::Document(document) => {
            let text = |name| document.get_str(name).ok();
            match (text("db"), text("coll"), document.iter().count()) {
                (Some(database), Some(collection), 2) => (Some(database.into()), collection),
                _ => {
                    return error(
                        16994,
                        "If an object is passed to $out it must have exactly 2 fields: 'db' and \
                         'coll'",
                    );
                }
            }
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
    out.push(Arc::new(Write {
        output: Output::Replace {
            database,
            collection: collection.into(),
        },
        argument: value.into(),
    }));
    Ok(())
}

pub(super) fn parse_merge(
    value: RawBsonRef<'_>,
    context: &Context,
    parse_inner: ParseInner,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let mut merge = Merge {
        database: None,
        collection: String::new(),
        on: Vec::new(),
        when_matched: WhenMatched::Merge,
        when_not_matched: WhenNotMatched::Insert,
        variables: None,
    };
    match value {
        RawBsonRef::String(collection) => merge.collection = collection.into(),
        RawBsonRef::Document(document) => merge.options(document, context, parse_inner)?,
        other => {
            return error(
                51182,
                format!(
                    "$merge requires a string or object argument, but found {}",
                    type_name(Some(other))
                ),
            );
        }
    }
    if merge.collection.is_empty() {
        return Err(QueryError::new(
            ErrorKind::InvalidNamespace,
            "Invalid $merge target namespace, the collection has no name",
        ));
    }
    out.push(Arc::new(Write {
        output: Output::Merge(merge),
        argument: value.into(),
    }));
    Ok(())
}

impl Merge {
    fn options(
        &mut self,
        document: &RawDocument,
        context: &Context,
        parse_inner: ParseInner,
    ) -> Result<(), QueryError> {
        for (name, value) in document.iter().map_while(Result::ok) {
            match (name.as_str(), value) {
                ("into", value) => self.into(value)?,
                ("on", RawBsonRef::String(path)) => self.on = vec![path.into()],
                ("on", RawBsonRef::Array(array)) => {
                    for item in items(array) {
                        let RawBsonRef::String(path) = item else {
                            return error(51134, "$merge 'on' array elements must be strings");
                        };
                        self.on.push(path.into());
                    }
                    if self.on.is_empty() {
                        return error(
                            51187,
                            "If explicitly specifying $merge 'on', must include at least one field",
                        );
                    }
                }
                ("let", RawBsonRef::Document(variables)) => {
                    self.variables = Some(variables.to_owned());
                }
                ("whenMatched", value) => {
                    self.when_matched = when_matched(value, context, parse_inner)?
                }
                ("whenNotMatched", RawBsonRef::String(mode)) => {
                    self.when_not_matched = match mode {
                        "insert" => WhenNotMatched::Insert,
                        "discard" => WhenNotMatched::Discard,
                        "fail" => WhenNotMatched::Fail,
                        other => return bad_mode("whenNotMatched", other),
                    };
                }
                ("on" | "let" | "whenNotMatched", other) => {
                    return Err(QueryError::new(
                        ErrorKind::TypeMismatch,
                        format!(
                            "BSON field '$merge.{name}' is the wrong type '{}'",
                            type_name(Some(other))
                        ),
                    ));
                }
                (other, _) => {
                    return error(
                        40415,
                        format!("BSON field '$merge.{other}' is an unknown field."),
                    );
                }
            }
        }
        Ok(())
    }

    fn into(&mut self, value: RawBsonRef<'_>) -> Result<(), QueryError> {
        match value {
            RawBsonRef::String(collection) => self.collection = collection.into(),
            RawBsonRef::Document(document) => {
                let text = |name| document.get_str(name).ok();
                self.database = text("db").map(Into::into);
                self.collection = text("coll").unwrap_or_default().into();
            }
            other => {
                return error(
                    51178,
                    format!(
                        "$merge 'into' field  must be either a string or an object, but found {}",
                        type_name(Some(other))
                    ),
                );
            }
        }
        Ok(())
    }
}

fn when_matched(
    value: RawBsonRef<'_>,
    context: &Context,
    parse_inner: ParseInner,
) -> Result<WhenMatched, QueryError> {
    match value {
        RawBsonRef::String("merge") => Ok(WhenMatched::Merge),
        RawBsonRef::String("replace") => Ok(WhenMatched::Replace),
        RawBsonRef::String("keepExisting") => Ok(WhenMatched::KeepExisting),
        RawBsonRef::String("fail") => Ok(WhenMatched::Fail),
        RawBsonRef::String(other) => bad_mode("whenMatched", other),
        RawBsonRef::Array(array) => {
            // Parsed again when it runs, with `$$new` bound; here only for its errors.
            let mut context = context.clone();
            let new = bson::RawBson::Document(RawDocumentBuf::new());
            context.variables.push(("new".into(), Some(new)));
            parse_inner("$merge", array, &context)?;
            let stages = items(array).filter_map(|item| item.as_document().map(ToOwned::to_owned));
            Ok(WhenMatched::Pipeline(stages.collect()))
        }
        other => error(
            51191,
            format!(
                "$merge 'whenMatched' field  must be either a string or an array, but found {}",
                type_name(Some(other))
            ),
        ),
    }
}

fn bad_mode<T>(field: &str, mode: &str) -> Result<T, QueryError> {
    Err(QueryError::new(
        ErrorKind::BadValue,
        format!("Enumeration value '{mode}' for field '$merge.{field}' is not a valid value."),
    ))
}
