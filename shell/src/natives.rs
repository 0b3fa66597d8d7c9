//! What the shell's JavaScript asks of Rust: `native.*`, and the global functions that reach outside.

use std::cell::RefCell;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use banyan_script::bindings::{Bindings, document_from_v8, document_to_v8};
use banyan_script::v8;
use bson::{Document, RawDocumentBuf};

use crate::connections::{ConnectionLost, Connections, Route};

/// What the natives work on, kept in the isolate's slot.
pub struct Outside {
    pub connections: RefCell<Connections>,
    /// Set by `quit()`: the code to leave with.
    pub quit: std::cell::Cell<Option<u8>>,
}

type Scope<'a, 's> = &'a mut v8::HandleScope<'s>;
type Arguments<'s> = v8::FunctionCallbackArguments<'s>;
type Native =
    for<'a, 's> fn(Scope<'a, 's>, &Arguments<'s>, &Outside) -> Result<v8::Local<'s, v8::Value>>;

/// The functions of `native`, which only the shell's own scripts call, and the global ones.
const OWN: [(&str, Native); 8] = [
    ("connect", connect),
    ("address", address),
    ("defaults", defaults),
    ("runCommand", run_command),
    ("lastServer", last_server),
    ("startSession", start_session),
    ("advanceClusterTime", advance_cluster_time),
    ("endSession", end_session),
];
const GLOBAL: [(&str, Native); 12] = [
    ("print", print),
    ("sleep", sleep),
    ("cat", cat),
    ("load", load),
    ("quit", quit),
    ("exit", quit),
    ("version", version),
    ("pwd", pwd),
    ("hostname", hostname),
    ("getHostName", hostname),
    ("gc", collect_garbage),
    ("passwordPrompt", password_prompt),
];

/// Puts the natives into the scope's context.
pub fn install(scope: &mut v8::HandleScope<'_>, outside: Rc<Outside>) {
    scope.set_slot(outside);
    let global = scope.get_current_context().global(scope);
    let native = v8::Object::new(scope);
    if let Some(name) = v8::String::new(scope, "native") {
        global.set(scope, name.into(), native.into());
    }
    for (at, (name, _)) in OWN.iter().chain(&GLOBAL).enumerate() {
        let holder = if at < OWN.len() { native } else { global };
        let number = v8::Integer::new_from_unsigned(scope, u32::try_from(at).unwrap_or(u32::MAX));
        let function = v8::Function::builder(dispatch)
            .data(number.into())
            .build(scope);
        if let (Some(key), Some(function)) = (v8::String::new(scope, name), function) {
            function.set_name(key);
            holder.set(scope, key.into(), function.into());
        }
    }
}

/// Calls the native whose number is the function's data, and throws its error as a JavaScript one.
fn dispatch<'s>(
    scope: &mut v8::HandleScope<'s>,
    arguments: v8::FunctionCallbackArguments<'s>,
    mut returned: v8::ReturnValue<'_>,
) {
    let number = arguments
        .data()
        .uint32_value(scope)
        .and_then(|at| usize::try_from(at).ok());
    let native = number.and_then(|at| OWN.iter().chain(&GLOBAL).nth(at));
    let Some((_, native)) = native else { return };
    let Some(outside) = scope.get_slot::<Rc<Outside>>().cloned() else {
        return;
    };
    match native(scope, &arguments, &outside) {
        Ok(value) => returned.set(value),
        Err(error) => {
            let text = format!("{error:#}");
            let message = v8::String::new(scope, &text).unwrap_or_else(|| v8::String::empty(scope));
            let exception = v8::Exception::error(scope, message);
            if error.chain().any(|cause| cause.is::<ConnectionLost>()) {
                mark(scope, exception, "connectionLost");
            }
            scope.throw_exception(exception);
        }
    }
}

/// Sets a flag on an exception that scripts decide by.
fn mark<'s>(scope: Scope<'_, 's>, exception: v8::Local<'s, v8::Value>, name: &str) {
    let key = v8::String::new(scope, name);
    if let (Some(key), Ok(object)) = (key, v8::Local::<v8::Object>::try_from(exception)) {
        let truth = v8::Boolean::new(scope, true);
        object.set(scope, key.into(), truth.into());
    }
}

fn undefined<'s>(scope: Scope<'_, 's>) -> Result<v8::Local<'s, v8::Value>> {
    Ok(v8::undefined(scope).into())
}

fn text<'s>(scope: Scope<'_, 's>, value: &str) -> Result<v8::Local<'s, v8::Value>> {
    Ok(v8::String::new(scope, value)
        .context("the string is too long")?
        .into())
}

fn number(scope: Scope<'_, '_>, arguments: &Arguments<'_>, at: i32) -> Result<usize> {
    let value = arguments
        .get(at)
        .uint32_value(scope)
        .context("a number is expected")?;
    Ok(usize::try_from(value)?)
}

fn connect<'s>(
    scope: Scope<'_, 's>,
    arguments: &Arguments<'s>,
    outside: &Outside,
) -> Result<v8::Local<'s, v8::Value>> {
    let address = arguments.get(0).to_rust_string_lossy(scope);
    let number = outside.connections.borrow_mut().connect(&address)?;
    Ok(v8::Integer::new_from_unsigned(scope, u32::try_from(number)?).into())
}

fn address<'s>(
    scope: Scope<'_, 's>,
    arguments: &Arguments<'s>,
    outside: &Outside,
) -> Result<v8::Local<'s, v8::Value>> {
    let number = number(scope, arguments, 0)?;
    let connections = outside.connections.borrow();
    text(
        scope,
        connections.address(number).context("no such connection")?,
    )
}

fn defaults<'s>(
    scope: Scope<'_, 's>,
    arguments: &Arguments<'s>,
    outside: &Outside,
) -> Result<v8::Local<'s, v8::Value>> {
    let bindings = Bindings::of(scope).context("the types are not installed")?;
    let number = number(scope, arguments, 0)?;
    let connections = outside.connections.borrow();
    let defaults = connections.defaults(number).context("no such connection")?;
    let defaults = RawDocumentBuf::try_from(defaults.clone())?;
    Ok(document_to_v8(scope, &bindings, &defaults)?.into())
}

/// `native.runCommand(connection, database, command, preference, server, session)`; each of the
/// last three may be left undefined.
fn run_command<'s>(
    scope: Scope<'_, 's>,
    arguments: &Arguments<'s>,
    outside: &Outside,
) -> Result<v8::Local<'s, v8::Value>> {
    let bindings = Bindings::of(scope).context("the types are not installed")?;
    let connection = number(scope, arguments, 0)?;
    let database = arguments.get(1).to_rust_string_lossy(scope);
    let command = document(scope, &bindings, arguments.get(2)).context("the command")?;
    let mut route = Route::default();
    if !arguments.get(3).is_undefined() {
        let preference = document(scope, &bindings, arguments.get(3)).context("$readPreference")?;
        route.preference = Some(Document::try_from(preference)?);
    }
    if !arguments.get(4).is_undefined() {
        route.server = Some(arguments.get(4).to_rust_string_lossy(scope));
    }
    if !arguments.get(5).is_undefined() {
        route.session = Some(number(scope, arguments, 5)?);
    }
    let mut connections = outside.connections.borrow_mut();
    let reply = connections.run(connection, &database, command, &route)?;
    Ok(document_to_v8(scope, &bindings, &reply)?.into())
}

fn last_server<'s>(
    scope: Scope<'_, 's>,
    arguments: &Arguments<'s>,
    outside: &Outside,
) -> Result<v8::Local<'s, v8::Value>> {
    let number = number(scope, arguments, 0)?;
    match outside.connections.borrow().last_server(number) {
        Some(server) => text(scope, &server),
        None => undefined(scope),
    }
}

/// `native.startSession(connection)`: `{number, id}`.
fn start_session<'s>(
    scope: Scope<'_, 's>,
    arguments: &Arguments<'s>,
    outside: &Outside,
) -> Result<v8::Local<'s, v8::Value>> {
    let bindings = Bindings::of(scope).context("the types are not installed")?;
    let connection = number(scope, arguments, 0)?;
    let (number, id) = outside.connections.borrow_mut().start_session(connection)?;
    let session =
        bson::rawdoc! { "number": i32::try_from(number)?, "id": RawDocumentBuf::try_from(id)? };
    Ok(document_to_v8(scope, &bindings, &session)?.into())
}

fn advance_cluster_time<'s>(
    scope: Scope<'_, 's>,
    arguments: &Arguments<'s>,
    outside: &Outside,
) -> Result<v8::Local<'s, v8::Value>> {
    let bindings = Bindings::of(scope).context("the types are not installed")?;
    let session = number(scope, arguments, 0)?;
    let time = document(scope, &bindings, arguments.get(1)).context("the cluster time")?;
    let mut connections = outside.connections.borrow_mut();
    connections.advance_cluster_time(session, &time)?;
    undefined(scope)
}

fn end_session<'s>(
    scope: Scope<'_, 's>,
    arguments: &Arguments<'s>,
    outside: &Outside,
) -> Result<v8::Local<'s, v8::Value>> {
    let session = number(scope, arguments, 0)?;
    outside.connections.borrow_mut().end_session(session);
    undefined(scope)
}

fn document<'s>(
    scope: Scope<'_, 's>,
    bindings: &Bindings,
    value: v8::Local<'s, v8::Value>,
) -> Result<RawDocumentBuf> {
    let object = v8::Local::<v8::Object>::try_from(value).map_err(|_| anyhow!("not an object"))?;
    Ok(document_from_v8(scope, bindings, object)?)
}

fn print<'s>(
    scope: Scope<'_, 's>,
    arguments: &Arguments<'s>,
    _outside: &Outside,
) -> Result<v8::Local<'s, v8::Value>> {
    let words: Vec<String> = (0..arguments.length())
        .map(|at| arguments.get(at).to_rust_string_lossy(scope))
        .collect();
    // A reader that went away (a closed pipe) is no error of the script.
    let _ = writeln!(std::io::stdout(), "{}", words.join(" "));
    undefined(scope)
}

fn password_prompt<'s>(
    scope: Scope<'_, 's>,
    _: &Arguments<'s>,
    _: &Outside,
) -> Result<v8::Local<'s, v8::Value>> {
    let password = crate::login::ask_password()?;
    let password = v8::String::new(scope, &password).context("a password that long")?;
    Ok(password.into())
}

fn sleep<'s>(
    scope: Scope<'_, 's>,
    arguments: &Arguments<'s>,
    outside: &Outside,
) -> Result<v8::Local<'s, v8::Value>> {
    let milliseconds = arguments
        .get(0)
        .number_value(scope)
        .unwrap_or(0.0)
        .clamp(0.0, 86_400_000.0);
    let time = Duration::from_secs_f64(milliseconds / 1000.0);
    outside.connections.borrow().sleep(time);
    undefined(scope)
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {path}"))
}

fn cat<'s>(
    scope: Scope<'_, 's>,
    arguments: &Arguments<'s>,
    _outside: &Outside,
) -> Result<v8::Local<'s, v8::Value>> {
    let path = arguments.get(0).to_rust_string_lossy(scope);
    let contents = read(&path)?;
    text(scope, &contents)
}

fn load<'s>(
    scope: Scope<'_, 's>,
    arguments: &Arguments<'s>,
    _outside: &Outside,
) -> Result<v8::Local<'s, v8::Value>> {
    let path = arguments.get(0).to_rust_string_lossy(scope);
    let source = read(&path)?;
    let name = Path::new(&path).display().to_string();
    banyan_script::evaluate::evaluate(scope, &name, &source).map_err(|error| {
        let text = error.to_string();
        let told = text.strip_prefix("Error: ").unwrap_or(&text);
        anyhow!("error loading {path}: {told}")
    })?;
    Ok(v8::Boolean::new(scope, true).into())
}

/// Ends the running script; the session sees the code and leaves.
fn quit<'s>(
    scope: Scope<'_, 's>,
    arguments: &Arguments<'s>,
    outside: &Outside,
) -> Result<v8::Local<'s, v8::Value>> {
    let code = arguments.get(0).uint32_value(scope).unwrap_or(0);
    outside.quit.set(Some(u8::try_from(code & 0xff)?));
    scope.terminate_execution();
    undefined(scope)
}

fn version<'s>(
    scope: Scope<'_, 's>,
    _arguments: &Arguments<'s>,
    _outside: &Outside,
) -> Result<v8::Local<'s, v8::Value>> {
    text(scope, env!("CARGO_PKG_VERSION"))
}

fn pwd<'s>(
    scope: Scope<'_, 's>,
    _arguments: &Arguments<'s>,
    _outside: &Outside,
) -> Result<v8::Local<'s, v8::Value>> {
    text(scope, &std::env::current_dir()?.display().to_string())
}

fn hostname<'s>(
    scope: Scope<'_, 's>,
    _arguments: &Arguments<'s>,
    _outside: &Outside,
) -> Result<v8::Local<'s, v8::Value>> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").context("the host's name")?;
    text(scope, name.trim())
}

fn collect_garbage<'s>(
    scope: Scope<'_, 's>,
    _arguments: &Arguments<'s>,
    _outside: &Outside,
) -> Result<v8::Local<'s, v8::Value>> {
    scope.low_memory_notification();
    undefined(scope)
}
