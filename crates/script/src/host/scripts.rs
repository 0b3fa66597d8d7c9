//! What jobs and calls do alike with a user's code and variables.

use bson::RawDocument;
use bson::raw::RawBsonRef;

use crate::bindings::{Bindings, value_to_v8};
use crate::error::{ConvertError, ScriptError};
use crate::evaluate::{caught, compile_function};

pub type Scope<'s> = v8::HandleScope<'s>;

/// Calls `function`; what it throws is the error.
pub fn call_function<'s>(
    scope: &mut Scope<'s>,
    function: v8::Local<'s, v8::Function>,
    receiver: v8::Local<'s, v8::Value>,
    arguments: &[v8::Local<'s, v8::Value>],
) -> Result<v8::Local<'s, v8::Value>, ScriptError> {
    let scope = &mut v8::TryCatch::new(scope);
    match function.call(scope, receiver, arguments) {
        Some(value) => Ok(value),
        None => Err(caught(scope)),
    }
}

/// A conversion may run getters, and so may throw.
pub fn with_exceptions<'s, T>(
    scope: &mut Scope<'s>,
    work: impl FnOnce(&mut Scope<'s>) -> Result<T, ConvertError>,
) -> Result<T, ScriptError> {
    let scope = &mut v8::TryCatch::new(scope);
    match work(scope) {
        Err(ConvertError::Threw) => Err(caught(scope)),
        other => Ok(other?),
    }
}

/// A property of its own, whatever setters there are.
pub fn put<'s>(
    scope: &mut Scope<'s>,
    object: v8::Local<'s, v8::Object>,
    name: &str,
    value: v8::Local<'s, v8::Value>,
) {
    if let Some(name) = v8::String::new(scope, name) {
        object.create_data_property(scope, name.into(), value);
    }
}

/// The job's `scope`: each field becomes a global; code becomes a function.
pub fn set_variables(
    scope: &mut Scope<'_>,
    bindings: &Bindings,
    variables: &RawDocument,
) -> Result<(), ScriptError> {
    let global = scope.get_current_context().global(scope);
    for element in variables.iter() {
        let (name, value) = element.map_err(|_| ConvertError::Malformed)?;
        let value = match value {
            RawBsonRef::JavaScriptCode(code) => {
                compile_function(scope, name.as_str(), code)?.into()
            }
            RawBsonRef::JavaScriptCodeWithScope(code) => {
                set_variables(scope, bindings, code.scope)?;
                compile_function(scope, name.as_str(), code.code)?.into()
            }
            other => value_to_v8(scope, bindings, other)?,
        };
        put(scope, global, name.as_str(), value);
    }
    Ok(())
}
