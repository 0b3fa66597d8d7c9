//! What runs the JavaScript in a query, and what it is asked.

use std::fmt;
use std::sync::Arc;

use banyan_document::DocumentWriter;
use bson::{RawArray, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use crate::error::{ErrorKind, QueryError};

/// Runs the code of `$where`, `$function` and `$accumulator`. Whoever embeds this crate plugs an
/// engine in.
pub trait JavaScript: Send + Sync + fmt::Debug {
    /// Whether `code`, an expression or a function, is true with the document as `this`.
    fn is_true(
        &self,
        code: &str,
        scope: Option<&RawDocument>,
        document: &RawDocument,
    ) -> Result<bool, QueryError>;

    /// What the script comes to. The request is one of [`call`] or of a [`Fold`].
    fn run(&self, request: &RawDocument) -> Result<RawBson, QueryError>;
}

/// The engine of a context, which may have none.
pub(crate) type Engine = Option<Arc<dyn JavaScript>>;

/// Runs a script where there is an engine.
pub(crate) fn run(engine: &Engine, request: &RawDocument) -> Result<RawBson, QueryError> {
    let Some(engine) = engine else {
        return Err(QueryError::new(
            ErrorKind::Location(31_264),
            "Cannot run server-side javascript without the javascript engine enabled",
        ));
    };
    Ok(match engine.run(request)? {
        RawBson::Undefined => RawBson::Null,
        value => value,
    })
}

/// One call of a function: `{source, body: true, arguments: [...]}`. The source may be a function,
/// the body of one, or an expression.
pub(crate) fn call(source: &str, arguments: &RawArray) -> RawDocumentBuf {
    let bytes = source.len() + arguments.as_bytes().len() + 64;
    let mut request = DocumentWriter::with_capacity(bytes);
    request.append_str("source", source);
    request.append_bool("body", true);
    request.append_array("arguments", arguments);
    request.finish()
}

/// The functions of an `$accumulator`.
#[derive(Debug)]
pub(crate) struct Functions {
    pub init: Box<str>,
    pub accumulate: Box<str>,
    pub merge: Box<str>,
    pub finalize: Option<Box<str>>,
}

/// A state and what is to happen to it, in one request:
/// `{fold: {init, arguments: [...]} or {state}, step: <source>, with: [[...], ...], finalize?}`.
/// Each step calls its source with the state and one row of arguments, and gives the next state.
pub(crate) struct Fold<'f> {
    pub functions: &'f Functions,
    pub from: From<'f>,
    pub steps: Steps<'f>,
    pub finalize: bool,
}

#[derive(Clone, Copy)]
pub(crate) enum From<'f> {
    /// What `init` gives for these arguments.
    Init(&'f RawArray),
    State(RawBsonRef<'f>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Accumulate,
    Merge,
}

/// One row of arguments for each step; all steps are alike.
#[derive(Clone, Copy)]
pub(crate) struct Steps<'f> {
    pub step: Step,
    pub rows: &'f RawArray,
}

impl Fold<'_> {
    pub fn request(&self) -> RawDocumentBuf {
        let bytes = self.steps.rows.as_bytes().len() + 512;
        let mut request = DocumentWriter::with_capacity(bytes);
        request.begin_document("fold");
        match self.from {
            From::Init(arguments) => {
                request.append_str("init", &self.functions.init);
                request.append_array("arguments", arguments);
            }
            From::State(state) => request.append("state", state),
        }
        request.end();
        let step = match self.steps.step {
            Step::Accumulate => &self.functions.accumulate,
            Step::Merge => &self.functions.merge,
        };
        request.append_str("step", step);
        request.append_array("with", self.steps.rows);
        if let Some(finalize) = self.functions.finalize.as_ref().filter(|_| self.finalize) {
            request.append_str("finalize", finalize);
        }
        request.finish()
    }
}
