//! Keys back into the values that they were made of, as BSON.

use bson::spec::ElementType;
use thiserror::Error;

use super::types::{
    DECIMAL, DOUBLE, DOUBLE_BITS, LONG, MISSING, NEGATIVE_ZERO, NULL, SYMBOL, UNDEFINED, USUAL,
};
use super::{END, FieldOrder, number, tag};

/// A key that its reader cannot take for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("an index key cannot be read")]
pub struct Unreadable;

/// What a field of a key holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldValue {
    /// The document has a value there.
    Present,
    /// It has none. The path to it leads through so many documents, one in the other.
    Missing { documents: usize },
    /// An array without items, one of the path's or its value.
    EmptyArray,
}

/// Reads the fields of a key one after the other.
///
/// The strings of a collation's keys cannot be read: whoever reads knows that there are none.
#[derive(Debug, Clone)]
pub struct KeyReader<'k> {
    bytes: &'k [u8],
    at: usize,
    /// Of a descending field all bits are inverted.
    flip: u8,
    types: &'k [u8],
}

impl<'k> KeyReader<'k> {
    pub fn new(bytes: &'k [u8], types: &'k [u8]) -> KeyReader<'k> {
        KeyReader {
            bytes,
            at: 0,
            flip: 0,
            types,
        }
    }

    /// Where the next field begins.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Passes over bytes that are no field.
    pub fn skip_bytes(&mut self, count: usize) {
        self.at += count;
    }

    /// Appends the next field to the elements of a document, under this name. Of a hashed one, the
    /// hash.
    pub fn read(
        &mut self,
        order: FieldOrder,
        name: &str,
        out: &mut Vec<u8>,
    ) -> Result<FieldValue, Unreadable> {
        self.enter(order);
        if !order.is_of_values() {
            return self.hash(name, out);
        }
        match self.peek()? {
            tag::NULL => {
                self.at += 1;
                match self.code() {
                    NULL => {
                        let start = out.len();
                        head(out, name);
                        out[start] = ElementType::Null as u8;
                        Ok(FieldValue::Present)
                    }
                    MISSING => {
                        let [documents] = self.type_bytes()?;
                        Ok(FieldValue::Missing {
                            documents: usize::from(documents),
                        })
                    }
                    _ => Ok(FieldValue::Missing { documents: 0 }),
                }
            }
            tag::UNDEFINED => {
                self.at += 1;
                if self.code() != UNDEFINED {
                    return Ok(FieldValue::EmptyArray);
                }
                let start = out.len();
                head(out, name);
                out[start] = ElementType::Undefined as u8;
                Ok(FieldValue::Present)
            }
            _ => {
                self.element(name, out)?;
                Ok(FieldValue::Present)
            }
        }
    }

    /// A hash has no type bits: it is a long always.
    fn hash(&mut self, name: &str, out: &mut Vec<u8>) -> Result<FieldValue, Unreadable> {
        let tag = self.byte()?;
        let hash = self.whole(tag)?;
        let start = out.len();
        head(out, name);
        out[start] = ElementType::Int64 as u8;
        out.extend_from_slice(&hash.to_le_bytes());
        Ok(FieldValue::Present)
    }

    fn whole(&mut self, tag: u8) -> Result<i64, Unreadable> {
        match self.digits(tag)? {
            number::Decoded::Whole(whole) | number::Decoded::Digits(whole) => Ok(whole),
            number::Decoded::Double(double) => Ok(double as i64),
            number::Decoded::Decimal => Err(Unreadable),
        }
    }

    /// The number of the cell that the next field holds, one of shapes on the sphere; `None`: the
    /// document has no shape there, and nothing behind the field is to be read.
    pub fn cell(&mut self) -> Result<Option<i64>, Unreadable> {
        self.enter(FieldOrder::Sphere);
        match self.byte()? {
            tag @ number::LOWEST..=number::HIGHEST => self.whole(tag).map(Some),
            _ => Ok(None),
        }
    }

    /// Passes over the next field.
    pub fn skip(&mut self, order: FieldOrder) -> Result<(), Unreadable> {
        self.enter(order);
        if !order.is_of_values() {
            // Nobody reads what was hashed: it has no type bits.
            let types = std::mem::take(&mut self.types);
            let passed = self.pass();
            self.types = types;
            return passed;
        }
        self.pass()
    }

    fn enter(&mut self, order: FieldOrder) {
        self.flip = match order {
            FieldOrder::Descending => u8::MAX,
            FieldOrder::Ascending | FieldOrder::Hashed | FieldOrder::Sphere | FieldOrder::Plane => {
                0
            }
        };
    }

    fn pass(&mut self) -> Result<(), Unreadable> {
        match self.peek()? {
            tag::NULL | tag::UNDEFINED => {
                self.at += 1;
                if self.code() == MISSING {
                    self.type_bytes::<1>()?;
                }
            }
            tag::STRING => {
                self.at += 1;
                self.code();
                let rest = self.bytes.get(self.at..).ok_or(Unreadable)?;
                let end = END ^ self.flip;
                let length = rest.iter().position(|byte| *byte == end);
                self.at += length.ok_or(Unreadable)? + 1;
            }
            tag::OBJECT_ID => self.at += 13,
            tag::DATE | tag::TIMESTAMP => self.at += 9,
            tag::BOOLEAN => self.at += 2,
            number::LOWEST..=number::HIGHEST => {
                let tag = self.byte()?;
                self.digits(tag)?;
                match self.code() {
                    DOUBLE_BITS => {
                        self.type_bytes::<8>()?;
                    }
                    DECIMAL => {
                        self.type_bytes::<16>()?;
                    }
                    _ => {}
                }
            }
            _ => {
                self.value(&mut Vec::new())?;
            }
        }
        match self.at <= self.bytes.len() {
            true => Ok(()),
            false => Err(Unreadable),
        }
    }

    fn element(&mut self, name: &str, out: &mut Vec<u8>) -> Result<(), Unreadable> {
        let start = out.len();
        head(out, name);
        let kind = self.value(out)?;
        out[start] = kind as u8;
        Ok(())
    }

    /// Appends a value's bytes; what type it is of.
    fn value(&mut self, out: &mut Vec<u8>) -> Result<ElementType, Unreadable> {
        let tag = self.byte()?;
        Ok(match tag {
            tag::MIN_KEY => ElementType::MinKey,
            tag::UNDEFINED => ElementType::Undefined,
            tag::NULL => ElementType::Null,
            tag::MAX_KEY => ElementType::MaxKey,
            number::LOWEST..=number::HIGHEST => self.number(tag, out)?,
            tag::STRING => {
                let kind = match self.code() {
                    SYMBOL => ElementType::Symbol,
                    _ => ElementType::String,
                };
                self.text(out)?;
                kind
            }
            tag::DOCUMENT => {
                self.fields(out)?;
                ElementType::EmbeddedDocument
            }
            tag::ARRAY => {
                self.items(out)?;
                ElementType::Array
            }
            tag::BINARY => {
                let length = u32::from_be_bytes(self.take()?);
                let subtype = self.byte()?;
                out.extend_from_slice(&length.to_le_bytes());
                out.push(subtype);
                let mut length = length as usize;
                if subtype == 2 {
                    length = length.checked_sub(4).ok_or(Unreadable)?;
                    out.extend_from_slice(&(length as u32).to_le_bytes());
                }
                self.copy(length, out)?;
                ElementType::Binary
            }
            tag::OBJECT_ID => {
                self.copy(12, out)?;
                ElementType::ObjectId
            }
            tag::BOOLEAN => {
                self.copy(1, out)?;
                ElementType::Boolean
            }
            tag::DATE => {
                let millis = i64::from_be_bytes(self.take()?) ^ i64::MIN;
                out.extend_from_slice(&millis.to_le_bytes());
                ElementType::DateTime
            }
            tag::TIMESTAMP => {
                let time = u64::from_be_bytes(self.take()?);
                out.extend_from_slice(&time.to_le_bytes());
                ElementType::Timestamp
            }
            tag::REGEX => {
                self.name(out)?;
                self.name(out)?;
                ElementType::RegularExpression
            }
            tag::DB_POINTER => {
                let length = u32::from_be_bytes(self.take()?);
                self.copy(length as usize, out)?;
                ElementType::DbPointer
            }
            tag::CODE => {
                self.text(out)?;
                ElementType::JavaScriptCode
            }
            tag::CODE_WITH_SCOPE => {
                let start = reserve_length(out);
                self.text(out)?;
                self.fields(out)?;
                fill_length(out, start);
                ElementType::JavaScriptCodeWithScope
            }
            _ => return Err(Unreadable),
        })
    }

    /// What the bytes of a key say of a number.
    fn digits(&mut self, tag: u8) -> Result<number::Decoded, Unreadable> {
        let number = number::decode(tag, &mut |count| {
            let bytes = self.bytes.get(self.at..self.at + count)?;
            self.at += count;
            Some((bytes, self.flip))
        });
        number.ok_or(Unreadable)
    }

    fn number(&mut self, tag: u8, out: &mut Vec<u8>) -> Result<ElementType, Unreadable> {
        let number = self.digits(tag)?;
        let (long, double) = match self.code() {
            USUAL => match number {
                number::Decoded::Whole(whole) => match i32::try_from(whole) {
                    Ok(int) => {
                        out.extend_from_slice(&int.to_le_bytes());
                        return Ok(ElementType::Int32);
                    }
                    Err(_) => (Some(whole), 0.0),
                },
                number::Decoded::Digits(long) => (Some(long), 0.0),
                number::Decoded::Double(double) => (None, double),
                number::Decoded::Decimal => return Err(Unreadable),
            },
            LONG => match number {
                number::Decoded::Whole(whole) => (Some(whole), 0.0),
                number::Decoded::Double(double) => (Some(double as i64), 0.0),
                _ => return Err(Unreadable),
            },
            DOUBLE => match number {
                number::Decoded::Whole(whole) => (None, whole as f64),
                _ => return Err(Unreadable),
            },
            NEGATIVE_ZERO => (None, -0.0),
            DOUBLE_BITS => (None, f64::from_bits(u64::from_be_bytes(self.type_bytes()?))),
            DECIMAL => {
                out.extend_from_slice(&self.type_bytes::<16>()?);
                return Ok(ElementType::Decimal128);
            }
            _ => return Err(Unreadable),
        };
        match long {
            Some(long) => {
                out.extend_from_slice(&long.to_le_bytes());
                Ok(ElementType::Int64)
            }
            None => {
                out.extend_from_slice(&double.to_le_bytes());
                Ok(ElementType::Double)
            }
        }
    }

    fn fields(&mut self, out: &mut Vec<u8>) -> Result<(), Unreadable> {
        let start = reserve_length(out);
        // What comes before the name is the rank of the type.
        while self.byte()? != END {
            let element = out.len();
            out.push(0);
            self.name(out)?;
            let kind = self.value(out)?;
            out[element] = kind as u8;
        }
        out.push(0);
        fill_length(out, start);
        Ok(())
    }

    fn items(&mut self, out: &mut Vec<u8>) -> Result<(), Unreadable> {
        let start = reserve_length(out);
        let mut position = 0_usize;
        while self.peek()? != END {
            let name = position.to_string();
            self.element(&name, out)?;
            position += 1;
        }
        self.at += 1;
        out.push(0);
        fill_length(out, start);
        Ok(())
    }

    /// Text with its length in front.
    fn text(&mut self, out: &mut Vec<u8>) -> Result<(), Unreadable> {
        let start = reserve_length(out);
        loop {
            match self.byte()? {
                END => break,
                0x01 => match self.byte()? {
                    0x01 => out.push(0x00),
                    0x02 => out.push(0x01),
                    _ => return Err(Unreadable),
                },
                byte => out.push(byte),
            }
        }
        out.push(0);
        let length = (out.len() - start - 4) as u32;
        out[start..start + 4].copy_from_slice(&length.to_le_bytes());
        Ok(())
    }

    /// Text that holds no zero byte, and the zero byte that ends it.
    fn name(&mut self, out: &mut Vec<u8>) -> Result<(), Unreadable> {
        loop {
            let byte = self.byte()?;
            out.push(byte);
            if byte == END {
                return Ok(());
            }
        }
    }

    fn copy(&mut self, count: usize, out: &mut Vec<u8>) -> Result<(), Unreadable> {
        let end = self.at.checked_add(count).ok_or(Unreadable)?;
        let bytes = self.bytes.get(self.at..end).ok_or(Unreadable)?;
        let flip = self.flip;
        out.extend(bytes.iter().map(|byte| byte ^ flip));
        self.at = end;
        Ok(())
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Unreadable> {
        let bytes = self.bytes.get(self.at..).and_then(<[u8]>::first_chunk);
        let bytes: &[u8; N] = bytes.ok_or(Unreadable)?;
        self.at += N;
        Ok(bytes.map(|byte| byte ^ self.flip))
    }

    fn peek(&self) -> Result<u8, Unreadable> {
        let byte = self.bytes.get(self.at).ok_or(Unreadable)?;
        Ok(byte ^ self.flip)
    }

    fn byte(&mut self) -> Result<u8, Unreadable> {
        let byte = self.peek()?;
        self.at += 1;
        Ok(byte)
    }

    fn code(&mut self) -> u8 {
        match self.types.split_first() {
            Some((code, rest)) => {
                self.types = rest;
                *code
            }
            None => USUAL,
        }
    }

    fn type_bytes<const N: usize>(&mut self) -> Result<[u8; N], Unreadable> {
        let (bytes, rest) = self.types.split_first_chunk().ok_or(Unreadable)?;
        self.types = rest;
        Ok(*bytes)
    }
}

/// The head of an element whose type is filled in later.
fn head(out: &mut Vec<u8>, name: &str) {
    out.push(0);
    out.extend_from_slice(name.as_bytes());
    out.push(0);
}

fn reserve_length(out: &mut Vec<u8>) -> usize {
    out.extend_from_slice(&[0; 4]);
    out.len() - 4
}

fn fill_length(out: &mut [u8], start: usize) {
    let length = (out.len() - start) as u32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}
