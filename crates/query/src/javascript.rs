//! What runs the JavaScript in a query, and what it is asked.
//!
//! A request goes to another process. Where several documents are at hand, their requests are sent
//! together ([`ahead`]).

pub mod ahead;

use std::fmt;
use std::sync::Arc;

use banyan_document::{DocumentWriter, elements};
use bson::{RawArray, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use crate::error::{ErrorKind, QueryError};

/// Runs the code of `$where`, `$function` and `$accumulator`. Whoever embeds this crate plugs an
/// engine in.
pub trait JavaScript: Send + Sync + fmt::Debug {
    /// What the script comes to. The request is one of [`call`], of [`condition`] or of a [`Fold`].
    fn run(&self, request: &RawDocument) -> Result<RawBson, QueryError>;

    /// What several scripts come to, one run after the other, up to one that fails: at least one of
    /// them. The requests are of [`call`] or of [`condition`]. It fails itself where nothing is known of
    /// any of them.
    fn run_each(&self, requests: &[&RawDocument]) -> Result<Answers, QueryError> {
        Ok(match requests.first().map(|first| self.run(first)) {
            None => Answers::default(),
            Some(Ok(value)) => Answers {
                values: vec![value],
                failure: None,
            },
            Some(Err(failure)) => Answers {
                values: Vec::new(),
                failure: Some(failure),
            },
        })
    }
}

/// What the first of several scripts have come to.
#[derive(Debug, Default)]
pub struct Answers {
    pub values: Vec<RawBson>,
    /// What the one behind those has failed with, if it has. None was run behind it.
    pub failure: Option<QueryError>,
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

/// Whether code, an expression or a function, is true with the document as `this`:
/// `{source, expression: true, scope?, this, arguments: []}`. The answer is a boolean.
pub(crate) fn condition(
    code: &str,
    scope: Option<&RawDocument>,
    document: &RawDocument,
) -> RawDocumentBuf {
    let bytes = code.len() + document.as_bytes().len() + 64;
    let mut request = DocumentWriter::with_capacity(bytes);
    request.append_str("source", code);
    request.append_bool("expression", true);
    if let Some(scope) = scope {
        request.append_doc("scope", scope);
    }
    request.append_doc("this", document);
    request.begin_array("arguments");
    request.end();
    request.finish()
}

/// Several requests as one: `{each: [...]}`. A source that is that of the request before is left out.
pub fn each(requests: &[&RawDocument]) -> RawDocumentBuf {
    let bytes: usize = requests
        .iter()
        .map(|request| request.as_bytes().len())
        .sum();
    let mut writer = DocumentWriter::with_capacity(bytes + 64);
    let mut before = None;
    writer.begin_array("each");
    for request in requests {
        let source = banyan_document::field(request, "source");
        writer.push_document();
        for element in elements(request) {
            if element.name() != "source" || source != before {
                writer.append_element(&element);
            }
        }
        writer.end();
        before = source;
    }
    writer.end();
    writer.finish()
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
