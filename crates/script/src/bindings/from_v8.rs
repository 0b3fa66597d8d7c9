//! V8 to BSON.

use bson::RawDocumentBuf;

use super::strings::new_string;
use super::to_v8::EVERY_INDEX;
use super::types::{Bindings, FIELD_PAYLOAD, FIELD_SECOND, Type, field, type_of};
use crate::error::{BYTES_MAX, ConvertError, DEPTH_MAX};

type Value<'s> = v8::Local<'s, v8::Value>;
type Object<'s> = v8::Local<'s, v8::Object>;
type Result<T> = std::result::Result<T, ConvertError>;

/// An object as a document.
pub fn document_from_v8<'s>(
    scope: &mut v8::HandleScope<'s>,
    bindings: &Bindings,
    object: Object<'s>,
) -> Result<RawDocumentBuf> {
    let mut writer = Writer {
        bindings,
        out: Vec::with_capacity(128),
    };
    writer.object(scope, object, 0)?;
    RawDocumentBuf::from_bytes(writer.out).map_err(|_| ConvertError::TooLarge)
}

/// A value as a document `{"": value}`: every value has this form, `undefined` included.
pub fn value_from_v8<'s>(
    scope: &mut v8::HandleScope<'s>,
    bindings: &Bindings,
    value: Value<'s>,
) -> Result<RawDocumentBuf> {
    let mut out = vec![0; 4];
    append_value(scope, bindings, &mut out, b"", value)?;
    out.push(0);
    let length = out.len() as i32;
    out[..4].copy_from_slice(&length.to_le_bytes());
    RawDocumentBuf::from_bytes(out).map_err(|_| ConvertError::TooLarge)
}

/// Appends one element (type byte, name, value) to a document that the caller is writing.
pub fn append_value<'s>(
    scope: &mut v8::HandleScope<'s>,
    bindings: &Bindings,
    out: &mut Vec<u8>,
    name: &[u8],
    value: Value<'s>,
) -> Result<()> {
    let mut writer = Writer {
        bindings,
        out: std::mem::take(out),
    };
    let result = writer.element(scope, Name::Bytes(name), value, None, 0);
    *out = writer.out;
    result
}

#[derive(Clone, Copy)]
enum Name<'n, 's> {
    Bytes(&'n [u8]),
    String(v8::Local<'s, v8::String>),
    Index(u32),
}

struct Writer<'b> {
    bindings: &'b Bindings,
    out: Vec<u8>,
}

impl Writer<'_> {
    fn object<'s>(
        &mut self,
        scope: &mut v8::HandleScope<'s>,
        object: Object<'s>,
        depth: usize,
    ) -> Result<()> {
        let start = self.begin(depth)?;
        let memory = self.memory(scope, object);
        let arguments = v8::GetPropertyNamesArgs {
            property_filter: v8::PropertyFilter::ONLY_ENUMERABLE | v8::PropertyFilter::SKIP_SYMBOLS,
            key_conversion: v8::KeyConversionMode::ConvertToString,
            ..Default::default()
        };
        let names = object
            .get_own_property_names(scope, arguments)
            .ok_or(ConvertError::Threw)?;
        for index in 0..names.length() {
            // One scope per property: documents may have many.
            let scope = &mut v8::HandleScope::new(scope);
            let name = names.get_index(scope, index).ok_or(ConvertError::Threw)?;
            let value = object.get(scope, name).ok_or(ConvertError::Threw)?;
            let origin = memory.and_then(|memory| origin_kind(scope, memory, name));
            let name = v8::Local::<v8::String>::try_from(name).map_err(|_| ConvertError::Threw)?;
            self.element(scope, Name::String(name), value, origin, depth)?;
        }
        self.end(start)
    }

    fn array<'s>(
        &mut self,
        scope: &mut v8::HandleScope<'s>,
        array: v8::Local<'s, v8::Array>,
        depth: usize,
    ) -> Result<()> {
        let start = self.begin(depth)?;
        let memory = self.memory(scope, array.into());
        let every = memory.and_then(|memory| {
            let every = new_string(scope, EVERY_INDEX, v8::NewStringType::Internalized)?;
            origin_kind(scope, memory, every.into())
        });
        for index in 0..array.length() {
            let scope = &mut v8::HandleScope::new(scope);
            let value = array.get_index(scope, index).ok_or(ConvertError::Threw)?;
            let origin = match (every, memory) {
                (Some(_), _) => every,
                (None, Some(memory)) => {
                    let name = v8::Integer::new_from_unsigned(scope, index);
                    origin_kind(scope, memory, name.into())
                }
                (None, None) => None,
            };
            self.element(scope, Name::Index(index), value, origin, depth)?;
        }
        self.end(start)
    }

    fn memory<'s>(
        &self,
        scope: &mut v8::HandleScope<'s>,
        object: Object<'s>,
    ) -> Option<Object<'s>> {
        let key = v8::Local::new(scope, &self.bindings.origin);
        let memory = object.get(scope, key.into())?;
        v8::Local::<v8::Object>::try_from(memory).ok()
    }

    /// `origin` is the type byte that the field was read with, where JavaScript forgot it.
    fn element<'s>(
        &mut self,
        scope: &mut v8::HandleScope<'s>,
        name: Name<'_, 's>,
        value: Value<'s>,
        origin: Option<u8>,
        depth: usize,
    ) -> Result<()> {
        if self.out.len() > BYTES_MAX {
            return Err(ConvertError::TooLarge);
        }
        let kind_at = self.out.len();
        self.out.push(0);
        self.name(scope, name)?;
        let kind = self.value(scope, value, origin, depth)?;
        self.out[kind_at] = kind;
        Ok(())
    }

    fn name<'s>(&mut self, scope: &mut v8::HandleScope<'s>, name: Name<'_, 's>) -> Result<()> {
        match name {
            Name::Bytes(bytes) => self.out.extend_from_slice(bytes),
            Name::String(string) => {
                let start = self.out.len();
                append_utf8(scope, string, &mut self.out);
                if self.out[start..].contains(&0) {
                    return Err(ConvertError::ZeroInName);
                }
            }
            Name::Index(index) => {
                use std::io::Write;
                // Writing to memory cannot fail.
                let _ = write!(self.out, "{index}");
            }
        }
        self.out.push(0);
        Ok(())
    }

    /// Appends the value's bytes and returns its type byte.
    fn value<'s>(
        &mut self,
        scope: &mut v8::HandleScope<'s>,
        value: Value<'s>,
        origin: Option<u8>,
        depth: usize,
    ) -> Result<u8> {
        if let Ok(string) = v8::Local::<v8::String>::try_from(value) {
            self.string(scope, string);
            return Ok(if origin == Some(0x0e) { 0x0e } else { 0x02 });
        }
        if let Ok(number) = v8::Local::<v8::Number>::try_from(value) {
            return Ok(self.number(number.value(), origin));
        }
        if value.is_boolean() {
            self.out.push(u8::from(value.is_true()));
            return Ok(0x08);
        }
        if value.is_null() {
            return Ok(0x0a);
        }
        if value.is_undefined() {
            return Ok(0x06);
        }
        if let Ok(object) = v8::Local::<v8::Object>::try_from(value) {
            return self.object_value(scope, object, depth);
        }
        if let Ok(big) = v8::Local::<v8::BigInt>::try_from(value) {
            let (long, lossless) = big.i64_value();
            if !lossless {
                return Err(ConvertError::Unrepresentable {
                    what: "a BigInt of over 64 bits",
                });
            }
            self.out.extend_from_slice(&long.to_le_bytes());
            return Ok(0x12);
        }
        Err(ConvertError::Unrepresentable { what: "a symbol" })
    }

    fn number(&mut self, number: f64, origin: Option<u8>) -> u8 {
        let integer = number as i32;
        let is_integer = f64::from(integer).to_bits() == number.to_bits();
        if origin == Some(0x10) && is_integer {
            self.out.extend_from_slice(&integer.to_le_bytes());
            return 0x10;
        }
        self.out.extend_from_slice(&number.to_le_bytes());
        0x01
    }

    fn string(&mut self, scope: &mut v8::HandleScope<'_>, string: v8::Local<'_, v8::String>) {
        let start = self.out.len();
        self.out.extend_from_slice(&[0; 4]);
        append_utf8(scope, string, &mut self.out);
        self.out.push(0);
        let length = (self.out.len() - start - 4) as i32;
        self.out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    }

    fn object_value<'s>(
        &mut self,
        scope: &mut v8::HandleScope<'s>,
        object: Object<'s>,
        depth: usize,
    ) -> Result<u8> {
        if let Ok(array) = v8::Local::<v8::Array>::try_from(object) {
            self.array(scope, array, depth + 1)?;
            return Ok(0x04);
        }
        if let Some(kind) = type_of(scope, object) {
            return self.instance(scope, object, kind, depth);
        }
        if let Ok(date) = v8::Local::<v8::Date>::try_from(object) {
            return self.date(scope, date);
        }
        if let Ok(expression) = v8::Local::<v8::RegExp>::try_from(object) {
            return self.regular_expression(scope, expression);
        }
        if object.is_function() {
            return self.function(scope, object);
        }
        if let Ok(view) = v8::Local::<v8::ArrayBufferView>::try_from(object) {
            let mut bytes = vec![0; view.byte_length()];
            view.copy_contents(&mut bytes);
            self.binary(0, &bytes);
            return Ok(0x05);
        }
        if object.is_proxy() || object.is_promise() {
            return Err(ConvertError::Unrepresentable {
                what: "a proxy or promise",
            });
        }
        if let Some(primitive) = boxed(scope, object) {
            return self.value(scope, primitive, None, depth);
        }
        self.object(scope, object, depth + 1)?;
        Ok(0x03)
    }

    fn function<'s>(
        &mut self,
        scope: &mut v8::HandleScope<'s>,
        function: Object<'s>,
    ) -> Result<u8> {
        for (constructor, kind) in &*self.bindings.key_constructors.borrow() {
            let constructor = v8::Local::new(scope, constructor);
            if constructor.strict_equals(function.into()) {
                return Ok(if *kind == Type::MinKey { 0xff } else { 0x7f });
            }
        }
        let source = function.to_string(scope).ok_or(ConvertError::Threw)?;
        self.string(scope, source);
        Ok(0x0d)
    }

    fn date<'s>(
        &mut self,
        scope: &mut v8::HandleScope<'s>,
        date: v8::Local<'s, v8::Date>,
    ) -> Result<u8> {
        let ms = date.value_of();
        let exact = if ms.is_nan() {
            let exact = self
                .exact(scope, date.into())
                .ok_or(ConvertError::InvalidDate)?;
            let exact = v8::Local::<v8::BigInt>::try_from(exact);
            exact.map_err(|_| ConvertError::InvalidDate)?.i64_value().0
        } else {
            ms as i64
        };
        self.out.extend_from_slice(&exact.to_le_bytes());
        Ok(0x09)
    }

    fn exact<'s>(&self, scope: &mut v8::HandleScope<'s>, object: Object<'s>) -> Option<Value<'s>> {
        let key = v8::Local::new(scope, &self.bindings.exact);
        let exact = object.get_private(scope, key)?;
        if exact.is_undefined() {
            None
        } else {
            Some(exact)
        }
    }

    fn regular_expression<'s>(
        &mut self,
        scope: &mut v8::HandleScope<'s>,
        expression: v8::Local<'s, v8::RegExp>,
    ) -> Result<u8> {
        if let Some(exact) = self.exact(scope, expression.into()) {
            self.payload_bytes(scope, exact);
            return Ok(0x0b);
        }
        let pattern = expression.get_source(scope);
        append_utf8(scope, pattern, &mut self.out);
        self.out.push(0);
        let flags = v8::String::new(scope, "flags").ok_or(ConvertError::Threw)?;
        let flags = expression
            .get(scope, flags.into())
            .ok_or(ConvertError::Threw)?;
        // V8 gives the flags in alphabetical order, as BSON wants them.
        let flags = flags.to_rust_string_lossy(scope);
        self.out
            .extend(flags.bytes().filter(|flag| b"ims".contains(flag)));
        self.out.push(0);
        Ok(0x0b)
    }

    fn instance<'s>(
        &mut self,
        scope: &mut v8::HandleScope<'s>,
        object: Object<'s>,
        kind: Type,
        depth: usize,
    ) -> Result<u8> {
        let payload = field(scope, object, FIELD_PAYLOAD).ok_or(ConvertError::Threw)?;
        let second = field(scope, object, FIELD_SECOND).ok_or(ConvertError::Threw)?;
        Ok(match kind {
            Type::ObjectId => {
                self.payload_bytes(scope, payload);
                0x07
            }
            Type::NumberLong => {
                let long = v8::Local::<v8::BigInt>::try_from(payload);
                let long = long.map_err(|_| ConvertError::Threw)?.i64_value().0;
                self.out.extend_from_slice(&long.to_le_bytes());
                0x12
            }
            Type::NumberInt => {
                let integer = payload.int32_value(scope).ok_or(ConvertError::Threw)?;
                self.out.extend_from_slice(&integer.to_le_bytes());
                0x10
            }
            Type::NumberDecimal => {
                self.payload_bytes(scope, payload);
                0x13
            }
            Type::BinData => {
                let bytes = latin1(scope, payload);
                let subtype = second.uint32_value(scope).ok_or(ConvertError::Threw)?;
                self.binary(subtype as u8, &bytes);
                0x05
            }
            Type::Timestamp => {
                for part in [second, payload] {
                    let part = part.uint32_value(scope).ok_or(ConvertError::Threw)?;
                    self.out.extend_from_slice(&part.to_le_bytes());
                }
                0x11
            }
            Type::MinKey => 0xff,
            Type::MaxKey => 0x7f,
            Type::Code => return self.code(scope, payload, second, depth),
            Type::DbPointer => {
                let namespace = payload.to_string(scope).ok_or(ConvertError::Threw)?;
                self.string(scope, namespace);
                self.payload_bytes(scope, second);
                0x0c
            }
        })
    }

    fn code<'s>(
        &mut self,
        scope: &mut v8::HandleScope<'s>,
        source: Value<'s>,
        variables: Value<'s>,
        depth: usize,
    ) -> Result<u8> {
        let source = source.to_string(scope).ok_or(ConvertError::Threw)?;
        let Ok(variables) = v8::Local::<v8::Object>::try_from(variables) else {
            self.string(scope, source);
            return Ok(0x0d);
        };
        let start = self.out.len();
        self.out.extend_from_slice(&[0; 4]);
        self.string(scope, source);
        self.object(scope, variables, depth + 1)?;
        let length = (self.out.len() - start) as i32;
        self.out[start..start + 4].copy_from_slice(&length.to_le_bytes());
        Ok(0x0f)
    }

    fn binary(&mut self, subtype: u8, bytes: &[u8]) {
        let inner = bytes.len() as i32;
        let length = if subtype == 2 { inner + 4 } else { inner };
        self.out.extend_from_slice(&length.to_le_bytes());
        self.out.push(subtype);
        if subtype == 2 {
            self.out.extend_from_slice(&inner.to_le_bytes());
        }
        self.out.extend_from_slice(bytes);
    }

    fn payload_bytes(&mut self, scope: &mut v8::HandleScope<'_>, payload: Value<'_>) {
        let bytes = latin1(scope, payload);
        self.out.extend_from_slice(&bytes);
    }

    fn begin(&mut self, depth: usize) -> Result<usize> {
        if depth > DEPTH_MAX {
            return Err(ConvertError::TooDeep);
        }
        let start = self.out.len();
        self.out.extend_from_slice(&[0; 4]);
        Ok(start)
    }

    fn end(&mut self, start: usize) -> Result<()> {
        self.out.push(0);
        let length = self.out.len() - start;
        if length > BYTES_MAX {
            return Err(ConvertError::TooLarge);
        }
        self.out[start..start + 4].copy_from_slice(&(length as i32).to_le_bytes());
        Ok(())
    }
}

fn origin_kind<'s>(
    scope: &mut v8::HandleScope<'s>,
    memory: Object<'s>,
    name: Value<'s>,
) -> Option<u8> {
    let kind = memory.get(scope, name)?;
    v8::Local::<v8::Integer>::try_from(kind)
        .ok()
        .map(|kind| kind.value() as u8)
}

/// The value inside a `new Number(1)`, `new String("a")` or `new Boolean(true)`.
fn boxed<'s>(scope: &mut v8::HandleScope<'s>, object: Object<'s>) -> Option<Value<'s>> {
    if object.is_number_object() {
        return Some(object.to_number(scope)?.into());
    }
    if object.is_string_object() {
        return Some(object.to_string(scope)?.into());
    }
    if object.is_boolean_object() {
        let is_true = object.to_string(scope)?.to_rust_string_lossy(scope) == "true";
        return Some(v8::Boolean::new(scope, is_true).into());
    }
    None
}

/// The bytes of a string of one character each.
pub(super) fn latin1(scope: &mut v8::HandleScope<'_>, string: Value<'_>) -> Vec<u8> {
    let Ok(string) = v8::Local::<v8::String>::try_from(string) else {
        return Vec::new();
    };
    let mut bytes = vec![0; string.length()];
    string.write_one_byte_v2(scope, 0, &mut bytes, v8::WriteFlags::empty());
    bytes
}

/// Half a surrogate pair becomes U+FFFD.
pub(super) fn append_utf8(
    scope: &mut v8::HandleScope<'_>,
    string: v8::Local<'_, v8::String>,
    out: &mut Vec<u8>,
) {
    let view = v8::ValueView::new(scope, string);
    match view.data() {
        v8::ValueViewData::OneByte(bytes) if bytes.is_ascii() => out.extend_from_slice(bytes),
        v8::ValueViewData::OneByte(bytes) => {
            let mut buffer = [0; 2];
            for byte in bytes {
                let text = char::from(*byte).encode_utf8(&mut buffer);
                out.extend_from_slice(text.as_bytes());
            }
        }
        v8::ValueViewData::TwoByte(units) => {
            let mut buffer = [0; 4];
            for unit in char::decode_utf16(units.iter().copied()) {
                let text = unit
                    .unwrap_or(char::REPLACEMENT_CHARACTER)
                    .encode_utf8(&mut buffer);
                out.extend_from_slice(text.as_bytes());
            }
        }
    }
}
