//! Validators of collections: what a write has to be for its document to be taken.
//!
//! The member that runs a write checks it, as the entry that comes of it is physical: whoever applies
//! one takes what it says.

use std::sync::Arc;

use banyan_query::validator::ends_operation;
use banyan_query::{Budget, Context, QueryError, Validator};
use banyan_storage::{Collection, Namespace};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::context::WriteContext;
use crate::errors;

pub const VALIDATOR: &str = "validator";
pub const LEVEL: &str = "validationLevel";
pub const ACTION: &str = "validationAction";

/// `validationLevel`: which writes are held against the validator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    Off,
    /// Not updates of documents that did not match before.
    Moderate,
    Strict,
}

impl Level {
    pub fn parse(name: &str) -> Option<Level> {
        match name {
            "off" => Some(Level::Off),
            "moderate" => Some(Level::Moderate),
            "strict" => Some(Level::Strict),
            _ => None,
        }
    }

    /// The level among a collection's options.
    pub fn of(options: &RawDocument) -> Level {
        let named = options.get_str(LEVEL).ok();
        named.and_then(Level::parse).unwrap_or(Level::Strict)
    }
}

/// `validationAction`: what becomes of a write whose document does not match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// It is done, and the log told.
    Warn,
    Error,
}

impl Action {
    pub fn parse(name: &str) -> Option<Action> {
        match name {
            "warn" => Some(Action::Warn),
            "error" => Some(Action::Error),
            _ => None,
        }
    }

    /// The action among a collection's options.
    pub fn of(options: &RawDocument) -> Action {
        let named = options.get_str(ACTION).ok();
        named.and_then(Action::parse).unwrap_or(Action::Error)
    }
}

/// The validator of a collection. `None`: everything is taken. `budget`: what evaluating expressions
/// may use; a validator without any is parsed once for all operations.
pub fn of_collection(
    collection: &Collection,
    budget: impl FnOnce() -> Budget,
) -> Result<Option<Arc<Validator>>, CommandError> {
    let Ok(source) = collection.options.get_document(VALIDATOR) else {
        return Ok(None);
    };
    if Level::of(&collection.options) == Level::Off {
        return Ok(None);
    }
    let shared = collection
        .from_options(|| {
            let context = context(collection, Budget::unlimited());
            Validator::parse(source, &context).map(Arc::new)
        })
        .ok_or_else(|| errors::internal("a collection's options were read as something else"))?;
    match &*shared {
        Ok(validator) if !validator.computes() => Ok(Some(validator.clone())),
        _ => {
            let validator = Validator::parse(source, &context(collection, budget()));
            validator.map(Arc::new).map(Some).map_err(errors::query)
        }
    }
}

/// What the validator of a collection is parsed in.
pub fn context(collection: &Collection, budget: Budget) -> Context {
    Context {
        collator: collection.collator.clone(),
        budget,
        ..Context::default()
    }
}

/// What a command on one collection holds its documents against.
#[derive(Debug)]
pub struct Validation {
    validator: Arc<Validator>,
    level: Level,
    action: Action,
}

impl Validation {
    pub(super) fn of(
        ctx: &WriteContext<'_>,
        collection: &Collection,
    ) -> Result<Option<Validation>, CommandError> {
        if ctx.bypass_validation {
            return Ok(None);
        }
        let budget = || Budget::ended_by(ctx.operation.slot().clone());
        let validator = of_collection(collection, budget)?;
        Ok(validator.map(|validator| Validation {
            validator,
            level: Level::of(&collection.options),
            action: Action::of(&collection.options),
        }))
    }

    /// Refuses a document that does not match. `before`: what an update makes it of.
    pub(super) fn check(
        &self,
        namespace: &Namespace,
        before: Option<&RawDocument>,
        after: &RawDocument,
    ) -> Result<(), CommandError> {
        let accepts =
            |document: &RawDocument| self.validator.accepts(document).map_err(errors::query);
        if accepts(after)? {
            return Ok(());
        }
        if let (Level::Moderate, Some(before)) = (self.level, before)
            && !accepts(before)?
        {
            return Ok(());
        }
        let failure = self.failure(after).map_err(errors::query)?;
        if self.action == Action::Warn {
            let details = errors::shown(RawBsonRef::Document(&failure));
            tracing::warn!(%namespace, details, "a document that fails validation was written");
            return Ok(());
        }
        let extra = rawdoc! { "errInfo": failure };
        let error = CommandError::new(
            ErrorCode::DocumentValidationFailure,
            "Document failed validation",
        );
        Err(error.with_extra(extra))
    }

    /// `errInfo`: which document, and why.
    fn failure(&self, document: &RawDocument) -> Result<RawDocumentBuf, QueryError> {
        let mut failure = RawDocumentBuf::new();
        if let Some(id) = banyan_document::field(document, "_id") {
            failure.append(cstr!("failingDocumentId"), id);
        }
        let name = |code| ErrorCode::from_code(code).name().into_owned();
        let details = match self.validator.explain(document, &name) {
            Ok(details) if details.as_bytes().len() > DETAILS_BYTES_MAX => {
                failure.append(cstr!("truncated"), true);
                without_values(&details)
            }
            Ok(details) => details,
            Err(error) if ends_operation(error.kind) => return Err(error),
            Err(error) => {
                let note = "failed to generate document validation error";
                failure.append(cstr!("note"), note);
                let code = error.kind.code();
                rawdoc! { "code": code, "codeName": name(code), "errmsg": error.message }
            }
        };
        failure.append(cstr!("details"), details);
        Ok(failure)
    }
}

/// They have to fit into a reply with the document's `_id`.
const DETAILS_BYTES_MAX: usize = 12 << 20;

/// Details that say neither what was asked for nor what was found.
fn without_values(details: &RawDocument) -> RawDocumentBuf {
    let mut kept = RawDocumentBuf::new();
    for (name, value) in details.iter().flatten() {
        match (name.as_str(), value) {
            (
                "specifiedAs"
                | "consideredValue"
                | "consideredValues"
                | "consideredValuesTruncated"
                | "duplicatedValue"
                | "additionalItems"
                | "expressionResult",
                _,
            ) => {}
            (_, RawBsonRef::Document(inner)) => kept.append(name, without_values(inner)),
            (_, RawBsonRef::Array(items)) => {
                let mut shorter = RawArrayBuf::new();
                for item in items.into_iter().flatten() {
                    match item {
                        RawBsonRef::Document(item) => shorter.push(without_values(item)),
                        other => shorter.push(other),
                    }
                }
                kept.append(name, shorter);
            }
            (_, other) => kept.append(name, other),
        }
    }
    kept
}
