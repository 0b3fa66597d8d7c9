//! What the prelude asks of Rust: instances of BSON's types, bytes as text, decimals.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use md5::{Digest, Md5};

use super::from_v8::{document_from_v8, latin1};
use super::types::{Bindings, FIELD_PAYLOAD, FIELD_SECOND, TYPES, field, type_of};
use crate::error::ConvertError;

type Arguments<'s> = v8::FunctionCallbackArguments<'s>;
type Return<'s> = v8::ReturnValue<'s>;
type Scope<'s> = v8::HandleScope<'s>;
type Value<'s> = v8::Local<'s, v8::Value>;

/// The object that the prelude is called with.
pub fn object<'s>(scope: &mut Scope<'s>, bindings: &Bindings) -> v8::Local<'s, v8::Object> {
    let native = v8::Object::new(scope);
    let functions: [(&str, v8::Local<'s, v8::Function>); 17] = [
        ("make", function(scope, make)),
        ("prototype", function(scope, prototype)),
        ("payload", function(scope, payload)),
        ("second", function(scope, second)),
        ("tagOf", function(scope, tag_of)),
        ("hex", function(scope, hex)),
        ("unhex", function(scope, unhex)),
        ("base64", function(scope, base64)),
        ("unbase64", function(scope, unbase64)),
        ("newObjectId", function(scope, new_object_id)),
        ("newUuid", function(scope, new_uuid)),
        ("parseDecimal", function(scope, parse_decimal)),
        ("decimalToString", function(scope, decimal_to_string)),
        ("bsonSize", function(scope, bson_size)),
        ("compare", function(scope, compare)),
        ("md5", function(scope, md5_hex)),
        ("zoneName", function(scope, zone_name)),
    ];
    for (name, function) in functions {
        set(scope, native, name, function.into());
    }
    let types = v8::Object::new(scope);
    for (kind, name) in TYPES {
        let tag = v8::Integer::new(scope, kind as i32).into();
        set(scope, types, name, tag);
    }
    set(scope, native, "types", types.into());
    let _ = bindings;
    native
}

fn function<'s>(
    scope: &mut Scope<'s>,
    callback: impl v8::MapFnTo<v8::FunctionCallback>,
) -> v8::Local<'s, v8::Function> {
    // A plain function in a live context; V8 ends the process where memory is out.
    #[allow(clippy::expect_used)]
    v8::Function::new(scope, callback).expect("a native function can be made")
}

fn set<'s>(scope: &mut Scope<'s>, object: v8::Local<'s, v8::Object>, name: &str, value: Value<'s>) {
    if let Some(name) = v8::String::new(scope, name) {
        object.create_data_property(scope, name.into(), value);
    }
}

/// Throws an `Error` in the calling script.
pub(crate) fn throw(scope: &mut Scope<'_>, message: &str) {
    if let Some(message) = v8::String::new(scope, message) {
        let error = v8::Exception::error(scope, message);
        scope.throw_exception(error);
    }
}

/// The functions behind the instances' templates; the prelude has constructors of its own.
pub extern "C" fn not_constructible(_: *const v8::FunctionCallbackInfo) {}

fn make<'s>(scope: &mut Scope<'s>, arguments: Arguments<'s>, mut result: Return<'_>) {
    let Some(bindings) = Bindings::of(scope) else {
        return;
    };
    let tag = arguments.get(0).int32_value(scope).unwrap_or(0);
    let kind = usize::try_from(tag - 1)
        .ok()
        .and_then(|index| TYPES.get(index));
    let Some((kind, _)) = kind else {
        return throw(scope, "no such type");
    };
    let second = (arguments.length() > 2).then(|| arguments.get(2));
    if let Some(made) = bindings.make(scope, *kind, arguments.get(1), second) {
        result.set(made.into());
    }
}

fn prototype<'s>(scope: &mut Scope<'s>, arguments: Arguments<'s>, mut result: Return<'_>) {
    let Some(bindings) = Bindings::of(scope) else {
        return;
    };
    let tag = arguments.get(0).int32_value(scope).unwrap_or(0);
    let Some(handles) = usize::try_from(tag - 1)
        .ok()
        .and_then(|at| bindings.types.get(at))
    else {
        return throw(scope, "no such type");
    };
    let constructor = v8::Local::new(scope, &handles.constructor);
    let name = v8::String::new(scope, "prototype");
    if let Some(found) = name.and_then(|name| constructor.get(scope, name.into())) {
        result.set(found);
    }
}

fn own_field<'s>(scope: &mut Scope<'s>, value: Value<'s>, index: usize) -> Option<Value<'s>> {
    let object = v8::Local::<v8::Object>::try_from(value).ok();
    let object = object.filter(|object| type_of(scope, *object).is_some());
    match object {
        Some(object) => field(scope, object, index),
        None => {
            throw(scope, "the receiver is of another type");
            None
        }
    }
}

fn payload<'s>(scope: &mut Scope<'s>, arguments: Arguments<'s>, mut result: Return<'_>) {
    if let Some(value) = own_field(scope, arguments.get(0), FIELD_PAYLOAD) {
        result.set(value);
    }
}

fn second<'s>(scope: &mut Scope<'s>, arguments: Arguments<'s>, mut result: Return<'_>) {
    if let Some(value) = own_field(scope, arguments.get(0), FIELD_SECOND) {
        result.set(value);
    }
}

pub(crate) fn tag_of<'s>(scope: &mut Scope<'s>, arguments: Arguments<'s>, mut result: Return<'_>) {
    let object = v8::Local::<v8::Object>::try_from(arguments.get(0)).ok();
    let kind = object.and_then(|object| type_of(scope, object));
    result.set_int32(kind.map_or(0, |kind| kind as i32));
}

fn return_bytes(scope: &mut Scope<'_>, result: &mut Return<'_>, bytes: &[u8]) {
    match v8::String::new_from_one_byte(scope, bytes, v8::NewStringType::Normal) {
        Some(string) => result.set(string.into()),
        None => throw(scope, "the value is too long"),
    }
}

fn hex<'s>(scope: &mut Scope<'s>, arguments: Arguments<'s>, mut result: Return<'_>) {
    let bytes = latin1(scope, arguments.get(0));
    return_bytes(scope, &mut result, hex_text(&bytes).as_bytes());
}

fn hex_text(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble)]);
    bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
        .collect()
}

fn unhex<'s>(scope: &mut Scope<'s>, arguments: Arguments<'s>, mut result: Return<'_>) {
    let text = arguments.get(0).to_rust_string_lossy(scope).into_bytes();
    let pair = |pair: &[u8]| -> Option<u8> {
        let text = std::str::from_utf8(pair).ok()?;
        if pair.len() == 2 && !text.starts_with('+') {
            u8::from_str_radix(text, 16).ok()
        } else {
            None
        }
    };
    match text.chunks(2).map(pair).collect::<Option<Vec<u8>>>() {
        Some(bytes) => return_bytes(scope, &mut result, &bytes),
        None => throw(scope, "invalid hexadecimal string"),
    }
}

fn base64<'s>(scope: &mut Scope<'s>, arguments: Arguments<'s>, mut result: Return<'_>) {
    let bytes = latin1(scope, arguments.get(0));
    return_bytes(scope, &mut result, BASE64.encode(bytes).as_bytes());
}

fn unbase64<'s>(scope: &mut Scope<'s>, arguments: Arguments<'s>, mut result: Return<'_>) {
    let text = arguments.get(0).to_rust_string_lossy(scope);
    match BASE64.decode(text.trim()) {
        Ok(bytes) => return_bytes(scope, &mut result, &bytes),
        Err(_) => throw(scope, "invalid base64 string"),
    }
}

fn new_object_id<'s>(scope: &mut Scope<'s>, _: Arguments<'s>, mut result: Return<'_>) {
    return_bytes(scope, &mut result, &bson::oid::ObjectId::new().bytes());
}

fn new_uuid<'s>(scope: &mut Scope<'s>, _: Arguments<'s>, mut result: Return<'_>) {
    return_bytes(scope, &mut result, &bson::Uuid::new().bytes());
}

fn parse_decimal<'s>(scope: &mut Scope<'s>, arguments: Arguments<'s>, mut result: Return<'_>) {
    let text = arguments.get(0).to_rust_string_lossy(scope);
    match text.trim().parse::<bson::Decimal128>() {
        Ok(decimal) => return_bytes(scope, &mut result, &decimal.bytes()),
        Err(_) => throw(
            scope,
            &format!("Input is not a valid Decimal128 value: {text:?}"),
        ),
    }
}

fn decimal_to_string<'s>(scope: &mut Scope<'s>, arguments: Arguments<'s>, mut result: Return<'_>) {
    let bytes = latin1(scope, arguments.get(0));
    match <[u8; 16]>::try_from(bytes) {
        Ok(bytes) => {
            let text = bson::Decimal128::from_bytes(bytes).to_string();
            return_bytes(scope, &mut result, text.as_bytes());
        }
        Err(_) => throw(scope, "not a decimal"),
    }
}

fn bson_size<'s>(scope: &mut Scope<'s>, arguments: Arguments<'s>, mut result: Return<'_>) {
    if arguments.get(0).is_null() {
        return result.set_int32(0);
    }
    if let Some(document) = document(scope, arguments.get(0)) {
        result.set_double(document.as_bytes().len() as f64);
    }
}

fn compare<'s>(scope: &mut Scope<'s>, arguments: Arguments<'s>, mut result: Return<'_>) {
    let Some(a) = document(scope, arguments.get(0)) else {
        return;
    };
    let Some(b) = document(scope, arguments.get(1)) else {
        return;
    };
    result.set_int32(banyan_document::compare::compare_documents(&a, &b) as i32);
}

/// The argument as a document; None: an exception is pending.
fn document<'s>(scope: &mut Scope<'s>, value: Value<'s>) -> Option<bson::RawDocumentBuf> {
    let bindings = Bindings::of(scope)?;
    let Ok(object) = v8::Local::<v8::Object>::try_from(value) else {
        throw(scope, "the argument must be an object");
        return None;
    };
    match document_from_v8(scope, &bindings, object) {
        Ok(document) => Some(document),
        Err(ConvertError::Threw) => None,
        Err(error) => {
            throw(scope, &error.to_string());
            None
        }
    }
}

fn md5_hex<'s>(scope: &mut Scope<'s>, arguments: Arguments<'s>, mut result: Return<'_>) {
    let text = arguments.get(0).to_rust_string_lossy(scope);
    let digest = Md5::digest(text.as_bytes());
    return_bytes(scope, &mut result, hex_text(&digest).as_bytes());
}

/// What the local time zone is called at a moment, as `CET`; nothing where it is a bare offset.
fn zone_name<'s>(scope: &mut Scope<'s>, arguments: Arguments<'s>, mut result: Return<'_>) {
    let milliseconds = arguments.get(0).number_value(scope).unwrap_or(0.0);
    // A script's date is within 8.64e15 ms of 1970: its seconds fit.
    let name = local_zone((milliseconds / 1000.0).floor() as libc::time_t);
    return_bytes(scope, &mut result, name.as_bytes());
}

fn local_zone(seconds: libc::time_t) -> String {
    // SAFETY: all of `tm` is integers and a pointer, for which zero is a value.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to values on this stack.
    let converted = unsafe { libc::localtime_r(&seconds, &mut parts) };
    if converted.is_null() || parts.tm_zone.is_null() {
        return String::new();
    }
    // SAFETY: `tm_zone` of a converted time is a C string of the library's own, which stays.
    let name = unsafe { std::ffi::CStr::from_ptr(parts.tm_zone) };
    let name = name.to_str().unwrap_or("");
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphabetic());
    if is_name { name } else { "" }.to_owned()
}
