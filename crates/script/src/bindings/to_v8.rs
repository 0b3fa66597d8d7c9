//! BSON to V8.

use bson::RawDocument;
use bson::raw::RawBsonRef;

use super::bytes::{Element, Elements, read_i32, read_i64, read_u32, text, until_zero};
use super::strings::new_string;
use super::types::{Bindings, ORIGINS_MAX, Type};
use crate::error::{ConvertError, DEPTH_MAX};

type Value<'s> = v8::Local<'s, v8::Value>;
type Result<T> = std::result::Result<T, ConvertError>;

/// A JavaScript date is at most this many milliseconds away from 1970.
const DATE_MS_MAX: i64 = 8_640_000_000_000_000;

/// A document as an object.
pub fn document_to_v8<'s>(
    scope: &mut v8::HandleScope<'s>,
    bindings: &Bindings,
    document: &RawDocument,
) -> Result<v8::Local<'s, v8::Object>> {
    ToV8 { bindings }.object(scope, document.as_bytes(), 0)
}

/// A single value.
pub fn value_to_v8<'s>(
    scope: &mut v8::HandleScope<'s>,
    bindings: &Bindings,
    value: RawBsonRef<'_>,
) -> Result<Value<'s>> {
    let mut holder = bson::RawDocumentBuf::new();
    holder.append(bson::raw::cstr!(""), value);
    let mut elements = Elements::new(holder.as_bytes())?;
    let element = elements.next().ok_or(ConvertError::Malformed)??;
    ToV8 { bindings }.element(scope, &element, 0)
}

/// The conversion, for callers that walk over the elements themselves.
#[derive(Clone, Copy)]
pub struct ToV8<'b> {
    pub bindings: &'b Bindings,
}

impl ToV8<'_> {
    pub fn object<'s>(
        &self,
        scope: &mut v8::HandleScope<'s>,
        document: &[u8],
        depth: usize,
    ) -> Result<v8::Local<'s, v8::Object>> {
        check_depth(depth)?;
        let object = v8::Object::new(scope);
        let mut origins = OriginNames::default();
        let mut reference = ReferenceShape::default();
        for element in Elements::new(document)? {
            let element = element?;
            reference.see(element.name);
            origins.see(&element);
            let name = self.name(scope, element.name)?;
            let value = self.element(scope, &element, depth)?;
            object
                .create_data_property(scope, name.into(), value)
                .ok_or(ConvertError::Threw)?;
        }
        origins.remember(scope, self.bindings, object)?;
        if reference.is_complete()
            && let Some(prototype) = &*self.bindings.db_ref_prototype.borrow()
        {
            let prototype = v8::Local::new(scope, prototype);
            object.set_prototype(scope, prototype.into());
        }
        Ok(object)
    }

    pub fn array<'s>(
        &self,
        scope: &mut v8::HandleScope<'s>,
        array: &[u8],
        depth: usize,
    ) -> Result<v8::Local<'s, v8::Array>> {
        check_depth(depth)?;
        // Most arrays are short, and their values need no memory of their own.
        let mut few: [Value<'s>; 16] = [v8::undefined(scope).into(); 16];
        let mut many: Vec<Value<'s>> = Vec::new();
        let mut count = 0;
        let mut origins = OriginNames::default();
        for element in Elements::new(array)? {
            let element = element?;
            origins.see(&element);
            let value = self.element(scope, &element, depth)?;
            match few.get_mut(count) {
                Some(place) => *place = value,
                None => many.push(value),
            }
            count += 1;
        }
        let values = match many.is_empty() {
            true => &few[..count],
            false => {
                many.splice(..0, few);
                &many
            }
        };
        let array = v8::Array::new_with_elements(scope, values);
        origins.shorten_if_uniform(values.len());
        origins.remember(scope, self.bindings, array.into())?;
        Ok(array)
    }

    #[inline]
    pub fn name<'s>(
        &self,
        scope: &mut v8::HandleScope<'s>,
        name: &[u8],
    ) -> Result<v8::Local<'s, v8::String>> {
        let name = self.bindings.names.borrow_mut().get(scope, name);
        name.ok_or(ConvertError::StringTooLong)
    }

    /// The value of an element.
    #[inline]
    pub fn element<'s>(
        &self,
        scope: &mut v8::HandleScope<'s>,
        element: &Element<'_>,
        depth: usize,
    ) -> Result<Value<'s>> {
        let value = element.value;
        Ok(match element.kind {
            0x01 => v8::Number::new(scope, f64::from_bits(read_i64(value)? as u64)).into(),
            0x02 | 0x0e => {
                let string = self.bindings.values.borrow_mut().get(scope, text(value)?);
                string.ok_or(ConvertError::StringTooLong)?.into()
            }
            0x03 => self.object(scope, value, depth + 1)?.into(),
            0x04 => self.array(scope, value, depth + 1)?.into(),
            0x08 => v8::Boolean::new(scope, value.first() == Some(&1)).into(),
            0x0a => v8::null(scope).into(),
            0x10 => v8::Integer::new(scope, read_i32(value)?).into(),
            _ => self.rarer(scope, element, depth)?,
        })
    }

    fn rarer<'s>(
        &self,
        scope: &mut v8::HandleScope<'s>,
        element: &Element<'_>,
        depth: usize,
    ) -> Result<Value<'s>> {
        let value = element.value;
        let instance = match element.kind {
            0x06 => return Ok(v8::undefined(scope).into()),
            0x09 => return self.date(scope, read_i64(value)?),
            0x0b => return self.regular_expression(scope, value),
            0x05 => self.binary(scope, value)?,
            0x07 => {
                let bytes = bytes_string(scope, value)?;
                self.bindings.make(scope, Type::ObjectId, bytes, None)
            }
            0x0c => {
                let (namespace, id) = value.split_at(value.len() - 12);
                let namespace = new_string(scope, text(namespace)?, v8::NewStringType::Normal);
                let namespace = namespace.ok_or(ConvertError::StringTooLong)?.into();
                let id = bytes_string(scope, id)?;
                self.bindings
                    .make(scope, Type::DbPointer, namespace, Some(id))
            }
            0x0d => {
                let code = self.code_string(scope, text(value)?)?;
                self.bindings.make(scope, Type::Code, code, None)
            }
            0x0f => self.code_with_scope(scope, value, depth)?,
            0x11 => {
                let increment = v8::Integer::new_from_unsigned(scope, read_u32(value)?).into();
                let seconds = value.get(4..).ok_or(ConvertError::Malformed)?;
                let seconds = v8::Integer::new_from_unsigned(scope, read_u32(seconds)?).into();
                self.bindings
                    .make(scope, Type::Timestamp, seconds, Some(increment))
            }
            0x12 => {
                let long = v8::BigInt::new_from_i64(scope, read_i64(value)?).into();
                self.bindings.make(scope, Type::NumberLong, long, None)
            }
            0x13 => {
                let bytes = bytes_string(scope, value)?;
                self.bindings.make(scope, Type::NumberDecimal, bytes, None)
            }
            0xff => self.key(scope, Type::MinKey),
            0x7f => self.key(scope, Type::MaxKey),
            _ => return Err(ConvertError::Malformed),
        };
        Ok(instance.ok_or(ConvertError::Threw)?.into())
    }

    fn key<'s>(
        &self,
        scope: &mut v8::HandleScope<'s>,
        kind: Type,
    ) -> Option<v8::Local<'s, v8::Object>> {
        let nothing = v8::undefined(scope).into();
        self.bindings.make(scope, kind, nothing, None)
    }

    fn date<'s>(&self, scope: &mut v8::HandleScope<'s>, ms: i64) -> Result<Value<'s>> {
        let date = v8::Date::new(scope, ms as f64).ok_or(ConvertError::Threw)?;
        if !(-DATE_MS_MAX..=DATE_MS_MAX).contains(&ms) {
            let exact = v8::BigInt::new_from_i64(scope, ms).into();
            self.remember_exactly(scope, date.into(), exact);
        }
        Ok(date.into())
    }

    fn regular_expression<'s>(
        &self,
        scope: &mut v8::HandleScope<'s>,
        value: &[u8],
    ) -> Result<Value<'s>> {
        let (pattern, rest) = until_zero(value)?;
        let (options, _) = until_zero(rest)?;
        let mut flags = v8::RegExpCreationFlags::empty();
        for option in options {
            match option {
                b'i' => flags |= v8::RegExpCreationFlags::IGNORE_CASE,
                b'm' => flags |= v8::RegExpCreationFlags::MULTILINE,
                b's' => flags |= v8::RegExpCreationFlags::DOT_ALL,
                _ => {}
            }
        }
        let too_long = ConvertError::StringTooLong;
        let source = new_string(scope, pattern, v8::NewStringType::Normal).ok_or(too_long)?;
        let compiled = {
            // PCRE knows patterns that JavaScript does not.
            let attempt = &mut v8::TryCatch::new(scope);
            v8::RegExp::new(attempt, source, flags)
        };
        let expression = match compiled {
            Some(expression) => expression,
            None => {
                let nothing = v8::String::empty(scope);
                v8::RegExp::new(scope, nothing, flags).ok_or(ConvertError::Threw)?
            }
        };
        let same_source = expression.get_source(scope).strict_equals(source.into());
        if !same_source || options.iter().any(|option| !b"ims".contains(option)) {
            let exact = bytes_string(scope, value)?;
            self.remember_exactly(scope, expression.into(), exact);
        }
        Ok(expression.into())
    }

    fn remember_exactly<'s>(
        &self,
        scope: &mut v8::HandleScope<'s>,
        object: v8::Local<'s, v8::Object>,
        exact: Value<'s>,
    ) {
        let key = v8::Local::new(scope, &self.bindings.exact);
        object.set_private(scope, key, exact);
    }

    fn binary<'s>(
        &self,
        scope: &mut v8::HandleScope<'s>,
        value: &[u8],
    ) -> Result<Option<v8::Local<'s, v8::Object>>> {
        let subtype = *value.get(4).ok_or(ConvertError::Malformed)?;
        // The old subtype 2 holds its length once more.
        let start = if subtype == 2 && value.len() >= 9 {
            9
        } else {
            5
        };
        let bytes = bytes_string(scope, &value[start..])?;
        let subtype = v8::Integer::new(scope, i32::from(subtype)).into();
        Ok(self
            .bindings
            .make(scope, Type::BinData, bytes, Some(subtype)))
    }

    fn code_string<'s>(&self, scope: &mut v8::HandleScope<'s>, source: &[u8]) -> Result<Value<'s>> {
        let source = new_string(scope, source, v8::NewStringType::Normal);
        Ok(source.ok_or(ConvertError::StringTooLong)?.into())
    }

    fn code_with_scope<'s>(
        &self,
        scope: &mut v8::HandleScope<'s>,
        value: &[u8],
        depth: usize,
    ) -> Result<Option<v8::Local<'s, v8::Object>>> {
        let inner = value.get(4..).ok_or(ConvertError::Malformed)?;
        let source = text(inner)?;
        let variables = inner
            .get(4 + source.len() + 1..)
            .ok_or(ConvertError::Malformed)?;
        let code = self.code_string(scope, source)?;
        let variables = self.object(scope, variables, depth + 1)?.into();
        Ok(self.bindings.make(scope, Type::Code, code, Some(variables)))
    }
}

fn check_depth(depth: usize) -> Result<()> {
    if depth > DEPTH_MAX {
        Err(ConvertError::TooDeep)
    } else {
        Ok(())
    }
}

/// Bytes as a string of one character each.
fn bytes_string<'s>(scope: &mut v8::HandleScope<'s>, bytes: &[u8]) -> Result<Value<'s>> {
    let string = v8::String::new_from_one_byte(scope, bytes, v8::NewStringType::Normal);
    Ok(string.ok_or(ConvertError::StringTooLong)?.into())
}

/// `{$ref, $id}` in this order, at the head of an object: a DBRef.
#[derive(Default)]
struct ReferenceShape {
    seen: usize,
    matched: usize,
}

impl ReferenceShape {
    #[inline]
    fn see(&mut self, name: &[u8]) {
        if self.seen < 2 {
            let expected: &[u8] = if self.seen == 0 { b"$ref" } else { b"$id" };
            self.matched += usize::from(name == expected);
            self.seen += 1;
        }
    }

    fn is_complete(&self) -> bool {
        self.matched == 2
    }
}

/// The names of one object whose type JavaScript forgets: `type byte, name, zero` each.
#[derive(Default)]
struct OriginNames {
    signature: Vec<u8>,
    integers: usize,
}

/// Stands for every index of an array of nothing but 32-bit integers.
pub(super) const EVERY_INDEX: &[u8] = b"*";

impl OriginNames {
    #[inline]
    fn see(&mut self, element: &Element<'_>) {
        if element.kind == 0x10 || element.kind == 0x0e {
            self.signature.push(element.kind);
            self.signature.extend_from_slice(element.name);
            self.signature.push(0);
            self.integers += usize::from(element.kind == 0x10);
        }
    }

    fn shorten_if_uniform(&mut self, values: usize) {
        if values > 0 && self.integers == values {
            self.signature.clear();
            self.signature.push(0x10);
            self.signature.extend_from_slice(EVERY_INDEX);
            self.signature.push(0);
        }
    }

    fn remember(
        self,
        scope: &mut v8::HandleScope<'_>,
        bindings: &Bindings,
        object: v8::Local<'_, v8::Object>,
    ) -> Result<()> {
        if self.signature.is_empty() {
            return Ok(());
        }
        let known = bindings
            .origins
            .borrow()
            .by_signature
            .get(&self.signature)
            .cloned();
        let memory = match known {
            Some(memory) => v8::Local::new(scope, memory),
            None => self.build(scope, bindings)?,
        };
        let key = v8::Local::new(scope, &bindings.origin);
        object
            .create_data_property(scope, key.into(), memory.into())
            .ok_or(ConvertError::Threw)?;
        Ok(())
    }

    fn build<'s>(
        self,
        scope: &mut v8::HandleScope<'s>,
        bindings: &Bindings,
    ) -> Result<v8::Local<'s, v8::Object>> {
        let memory = v8::Object::new(scope);
        let nothing = v8::null(scope).into();
        memory.set_prototype(scope, nothing);
        let mut rest = &self.signature[..];
        while let Some((&kind, after)) = rest.split_first() {
            let (name, next) = until_zero(after)?;
            let name = ToV8 { bindings }.name(scope, name)?;
            let kind = v8::Integer::new(scope, i32::from(kind)).into();
            memory
                .create_data_property(scope, name.into(), kind)
                .ok_or(ConvertError::Threw)?;
            rest = next;
        }
        let mut origins = bindings.origins.borrow_mut();
        if origins.by_signature.len() >= ORIGINS_MAX {
            origins.by_signature.clear();
        }
        let shared = v8::Global::new(scope, memory);
        origins.by_signature.insert(self.signature, shared);
        Ok(memory)
    }
}
