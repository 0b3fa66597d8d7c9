//! Single calls of functions, compiled once for as long as their realm lives.

use std::collections::HashMap;

use bson::{RawDocument, RawDocumentBuf};

use super::failure::Failure;
use super::payload::{document, end_document};
use super::scripts::{call_function, set_variables, with_exceptions};
use crate::bindings::{Bindings, append_value, document_to_v8, value_to_v8};
use crate::error::{ConvertError, ScriptError};
use crate::evaluate::{compile_function, evaluate};
use crate::runtime::Runtime;

/// Queries repeat a handful of functions; more than this are forgotten together.
const FUNCTIONS_MAX: usize = 256;

/// The functions of one realm.
#[derive(Default)]
pub struct Functions {
    by_source: HashMap<Source, v8::Global<v8::Function>>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Source {
    text: String,
    is_expression: bool,
}

impl Functions {
    /// `{source, this?, scope?, arguments: [], expression?}` gives `{value}`. With `expression`,
    /// the source may also be an expression, and the answer is whether it is true.
    pub fn call(
        &mut self,
        runtime: &mut Runtime,
        request: &[u8],
    ) -> Result<RawDocumentBuf, Failure> {
        let request = document(request)?;
        let bindings = runtime.bindings();
        let called = runtime.with_scope(|scope| self.call_in(scope, &bindings, request));
        called.map_err(|error| runtime.explain(error).into())
    }

    fn call_in(
        &mut self,
        scope: &mut v8::HandleScope<'_>,
        bindings: &Bindings,
        request: &RawDocument,
    ) -> Result<RawDocumentBuf, ScriptError> {
        let malformed = || ScriptError::Convert(ConvertError::Malformed);
        if let Ok(variables) = request.get_document("scope") {
            set_variables(scope, bindings, variables)?;
        }
        let source = Source {
            text: request
                .get_str("source")
                .map_err(|_| malformed())?
                .to_owned(),
            is_expression: request.get_bool("expression").unwrap_or(false),
        };
        let is_expression = source.is_expression;
        let function = self.function(scope, source)?;
        let receiver: v8::Local<'_, v8::Value> = match request.get_document("this") {
            Ok(this) => document_to_v8(scope, bindings, this)?.into(),
            Err(_) => v8::undefined(scope).into(),
        };
        let mut arguments = Vec::new();
        for argument in request.get_array("arguments").map_err(|_| malformed())? {
            let argument = argument.map_err(|_| malformed())?;
            arguments.push(value_to_v8(scope, bindings, argument)?);
        }
        let mut value = call_function(scope, function, receiver, &arguments)?;
        if is_expression {
            // The expression may itself have been a function.
            if let Ok(inner) = v8::Local::<v8::Function>::try_from(value) {
                value = call_function(scope, inner, receiver, &arguments)?;
            }
            let is_true = value.boolean_value(scope);
            value = v8::Boolean::new(scope, is_true).into();
        }
        let mut out = vec![0; 4];
        with_exceptions(scope, |scope| {
            append_value(scope, bindings, &mut out, b"value", value)
        })?;
        end_document(&mut out, 0);
        RawDocumentBuf::from_bytes(out).map_err(|_| malformed())
    }

    fn function<'s>(
        &mut self,
        scope: &mut v8::HandleScope<'s>,
        source: Source,
    ) -> Result<v8::Local<'s, v8::Function>, ScriptError> {
        if let Some(known) = self.by_source.get(&source) {
            return Ok(v8::Local::new(scope, known));
        }
        let compiled = if source.is_expression {
            compile_expression(scope, &source.text)?
        } else {
            compile_function(scope, "function", &source.text)?
        };
        if self.by_source.len() >= FUNCTIONS_MAX {
            self.by_source.clear();
        }
        self.by_source
            .insert(source, v8::Global::new(scope, compiled));
        Ok(compiled)
    }
}

/// A function that gives the expression's value; the text may also be a function's body.
fn compile_expression<'s>(
    scope: &mut v8::HandleScope<'s>,
    source: &str,
) -> Result<v8::Local<'s, v8::Function>, ScriptError> {
    let trimmed = source.trim().trim_end_matches(';');
    let wrapped = format!("(function() {{ return (\n{trimmed}\n); }})");
    match evaluate(scope, "expression", &wrapped) {
        Ok(value) => {
            v8::Local::<v8::Function>::try_from(value).map_err(|_| ScriptError::NotAFunction {
                source_start: source.chars().take(80).collect(),
            })
        }
        Err(ScriptError::Syntax { .. }) => {
            compile_function(scope, "expression", &format!("function() {{\n{source}\n}}"))
        }
        Err(error) => Err(error),
    }
}
