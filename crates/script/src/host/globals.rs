//! What scripts on a server find beside the types: `print`, `sleep` and MongoDB's helpers.

use std::thread;
use std::time::Duration;

use super::print;
use crate::evaluate::evaluate;

/// No script waits longer at once, as it could not be ended meanwhile.
const PAUSE_MAX: Duration = Duration::from_millis(10);

/// Puts them into the scope's context.
///
/// The helpers are part of the program: that they do not run is a defect of the build.
#[allow(clippy::expect_used)]
pub fn install(scope: &mut v8::HandleScope<'_>) {
    print::install(scope);
    let helpers =
        evaluate(scope, "helpers", include_str!("helpers.js")).expect("the helpers compile");
    let helpers = v8::Local::<v8::Function>::try_from(helpers).expect("they are a function");
    let pause = v8::Function::new(scope, pause).expect("a native function can be made");
    let receiver = v8::undefined(scope).into();
    let done = helpers.call(scope, receiver, &[pause.into()]);
    done.expect("the helpers run");
}

fn pause(
    scope: &mut v8::HandleScope<'_>,
    arguments: v8::FunctionCallbackArguments<'_>,
    _: v8::ReturnValue<'_>,
) {
    let milliseconds = arguments.get(0).number_value(scope).unwrap_or(0.0);
    let asked = Duration::try_from_secs_f64(milliseconds / 1_000.0).unwrap_or_default();
    thread::sleep(asked.min(PAUSE_MAX));
}
