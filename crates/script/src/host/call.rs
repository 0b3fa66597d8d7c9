//! Single calls of functions, compiled once for as long as their realm lives.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bson::{RawArray, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::failure::Failure;
use super::payload::{document, end_document};
use super::scripts::{Scope, call_function, set_variables, with_exceptions};
use crate::bindings::{Bindings, Elements, ToV8, append_value, text, value_to_v8};
use crate::error::{ConvertError, ScriptError};
use crate::evaluate::{compile_function, evaluate};
use crate::runtime::Runtime;

/// Queries repeat a handful of functions; more than this are forgotten together.
const FUNCTIONS_MAX: usize = 256;
/// Of several calls no other is begun once they have taken so long, or come to so many bytes: whoever
/// asked may have enough of them, and asks for the rest if not.
const CALLS_TIME: Duration = Duration::from_millis(10);
const CALLS_BYTES: usize = 1 << 20;

// BSON's type bytes.
const STRING: u8 = 2;
const DOCUMENT: u8 = 3;
const ARRAY: u8 = 4;
const BOOLEAN: u8 = 8;

/// The functions of one realm.
#[derive(Default)]
pub struct Functions {
    by_source: HashMap<Source, v8::Global<v8::Function>>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Source {
    text: String,
    form: Form,
}

/// What a text may be.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Form {
    /// A function, or the body of one.
    Function,
    /// That or an expression, whose value counts.
    Body,
    /// The same; whether its value is true counts.
    Condition,
}

/// A request for one call, taken apart.
struct Call<'r> {
    source: Option<&'r str>,
    form: Form,
    /// The variables that it brings along.
    scope: Option<&'r RawDocument>,
    this: Option<&'r [u8]>,
    arguments: &'r [u8],
}

impl<'r> Call<'r> {
    fn parse(request: &'r [u8]) -> Result<Call<'r>, ConvertError> {
        let (mut source, mut scope, mut this, mut arguments) = (None, None, None, None);
        let (mut is_condition, mut is_body) = (false, false);
        for element in Elements::new(request)? {
            let element = element?;
            let is_true = || element.value.first() == Some(&1);
            match (element.kind, element.name) {
                (STRING, b"source") => {
                    let text = std::str::from_utf8(text(element.value)?);
                    source = Some(text.map_err(|_| ConvertError::Malformed)?);
                }
                (BOOLEAN, b"expression") => is_condition = is_true(),
                (BOOLEAN, b"body") => is_body = is_true(),
                (DOCUMENT, b"scope") => scope = Some(document(element.value)?),
                (DOCUMENT, b"this") => this = Some(element.value),
                (ARRAY, b"arguments") => arguments = Some(element.value),
                _ => {}
            }
        }
        Ok(Call {
            source,
            form: match (is_condition, is_body) {
                (true, _) => Form::Condition,
                (false, true) => Form::Body,
                (false, false) => Form::Function,
            },
            scope,
            this,
            arguments: arguments.ok_or(ConvertError::Malformed)?,
        })
    }

    fn make<'s>(
        &self,
        scope: &mut v8::HandleScope<'s>,
        bindings: &Bindings,
        function: v8::Local<'_, v8::Function>,
    ) -> Result<v8::Local<'s, v8::Value>, ScriptError> {
        if let Some(variables) = self.scope {
            set_variables(scope, bindings, variables)?;
        }
        let function = v8::Local::new(scope, function);
        let receiver: v8::Local<'_, v8::Value> = match self.this {
            Some(this) => ToV8 { bindings }.object(scope, this, 0)?.into(),
            None if self.form == Form::Body => v8::Object::new(scope).into(),
            None => v8::undefined(scope).into(),
        };
        let arguments = values(scope, bindings, self.arguments)?;
        let mut value = call_function(scope, function, receiver, &arguments)?;
        if self.form == Form::Condition {
            // The expression may itself have been a function.
            if let Ok(inner) = v8::Local::<v8::Function>::try_from(value) {
                value = call_function(scope, inner, receiver, &arguments)?;
            }
            let is_true = value.boolean_value(scope);
            value = v8::Boolean::new(scope, is_true).into();
        }
        Ok(value)
    }
}

impl Functions {
    /// `{source, this?, scope?, arguments: [], expression?, body?}` gives `{value}`. With
    /// `expression`, the source may also be an expression, and the answer is whether it is true;
    /// with `body`, it may be one, too. What has a `fold` instead is one of those, and what has
    /// `each`, several calls.
    pub fn call(
        &mut self,
        runtime: &mut Runtime,
        request: &[u8],
    ) -> Result<RawDocumentBuf, Failure> {
        let request = document(request)?;
        if let Ok(calls) = request.get_array("each") {
            return self.call_each(runtime, calls);
        }
        let bindings = runtime.bindings();
        let called = runtime.with_scope(|scope| match request.get_document("fold") {
            Ok(fold) => self.fold_in(scope, &bindings, request, fold),
            Err(_) => self.call_in(scope, &bindings, request),
        });
        called.map_err(|error| runtime.explain(error).into())
    }

    /// `{each: [call, …]}` gives `{values: [], failure?: {code, message}}`: what those calls have come
    /// to that were made, one after the other, up to one that failed. A call without a source is one
    /// of the same function as the call before it.
    fn call_each(
        &mut self,
        runtime: &mut Runtime,
        calls: &RawArray,
    ) -> Result<RawDocumentBuf, Failure> {
        let bindings = runtime.bindings();
        let mut answer = vec![0; 4];
        answer.push(ARRAY);
        answer.extend_from_slice(b"values\0");
        let values = answer.len();
        answer.extend_from_slice(&[0; 4]);
        let mut end = answer.len();
        let called = runtime
            .with_scope(|scope| self.append_each(scope, &bindings, calls, &mut answer, &mut end));
        let failure = match called.map_err(|error| runtime.explain(error)) {
            Ok(()) => None,
            // The host is of no more use, or nobody waits for it.
            Err(error @ (ScriptError::OutOfMemory { .. } | ScriptError::Terminated)) => {
                return Err(error.into());
            }
            Err(error) => {
                answer.truncate(end);
                Some(Failure::from(error))
            }
        };
        end_document(&mut answer, values);
        end_document(&mut answer, 0);
        let answer = RawDocumentBuf::from_bytes(answer);
        let mut answer = answer.map_err(|_| Failure::from(ConvertError::Malformed))?;
        if let Some(failure) = failure {
            let failure = rawdoc! { "code": failure.code, "message": failure.message };
            answer.append(cstr!("failure"), failure);
        }
        Ok(answer)
    }

    /// Appends what the calls come to, as elements of an array; `end` is where the last whole one ends.
    fn append_each(
        &mut self,
        scope: &mut Scope<'_>,
        bindings: &Bindings,
        calls: &RawArray,
        answer: &mut Vec<u8>,
        end: &mut usize,
    ) -> Result<(), ScriptError> {
        let began = Instant::now();
        let start = *end;
        let mut source = "";
        let mut known = None;
        for call in Elements::new(calls.as_bytes()).map_err(ConvertError::from)? {
            let is_late = began.elapsed() > CALLS_TIME || *end > CALLS_BYTES;
            if is_late && *end > start {
                break;
            }
            let call = call.map_err(ConvertError::from)?;
            let call = Call::parse(call.value)?;
            let function = match known {
                Some((form, function)) if call.source.is_none() && form == call.form => function,
                _ => {
                    source = call.source.unwrap_or(source);
                    self.function(scope, source, call.form)?
                }
            };
            known = Some((call.form, function));
            let scope = &mut v8::HandleScope::new(scope);
            let value = call.make(scope, bindings, function)?;
            // The names in an array are of no use to whoever reads all of it.
            with_exceptions(scope, |scope| {
                append_value(scope, bindings, answer, b"", value)
            })?;
            *end = answer.len();
        }
        Ok(())
    }

    fn call_in(
        &mut self,
        scope: &mut v8::HandleScope<'_>,
        bindings: &Bindings,
        request: &RawDocument,
    ) -> Result<RawDocumentBuf, ScriptError> {
        let call = Call::parse(request.as_bytes())?;
        let source = call.source.ok_or(ConvertError::Malformed)?;
        let function = self.function(scope, source, call.form)?;
        let value = call.make(scope, bindings, function)?;
        answer(scope, bindings, value)
    }

    /// `{fold: {init, arguments: []} or {state}, step, with: [[], …], finalize?}` gives `{value}`:
    /// what the state has come to after `step(state, …)` with each row of arguments.
    fn fold_in(
        &mut self,
        scope: &mut Scope<'_>,
        bindings: &Bindings,
        request: &RawDocument,
        from: &RawDocument,
    ) -> Result<RawDocumentBuf, ScriptError> {
        let malformed = || ScriptError::Convert(ConvertError::Malformed);
        let receiver: v8::Local<'_, v8::Value> = v8::Object::new(scope).into();
        let mut state = match from.get("state").map_err(|_| malformed())? {
            Some(state) => value_to_v8(scope, bindings, state)?,
            None => {
                let init = from.get_str("init").map_err(|_| malformed())?;
                let init = self.function(scope, init, Form::Body)?;
                let arguments = from.get_array("arguments").map_err(|_| malformed())?;
                let arguments = values(scope, bindings, arguments.as_bytes())?;
                let state = call_function(scope, init, receiver, &arguments)?;
                defined(scope, state)
            }
        };
        let rows = request.get_array("with").map_err(|_| malformed())?;
        if !rows.is_empty() {
            let step = request.get_str("step").map_err(|_| malformed())?;
            let step = self.function(scope, step, Form::Body)?;
            for row in rows {
                let Ok(RawBsonRef::Array(row)) = row else {
                    return Err(malformed());
                };
                let mut arguments = vec![state];
                arguments.append(&mut values(scope, bindings, row.as_bytes())?);
                let next = call_function(scope, step, receiver, &arguments)?;
                state = defined(scope, next);
            }
        }
        if let Ok(finalize) = request.get_str("finalize") {
            let finalize = self.function(scope, finalize, Form::Body)?;
            state = call_function(scope, finalize, receiver, &[state])?;
        }
        answer(scope, bindings, state)
    }

    fn function<'s>(
        &mut self,
        scope: &mut v8::HandleScope<'s>,
        text: &str,
        form: Form,
    ) -> Result<v8::Local<'s, v8::Function>, ScriptError> {
        let source = Source {
            text: text.to_owned(),
            form,
        };
        if let Some(known) = self.by_source.get(&source) {
            return Ok(v8::Local::new(scope, known));
        }
        let compiled = match form {
            Form::Condition => compile_expression(scope, text)?,
            Form::Function => compile_function(scope, "function", text)?,
            Form::Body => match compile_function(scope, "function", text) {
                Err(ScriptError::NotAFunction { .. }) => compile_expression(scope, text)?,
                compiled => compiled?,
            },
        };
        if self.by_source.len() >= FUNCTIONS_MAX {
            self.by_source.clear();
        }
        self.by_source
            .insert(source, v8::Global::new(scope, compiled));
        Ok(compiled)
    }
}

fn values<'s>(
    scope: &mut Scope<'s>,
    bindings: &Bindings,
    array: &[u8],
) -> Result<Vec<v8::Local<'s, v8::Value>>, ScriptError> {
    let to_v8 = ToV8 { bindings };
    let mut values = Vec::new();
    for element in Elements::new(array).map_err(ConvertError::from)? {
        let element = element.map_err(ConvertError::from)?;
        values.push(to_v8.element(scope, &element, 0)?);
    }
    Ok(values)
}

/// A state is null where a function returned nothing, as it is where it was kept as BSON meanwhile.
fn defined<'s>(scope: &mut Scope<'s>, value: v8::Local<'s, v8::Value>) -> v8::Local<'s, v8::Value> {
    match value.is_undefined() {
        true => v8::null(scope).into(),
        false => value,
    }
}

fn answer<'s>(
    scope: &mut Scope<'s>,
    bindings: &Bindings,
    value: v8::Local<'s, v8::Value>,
) -> Result<RawDocumentBuf, ScriptError> {
    let mut out = vec![0; 4];
    with_exceptions(scope, |scope| {
        append_value(scope, bindings, &mut out, b"value", value)
    })?;
    end_document(&mut out, 0);
    RawDocumentBuf::from_bytes(out).map_err(|_| ScriptError::Convert(ConvertError::Malformed))
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
