//! `$merge`: what it says, and the update that brings one result into the target.

use std::borrow::{Borrow, Cow};
use std::collections::BTreeSet;

use banyan_document::element::{elements, field};
use banyan_document::path::{self, Path};
use banyan_document::{Collator, DocumentWriter};
use bson::oid::ObjectId;
use bson::raw::CString;
use bson::{RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::{error, is_nullish, items, type_name};
use crate::expression::{Expression, FieldPath, check_variable_name};

/// The variable that is the result itself.
const NEW: &str = "new";
const PARSER: &str = "$merge";
/// The index that is unique without saying so.
const ID_INDEX: &str = "_id_";

#[derive(Clone, Debug)]
pub struct Merge {
    pub database: Option<String>,
    pub collection: String,
    /// The fields that identify a document; `_id` (or the shard key) if empty.
    pub on: Vec<String>,
    pub when_matched: WhenMatched,
    pub when_not_matched: WhenNotMatched,
}

#[derive(Clone, Debug)]
pub enum WhenMatched {
    Merge,
    Replace,
    KeepExisting,
    Fail,
    Pipeline(MergePipeline),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenNotMatched {
    Insert,
    Discard,
    Fail,
}

/// A pipeline that changes the document of the target.
#[derive(Clone, Debug)]
pub struct MergePipeline {
    stages: Vec<RawDocumentBuf>,
    /// The stage's `let`: evaluated for each result.
    variables: Vec<(String, Expression)>,
    /// The variables of the command, which the pipeline knows, too.
    command_variables: Vec<(String, Option<RawBson>)>,
}

/// Checks the outline of a pipeline.
pub(super) type CheckPipeline = fn(&[&RawDocument]) -> Result<(), QueryError>;

/// The stage as it was written. MongoDB reads this much of it with the outline of the pipeline.
pub(super) struct Specification<'a> {
    database: Option<&'a str>,
    collection: &'a str,
    on: Vec<&'a str>,
    when_matched: Mode<'a>,
    when_not_matched: WhenNotMatched,
    variables: Option<&'a RawDocument>,
}

enum Mode<'a> {
    Merge,
    Replace,
    KeepExisting,
    Fail,
    Pipeline(Vec<&'a RawDocument>),
}

impl<'a> Specification<'a> {
    /// `check`: for the pipeline that it updates documents with.
    pub(super) fn parse(
        argument: RawBsonRef<'a>,
        check: CheckPipeline,
    ) -> Result<Specification<'a>, QueryError> {
        let mut specification = Specification {
            database: None,
            collection: "",
            on: Vec::new(),
            when_matched: Mode::Merge,
            when_not_matched: WhenNotMatched::Insert,
            variables: None,
        };
        match argument {
            RawBsonRef::String("") => {
                return Err(QueryError::new(
                    ErrorKind::InvalidNamespace,
                    "Invalid $merge target namespace, the collection has no name",
                ));
            }
            RawBsonRef::String(collection) => specification.collection = collection,
            RawBsonRef::Document(document) => specification.options(document, check)?,
            other => {
                return Err(QueryError::new(
                    ErrorKind::TypeMismatch,
                    format!(
                        "$merge requires a string or object argument, but found {}",
                        type_name(Some(other))
                    ),
                ));
            }
        }
        specification.check_modes()?;
        Ok(specification)
    }

    fn options(
        &mut self,
        document: &'a RawDocument,
        check: CheckPipeline,
    ) -> Result<(), QueryError> {
        let mut named = false;
        for element in elements(document) {
            match (element.name(), element.value()) {
                ("into", value) => {
                    self.into(value)?;
                    named = true;
                }
                ("on", value) => self.on = on(value)?,
                ("whenMatched", value) => self.when_matched = when_matched(value, check)?,
                ("let" | "whenNotMatched", value) if is_nullish(Some(value)) => {}
                ("let", RawBsonRef::Document(variables)) => self.variables = Some(variables),
                ("whenNotMatched", RawBsonRef::String(mode)) => {
                    self.when_not_matched = match mode {
                        "insert" => WhenNotMatched::Insert,
                        "discard" => WhenNotMatched::Discard,
                        "fail" => WhenNotMatched::Fail,
                        other => return bad_mode("whenNotMatched", other),
                    };
                }
                (name @ ("let" | "whenNotMatched"), other) => return wrong_type(name, other),
                (other, _) => return unknown(PARSER, other),
            }
        }
        match named {
            true => Ok(()),
            false => missing(PARSER, 40414, "into"),
        }
    }

    fn into(&mut self, value: RawBsonRef<'a>) -> Result<(), QueryError> {
        match value {
            RawBsonRef::String(collection) => self.collection = collection,
            RawBsonRef::Document(document) => {
                for element in elements(document) {
                    match (element.name(), element.value()) {
                        ("db" | "coll", value) if is_nullish(Some(value)) => {}
                        // Without a name it is the pipeline's own.
                        ("db", RawBsonRef::String(database)) => {
                            self.database = Some(database).filter(|name| !name.is_empty());
                        }
                        ("coll", RawBsonRef::String(collection)) => self.collection = collection,
                        (name @ ("db" | "coll"), other) => return wrong_type(name, other),
                        (other, _) => return unknown("$merge.into", other),
                    }
                }
                if self.collection.is_empty() {
                    return missing("$merge.into", 5_786_801, "coll");
                }
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
        if self.collection.is_empty() {
            return error(5_786_800, "$merge 'into' string field cannot be empty");
        }
        Ok(())
    }

    /// Whether what is done with results that match goes with what is done with the others.
    fn check_modes(&self) -> Result<(), QueryError> {
        match (&self.when_matched, self.when_not_matched) {
            (Mode::KeepExisting | Mode::Fail, WhenNotMatched::Discard | WhenNotMatched::Fail) => {
                error(
                    51181,
                    "Combination of $merge modes 'whenMatched' and 'whenNotMatched' is not \
                     supported",
                )
            }
            _ => Ok(()),
        }
    }
}

fn on(value: RawBsonRef<'_>) -> Result<Vec<&str>, QueryError> {
    let RawBsonRef::Array(array) = value else {
        let RawBsonRef::String(path) = value else {
            return error(
                51186,
                format!(
                    "$merge 'on' field  must be either a string or an array of strings, but found \
                     {}",
                    type_name(Some(value))
                ),
            );
        };
        return Ok(vec![path]);
    };
    let mut paths = Vec::new();
    for item in items(array) {
        let RawBsonRef::String(path) = item else {
            return error(51134, "$merge 'on' array elements must be strings");
        };
        paths.push(path);
    }
    if paths.is_empty() {
        return error(
            51187,
            "If explicitly specifying $merge 'on', must include at least one field",
        );
    }
    Ok(paths)
}

fn when_matched(value: RawBsonRef<'_>, check: CheckPipeline) -> Result<Mode<'_>, QueryError> {
    match value {
        RawBsonRef::String("merge") => Ok(Mode::Merge),
        RawBsonRef::String("replace") => Ok(Mode::Replace),
        RawBsonRef::String("keepExisting") => Ok(Mode::KeepExisting),
        RawBsonRef::String("fail") => Ok(Mode::Fail),
        RawBsonRef::String(other) => bad_mode("whenMatched", other),
        RawBsonRef::Array(array) => {
            let stages: Option<Vec<_>> = items(array).map(|item| item.as_document()).collect();
            let Some(stages) = stages else {
                return Err(QueryError::new(
                    ErrorKind::TypeMismatch,
                    "Each element of the 'pipeline' array must be an object",
                ));
            };
            // What else is wrong with it is told by the updates that run it.
            check(&stages)?;
            Ok(Mode::Pipeline(stages))
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

fn wrong_type<T>(field: &str, found: RawBsonRef<'_>) -> Result<T, QueryError> {
    Err(QueryError::new(
        ErrorKind::TypeMismatch,
        format!(
            "BSON field '$merge.{field}' is the wrong type '{}'",
            type_name(Some(found))
        ),
    ))
}

fn unknown<T>(parser: &str, field: &str) -> Result<T, QueryError> {
    error(
        40415,
        format!("BSON field '{parser}.{field}' is an unknown field."),
    )
}

fn missing<T>(parser: &str, code: u32, field: &str) -> Result<T, QueryError> {
    error(
        code,
        format!("BSON field '{parser}.{field}' is missing but a required field"),
    )
}

impl Merge {
    pub(super) fn parse(argument: RawBsonRef<'_>, context: &Context) -> Result<Merge, QueryError> {
        // Its outline was looked through with that of the pipeline that it ends.
        let written = Specification::parse(argument, |_| Ok(()))?;
        check_on(&written.on)?;
        let when_matched = match written.when_matched {
            Mode::Pipeline(stages) => WhenMatched::Pipeline(MergePipeline {
                stages: stages.into_iter().map(ToOwned::to_owned).collect(),
                variables: variables(written.variables, context)?,
                command_variables: context.variables.clone(),
            }),
            _ if written.variables.is_some() => {
                return error(
                    51199,
                    "Cannot use 'let' variables with 'whenMatched' other than a pipeline",
                );
            }
            Mode::Merge => WhenMatched::Merge,
            Mode::Replace => WhenMatched::Replace,
            Mode::KeepExisting => WhenMatched::KeepExisting,
            Mode::Fail => WhenMatched::Fail,
        };
        Ok(Merge {
            database: written.database.map(Into::into),
            collection: written.collection.into(),
            on: written.on.into_iter().map(Into::into).collect(),
            when_matched,
            when_not_matched: written.when_not_matched,
        })
    }

    /// Whether each document finds one of the target at most: by `_id` unless fields are named, or, as
    /// one of the target's indexes ensures for strings as `collator` compares them, by these. A target
    /// that is not there yet, which has no indexes, will have that of `_id`.
    pub fn finds_one<'i>(
        &self,
        indexes: impl IntoIterator<Item = &'i RawDocument>,
        collator: Option<&Collator>,
    ) -> Result<(), QueryError> {
        let on: BTreeSet<&str> = self.on.iter().map(String::as_str).collect();
        let mut indexes = indexes.into_iter().peekable();
        let is_id = on.iter().eq(&["_id"]);
        if on.is_empty()
            || (is_id && indexes.peek().is_none())
            || indexes.any(|index| ensures(index, &on, collator))
        {
            return Ok(());
        }
        error(
            51183,
            "Cannot find index to verify that join fields will be unique",
        )
    }

    /// A result that is found by its `_id`, among others, is given one if it has none. Otherwise the
    /// document that it matches keeps its own.
    fn identified<'r>(&self, result: &'r RawDocument) -> Cow<'r, RawDocument> {
        match self.on.is_empty() || self.on.iter().any(|path| path == "_id") {
            true => with_id(result),
            false => Cow::Borrowed(result),
        }
    }

    /// The command that brings these results into the target, those behind one that fails as well.
    /// Documents are found as the target compares strings, whatever the pipeline's way.
    pub fn command(
        &self,
        results: impl IntoIterator<Item = impl Borrow<RawDocument>>,
    ) -> Result<RawDocumentBuf, QueryError> {
        let mut statements = RawArrayBuf::new();
        if matches!(self.when_matched, WhenMatched::Fail) {
            for result in results {
                let result = self.identified(result.borrow());
                self.query(&result)?;
                statements.push(&*result);
            }
            return Ok(rawdoc! {
                "insert": self.collection.as_str(), "documents": statements, "ordered": false,
            });
        }
        for result in results {
            let result = self.identified(result.borrow());
            statements.push(self.statement(&result)?);
        }
        let mut command = rawdoc! {
            "update": self.collection.as_str(), "updates": statements, "ordered": false,
        };
        if let WhenMatched::Pipeline(pipeline) = &self.when_matched
            && !pipeline.command_variables.is_empty()
        {
            command.append(cstr!("let"), pipeline.command_let());
        }
        Ok(command)
    }

    /// What finds the document of the target that a result is merged into.
    fn query(&self, result: &RawDocument) -> Result<RawDocumentBuf, QueryError> {
        let mut query = DocumentWriter::new();
        let id = [String::from("_id")];
        let on = match self.on.is_empty() {
            true => &id[..],
            false => &self.on[..],
        };
        for name in on {
            let found = Path::parse(name)
                .ok()
                .and_then(|path| path::get(result, &path));
            match found {
                None | Some(RawBsonRef::Null | RawBsonRef::Undefined) => {
                    return error(
                        51132,
                        "$merge write error: 'on' field cannot be missing, null or undefined",
                    );
                }
                Some(RawBsonRef::Array(_)) => {
                    return error(51185, "$merge write error: 'on' field cannot be an array");
                }
                Some(value) => {
                    query.begin_document(name);
                    query.append("$eq", value);
                    query.end();
                }
            }
        }
        Ok(query.finish())
    }

    /// The update of one result.
    fn statement(&self, result: &RawDocument) -> Result<RawDocumentBuf, QueryError> {
        let upsert = self.when_not_matched == WhenNotMatched::Insert;
        let mut statement = rawdoc! { "q": self.query(result)? };
        match &self.when_matched {
            WhenMatched::Replace => statement.append(cstr!("u"), result.to_owned()),
            WhenMatched::Merge => {
                statement.append(cstr!("u"), rawdoc! { "$set": result.to_owned() })
            }
            WhenMatched::KeepExisting | WhenMatched::Fail => {
                statement.append(cstr!("u"), rawdoc! { "$setOnInsert": result.to_owned() });
            }
            WhenMatched::Pipeline(pipeline) => {
                let stages: RawArrayBuf = pipeline.stages.iter().cloned().collect();
                statement.append(cstr!("u"), stages);
                statement.append(cstr!("c"), pipeline.constants(result)?);
                // The pipeline changes what is there. What is not is inserted as it is.
                statement.append(cstr!("upsertSupplied"), upsert);
            }
        }
        statement.append(cstr!("upsert"), upsert);
        Ok(statement)
    }
}

/// Results without an `_id` get one, as inserted documents do.
pub fn with_id(result: &RawDocument) -> Cow<'_, RawDocument> {
    if field(result, "_id").is_some() {
        return Cow::Borrowed(result);
    }
    let mut writer = DocumentWriter::with_capacity(result.as_bytes().len() + 32);
    writer.append("_id", RawBsonRef::ObjectId(ObjectId::new()));
    for element in elements(result) {
        writer.append_element(&element);
    }
    Cow::Owned(writer.finish())
}

/// The fields that identify a document.
fn check_on(paths: &[&str]) -> Result<(), QueryError> {
    let mut known = BTreeSet::new();
    for path in paths {
        FieldPath::parse(path)?;
        if !known.insert(path) {
            return error(31465, format!("Found a duplicate field '{path}'"));
        }
    }
    Ok(())
}

/// The variables of the stage. None knows another.
fn variables(
    written: Option<&RawDocument>,
    context: &Context,
) -> Result<Vec<(String, Expression)>, QueryError> {
    let root = rawdoc! { "new": "$$ROOT" };
    let written = written.unwrap_or(&root);
    let new = field(written, NEW);
    if new.is_some_and(|new| new != RawBsonRef::String("$$ROOT")) {
        return error(
            51273,
            "'let' may not define a value for the reserved 'new' variable other than '$$ROOT'",
        );
    }
    context.as_written(|context| {
        let mut variables = Vec::new();
        for element in elements(written) {
            check_variable_name(element.name(), true)?;
            let expression = Expression::parse(element.value(), context)?;
            variables.push((element.name().to_owned(), expression));
        }
        if new.is_none() {
            let result = Expression::parse(RawBsonRef::String("$$ROOT"), context)?;
            variables.push((NEW.to_owned(), result));
        }
        Ok(variables)
    })
}

impl MergePipeline {
    /// The values of the variables for one result. One without a value is not defined.
    fn constants(&self, result: &RawDocument) -> Result<RawDocumentBuf, QueryError> {
        let mut constants = DocumentWriter::new();
        for (name, expression) in &self.variables {
            if let Some(value) = expression.evaluate_owned(result)? {
                constants.append(name, value.as_raw_bson_ref());
            }
        }
        Ok(constants.finish())
    }

    /// The command's variables, as expressions that have their values.
    fn command_let(&self) -> RawDocumentBuf {
        let mut variables = RawDocumentBuf::new();
        for (name, value) in &self.command_variables {
            let Ok(name) = CString::try_from(name.as_str()) else {
                continue;
            };
            match value {
                Some(value) => variables.append(name, rawdoc! { "$literal": value.clone() }),
                None => variables.append(name, "$$REMOVE"),
            }
        }
        variables
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
    let is_id = index.get_str("name").is_ok_and(|name| name == ID_INDEX);
    (is_id || index.get_bool("unique").unwrap_or(false))
        && index.get_document("partialFilterExpression").is_err()
        && keyed == *fields
        && own.as_ref() == collator
}
