//! Raw BSON written front to back into one buffer, lengths filled in when a level ends.

use bson::oid::ObjectId;
use bson::raw::cstr;
use bson::spec::ElementType;
use bson::{DateTime, RawArray, RawBsonRef, RawDocument, RawDocumentBuf, Timestamp};
use smallvec::SmallVec;

use crate::element::Element;

/// Few documents are nested more deeply.
const LEVELS_INLINE: usize = 4;

/// Writes one document. Levels opened with `begin_document` and `begin_array` are closed with
/// `end`; `finish` closes what is still open.
///
/// ```
/// use banyan_document::DocumentWriter;
/// let mut writer = DocumentWriter::new();
/// writer.append_i32("n", 1);
/// writer.begin_array("list");
/// writer.push(bson::RawBsonRef::Boolean(true));
/// writer.end();
/// assert_eq!(writer.finish(), bson::rawdoc! {"n": 1, "list": [true]});
/// ```
#[derive(Debug, Clone)]
pub struct DocumentWriter {
    bytes: Vec<u8>,
    /// The document itself.
    root: Level,
    /// The levels inside of it that are open.
    open: SmallVec<[Level; LEVELS_INLINE]>,
}

#[derive(Debug, Clone)]
struct Level {
    start: u32,
    /// The position of the next item, in arrays.
    next: Position,
}

impl Level {
    /// Documents are bounded far below 2 GiB by everyone who writes them.
    fn at(start: usize) -> Level {
        Level {
            start: start as u32,
            next: Position::FIRST,
        }
    }
}

/// A position as it is written: counting on changes one digit as a rule.
#[derive(Debug, Clone, Copy)]
struct Position {
    /// The last `digits` before the zero byte count.
    name: [u8; POSITION_DIGITS_MAX + 1],
    digits: u8,
}

/// More items than that are more bytes than a document may have.
const POSITION_DIGITS_MAX: usize = 10;

impl Position {
    const FIRST: Position = {
        let mut name = [b'0'; POSITION_DIGITS_MAX + 1];
        name[POSITION_DIGITS_MAX] = 0;
        Position { name, digits: 1 }
    };

    /// With its zero byte.
    fn name(&self) -> &[u8] {
        &self.name[POSITION_DIGITS_MAX - usize::from(self.digits)..]
    }

    fn count_on(&mut self) {
        let mut at = POSITION_DIGITS_MAX - 1;
        while self.name[at] == b'9' && at > 0 {
            self.name[at] = b'0';
            at -= 1;
        }
        self.name[at] += 1;
        self.digits = self.digits.max((POSITION_DIGITS_MAX - at) as u8);
    }
}

impl Default for DocumentWriter {
    fn default() -> DocumentWriter {
        DocumentWriter::new()
    }
}

impl DocumentWriter {
    pub fn new() -> DocumentWriter {
        DocumentWriter::with_capacity(128)
    }

    pub fn with_capacity(bytes: usize) -> DocumentWriter {
        DocumentWriter::over(Vec::with_capacity(bytes.max(5)))
    }

    /// Writes over what is in a buffer.
    pub fn over(mut written: Vec<u8>) -> DocumentWriter {
        written.clear();
        written.extend_from_slice(&[0; 4]);
        DocumentWriter {
            bytes: written,
            root: Level::at(0),
            open: SmallVec::new(),
        }
    }

    pub fn append(&mut self, name: &str, value: RawBsonRef<'_>) {
        self.head(value.element_type(), name);
        append_value(&mut self.bytes, value);
    }

    pub fn append_i32(&mut self, name: &str, value: i32) {
        self.append(name, RawBsonRef::Int32(value));
    }

    pub fn append_i64(&mut self, name: &str, value: i64) {
        self.append(name, RawBsonRef::Int64(value));
    }

    pub fn append_f64(&mut self, name: &str, value: f64) {
        self.append(name, RawBsonRef::Double(value));
    }

    pub fn append_bool(&mut self, name: &str, value: bool) {
        self.append(name, RawBsonRef::Boolean(value));
    }

    pub fn append_str(&mut self, name: &str, value: &str) {
        self.append(name, RawBsonRef::String(value));
    }

    pub fn append_null(&mut self, name: &str) {
        self.append(name, RawBsonRef::Null);
    }

    pub fn append_oid(&mut self, name: &str, value: ObjectId) {
        self.append(name, RawBsonRef::ObjectId(value));
    }

    pub fn append_date(&mut self, name: &str, value: DateTime) {
        self.append(name, RawBsonRef::DateTime(value));
    }

    pub fn append_timestamp(&mut self, name: &str, value: Timestamp) {
        self.append(name, RawBsonRef::Timestamp(value));
    }

    pub fn append_doc(&mut self, name: &str, value: &RawDocument) {
        self.append(name, RawBsonRef::Document(value));
    }

    pub fn append_array(&mut self, name: &str, value: &RawArray) {
        self.append(name, RawBsonRef::Array(value));
    }

    /// Copies a field as it lies in another document.
    pub fn append_element(&mut self, element: &Element<'_>) {
        self.bytes.extend_from_slice(element.bytes());
    }

    /// Copies a field as it lies in another document: type, name and value.
    pub fn append_bytes(&mut self, field: &[u8]) {
        self.bytes.extend_from_slice(field);
    }

    /// Copies the value of a field under another name.
    pub fn append_element_as(&mut self, name: &str, element: &Element<'_>) {
        self.head(element.kind(), name);
        self.bytes.extend_from_slice(element.value_bytes());
    }

    /// Copies all fields of another document.
    pub fn append_all(&mut self, document: &RawDocument) {
        let bytes = document.as_bytes();
        self.bytes.extend_from_slice(&bytes[4..bytes.len() - 1]);
    }

    /// Appends an item to the open array under its position.
    pub fn push(&mut self, value: RawBsonRef<'_>) {
        self.item_head(value.element_type());
        append_value(&mut self.bytes, value);
    }

    /// Copies the value of another document's element as an item of the open array.
    pub fn push_element(&mut self, element: &Element<'_>) {
        self.item_head(element.kind());
        self.bytes.extend_from_slice(element.value_bytes());
    }

    pub fn begin_document(&mut self, name: &str) {
        self.head(ElementType::EmbeddedDocument, name);
        self.begin();
    }

    pub fn begin_array(&mut self, name: &str) {
        self.head(ElementType::Array, name);
        self.begin();
    }

    /// Opens a document as an item of the open array.
    pub fn push_document(&mut self) {
        self.item_head(ElementType::EmbeddedDocument);
        self.begin();
    }

    /// Opens an array as an item of the open array.
    pub fn push_array(&mut self) {
        self.item_head(ElementType::Array);
        self.begin();
    }

    /// Closes the innermost open level. The document itself stays open until `finish`.
    pub fn end(&mut self) {
        if let Some(level) = self.open.pop() {
            self.close(level.start);
        }
    }

    /// The bytes written so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes that were written since there were so many.
    pub fn written_since(&self, length: usize) -> &[u8] {
        self.bytes.get(length..).unwrap_or_default()
    }

    /// Whether nothing was written into the innermost open level.
    pub fn is_empty(&self) -> bool {
        let level = self.open.last().unwrap_or(&self.root);
        self.bytes.len() == level.start as usize + 4
    }

    pub fn finish(mut self) -> RawDocumentBuf {
        while let Some(level) = self.open.pop() {
            self.close(level.start);
        }
        self.close(self.root.start);
        // `close` wrote the length that from_bytes checks and the zero byte at the end.
        RawDocumentBuf::from_bytes(self.bytes).expect("the writer closes what it opens")
    }

    fn begin(&mut self) {
        self.open.push(Level::at(self.bytes.len()));
        self.bytes.extend_from_slice(&[0; 4]);
    }

    /// Ends the level that starts there.
    fn close(&mut self, start: u32) {
        self.bytes.push(0);
        let start = start as usize;
        let length = (self.bytes.len() - start) as u32;
        self.bytes[start..start + 4].copy_from_slice(&length.to_le_bytes());
    }

    fn head(&mut self, kind: ElementType, name: &str) {
        self.bytes.push(kind as u8);
        // A name cannot hold a zero byte: it ends there.
        let name = name.as_bytes();
        let length = name
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(name.len());
        self.bytes.extend_from_slice(&name[..length]);
        self.bytes.push(0);
    }

    fn item_head(&mut self, kind: ElementType) {
        self.bytes.push(kind as u8);
        let level = self.open.last_mut().unwrap_or(&mut self.root);
        self.bytes.extend_from_slice(level.next.name());
        level.next.count_on();
    }
}

/// The bytes of a value as they follow its name in a document.
pub fn append_value(out: &mut Vec<u8>, value: RawBsonRef<'_>) {
    match value {
        RawBsonRef::Double(v) => out.extend_from_slice(&v.to_le_bytes()),
        RawBsonRef::String(v) | RawBsonRef::JavaScriptCode(v) | RawBsonRef::Symbol(v) => {
            append_string(out, v);
        }
        RawBsonRef::Document(v) => out.extend_from_slice(v.as_bytes()),
        RawBsonRef::Array(v) => out.extend_from_slice(v.as_bytes()),
        RawBsonRef::Binary(v) => {
            let subtype = u8::from(v.subtype);
            let old = subtype == 2;
            let length = v.bytes.len() as u32;
            out.extend_from_slice(&(length + if old { 4 } else { 0 }).to_le_bytes());
            out.push(subtype);
            if old {
                out.extend_from_slice(&length.to_le_bytes());
            }
            out.extend_from_slice(v.bytes);
        }
        RawBsonRef::ObjectId(v) => out.extend_from_slice(&v.bytes()),
        RawBsonRef::Boolean(v) => out.push(u8::from(v)),
        RawBsonRef::DateTime(v) => out.extend_from_slice(&v.timestamp_millis().to_le_bytes()),
        RawBsonRef::RegularExpression(v) => {
            out.extend_from_slice(v.pattern.as_str().as_bytes());
            out.push(0);
            out.extend_from_slice(v.options.as_str().as_bytes());
            out.push(0);
        }
        RawBsonRef::JavaScriptCodeWithScope(v) => {
            let scope = v.scope.as_bytes();
            let length = 4 + 4 + v.code.len() + 1 + scope.len();
            out.extend_from_slice(&(length as u32).to_le_bytes());
            append_string(out, v.code);
            out.extend_from_slice(scope);
        }
        RawBsonRef::Int32(v) => out.extend_from_slice(&v.to_le_bytes()),
        RawBsonRef::Int64(v) => out.extend_from_slice(&v.to_le_bytes()),
        RawBsonRef::Timestamp(v) => {
            out.extend_from_slice(&v.increment.to_le_bytes());
            out.extend_from_slice(&v.time.to_le_bytes());
        }
        RawBsonRef::Decimal128(v) => out.extend_from_slice(&v.bytes()),
        RawBsonRef::DbPointer(_) => out.extend_from_slice(&db_pointer_bytes(value)),
        RawBsonRef::Null | RawBsonRef::Undefined | RawBsonRef::MinKey | RawBsonRef::MaxKey => {}
    }
}

fn append_string(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u32 + 1).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
    out.push(0);
}

/// `bson` keeps the fields of a DBPointer to itself; it does write them.
fn db_pointer_bytes(value: RawBsonRef<'_>) -> Vec<u8> {
    let mut document = RawDocumentBuf::new();
    document.append(cstr!(""), value);
    let bytes = document.into_bytes();
    bytes[6..bytes.len() - 1].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::elements;
    use bson::{Bson, doc, rawdoc};

    #[test]
    fn writes_every_type_as_bson_does() {
        let bytes = b"\x22\0\0\0\x0cp\0\x02\0\0\0n\0ABCDEFGHIJKL\x0amore\0\0";
        let mut bytes = bytes.to_vec();
        bytes[0] = bytes.len() as u8;
        let pointer = RawDocumentBuf::from_bytes(bytes).unwrap();
        let document = doc! {
            "a": 1.5, "b": "x", "c": {"d": [1, [2]]},
            "e": Bson::Binary(bson::Binary { subtype: 2.into(), bytes: vec![7, 8] }),
            "f": Bson::Binary(bson::Binary { subtype: 4.into(), bytes: vec![7, 8] }),
            "g": ObjectId::new(), "h": false, "i": DateTime::from_millis(-5),
            "j": bson::Regex { pattern: "p".try_into().unwrap(), options: "i".try_into().unwrap() },
            "k": bson::JavaScriptCodeWithScope { code: "y".into(), scope: doc! {"z": 1} },
            "l": 1, "m": 2i64, "n": Timestamp { time: 3, increment: 4 },
            "o": Bson::Decimal128("1.50".parse().unwrap()), "p": Bson::Null, "q": Bson::MinKey,
            "r": Bson::Undefined, "s": Bson::Symbol("s".into()), "t": Bson::MaxKey,
        };
        for document in [RawDocumentBuf::try_from(&document).unwrap(), pointer] {
            let mut by_value = DocumentWriter::new();
            let mut by_element = DocumentWriter::new();
            for element in elements(&document) {
                by_value.append(element.name(), element.value());
                by_element.append_element_as(element.name(), &element);
            }
            assert_eq!(by_value.finish(), document);
            assert_eq!(by_element.finish(), document);
        }
    }

    #[test]
    fn numbers_items_and_closes_levels() {
        let mut writer = DocumentWriter::new();
        writer.begin_array("a");
        for n in 0..12 {
            writer.push(RawBsonRef::Int32(n));
        }
        writer.push_document();
        writer.append_bool("x", true);
        let expected = rawdoc! {"a": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, {"x": true}]};
        assert_eq!(writer.finish(), expected);
    }

    #[test]
    fn items_are_named_by_their_positions() {
        let mut writer = DocumentWriter::new();
        writer.begin_array("a");
        (0..10_101).for_each(|n| writer.push(RawBsonRef::Int32(n)));
        let document = writer.finish();
        let array = document.get_array("a").unwrap();
        for (at, item) in crate::element::items(array).enumerate() {
            assert_eq!(item.name(), at.to_string());
        }
        assert_eq!(crate::element::values(array).count(), 10_101);
    }
}
