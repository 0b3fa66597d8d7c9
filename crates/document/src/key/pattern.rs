//! Key patterns, and the keys that a document has under one.
//!
//! An array on the path of a field gives a key per item; two arrays side by side are refused, for
//! their keys would multiply. A missing field is null. An empty array is undefined, which is how
//! an index tells `[]` from `null`.

use bson::{RawArray, RawBsonRef, RawDocument, RawDocumentBuf};
use thiserror::Error;

use super::{encode_ordered, hash_collated};
use crate::collation::Collator;
use crate::element::{elements, field, items};
use crate::number::Number;
use crate::path::{Path, position};
use crate::writer::DocumentWriter;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FieldOrder {
    Ascending,
    Descending,
    Hashed,
}

/// The fields of an index, in order, and how it compares strings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPattern {
    pub fields: Vec<(Path, FieldOrder)>,
    pub collator: Option<Collator>,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum KeyPatternError {
    #[error("Index keys cannot be empty.")]
    Empty,
    #[error("Index keys cannot be an empty field.")]
    EmptyField,
    #[error("Index key contains an illegal field name: field name starts with '$'.")]
    Dollar,
    #[error("Index key path {0:?} is not valid")]
    Path(String),
    #[error("Values in the index key pattern cannot be 0.")]
    Zero,
    #[error(
        "Values in v:2 index key pattern cannot be of type {0}. Only numbers > 0, numbers < 0, \
         and strings are allowed."
    )]
    Type(&'static str),
    #[error("Unknown index plugin '{0}'")]
    UnknownPlugin(String),
    #[error("Index type '{0}' is not supported")]
    Unsupported(String),
    #[error("A maximum of one index field is allowed to be hashed but found {0}")]
    ManyHashed(usize),
    #[error("Too many fields in an index key pattern: {0}, the maximum is {FIELDS_MAX}")]
    TooMany(usize),
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum KeyError {
    #[error("cannot index parallel arrays [{0}] [{1}]")]
    ParallelArrays(String, String),
    #[error("hashed indexes do not currently support array values")]
    HashedArray,
    #[error(
        "Ambiguous field name found in array (do not use numeric field names in embedded elements \
         in an array), field: '{0}'"
    )]
    AmbiguousField(String),
    #[error("index key too large: {0} bytes")]
    TooLarge(usize),
}

impl KeyError {
    /// MongoDB's number for the error.
    pub fn code(&self) -> i32 {
        match self {
            KeyError::ParallelArrays(..) => 171,
            KeyError::HashedArray => 16766,
            KeyError::AmbiguousField(_) => 16746,
            KeyError::TooLarge(_) => 17280,
        }
    }
}

/// A document's keys: sorted, each once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Keys {
    pub keys: Vec<Vec<u8>>,
    /// Whether an array was met on the way, even one that gave a single key.
    pub multikey: bool,
}

const FIELDS_MAX: usize = 32;

impl KeyPattern {
    pub fn parse(pattern: &RawDocument) -> Result<KeyPattern, KeyPatternError> {
        let mut fields = Vec::new();
        for element in elements(pattern) {
            let path = parse_path(element.name())?;
            fields.push((path, parse_order(element.value())?));
        }
        let hashed = fields
            .iter()
            .filter(|(_, order)| *order == FieldOrder::Hashed)
            .count();
        match fields.len() {
            0 => Err(KeyPatternError::Empty),
            n if n > FIELDS_MAX => Err(KeyPatternError::TooMany(n)),
            _ if hashed > 1 => Err(KeyPatternError::ManyHashed(hashed)),
            _ => Ok(KeyPattern {
                fields,
                collator: None,
            }),
        }
    }

    pub fn with_collator(self, collator: Option<Collator>) -> KeyPattern {
        KeyPattern { collator, ..self }
    }

    pub fn has_hashed_field(&self) -> bool {
        self.fields
            .iter()
            .any(|(_, order)| *order == FieldOrder::Hashed)
    }

    /// The keys of a document, at least one.
    pub fn keys(&self, document: &RawDocument) -> Result<Keys, KeyError> {
        self.collect(document, false)
    }

    /// The keys of a document under a sparse index: those that have a field.
    pub fn sparse_keys(&self, document: &RawDocument) -> Result<Keys, KeyError> {
        self.collect(document, true)
    }

    /// The values of the document's first key, for error messages: `{a: 1}`.
    pub fn key_value(&self, document: &RawDocument) -> RawDocumentBuf {
        self.find_value(document, None).unwrap_or_default()
    }

    /// The values behind one of the document's encoded keys.
    pub fn value_of_key(&self, document: &RawDocument, key: &[u8]) -> Option<RawDocumentBuf> {
        self.find_value(document, Some(key))
    }

    fn find_value(&self, document: &RawDocument, key: Option<&[u8]>) -> Option<RawDocumentBuf> {
        let mut found = None;
        let _ = self.generate(document, &mut |values| {
            if found.is_none() && key.is_none_or(|key| self.encode(values) == key) {
                found = Some(self.show(values));
            }
        });
        found
    }

    fn collect(&self, document: &RawDocument, sparse: bool) -> Result<Keys, KeyError> {
        if let Some(keys) = self.single_key(document, sparse)? {
            return Ok(keys);
        }
        let mut keys = Vec::with_capacity(1);
        let multikey = self.generate(document, &mut |values| {
            if !sparse || values.iter().any(Option::is_some) {
                keys.push(self.encode(values));
            }
        })?;
        if keys.len() > 1 {
            keys.sort_unstable();
            keys.dedup();
        }
        Ok(Keys { keys, multikey })
    }

    /// The key under a single field that no array lies on, which is how most indexes are.
    fn single_key(&self, document: &RawDocument, sparse: bool) -> Result<Option<Keys>, KeyError> {
        let [(path, order)] = self.fields.as_slice() else {
            return Ok(None);
        };
        let mut passed = false;
        let slot = Slot::Open(RawBsonRef::Document(document), path.parts());
        let Slot::Value(value) = slot.follow(&mut passed)? else {
            return Ok(None);
        };
        if passed {
            return Ok(None);
        }
        if sparse && value.is_none() {
            return Ok(Some(Keys::default()));
        }
        let mut key = Vec::with_capacity(16);
        self.encode_field(value, *order, &mut key);
        Ok(Some(Keys {
            keys: vec![key],
            multikey: false,
        }))
    }

    fn encode_field(&self, value: Option<RawBsonRef<'_>>, order: FieldOrder, out: &mut Vec<u8>) {
        let collator = self.collator.as_ref();
        encode_ordered(stored(value, order, collator), order, collator, out);
    }

    fn encode(&self, values: &[Option<RawBsonRef<'_>>]) -> Vec<u8> {
        let mut out = Vec::with_capacity(16 * values.len());
        for ((_, order), value) in self.fields.iter().zip(values) {
            self.encode_field(*value, *order, &mut out);
        }
        out
    }

    fn show(&self, values: &[Option<RawBsonRef<'_>>]) -> RawDocumentBuf {
        let mut writer = DocumentWriter::new();
        for ((path, order), value) in self.fields.iter().zip(values) {
            let value = stored(*value, *order, self.collator.as_ref()).unwrap_or(RawBsonRef::Null);
            writer.append(&path.to_string(), value);
        }
        writer.finish()
    }

    /// Calls `f` with the values of each key; says whether an array was met.
    fn generate<'a>(
        &self,
        document: &'a RawDocument,
        f: &mut dyn FnMut(&[Option<RawBsonRef<'a>>]),
    ) -> Result<bool, KeyError> {
        let fields: Vec<Slot<'a, '_>> = self
            .fields
            .iter()
            .map(|(path, _)| Slot::Open(RawBsonRef::Document(document), path.parts()))
            .collect();
        let multikey = self.expand(fields, f)?;
        if multikey && self.has_hashed_field() {
            // Checked per field below; an array beside the hashed field is fine.
            for (path, order) in &self.fields {
                if *order == FieldOrder::Hashed {
                    refuse_array(document, path)?;
                }
            }
        }
        Ok(multikey)
    }

    /// Follows every open field to its value or to an array. All that stop at an array must stop
    /// at the same one; its items are then taken one by one.
    fn expand<'a>(
        &self,
        mut slots: Vec<Slot<'a, '_>>,
        f: &mut dyn FnMut(&[Option<RawBsonRef<'a>>]),
    ) -> Result<bool, KeyError> {
        let mut array: Option<(usize, &'a RawArray)> = None;
        let mut passed = false;
        for index in 0..slots.len() {
            slots[index] = slots[index].follow(&mut passed)?;
            let Slot::At(found, _) = slots[index] else {
                continue;
            };
            match array {
                Some((first, other)) if !std::ptr::eq(other, found) => {
                    return Err(self.parallel(&slots, index, first));
                }
                Some(_) => {}
                None => array = Some((index, found)),
            }
        }
        let Some((_, array)) = array else {
            let values: Vec<_> = slots.iter().map(Slot::value).collect();
            f(&values);
            return Ok(passed);
        };
        if array.is_empty() {
            let values: Vec<_> = slots.iter().map(Slot::value).collect();
            f(&values);
            return Ok(true);
        }
        for item in items(array) {
            let value = item.value();
            self.expand(slots.iter().map(|slot| slot.enter(value)).collect(), f)?;
        }
        Ok(true)
    }

    fn parallel(&self, slots: &[Slot<'_, '_>], second: usize, first: usize) -> KeyError {
        let name = |index: usize| {
            let parts = self.fields[index].0.parts();
            let rest = match slots[index] {
                Slot::At(_, rest) => rest.len(),
                _ => 0,
            };
            parts
                .get(parts.len() - rest - 1)
                .map_or_else(String::new, |part| part.to_string())
        };
        KeyError::ParallelArrays(name(second), name(first))
    }
}

fn stored<'a>(
    value: Option<RawBsonRef<'a>>,
    order: FieldOrder,
    collator: Option<&Collator>,
) -> Option<RawBsonRef<'a>> {
    match order {
        FieldOrder::Hashed => {
            let value = value.unwrap_or(RawBsonRef::Null);
            Some(RawBsonRef::Int64(hash_collated(value, collator)))
        }
        FieldOrder::Ascending | FieldOrder::Descending => value,
    }
}

/// How far a field has been followed.
#[derive(Clone, Copy)]
enum Slot<'a, 'p> {
    Value(Option<RawBsonRef<'a>>),
    Open(RawBsonRef<'a>, &'p [Box<str>]),
    /// At an array, with what is left of the path.
    At(&'a RawArray, &'p [Box<str>]),
}

impl<'a, 'p> Slot<'a, 'p> {
    /// Goes on to a value or an array. `passed` is set where a numeric part went through an array.
    fn follow(self, passed: &mut bool) -> Result<Slot<'a, 'p>, KeyError> {
        let Slot::Open(mut value, mut parts) = self else {
            return Ok(self);
        };
        loop {
            if let RawBsonRef::Array(array) = value {
                *passed = true;
                let Some((part, rest)) = parts.split_first() else {
                    return Ok(Slot::At(array, parts));
                };
                let Some(item) = item_named(array, part)? else {
                    return Ok(Slot::At(array, parts));
                };
                if rest.is_empty() {
                    // An item named by its position is not taken apart.
                    return Ok(Slot::Value(Some(item)));
                }
                (value, parts) = (item, rest);
                continue;
            }
            let Some((part, rest)) = parts.split_first() else {
                return Ok(Slot::Value(Some(value)));
            };
            match value
                .as_document()
                .and_then(|document| field(document, part))
            {
                Some(next) => (value, parts) = (next, rest),
                None => return Ok(Slot::Value(None)),
            }
        }
    }

    /// The field seen from inside one item of the array that it stopped at.
    fn enter(&self, item: RawBsonRef<'a>) -> Slot<'a, 'p> {
        match *self {
            Slot::At(_, []) => Slot::Value(Some(item)),
            // Arrays directly inside an array are not entered.
            Slot::At(_, rest) => match item {
                RawBsonRef::Document(_) => Slot::Open(item, rest),
                _ => Slot::Value(None),
            },
            other => other,
        }
    }

    fn value(&self) -> Option<RawBsonRef<'a>> {
        match *self {
            Slot::Value(value) => value,
            Slot::At(_, []) => Some(RawBsonRef::Undefined),
            Slot::At(..) | Slot::Open(..) => None,
        }
    }
}

/// The item that a numeric part names. Refused if documents in the array have a field of that
/// name too.
fn item_named<'a>(array: &'a RawArray, part: &str) -> Result<Option<RawBsonRef<'a>>, KeyError> {
    let Some(wanted) = position(part) else {
        return Ok(None);
    };
    let mut found = None;
    let mut named = false;
    for (index, item) in items(array).enumerate() {
        let value = item.value();
        if index == wanted {
            found = Some(value);
        }
        named |= value
            .as_document()
            .is_some_and(|document| field(document, part).is_some());
    }
    match found {
        Some(_) if named => Err(KeyError::AmbiguousField(part.to_string())),
        found => Ok(found),
    }
}

fn refuse_array(document: &RawDocument, path: &Path) -> Result<(), KeyError> {
    let mut value = RawBsonRef::Document(document);
    for part in path.parts() {
        match value {
            RawBsonRef::Document(inner) => match field(inner, part) {
                Some(next) => value = next,
                None => return Ok(()),
            },
            RawBsonRef::Array(_) => return Err(KeyError::HashedArray),
            _ => return Ok(()),
        }
    }
    match value {
        RawBsonRef::Array(_) => Err(KeyError::HashedArray),
        _ => Ok(()),
    }
}

fn parse_path(name: &str) -> Result<Path, KeyPatternError> {
    if name.is_empty() || name.split('.').any(str::is_empty) {
        return Err(KeyPatternError::EmptyField);
    }
    if name.contains("$**") {
        return Err(KeyPatternError::Unsupported("wildcard".into()));
    }
    // DBRef fields may be indexed.
    let allowed = ["$id", "$ref", "$db"];
    let dollar = |part: &str| part.starts_with('$') && !allowed.contains(&part);
    if name.starts_with('$') || name.split('.').skip(1).any(dollar) {
        return Err(KeyPatternError::Dollar);
    }
    Path::parse(name).map_err(|_| KeyPatternError::Path(name.to_string()))
}

fn parse_order(value: RawBsonRef<'_>) -> Result<FieldOrder, KeyPatternError> {
    if let Some(number) = Number::from_raw(value) {
        let number = number.to_f64();
        return match number {
            n if n > 0.0 => Ok(FieldOrder::Ascending),
            n if n < 0.0 => Ok(FieldOrder::Descending),
            _ => Err(KeyPatternError::Zero),
        };
    }
    match value {
        RawBsonRef::String("hashed") => Ok(FieldOrder::Hashed),
        RawBsonRef::String(plugin @ ("text" | "2d" | "2dsphere" | "geoHaystack")) => {
            Err(KeyPatternError::Unsupported(plugin.to_string()))
        }
        RawBsonRef::String(plugin) => Err(KeyPatternError::UnknownPlugin(plugin.to_string())),
        other => Err(KeyPatternError::Type(crate::kind::name(&other))),
    }
}
