//! One map-reduce job in a lane: the user's functions, the driver, and the way in and out.

use std::cell::{Cell, RefCell};
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use banyan_document::Collator;
use bson::raw::RawBsonRef;
use bson::{RawDocument, RawDocumentBuf};

use super::failure::Failure;
use super::fields::fields_read;
use super::payload::{document, documents, end_document};
use super::scripts::{Scope, call_function, put, set_variables, with_exceptions};
use super::sink::{Output, Run};
use crate::bindings::{self, Bindings, Elements, ToV8, append_value, value_to_v8};
use crate::error::{ConvertError, ScriptError};
use crate::evaluate::{compile_function, evaluate};
use crate::runtime::Runtime;

/// So many documents are handed to V8 at a time.
const DOCUMENTS_PER_CALL: usize = 256;

pub struct JobSpec {
    pub map: Option<String>,
    pub reduce: String,
    pub finalize: Option<String>,
    pub scope: Option<RawDocumentBuf>,
    /// Which keys are one; without one, strings are compared by their bytes.
    pub collator: Option<Collator>,
}

impl JobSpec {
    pub fn parse(bytes: &[u8]) -> Option<JobSpec> {
        let spec = RawDocument::from_bytes(bytes).ok()?;
        let text = |name: &str| spec.get_str(name).ok().map(str::to_string);
        Some(JobSpec {
            map: text("map"),
            reduce: text("reduce")?,
            finalize: text("finalize"),
            scope: spec.get_document("scope").ok().map(RawDocument::to_owned),
            collator: match spec.get_document("collation") {
                Ok(collation) => Collator::parse(collation).ok()?,
                Err(_) => None,
            },
        })
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut spec = RawDocumentBuf::new();
        if let Some(map) = &self.map {
            spec.append(bson::raw::cstr!("map"), map.as_str());
        }
        spec.append(bson::raw::cstr!("reduce"), self.reduce.as_str());
        if let Some(finalize) = &self.finalize {
            spec.append(bson::raw::cstr!("finalize"), finalize.as_str());
        }
        if let Some(scope) = &self.scope {
            spec.append(bson::raw::cstr!("scope"), scope.clone());
        }
        if let Some(collator) = &self.collator {
            let collation = collator.collation().to_document();
            spec.append(bson::raw::cstr!("collation"), collation);
        }
        spec.into_bytes()
    }
}

/// What the driver's native functions share with the lane.
struct Shared {
    bindings: Rc<Bindings>,
    run: RefCell<Run>,
    output: RefCell<Output>,
    heap: Heap,
    collator: Option<Collator>,
}

/// When to send what is there on as a run. V8's figure includes garbage, so a high one is asked
/// again after a collection.
struct Heap {
    bytes_max: usize,
    look_again_at: Cell<usize>,
}

impl Heap {
    fn is_full(&self, isolate: &mut v8::Isolate) -> bool {
        if isolate.get_heap_statistics().used_heap_size() < self.look_again_at.get() {
            return false;
        }
        isolate.low_memory_notification();
        let used = isolate.get_heap_statistics().used_heap_size();
        let full = used > self.bytes_max / 2;
        self.look_again_at
            .set(self.bytes_max.max(if full { 0 } else { used * 2 }));
        full
    }
}

/// How documents reach the map function.
enum Mapping {
    None,
    Whole(v8::Global<v8::Function>),
    Fields {
        names: Vec<Vec<u8>>,
        runner: v8::Global<v8::Function>,
    },
}

pub struct Job {
    shared: Rc<Shared>,
    mapping: Mapping,
    flush: v8::Global<v8::Function>,
    finish: v8::Global<v8::Function>,
    emits: v8::Global<v8::Function>,
    reduces: v8::Global<v8::Function>,
}

impl Job {
    pub fn start(
        runtime: &mut Runtime,
        spec: &JobSpec,
        output: UnixStream,
        heap_bytes_max: usize,
    ) -> Result<Job, Failure> {
        let bytes_max = heap_bytes_max / 5 * 2;
        let shared = Rc::new(Shared {
            bindings: runtime.bindings(),
            run: RefCell::default(),
            output: RefCell::new(Output::new(output)),
            heap: Heap {
                bytes_max,
                look_again_at: Cell::new(bytes_max),
            },
            collator: spec.collator.clone(),
        });
        let started = runtime.with_scope(|scope| {
            scope.set_slot(shared.clone());
            Job::start_in(scope, spec, shared)
        });
        started.map_err(|error| runtime.explain(error).into())
    }

    fn start_in(
        scope: &mut Scope<'_>,
        spec: &JobSpec,
        shared: Rc<Shared>,
    ) -> Result<Job, ScriptError> {
        let driver = start_driver(scope, &shared.bindings)?;
        if let Some(variables) = &spec.scope {
            set_variables(scope, &shared.bindings, variables)?;
        }
        let functions = v8::Object::new(scope);
        let map = match &spec.map {
            Some(map) => Some(compile_function(scope, "map", map)?),
            None => None,
        };
        let reduce = compile_function(scope, "reduce", &spec.reduce)?;
        put(scope, functions, "reduce", reduce.into());
        if let Some(finalize) = &spec.finalize {
            let finalize = compile_function(scope, "finalize", finalize)?;
            put(scope, functions, "finalize", finalize.into());
        }
        if let Some(map) = map {
            put(scope, functions, "map", map.into());
        }
        let collated = v8::Boolean::new(scope, spec.collator.is_some());
        put(scope, functions, "collated", collated.into());
        let set_functions = method(scope, driver, "setFunctions")?;
        call_driver(scope, set_functions, &[functions.into()])?;
        let mapping = match (map, &spec.map) {
            (Some(map), Some(source)) => mapping(scope, driver, map, source)?,
            _ => Mapping::None,
        };
        let mut global = |name: &str| {
            let function = method(scope, driver, name)?;
            Ok::<_, ScriptError>(v8::Global::new(scope, function))
        };
        let (flush, finish) = (global("flush")?, global("finish")?);
        let (emits, reduces) = (global("emits")?, global("reduces")?);
        Ok(Job {
            shared,
            mapping,
            flush,
            finish,
            emits,
            reduces,
        })
    }

    /// Maps a batch of documents; gives back how many there were.
    pub fn map(&mut self, runtime: &mut Runtime, payload: &[u8]) -> Result<i64, Failure> {
        let mut rest = documents(payload);
        let mut count = 0;
        let mapped = runtime.with_scope(|scope| {
            loop {
                let scope = &mut v8::HandleScope::new(scope);
                let mapped = self.map_some(scope, &mut rest)?;
                count += mapped as i64;
                if mapped < DOCUMENTS_PER_CALL {
                    break;
                }
            }
            if self.shared.heap.is_full(scope) {
                let flush = v8::Local::new(scope, &self.flush);
                call_driver(scope, flush, &[])?;
            }
            Ok(())
        });
        mapped.map_err(|error| runtime.explain(error))?;
        Ok(count)
    }

    fn map_some<'p>(
        &self,
        scope: &mut Scope<'_>,
        rest: &mut impl Iterator<Item = Result<&'p [u8], ConvertError>>,
    ) -> Result<usize, ScriptError> {
        let to_v8 = ToV8 {
            bindings: &self.shared.bindings,
        };
        let mut values: Vec<v8::Local<'_, v8::Value>> = Vec::with_capacity(DOCUMENTS_PER_CALL * 2);
        let mut count = 0;
        let runner = match &self.mapping {
            Mapping::None => return Err(ConvertError::Malformed.into()),
            Mapping::Whole(runner) => {
                for document in rest.take(DOCUMENTS_PER_CALL) {
                    values.push(to_v8.object(scope, document?, 0)?.into());
                    count += 1;
                }
                runner
            }
            Mapping::Fields { names, runner } => {
                let undefined = v8::undefined(scope).into();
                for document in rest.take(DOCUMENTS_PER_CALL) {
                    let start = values.len();
                    values.resize(start + names.len(), undefined);
                    pick(scope, &to_v8, document?, names, &mut values[start..])?;
                    count += 1;
                }
                runner
            }
        };
        if count == 0 {
            return Ok(0);
        }
        let values = v8::Array::new_with_elements(scope, &values);
        let runner = v8::Local::new(scope, runner);
        let length = v8::Integer::new(scope, count as i32);
        call_driver(scope, runner, &[values.into(), length.into()])?;
        Ok(count)
    }

    /// Sends what is left as a last run; gives back the numbers of emits and reduces.
    pub fn finish_mapping(&mut self, runtime: &mut Runtime) -> Result<(i64, i64), Failure> {
        let finished = runtime.with_scope(|scope| {
            let flush = v8::Local::new(scope, &self.flush);
            call_driver(scope, flush, &[])?;
            Ok((count(scope, &self.emits)?, count(scope, &self.reduces)?))
        });
        finished.map_err(|error| runtime.explain(error).into())
    }

    /// Groups `{k: key, v: [values]}`, or `{k, v, f: true}` where finalize has its turn, become
    /// `{_id: key, value}`. The answer begins with the number of calls of reduce (i64).
    pub fn reduce(&mut self, runtime: &mut Runtime, payload: &[u8]) -> Result<Vec<u8>, Failure> {
        let reduced = runtime.with_scope(|scope| {
            let before = count(scope, &self.reduces)?;
            let mut out = vec![0; 8];
            for group in documents(payload) {
                let scope = &mut v8::HandleScope::new(scope);
                self.reduce_group(scope, document(group?)?, &mut out)?;
            }
            let reduces = count(scope, &self.reduces)? - before;
            out[..8].copy_from_slice(&reduces.to_le_bytes());
            Ok(out)
        });
        reduced.map_err(|error| runtime.explain(error).into())
    }

    fn reduce_group(
        &self,
        scope: &mut Scope<'_>,
        group: &RawDocument,
        out: &mut Vec<u8>,
    ) -> Result<(), ScriptError> {
        let malformed = || ScriptError::Convert(ConvertError::Malformed);
        let key = group.get("k").ok().flatten().ok_or_else(malformed)?;
        let values = group.get_array("v").map_err(|_| malformed())?;
        let last = group.get_bool("f").unwrap_or(false);
        let bindings = &self.shared.bindings;
        let key_value = value_to_v8(scope, bindings, key)?;
        let values = ToV8 { bindings }.array(scope, values.as_bytes(), 0)?;
        let last = v8::Boolean::new(scope, last);
        let finish = v8::Local::new(scope, &self.finish);
        let arguments = [key_value, values.into(), last.into()];
        let value = call_driver(scope, finish, &arguments)?;
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        out.push(key.element_type() as u8);
        out.extend_from_slice(b"_id\0");
        banyan_document::writer::append_value(out, key);
        with_exceptions(scope, |scope| {
            append_value(scope, bindings, out, b"value", value)
        })?;
        end_document(out, start);
        Ok(())
    }
}

/// Lets go of what the isolate still holds of the last job.
pub fn forget(runtime: &mut Runtime) {
    runtime.isolate().remove_slot::<Rc<Shared>>();
}

impl Drop for Job {
    fn drop(&mut self) {
        self.shared.output.borrow_mut().flush();
    }
}

/// Calls a function of the driver's: they have no receiver.
fn call_driver<'s>(
    scope: &mut Scope<'s>,
    function: v8::Local<'s, v8::Function>,
    arguments: &[v8::Local<'s, v8::Value>],
) -> Result<v8::Local<'s, v8::Value>, ScriptError> {
    let receiver = v8::undefined(scope).into();
    call_function(scope, function, receiver, arguments)
}

fn count(scope: &mut Scope<'_>, function: &v8::Global<v8::Function>) -> Result<i64, ScriptError> {
    let function = v8::Local::new(scope, function);
    let value = call_driver(scope, function, &[])?;
    Ok(value.integer_value(scope).unwrap_or(0))
}

fn method<'s>(
    scope: &mut Scope<'s>,
    object: v8::Local<'s, v8::Object>,
    name: &str,
) -> Result<v8::Local<'s, v8::Function>, ScriptError> {
    let key = v8::String::new(scope, name);
    let found = key.and_then(|key| object.get(scope, key.into()));
    found
        .and_then(|found| v8::Local::try_from(found).ok())
        .ok_or_else(|| ScriptError::NotAFunction {
            source_start: name.to_string(),
        })
}

/// Runs `driver.js` with its native functions.
fn start_driver<'s>(
    scope: &mut Scope<'s>,
    bindings: &Bindings,
) -> Result<v8::Local<'s, v8::Object>, ScriptError> {
    let native = v8::Object::new(scope);
    let origin = bindings.origin_symbol(scope);
    put(scope, native, "origin", origin.into());
    let functions = [
        ("keyOf", v8::Function::new(scope, key_of)),
        ("sink", v8::Function::new(scope, sink)),
        ("endRun", v8::Function::new(scope, end_run)),
        ("isFull", v8::Function::new(scope, is_full)),
        ("tagOf", v8::Function::new(scope, bindings::tag_of)),
    ];
    for (name, function) in functions {
        if let Some(function) = function {
            put(scope, native, name, function.into());
        }
    }
    let driver = evaluate(scope, "driver", include_str!("driver.js"))?;
    let driver = v8::Local::<v8::Function>::try_from(driver);
    let driver = driver.map_err(|_| ScriptError::NotAFunction {
        source_start: "driver".into(),
    })?;
    let driver = call_driver(scope, driver, &[native.into()])?;
    v8::Local::<v8::Object>::try_from(driver).map_err(|_| ScriptError::NotAFunction {
        source_start: "driver".into(),
    })
}

/// Chooses how documents reach `map`, by what its source reads of them.
fn mapping<'s>(
    scope: &mut Scope<'s>,
    driver: v8::Local<'s, v8::Object>,
    map: v8::Local<'s, v8::Function>,
    source: &str,
) -> Result<Mapping, ScriptError> {
    let Some(names) = fields_read(source) else {
        let runner = method(scope, driver, "mapDocuments")?;
        return Ok(Mapping::Whole(v8::Global::new(scope, runner)));
    };
    let begin = method(scope, driver, "beginDocument")?;
    let maker = evaluate(scope, "driver", &runner_source(&names))?;
    let maker = v8::Local::<v8::Function>::try_from(maker);
    let maker = maker.map_err(|_| ScriptError::NotAFunction {
        source_start: "runner".into(),
    })?;
    let runner = call_driver(scope, maker, &[map.into(), begin.into()])?;
    let runner = v8::Local::<v8::Function>::try_from(runner);
    let runner = runner.map_err(|_| ScriptError::NotAFunction {
        source_start: "runner".into(),
    })?;
    let names = names.into_iter().map(String::into_bytes).collect();
    Ok(Mapping::Fields {
        names,
        runner: v8::Global::new(scope, runner),
    })
}

/// A loop that makes objects of just these fields: one shape, known when the loop is compiled.
fn runner_source(names: &[String]) -> String {
    let field = |(index, name): (usize, &String)| format!("\"{name}\": values[j + {index}]");
    let fields: Vec<String> = names.iter().enumerate().map(field).collect();
    let (fields, step) = (fields.join(", "), names.len());
    format!(
        "(function (map, begin) {{ \"use strict\"; return function (values, n) {{ \
         for (let i = 0, j = 0; i < n; i++, j += {step}) {{ \
         begin(); map.call({{ {fields} }}); }} }}; }})"
    )
}

/// The values of the named fields, in the order of the names.
fn pick<'s>(
    scope: &mut Scope<'s>,
    to_v8: &ToV8<'_>,
    document: &[u8],
    names: &[Vec<u8>],
    values: &mut [v8::Local<'s, v8::Value>],
) -> Result<(), ConvertError> {
    let mut missing = names.len();
    if missing == 0 {
        return Ok(());
    }
    for element in Elements::new(document)? {
        let element = element?;
        if let Some(index) = names.iter().position(|name| **name == *element.name) {
            values[index] = to_v8.element(scope, &element, 0)?;
            missing -= 1;
            if missing == 0 {
                break;
            }
        }
    }
    Ok(())
}

// The driver's native functions.

fn shared(scope: &mut Scope<'_>) -> Option<Rc<Shared>> {
    scope.get_slot::<Rc<Shared>>().cloned()
}

/// A key's identity: a number for what equals a double, else its sortable encoding as a string.
fn key_of<'s>(
    scope: &mut Scope<'s>,
    arguments: v8::FunctionCallbackArguments<'s>,
    mut result: v8::ReturnValue<'_>,
) {
    let Some(shared) = shared(scope) else { return };
    let holder = match bindings::value_from_v8(scope, &shared.bindings, arguments.get(0)) {
        Ok(holder) => holder,
        Err(error) => return throw(scope, &error),
    };
    let Ok(Some(key)) = holder.get("") else {
        return throw(scope, &ConvertError::Malformed);
    };
    if let Some(number) = as_exact_double(key) {
        return result.set_double(number);
    }
    let mut encoded = Vec::new();
    banyan_document::key::encode_collated(key, shared.collator.as_ref(), &mut encoded);
    match v8::String::new_from_one_byte(scope, &encoded, v8::NewStringType::Normal) {
        Some(identity) => result.set(identity.into()),
        None => throw(scope, &ConvertError::StringTooLong),
    }
}

fn as_exact_double(key: RawBsonRef<'_>) -> Option<f64> {
    let double = match key {
        RawBsonRef::Double(double) => return Some(double),
        RawBsonRef::Int32(integer) => return Some(f64::from(integer)),
        RawBsonRef::Int64(integer) => integer as f64,
        RawBsonRef::Decimal128(decimal) => decimal.to_string().parse().ok()?,
        _ => return None,
    };
    let equal = banyan_document::compare::compare(RawBsonRef::Double(double), key).is_eq();
    equal.then_some(double)
}

fn throw(scope: &mut Scope<'_>, error: &ConvertError) {
    if *error != ConvertError::Threw {
        bindings::throw(scope, &error.to_string());
    }
}

/// Takes one reduced value for the run.
fn sink<'s>(
    scope: &mut Scope<'s>,
    arguments: v8::FunctionCallbackArguments<'s>,
    _: v8::ReturnValue<'_>,
) {
    let Some(shared) = shared(scope) else { return };
    let mut out = vec![0; 4];
    let written = append_value(scope, &shared.bindings, &mut out, b"_id", arguments.get(0))
        .and_then(|()| {
            append_value(
                scope,
                &shared.bindings,
                &mut out,
                b"value",
                arguments.get(1),
            )
        });
    if let Err(error) = written {
        return throw(scope, &error);
    }
    end_document(&mut out, 0);
    let mut key = Vec::with_capacity(32);
    match RawDocument::from_bytes(&out)
        .ok()
        .and_then(|partial| partial.get("_id").ok().flatten())
    {
        Some(id) => {
            banyan_document::key::encode_collated(id, shared.collator.as_ref(), &mut key);
        }
        None => return throw(scope, &ConvertError::Malformed),
    }
    shared.run.borrow_mut().push(key, out);
}

fn end_run<'s>(
    scope: &mut Scope<'s>,
    _: v8::FunctionCallbackArguments<'s>,
    _: v8::ReturnValue<'_>,
) {
    let Some(shared) = shared(scope) else { return };
    let mut output = shared.output.borrow_mut();
    shared.run.borrow_mut().send(&mut output);
    output.flush();
}

fn is_full<'s>(
    scope: &mut Scope<'s>,
    _: v8::FunctionCallbackArguments<'s>,
    mut result: v8::ReturnValue<'_>,
) {
    let Some(shared) = shared(scope) else { return };
    result.set_bool(shared.heap.is_full(scope));
}
