//! Compiling and running a source in a scope's context.

use crate::error::ScriptError;

/// Compiles and runs `source` in the scope's context.
pub fn evaluate<'s>(
    scope: &mut v8::HandleScope<'s>,
    name: &str,
    source: &str,
) -> Result<v8::Local<'s, v8::Value>, ScriptError> {
    let scope = &mut v8::TryCatch::new(scope);
    let too_long = || ScriptError::Syntax {
        message: "the script is too long".to_string(),
    };
    let code = v8::String::new(scope, source).ok_or_else(too_long)?;
    let origin = origin(scope, name);
    let Some(script) = v8::Script::compile(scope, code, Some(&origin)) else {
        return Err(match caught(scope) {
            ScriptError::Thrown { message, .. } => ScriptError::Syntax { message },
            other => other,
        });
    };
    match script.run(scope) {
        Some(value) => Ok(value),
        None => Err(caught(scope)),
    }
}

/// The function that `source` is: a function expression, an arrow function, or the body of one.
pub fn compile_function<'s>(
    scope: &mut v8::HandleScope<'s>,
    name: &str,
    source: &str,
) -> Result<v8::Local<'s, v8::Function>, ScriptError> {
    let trimmed = source.trim().trim_end_matches(';');
    let as_expression = evaluate(scope, name, &format!("({trimmed}\n)"));
    let value = match as_expression {
        Err(ScriptError::Syntax { message }) => {
            // Not an expression: perhaps a body. If it is neither, the first complaint stands.
            match evaluate(scope, name, &format!("(function() {{\n{source}\n}})")) {
                Err(ScriptError::Syntax { .. }) => return Err(ScriptError::Syntax { message }),
                other => other?,
            }
        }
        other => other?,
    };
    v8::Local::<v8::Function>::try_from(value).map_err(|_| ScriptError::NotAFunction {
        source_start: source.chars().take(80).collect(),
    })
}

fn origin<'s>(scope: &mut v8::HandleScope<'s>, name: &str) -> v8::ScriptOrigin<'s> {
    let name = v8::String::new(scope, name).unwrap_or_else(|| v8::String::empty(scope));
    v8::ScriptOrigin::new(
        scope,
        name.into(),
        0,
        0,
        false,
        0,
        None,
        false,
        false,
        false,
        None,
    )
}

/// What a `TryCatch` holds, as an error.
pub fn caught(scope: &mut v8::TryCatch<'_, v8::HandleScope<'_>>) -> ScriptError {
    if scope.has_terminated() {
        return ScriptError::Terminated;
    }
    let Some(exception) = scope.exception() else {
        // Nothing thrown and no value either: V8 does this when execution is being ended.
        return ScriptError::Terminated;
    };
    let stack = scope
        .stack_trace()
        .map(|stack| stack.to_rust_string_lossy(scope));
    scope.reset();
    let message = exception_text(scope, exception);
    let code = exception_code(scope, exception);
    ScriptError::Thrown {
        message,
        stack,
        code,
    }
}

fn exception_text<'s>(
    scope: &mut v8::HandleScope<'s>,
    exception: v8::Local<'s, v8::Value>,
) -> String {
    let attempt = &mut v8::TryCatch::new(scope);
    if exception.is_native_error() || !exception.is_object() {
        let text = exception.to_string(attempt);
        let text = text.map(|text| text.to_rust_string_lossy(attempt));
        return match text {
            Some(text) if exception.is_native_error() => text,
            Some(text) => format!("uncaught exception: {text}"),
            None => "uncaught exception".to_string(),
        };
    }
    let text = v8::json::stringify(attempt, exception);
    let text = text
        .map(|text| text.to_rust_string_lossy(attempt))
        .unwrap_or_default();
    format!("uncaught exception: {text}")
}

/// `UnknownError`, the code of what is thrown and is no object.
pub(crate) const UNKNOWN_ERROR: i32 = 8;

/// A thrown object may say its error code, but not that it is none.
fn exception_code<'s>(
    scope: &mut v8::HandleScope<'s>,
    exception: v8::Local<'s, v8::Value>,
) -> Option<i32> {
    let attempt = &mut v8::TryCatch::new(scope);
    let Ok(object) = v8::Local::<v8::Object>::try_from(exception) else {
        return Some(UNKNOWN_ERROR);
    };
    let name = v8::String::new(attempt, "code")?;
    let code = object.get(attempt, name.into())?;
    let code = code.is_int32().then(|| code.int32_value(attempt))?;
    code.filter(|code| *code != UNKNOWN_ERROR)
}
