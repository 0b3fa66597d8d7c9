//! What runs the JavaScript in a query, and what it is asked.
//!
//! A request goes to another process. Where several documents are at hand, the calls for all of them
//! are sent together ([`ahead`]).

pub mod ahead;
mod script;

pub(crate) use script::Input;
pub use script::{Call, Script, each};

use std::fmt;
use std::sync::Arc;

use banyan_document::DocumentWriter;
use bson::{RawArray, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use crate::error::{ErrorKind, QueryError};

/// Runs the code of `$where`, `$function` and `$accumulator`. Whoever embeds this crate plugs an
/// engine in.
pub trait JavaScript: Send + Sync + fmt::Debug {
    /// What the script comes to. The request is that of a [`Call`] or of a [`Fold`].
    fn run(&self, request: &RawDocument) -> Result<RawBson, QueryError>;

    /// Begins several calls, which are made one after the other up to one that fails: at least one of
    /// them. Until they are finished the engine is asked nothing else.
    fn begin_each(&self, calls: &[&Call]) -> Result<Box<dyn Running + '_>, QueryError> {
        let answers = match calls.first().map(|first| self.run(&first.request())) {
            None => Answers::default(),
            Some(Ok(value)) => Answers {
                values: vec![value],
                failure: None,
            },
            Some(Err(failure)) => Answers {
                values: Vec::new(),
                failure: Some(failure),
            },
        };
        Ok(Box::new(answers))
    }
}

/// Calls that are being made.
pub trait Running {
    /// Waits for them. It fails where nothing is known of any of them.
    fn finish(self: Box<Self>) -> Result<Answers, QueryError>;
}

/// What the first of several scripts have come to.
#[derive(Debug, Default)]
pub struct Answers {
    pub values: Vec<RawBson>,
    /// What the one behind those has failed with, if it has. None was run behind it.
    pub failure: Option<QueryError>,
}

impl Running for Answers {
    fn finish(self: Box<Self>) -> Result<Answers, QueryError> {
        Ok(*self)
    }
}

/// The engine of a context, which may have none.
pub(crate) type Engine = Option<Arc<dyn JavaScript>>;

/// Runs a script at once.
pub(crate) fn run_now(engine: &Engine, request: &RawDocument) -> Result<RawBson, QueryError> {
    defined(present(engine)?.run(request))
}

fn present(engine: &Engine) -> Result<&Arc<dyn JavaScript>, QueryError> {
    engine.as_ref().ok_or_else(|| {
        QueryError::new(
            ErrorKind::Location(31_264),
            "Cannot run server-side javascript without the javascript engine enabled",
        )
    })
}

fn defined(value: Result<RawBson, QueryError>) -> Result<RawBson, QueryError> {
    Ok(match value? {
        RawBson::Undefined => RawBson::Null,
        value => value,
    })
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
