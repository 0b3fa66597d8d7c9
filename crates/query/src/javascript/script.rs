//! Code that is called for one document after another, and its calls as the engine is told them.

use std::sync::Arc;

use banyan_document::DocumentWriter;
use bson::{RawArray, RawArrayBuf, RawDocument, RawDocumentBuf};

use super::{Engine, JavaScript, present};
use crate::error::QueryError;

/// Of each call, about so many bytes are written beside its source and what it is given.
const CALL_BYTES: usize = 64;

/// What all calls of it have in common.
#[derive(Debug)]
pub struct Script {
    engine: Engine,
    source: Box<str>,
    form: Form,
}

#[derive(Debug)]
enum Form {
    /// A function, the body of one, or an expression.
    Function,
    /// An expression or a function, of which counts whether it is true of a document.
    Condition { scope: Option<RawDocumentBuf> },
}

impl Script {
    pub(crate) fn function(source: &str, engine: &Engine) -> Arc<Script> {
        Arc::new(Script {
            engine: engine.clone(),
            source: source.into(),
            form: Form::Function,
        })
    }

    pub(crate) fn condition(
        source: &str,
        scope: Option<RawDocumentBuf>,
        engine: Arc<dyn JavaScript>,
    ) -> Arc<Script> {
        Arc::new(Script {
            engine: Some(engine),
            source: source.into(),
            form: Form::Condition { scope },
        })
    }

    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    pub(super) fn engine(&self) -> Result<&Arc<dyn JavaScript>, QueryError> {
        present(&self.engine)
    }

    /// One call as a request of its own: `{source, body: true, arguments: [...]}`, or
    /// `{source, expression: true, scope?, this, arguments: []}`.
    pub(super) fn request(&self, input: Input<'_>) -> RawDocumentBuf {
        let bytes = self.source.len() + input.bytes().len() + CALL_BYTES;
        let mut request = DocumentWriter::with_capacity(bytes);
        request.append_str("source", &self.source);
        self.append(input, &mut request);
        request.finish()
    }

    /// Writes what a request says beside the source.
    fn append(&self, input: Input<'_>, request: &mut DocumentWriter) {
        match &self.form {
            Form::Function => request.append_bool("body", true),
            Form::Condition { scope } => {
                request.append_bool("expression", true);
                if let Some(scope) = scope {
                    request.append_doc("scope", scope);
                }
            }
        }
        match input {
            Input::Arguments(arguments) => request.append_array("arguments", arguments),
            Input::This(document) => {
                request.append_doc("this", document);
                request.begin_array("arguments");
                request.end();
            }
        }
    }
}

/// What a call is given.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Input<'i> {
    Arguments(&'i RawArray),
    /// The document that a condition is about.
    This(&'i RawDocument),
}

impl<'i> Input<'i> {
    fn bytes(self) -> &'i [u8] {
        match self {
            Input::Arguments(arguments) => arguments.as_bytes(),
            Input::This(document) => document.as_bytes(),
        }
    }
}

#[derive(Debug)]
enum OwnedInput {
    Arguments(RawArrayBuf),
    This(RawDocumentBuf),
}

/// A call of a script.
#[derive(Debug)]
pub struct Call {
    script: Arc<Script>,
    input: OwnedInput,
}

impl Call {
    pub(super) fn new(script: &Arc<Script>, input: Input<'_>) -> Call {
        Call {
            script: script.clone(),
            input: match input {
                Input::Arguments(arguments) => OwnedInput::Arguments(arguments.to_owned()),
                Input::This(document) => OwnedInput::This(document.to_owned()),
            },
        }
    }

    fn input(&self) -> Input<'_> {
        match &self.input {
            OwnedInput::Arguments(arguments) => Input::Arguments(arguments),
            OwnedInput::This(document) => Input::This(document),
        }
    }

    pub(super) fn script(&self) -> &Script {
        &self.script
    }

    pub(super) fn is_of(&self, script: &Arc<Script>, input: Input<'_>) -> bool {
        Arc::ptr_eq(&self.script, script) && self.input().bytes() == input.bytes()
    }

    pub(super) fn byte_len(&self) -> usize {
        self.input().bytes().len() + CALL_BYTES
    }

    /// The call alone as a request.
    pub fn request(&self) -> RawDocumentBuf {
        self.script.request(self.input())
    }
}

/// Several calls as one request: `{each: [...]}`. A source that is that of the call before is left out.
pub fn each(calls: &[&Call]) -> RawDocumentBuf {
    let bytes: usize = calls.iter().map(|call| call.byte_len()).sum();
    let mut request = DocumentWriter::with_capacity(bytes + CALL_BYTES);
    let mut before: Option<&Arc<Script>> = None;
    request.begin_array("each");
    for call in calls {
        request.push_document();
        if before.is_none_or(|before| !Arc::ptr_eq(before, &call.script)) {
            request.append_str("source", &call.script.source);
        }
        call.script.append(call.input(), &mut request);
        request.end();
        before = Some(&call.script);
    }
    request.end();
    request.finish()
}
