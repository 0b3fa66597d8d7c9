//! Elements with the bytes they occupy, so that what is not changed can be copied as it lies.
//!
//! They are read by their bytes. The `bson` crate's own iterator checks again what was checked when
//! the document came in ([`crate::validate`]), which is most of what a look at a document costs.

use bson::oid::ObjectId;
use bson::raw::{CStr, RawIter};
use bson::spec::{BinarySubtype, ElementType};
use bson::{
    DateTime, Decimal128, RawArray, RawBinaryRef, RawBsonRef, RawDbPointerRef, RawDocument,
    RawJavaScriptCodeWithScopeRef, RawRegexRef, Timestamp,
};
use serde::Deserialize;
use serde::de::value::{BorrowedBytesDeserializer, Error};

use crate::validate::value_size;

/// One field of a document, or one item of an array.
#[derive(Clone)]
pub struct Element<'a> {
    raw: RawField<'a>,
    bytes: &'a [u8],
    /// The value of a type that only the `bson` crate makes, and only in its document.
    pointer: Option<RawDbPointerRef<'a>>,
}

impl<'a> Element<'a> {
    /// The name. Documents are validated when they enter the process; what is no text is empty.
    pub fn name(&self) -> &'a str {
        std::str::from_utf8(self.raw.name).unwrap_or_default()
    }

    pub fn name_bytes(&self) -> &'a [u8] {
        self.raw.name
    }

    pub fn kind(&self) -> ElementType {
        self.raw.kind().unwrap_or(ElementType::Null)
    }

    /// The value. Documents are validated when they enter the process; what cannot be read is
    /// null.
    pub fn value(&self) -> RawBsonRef<'a> {
        match self.pointer {
            None => self.raw.value().unwrap_or(RawBsonRef::Null),
            Some(pointer) => RawBsonRef::DbPointer(pointer),
        }
    }

    /// Type, name and value as they lie in the document.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The value alone as it lies in the document.
    pub fn value_bytes(&self) -> &'a [u8] {
        self.raw.value
    }
}

/// The elements of a validated document or array, in order.
pub struct Elements<'a> {
    raw: RawFields<'a>,
    document: &'a [u8],
    at: usize,
    /// Where the `bson` crate's iterator is that makes the pointers, once there was one.
    pointers: Option<(RawIter<'a>, usize)>,
}

/// The fields of a document.
pub fn elements(document: &RawDocument) -> Elements<'_> {
    Elements::of(document.as_bytes())
}

/// The items of an array; their names are their positions.
pub fn items(array: &RawArray) -> Elements<'_> {
    Elements::of(array.as_bytes())
}

impl<'a> Elements<'a> {
    fn of(document: &'a [u8]) -> Elements<'a> {
        Elements {
            raw: RawFields::of(document),
            document,
            at: 0,
            pointers: None,
        }
    }

    /// The pointer at the current place. The iterator that knows it catches up with this one.
    fn pointer(&mut self) -> Option<RawDbPointerRef<'a>> {
        let (mut iter, next) = match self.pointers.take() {
            Some(begun) => begun,
            None => (
                RawDocument::from_bytes(self.document).ok()?.iter_elements(),
                0,
            ),
        };
        let element = iter.nth(self.at - next)?.ok()?;
        self.pointers = Some((iter, self.at + 1));
        element.value().ok()?.as_db_pointer()
    }
}

const DB_POINTER: u8 = ElementType::DbPointer as u8;

impl<'a> Iterator for Elements<'a> {
    type Item = Element<'a>;

    #[inline]
    fn next(&mut self) -> Option<Element<'a>> {
        let (raw, bytes) = self.raw.next_whole()?;
        let pointer = match raw.kind {
            DB_POINTER => self.pointer(),
            _ => None,
        };
        self.at += 1;
        Some(Element {
            raw,
            bytes,
            pointer,
        })
    }
}

/// The values of an array's items, in order. Those that are passed over are not looked at.
pub fn values(array: &RawArray) -> Values<'_> {
    Values {
        raw: RawFields::of(array.as_bytes()),
        array,
        at: 0,
    }
}

pub struct Values<'a> {
    raw: RawFields<'a>,
    array: &'a RawArray,
    /// How many items were passed.
    at: usize,
}

impl<'a> Values<'a> {
    /// The value of the item that was passed last.
    #[inline]
    fn value(&self, item: RawField<'a>) -> Option<RawBsonRef<'a>> {
        match item.value() {
            None => items(self.array).nth(self.at - 1).map(|item| item.value()),
            value => value,
        }
    }
}

impl<'a> Iterator for Values<'a> {
    type Item = RawBsonRef<'a>;

    #[inline]
    fn next(&mut self) -> Option<RawBsonRef<'a>> {
        let item = self.raw.next()?;
        self.at += 1;
        self.value(item)
    }

    fn nth(&mut self, n: usize) -> Option<RawBsonRef<'a>> {
        let item = self.raw.nth(n)?;
        self.at += n + 1;
        self.value(item)
    }

    fn count(self) -> usize {
        self.raw.count()
    }

    fn last(mut self) -> Option<RawBsonRef<'a>> {
        let mut last = None;
        for item in self.raw.by_ref() {
            self.at += 1;
            last = Some(item);
        }
        self.value(last?)
    }
}

/// The value of a direct field.
pub fn field<'a>(document: &'a RawDocument, name: &str) -> Option<RawBsonRef<'a>> {
    let found = raw_fields(document).named(name.as_bytes())?;
    found.value_in(document)
}

/// The field that begins at this place of the document's bytes.
pub(crate) fn field_at(document: &RawDocument, offset: usize) -> Option<RawField<'_>> {
    let bytes = document.as_bytes();
    let rest = bytes.get(offset..bytes.len().saturating_sub(1))?;
    RawFields { rest }.next()
}

/// The value of the first field: in a command, what the command is about.
pub fn first_value(document: &RawDocument) -> Option<RawBsonRef<'_>> {
    match raw_fields(document).next()?.value() {
        None => elements(document).next().map(|first| first.value()),
        value => value,
    }
}

/// A field of a validated document, by its bytes: nothing is made of them before somebody asks.
#[derive(Clone, Copy)]
pub struct RawField<'a> {
    kind: u8,
    name: &'a [u8],
    value: &'a [u8],
}

/// The fields of a validated document or array, by their bytes, in order.
#[derive(Clone)]
pub struct RawFields<'a> {
    rest: &'a [u8],
}

/// The fields of a document, by their bytes.
pub fn raw_fields(document: &RawDocument) -> RawFields<'_> {
    RawFields::of(document.as_bytes())
}

impl<'a> RawFields<'a> {
    fn of(document: &'a [u8]) -> RawFields<'a> {
        let end = document.len().saturating_sub(1);
        RawFields {
            rest: document.get(4..end).unwrap_or_default(),
        }
    }

    /// The next field, and all of its bytes: type, name and value.
    // As a call it hands on what it has found through memory, in pieces that are read back in others.
    #[inline(always)]
    pub fn next_whole(&mut self) -> Option<(RawField<'a>, &'a [u8])> {
        let before = self.rest;
        let field = self.next()?;
        Some((field, &before[..before.len() - self.rest.len()]))
    }

    /// How many bytes the fields take that are still to come.
    pub(crate) fn bytes_left(&self) -> usize {
        self.rest.len()
    }

    /// The next field of this name. Fields before it are passed over without a look at more of them
    /// than that takes.
    fn named(&mut self, name: &[u8]) -> Option<RawField<'a>> {
        let first = name.first().copied().unwrap_or(0);
        loop {
            let [kind, named @ ..] = self.rest else {
                return None;
            };
            let is_it = named.first() == Some(&first)
                && named.get(name.len()) == Some(&0)
                && named.starts_with(name);
            let end = if is_it { name.len() } else { zero_byte(named)? };
            let (found, rest) = named.split_at_checked(end)?;
            let rest = rest.get(1..)?;
            let (value, rest) = rest.split_at_checked(value_size(*kind, rest)?)?;
            self.rest = rest;
            if is_it {
                return Some(RawField {
                    kind: *kind,
                    name: found,
                    value,
                });
            }
        }
    }
}

impl<'a> Iterator for RawFields<'a> {
    type Item = RawField<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<RawField<'a>> {
        let (kind, rest) = self.rest.split_first()?;
        let (name, rest) = rest.split_at_checked(zero_byte(rest)?)?;
        let rest = rest.get(1..)?;
        let (value, rest) = rest.split_at_checked(value_size(*kind, rest)?)?;
        self.rest = rest;
        Some(RawField {
            kind: *kind,
            name,
            value,
        })
    }
}

/// Where the first zero byte is: eight bytes at a time, as most names are no longer.
#[inline]
fn zero_byte(bytes: &[u8]) -> Option<usize> {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = LOW << 7;
    let mut at = 0;
    while let Some(eight) = bytes.get(at..).and_then(<[u8]>::first_chunk) {
        let word = u64::from_le_bytes(*eight);
        // The lowest bit that is set here belongs to the first zero byte.
        let zeros = word.wrapping_sub(LOW) & !word & HIGH;
        if zeros != 0 {
            return Some(at + zeros.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    let rest = bytes.get(at..)?;
    Some(at + rest.iter().position(|byte| *byte == 0)?)
}

impl<'a> RawField<'a> {
    pub fn name(&self) -> &'a [u8] {
        self.name
    }

    pub fn kind(&self) -> Option<ElementType> {
        ElementType::from(self.kind)
    }

    pub fn is_array(&self) -> bool {
        self.kind() == Some(ElementType::Array)
    }

    /// The value as it lies in the document.
    pub fn value_bytes(&self) -> &'a [u8] {
        self.value
    }

    /// What lies in it, if it is a document or an array.
    pub fn inner(&self) -> Option<RawFields<'a>> {
        let is_nested = matches!(
            self.kind(),
            Some(ElementType::EmbeddedDocument | ElementType::Array)
        );
        is_nested.then(|| RawFields::of(self.value))
    }

    /// The value, in the document that the field is of.
    #[inline]
    pub(crate) fn value_in(&self, document: &'a RawDocument) -> Option<RawBsonRef<'a>> {
        match self.value() {
            None => document.get(std::str::from_utf8(self.name).ok()?).ok()?,
            value => value,
        }
    }

    /// The value; `None` for a pointer, which is made in its document only.
    fn value(&self) -> Option<RawBsonRef<'a>> {
        Some(match self.kind()? {
            ElementType::Double => RawBsonRef::Double(f64::from_le_bytes(self.chunk()?)),
            ElementType::String => RawBsonRef::String(text(self.value)?),
            ElementType::EmbeddedDocument => {
                RawBsonRef::Document(RawDocument::from_bytes(self.value).ok()?)
            }
            ElementType::Array => RawBsonRef::Array(array(self.value)?),
            ElementType::Binary => RawBsonRef::Binary(binary(self.value)?),
            ElementType::Undefined => RawBsonRef::Undefined,
            ElementType::ObjectId => RawBsonRef::ObjectId(ObjectId::from_bytes(self.chunk()?)),
            ElementType::Boolean => RawBsonRef::Boolean(self.value == [1]),
            ElementType::DateTime => {
                RawBsonRef::DateTime(DateTime::from_millis(i64::from_le_bytes(self.chunk()?)))
            }
            ElementType::Null => RawBsonRef::Null,
            ElementType::RegularExpression => RawBsonRef::RegularExpression(regex(self.value)?),
            ElementType::DbPointer => return None,
            ElementType::JavaScriptCode => RawBsonRef::JavaScriptCode(text(self.value)?),
            ElementType::Symbol => RawBsonRef::Symbol(text(self.value)?),
            ElementType::JavaScriptCodeWithScope => {
                RawBsonRef::JavaScriptCodeWithScope(code_with_scope(self.value)?)
            }
            ElementType::Int32 => RawBsonRef::Int32(i32::from_le_bytes(self.chunk()?)),
            ElementType::Timestamp => {
                let (increment, time) = self.value.split_first_chunk()?;
                RawBsonRef::Timestamp(Timestamp {
                    time: u32::from_le_bytes(time.try_into().ok()?),
                    increment: u32::from_le_bytes(*increment),
                })
            }
            ElementType::Int64 => RawBsonRef::Int64(i64::from_le_bytes(self.chunk()?)),
            ElementType::Decimal128 => {
                RawBsonRef::Decimal128(Decimal128::from_bytes(self.chunk()?))
            }
            ElementType::MinKey => RawBsonRef::MinKey,
            ElementType::MaxKey => RawBsonRef::MaxKey,
        })
    }

    fn chunk<const N: usize>(&self) -> Option<[u8; N]> {
        self.value.try_into().ok()
    }
}

/// A length, the text, and a zero byte.
fn text(value: &[u8]) -> Option<&str> {
    let text = value.get(4..value.len().checked_sub(1)?)?;
    std::str::from_utf8(text).ok()
}

/// The `bson` crate makes an array of bytes for formats that know no arrays of its kind.
fn array(value: &[u8]) -> Option<&RawArray> {
    <&RawArray>::deserialize(BorrowedBytesDeserializer::<Error>::new(value)).ok()
}

fn binary(value: &[u8]) -> Option<RawBinaryRef<'_>> {
    let subtype = BinarySubtype::from(*value.get(4)?);
    // The old subtype repeats the length.
    let head = match subtype {
        BinarySubtype::BinaryOld => 9,
        _ => 5,
    };
    let bytes = value.get(head..)?;
    Some(RawBinaryRef { subtype, bytes })
}

fn regex(value: &[u8]) -> Option<RawRegexRef<'_>> {
    let (pattern, options) = std::str::from_utf8(value).ok()?.split_once('\0')?;
    Some(RawRegexRef {
        pattern: <&CStr>::try_from(pattern).ok()?,
        options: <&CStr>::try_from(options.strip_suffix('\0')?).ok()?,
    })
}

fn code_with_scope(value: &[u8]) -> Option<RawJavaScriptCodeWithScopeRef<'_>> {
    let rest = value.get(4..)?;
    let (code, scope) = rest.split_at_checked(value_size(ElementType::String as u8, rest)?)?;
    Some(RawJavaScriptCodeWithScopeRef {
        code: text(code)?,
        scope: RawDocument::from_bytes(scope).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::everything;
    use bson::rawdoc;

    #[test]
    fn fields_by_their_bytes_are_those_of_the_document() {
        let document = everything();
        let mut raw = raw_fields(&document);
        for element in document.iter_elements() {
            let element = element.unwrap();
            let found = raw.next().unwrap();
            assert_eq!(found.name(), element.key().as_str().as_bytes());
            assert_eq!(found.kind(), Some(element.element_type()));
            let value = element.value().unwrap();
            assert!(found.value().is_none_or(|found| found == value));
            assert_eq!(field(&document, element.key().as_str()), Some(value));
        }
        assert!(raw.next().is_none());
        assert_eq!(field(&document, "doubl"), None);
        assert_eq!(field(&document, "doubles"), None);
        assert_eq!(field(&rawdoc! {}, ""), None);
        let mut items = bson::RawArrayBuf::new();
        document
            .iter()
            .flatten()
            .for_each(|(_, value)| items.push(value));
        let all: Vec<_> = items.into_iter().map(Result::unwrap).collect();
        assert_eq!(values(&items).collect::<Vec<_>>(), all);
        assert_eq!(values(&items).count(), all.len());
        assert_eq!(values(&items).last(), all.last().copied());
        for (at, value) in all.iter().enumerate() {
            assert_eq!(values(&items).nth(at).as_ref(), Some(value));
            assert_eq!(values(&items).nth(all.len() + at), None);
        }
        assert_eq!(first_value(&document), Some(RawBsonRef::Double(1.5)));
        let array = rawdoc! {"first": [1, {"a": 2}]};
        let expected = array.get_array("first").unwrap();
        assert_eq!(first_value(&array), Some(RawBsonRef::Array(expected)));
        let inner = raw_fields(&array).next().unwrap().inner().unwrap();
        let names: Vec<_> = inner.map(|field| field.name()).collect();
        assert_eq!(names, [b"0", b"1"]);
    }

    #[test]
    fn the_first_zero_byte_is_found_wherever_it_is() {
        for length in 0..40 {
            for fill in [1u8, 0x7f, 0x80, 0xff] {
                for rest in 0..10 {
                    let mut bytes = vec![fill; length];
                    assert_eq!(zero_byte(&bytes), None);
                    bytes.push(0);
                    bytes.extend((0..rest).map(|at| at % 2));
                    assert_eq!(zero_byte(&bytes), Some(length));
                }
            }
        }
    }

    #[test]
    fn elements_are_those_of_the_document() {
        let mut document = rawdoc! {"first": 1, "list": [1, [2, 3], "x"], "last": [[]]};
        for (name, value) in everything().iter().flatten() {
            document.append(name, value);
        }
        let ours: Vec<_> = elements(&document)
            .map(|e| (e.name(), e.kind(), e.value()))
            .collect();
        let theirs: Vec<_> = document
            .iter_elements()
            .flatten()
            .map(|e| (e.key().as_str(), e.element_type(), e.value().unwrap()))
            .collect();
        assert_eq!(ours, theirs);
    }

    /// What was not validated ends the look; nothing is read outside of it.
    #[test]
    fn a_damaged_document_is_left_where_it_is_damaged() {
        let whole = rawdoc! {"a": "text", "b": {"c": 1}, "d": [1, 2]}.into_bytes();
        for at in 4..whole.len() {
            for damage in [0, 1, 2, 3, 4, 0x0b, 0x7f, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = damage;
                let Ok(document) = RawDocument::from_bytes(&bytes) else {
                    continue;
                };
                for found in raw_fields(document) {
                    let _ = (found.value(), found.inner().map(Iterator::count));
                }
                let _ = (field(document, "d"), first_value(document));
            }
        }
    }

    #[test]
    fn bytes_add_up_to_the_document() {
        let document = rawdoc! {"a": 1, "longer": "text", "c": [1, {"d": true}], "e": {}};
        let joined: Vec<u8> = elements(&document)
            .flat_map(|e| e.bytes().to_vec())
            .collect();
        let whole = document.as_bytes();
        assert_eq!(joined, &whole[4..whole.len() - 1]);
        let third = elements(&document).nth(2).unwrap();
        assert_eq!(
            third.value_bytes(),
            third.value().as_array().unwrap().as_bytes()
        );
    }
}
