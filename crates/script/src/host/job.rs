//! One map-reduce job in a lane: the user's functions, the driver, and the way in and out.

use std::os::unix::net::UnixStream;
use std::rc::Rc;

use banyan_document::Collator;
use bson::{RawDocument, RawDocumentBuf};

use super::driver::{self, Shared};
use super::failure::Failure;
use super::fields::fields_read;
use super::payload::{documents, end_document, next_document};
use super::scripts::{Scope, put, set_variables};
use crate::bindings::{Element, Elements, ToV8};
use crate::error::{ConvertError, ScriptError};
use crate::evaluate::{compile_function, evaluate};
use crate::runtime::Runtime;

/// So many documents are handed to V8 at a time.
const DOCUMENTS_PER_CALL: usize = 256;
/// And so many groups.
const GROUPS_PER_CALL: usize = 256;

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
        let collator = spec.collator.clone();
        let shared = Shared::new(runtime.bindings(), collator, output, heap_bytes_max);
        let started = runtime.with_scope(|scope| Job::start_in(scope, spec, Rc::new(shared)));
        started.map_err(|error| runtime.explain(error).into())
    }

    fn start_in(
        scope: &mut Scope<'_>,
        spec: &JobSpec,
        shared: Rc<Shared>,
    ) -> Result<Job, ScriptError> {
        let driver = driver::start(scope, &shared)?;
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
        driver::call(scope, set_functions, &[functions.into()])?;
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
                driver::call(scope, flush, &[])?;
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
        driver::call(scope, runner, &[values.into(), length.into()])?;
        Ok(count)
    }

    /// Sends what is left as a last run; gives back the numbers of emits and reduces.
    pub fn finish_mapping(&mut self, runtime: &mut Runtime) -> Result<(i64, i64), Failure> {
        let finished = runtime.with_scope(|scope| {
            let flush = v8::Local::new(scope, &self.flush);
            driver::call(scope, flush, &[])?;
            Ok((count(scope, &self.emits)?, count(scope, &self.reduces)?))
        });
        finished.map_err(|error| runtime.explain(error).into())
    }

    /// Groups become `{_id: key, value}`; with `last`, finalize has its turn. A group is the number of
    /// its documents (u32) and these, `{_id, value}` with the same key. The answer begins with the
    /// number of calls of reduce (i64).
    pub fn reduce(
        &mut self,
        runtime: &mut Runtime,
        payload: &[u8],
        last: bool,
    ) -> Result<Vec<u8>, Failure> {
        let reduced = runtime.with_scope(|scope| {
            let before = count(scope, &self.reduces)?;
            let mut out = Vec::with_capacity(8 + payload.len());
            out.extend_from_slice(&[0; 8]);
            let mut rest = payload;
            while !rest.is_empty() {
                let scope = &mut v8::HandleScope::new(scope);
                self.reduce_some(scope, &mut rest, last, &mut out)?;
            }
            let reduces = count(scope, &self.reduces)? - before;
            out[..8].copy_from_slice(&reduces.to_le_bytes());
            Ok(out)
        });
        reduced.map_err(|error| runtime.explain(error).into())
    }

    /// The groups at the head of `rest`, as many as are handed to V8 at a time.
    fn reduce_some(
        &self,
        scope: &mut Scope<'_>,
        rest: &mut &[u8],
        last: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), ScriptError> {
        let to_v8 = ToV8 {
            bindings: &self.shared.bindings,
        };
        let mut ids = Vec::with_capacity(GROUPS_PER_CALL);
        let mut keys: Vec<v8::Local<'_, v8::Value>> = Vec::with_capacity(GROUPS_PER_CALL);
        let mut counts: Vec<v8::Local<'_, v8::Value>> = Vec::with_capacity(GROUPS_PER_CALL);
        let mut values: Vec<v8::Local<'_, v8::Value>> = Vec::with_capacity(GROUPS_PER_CALL * 2);
        while keys.len() < GROUPS_PER_CALL && !rest.is_empty() {
            let (count, documents) = rest.split_first_chunk().ok_or(ConvertError::Malformed)?;
            let count = u32::from_le_bytes(*count);
            *rest = documents;
            for number in 0..count {
                let document = next_document(rest)?;
                if number == 0 {
                    let id = element(document, b"_id")?.ok_or(ConvertError::Malformed)?;
                    keys.push(to_v8.element(scope, &id, 0)?);
                    ids.push(id);
                }
                values.push(match element(document, b"value")? {
                    Some(value) => to_v8.element(scope, &value, 0)?,
                    None => v8::null(scope).into(),
                });
            }
            counts.push(v8::Integer::new_from_unsigned(scope, count).into());
        }
        let arguments =
            [&keys, &counts, &values].map(|list| v8::Array::new_with_elements(scope, list));
        let [keys, counts, values] = arguments;
        let last = v8::Boolean::new(scope, last);
        let finish = v8::Local::new(scope, &self.finish);
        self.shared.begin_values();
        let arguments = [keys.into(), counts.into(), values.into(), last.into()];
        driver::call(scope, finish, &arguments)?;
        let values = self.shared.end_values();
        let mut values = documents(&values);
        for id in ids {
            let value = values.next().ok_or(ConvertError::Malformed)??;
            append_result(out, &id, value);
        }
        Ok(())
    }
}

/// Appends `{_id, value}`, with the value of `{value}`.
fn append_result(out: &mut Vec<u8>, id: &Element<'_>, value: &[u8]) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    out.push(id.kind);
    out.extend_from_slice(b"_id\0");
    out.extend_from_slice(id.value);
    out.extend_from_slice(&value[4..value.len() - 1]);
    end_document(out, start);
}

/// The first element of that name.
fn element<'d>(document: &'d [u8], name: &[u8]) -> Result<Option<Element<'d>>, ConvertError> {
    let mut elements = Elements::new(document)?;
    let found = elements.find(|element| !matches!(element, Ok(other) if other.name != name));
    Ok(found.transpose()?)
}

fn count(scope: &mut Scope<'_>, function: &v8::Global<v8::Function>) -> Result<i64, ScriptError> {
    let function = v8::Local::new(scope, function);
    let value = driver::call(scope, function, &[])?;
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

/// Lets go of what the isolate still holds of the last job.
pub fn forget(runtime: &mut Runtime) {
    driver::forget(runtime.isolate());
}

impl Drop for Job {
    fn drop(&mut self) {
        self.shared.flush();
    }
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
    let runner = driver::call(scope, maker, &[map.into(), begin.into()])?;
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
        "(function (map, begin) {{ \"use strict\"; return function driverMapFields(values, n) {{ \
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
