//! `driver.js`, and the native functions that it calls.

use std::cell::{Cell, RefCell};
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use banyan_document::validate::validate_with_depth;
use banyan_document::{Collator, elements};
use bson::RawDocument;
use bson::raw::RawBsonRef;

use super::payload::{documents, end_document};
use super::scripts::{Scope, call_function, put};
use super::sink::{Output, Run};
use crate::bindings::{self, Bindings, append_value};
use crate::error::{ConvertError, DEPTH_MAX, ScriptError};
use crate::evaluate::evaluate;

/// The driver's buffer: what does not fit into half of it goes another way.
const WRITTEN_BYTES: usize = 64 << 10;

/// What the driver's native functions share with the lane.
pub struct Shared {
    pub bindings: Rc<Bindings>,
    pub heap: Heap,
    run: RefCell<Run>,
    /// The values of groups, `{value}` each, while these are reduced.
    values: RefCell<Option<Vec<u8>>>,
    output: RefCell<Output>,
    collator: Option<Collator>,
    /// What the driver writes itself.
    written: RefCell<Option<v8::SharedRef<v8::BackingStore>>>,
}

/// When to send what is there on as a run. V8's figure includes garbage, so a high one is asked
/// again after a collection.
pub struct Heap {
    bytes_max: usize,
    look_again_at: Cell<usize>,
}

impl Heap {
    pub fn is_full(&self, isolate: &mut v8::Isolate) -> bool {
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

impl Shared {
    pub fn new(
        bindings: Rc<Bindings>,
        collator: Option<Collator>,
        output: UnixStream,
        heap_bytes_max: usize,
    ) -> Shared {
        let bytes_max = heap_bytes_max / 5 * 2;
        Shared {
            bindings,
            heap: Heap {
                bytes_max,
                look_again_at: Cell::new(bytes_max),
            },
            run: RefCell::default(),
            values: RefCell::default(),
            output: RefCell::new(Output::new(output)),
            collator,
            written: RefCell::default(),
        }
    }

    /// From here on the driver's results are values of groups.
    pub fn begin_values(&self) {
        *self.values.borrow_mut() = Some(Vec::new());
    }

    pub fn end_values(&self) -> Vec<u8> {
        self.values.borrow_mut().take().unwrap_or_default()
    }

    pub fn flush(&self) {
        self.output.borrow_mut().flush();
    }

    /// Takes in what the driver has written: `length` bytes of documents. Scripts run beside it; that
    /// the documents are whole is not theirs to break.
    fn take_written(&self, length: usize) -> Result<(), ConvertError> {
        let written = self.written.borrow();
        let written = written.as_ref().and_then(|written| written.get(..length));
        let written = written.ok_or(ConvertError::Malformed)?;
        let written: Vec<u8> = written.iter().map(Cell::get).collect();
        for document in documents(&written) {
            // The driver's documents hold what may be nested so deep.
            let document = validate_with_depth(document?, DEPTH_MAX + 2);
            self.take(document.map_err(|_| ConvertError::Malformed)?)?;
        }
        Ok(())
    }

    fn take(&self, document: &RawDocument) -> Result<(), ConvertError> {
        if let Some(values) = &mut *self.values.borrow_mut() {
            values.extend_from_slice(document.as_bytes());
            return Ok(());
        }
        let key = elements(document)
            .next()
            .filter(|element| element.name_bytes() == b"_id")
            .ok_or(ConvertError::Malformed)?;
        let collator = self.collator.as_ref();
        self.run.borrow_mut().push(document.as_bytes(), |encoded| {
            banyan_document::key::encode_collated(key.value(), collator, encoded);
        });
        Ok(())
    }
}

/// The driver's memory goes with the job.
pub fn forget(isolate: &mut v8::Isolate) {
    isolate.remove_slot::<Rc<Shared>>();
}

/// Runs `driver.js` with its native functions.
pub fn start<'s>(
    scope: &mut Scope<'s>,
    shared: &Rc<Shared>,
) -> Result<v8::Local<'s, v8::Object>, ScriptError> {
    scope.set_slot(shared.clone());
    let native = v8::Object::new(scope);
    let origin = shared.bindings.origin_symbol(scope);
    put(scope, native, "origin", origin.into());
    let buffer = v8::ArrayBuffer::new(scope, WRITTEN_BYTES);
    *shared.written.borrow_mut() = Some(buffer.get_backing_store());
    put(scope, native, "buffer", buffer.into());
    let functions = [
        ("keyOf", v8::Function::new(scope, key_of)),
        ("take", v8::Function::new(scope, take)),
        ("takeWritten", v8::Function::new(scope, take_written)),
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
    let driver = call(scope, driver, &[native.into()])?;
    v8::Local::<v8::Object>::try_from(driver).map_err(|_| ScriptError::NotAFunction {
        source_start: "driver".into(),
    })
}

/// Calls a function of the driver's: they have no receiver.
pub fn call<'s>(
    scope: &mut Scope<'s>,
    function: v8::Local<'s, v8::Function>,
    arguments: &[v8::Local<'s, v8::Value>],
) -> Result<v8::Local<'s, v8::Value>, ScriptError> {
    let receiver = v8::undefined(scope).into();
    call_function(scope, function, receiver, arguments)
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

/// Takes a value, and its key where it has one, that the driver could not write.
fn take<'s>(
    scope: &mut Scope<'s>,
    arguments: v8::FunctionCallbackArguments<'s>,
    _: v8::ReturnValue<'_>,
) {
    let Some(shared) = shared(scope) else { return };
    let mut out = vec![0; 4];
    let (key, value) = (arguments.get(0), arguments.get(1));
    let bindings = &shared.bindings;
    let written = match key.is_undefined() {
        true => Ok(()),
        false => append_value(scope, bindings, &mut out, b"_id", key),
    };
    let written = written.and_then(|()| append_value(scope, bindings, &mut out, b"value", value));
    end_document(&mut out, 0);
    let taken = written.and_then(|()| {
        let document = RawDocument::from_bytes(&out).map_err(|_| ConvertError::Malformed)?;
        shared.take(document)
    });
    if let Err(error) = taken {
        throw(scope, &error);
    }
}

fn take_written<'s>(
    scope: &mut Scope<'s>,
    arguments: v8::FunctionCallbackArguments<'s>,
    _: v8::ReturnValue<'_>,
) {
    let Some(shared) = shared(scope) else { return };
    let length = arguments.get(0).uint32_value(scope).unwrap_or(0);
    if let Err(error) = shared.take_written(length as usize) {
        throw(scope, &error);
    }
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
