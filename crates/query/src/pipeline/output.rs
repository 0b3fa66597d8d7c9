//! $out and $merge: where results are written. The node does the writing.

use std::collections::BTreeSet;
use std::sync::Arc;

use banyan_document::{Collator, DocumentWriter};
use bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use super::Pipeline;
use super::execute::{Pass, StageRun, Start};
use super::stage::Stage;
use super::table::parse_nested;
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

#[derive(Clone, Debug)]
pub enum Output {
    /// `$out`: replaces the collection. The database is the pipeline's own unless named.
    Replace {
        database: Option<String>,
        collection: String,
    },
    /// `$merge`: document by document into an existing collection.
    Merge(Merge),
}

impl Output {
    pub fn stage_name(&self) -> &'static str {
        match self {
            Output::Replace { .. } => "$out",
            Output::Merge(_) => "$merge",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Merge {
    pub database: Option<String>,
    pub collection: String,
    /// The fields that identify a document; `_id` (or the shard key) if empty.
    pub on: Vec<String>,
    pub when_matched: WhenMatched,
    pub when_not_matched: WhenNotMatched,
    pub variables: Option<RawDocumentBuf>,
}

#[derive(Clone, Debug)]
pub enum WhenMatched {
    Merge,
    Replace,
    KeepExisting,
    Fail,
    Pipeline(Vec<RawDocumentBuf>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenNotMatched {
    Insert,
    Discard,
    Fail,
}

impl Output {
    /// The target: the database where it is named, and the collection.
    pub fn target(&self) -> (Option<&str>, &str) {
        match self {
            Output::Replace {
                database,
                collection,
            } => (database.as_deref(), collection),
            Output::Merge(merge) => (merge.database.as_deref(), &merge.collection),
        }
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
        RawBsonRef::Document(document) => merge.options(document, context)?,
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
    /// Whether each document finds one of the target at most: by `_id` or, as one of the target's
    /// indexes ensures for strings as `collator` compares them, by the fields of `on`.
    pub fn finds_one<'i>(
        &self,
        indexes: impl IntoIterator<Item = &'i RawDocument>,
        collator: Option<&Collator>,
    ) -> Result<(), QueryError> {
        let on: BTreeSet<&str> = self.on.iter().map(String::as_str).collect();
        let by_id = on.is_empty() || on.iter().eq(&["_id"]);
        if by_id
            || indexes
                .into_iter()
                .any(|index| ensures(index, &on, collator))
        {
            return Ok(());
        }
        error(
            51183,
            "Cannot find index to verify that join fields will be unique",
        )
    }

    fn options(&mut self, document: &RawDocument, context: &Context) -> Result<(), QueryError> {
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
                ("whenMatched", value) => self.when_matched = when_matched(value, context)?,
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

/// Whether no two documents have the same values of the fields.
fn ensures(index: &RawDocument, fields: &BTreeSet<&str>, collator: Option<&Collator>) -> bool {
    let Ok(key) = index.get_document("key") else {
        return false;
    };
    let mut keyed = BTreeSet::new();
    for (field, direction) in key.iter().flatten() {
        if matches!(direction, RawBsonRef::String(_)) {
            return false;
        }
        keyed.insert(field.as_str());
    }
    let collation = index.get_document("collation").ok();
    let own = collation
        .and_then(|collation| Collator::parse(collation).ok())
        .flatten();
    index.get_bool("unique").unwrap_or(false)
        && index.get_document("partialFilterExpression").is_err()
        && keyed == *fields
        && own.as_ref() == collator
}

fn when_matched(value: RawBsonRef<'_>, context: &Context) -> Result<WhenMatched, QueryError> {
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
            context.variables.push(("new".into(), new));
            let _: Pipeline = parse_nested("$merge", array, &context)?;
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
