//! What a lane tells of a job or a call that has no result.

use crate::error::{ConvertError, ScriptError};
use crate::evaluate::UNKNOWN_ERROR;

/// Why a job ended without a result, in the terms of the wire.
#[derive(Debug)]
pub struct Failure {
    pub code: i32,
    pub message: String,
}

const JS_INTERPRETER_FAILURE: i32 = 139;
pub const EXCEEDED_MEMORY_LIMIT: i32 = 146;
const INTERRUPTED: i32 = 11601;
const OBJECT_TOO_LARGE: i32 = 17260;
const NESTED_TOO_DEEP: i32 = 17279;
/// The codes that `driver.js` throws with; those of a user's own exceptions mean nothing.
const DRIVER_CODES: [i32; 4] = [31220, 31292, OBJECT_TOO_LARGE, NESTED_TOO_DEEP];

impl From<ScriptError> for Failure {
    fn from(error: ScriptError) -> Self {
        let message = error.to_string();
        let code = match error {
            ScriptError::Thrown {
                code: Some(code), ..
            } if code == UNKNOWN_ERROR || DRIVER_CODES.contains(&code) => code,
            ScriptError::OutOfMemory { .. } => EXCEEDED_MEMORY_LIMIT,
            ScriptError::Terminated => INTERRUPTED,
            ScriptError::Convert(ConvertError::TooLarge) => OBJECT_TOO_LARGE,
            ScriptError::Convert(ConvertError::TooDeep) => NESTED_TOO_DEEP,
            ScriptError::Thrown {
                stack: Some(stack), ..
            } => {
                // V8's trace begins with the message; MongoDB's messages have both as well.
                return Failure {
                    code: JS_INTERPRETER_FAILURE,
                    message: with_trace(message, &stack),
                };
            }
            _ => JS_INTERPRETER_FAILURE,
        };
        Failure { code, message }
    }
}

impl From<ConvertError> for Failure {
    fn from(error: ConvertError) -> Self {
        ScriptError::Convert(error).into()
    }
}

/// `Error: boom :` and the places in the user's functions, without those of the driver.
fn with_trace(message: String, stack: &str) -> String {
    let places = stack
        .lines()
        .filter_map(|line| line.trim().strip_prefix("at "));
    let own: Vec<&str> = places
        .filter(|place| !place.contains("driver:"))
        .take(8)
        .collect();
    if own.is_empty() {
        message
    } else {
        format!("{message} :\n@{}\n", own.join("\n@"))
    }
}

impl Failure {
    /// A frame does not hold what it should.
    pub fn broken(what: &str) -> Failure {
        let message = format!("the script host could not read {what}");
        Failure {
            code: JS_INTERPRETER_FAILURE,
            message,
        }
    }
}
