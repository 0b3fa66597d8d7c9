//! Key patterns, and the keys that a document has under one.
//!
//! An array on the path of a field gives a key per item; two arrays side by side are refused, for
//! their keys would multiply. A missing field is null. An empty array is undefined, which is how
//! an index tells `[]` from `null`.

use std::collections::BTreeSet;

use bson::{RawArray, RawBsonRef, RawDocument, RawDocumentBuf};
use thiserror::Error;

use super::order::FieldOrder;
use super::types::NoTypes;
use super::{Key, KeyBuilder, KeyField, encode_typed, hash_collated};
use crate::collation::Collator;
use crate::element::{elements, field, items};
use crate::number::Number;
use crate::path::{Path, position};
use crate::writer::DocumentWriter;

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
    #[error("Can't use more than one index plugin for a single index.")]
    ManyKinds,
    #[error("can't have 2 geo fields")]
    ManyPlanes,
    #[error("2d has to be first in index")]
    PlaneNotFirst,
    #[error("A numeric value in a $** index key pattern must be positive.")]
    WildcardOrder,
    #[error("wildcard indexes do not allow compounding")]
    CompoundWildcard,
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
    #[error("Can't extract geo keys: {0}")]
    Geo(String),
    #[error("a document has too many keys in an index")]
    TooMany,
    /// What the index's own kind says, with MongoDB's number for it.
    #[error("{message}")]
    Refused { code: i32, message: String },
}

impl KeyError {
    /// MongoDB's number for the error.
    pub fn code(&self) -> i32 {
        match self {
            KeyError::ParallelArrays(..) => 171,
            KeyError::HashedArray => 16766,
            KeyError::AmbiguousField(_) => 16746,
            KeyError::TooLarge(_) => 17280,
            KeyError::Geo(_) | KeyError::TooMany => 16755,
            KeyError::Refused { code, .. } => *code,
        }
    }
}

/// A document's keys: sorted, none with the bytes of another.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Keys {
    pub keys: Vec<Key>,
    /// The paths of the arrays that were met on the way, even of those that gave a single key.
    pub arrays: BTreeSet<Box<str>>,
}

impl Keys {
    /// Of several keys with the same bytes the one with the least type bits is taken, whatever
    /// order they were found in.
    pub fn of(mut keys: Vec<Key>, arrays: BTreeSet<Box<str>>) -> Keys {
        if keys.len() > 1 {
            keys.sort_unstable();
            keys.dedup_by(|next, key| next.bytes == key.bytes);
        }
        Keys { keys, arrays }
    }

    /// The one with these bytes.
    pub fn get(&self, bytes: &[u8]) -> Option<&Key> {
        let at = self.keys.binary_search_by(|key| key[..].cmp(bytes)).ok()?;
        self.keys.get(at)
    }

    pub fn is_multikey(&self) -> bool {
        !self.arrays.is_empty()
    }
}

/// Where arrays were met: in which field, and after how many parts of its path.
pub(super) type Met = Vec<(usize, usize)>;

const FIELDS_MAX: usize = 32;
/// The cells of all places in a column of a bucket of measurements.
pub const SPHERE_OF_COLUMN: &str = "2dsphere_bucket";
/// The field of a text index's keys that holds a term.
const TERM_FIELD: &str = "_fts";
/// The last part of a path that stands for all fields.
const WILDCARD: &str = "$**";

impl KeyPattern {
    pub fn parse(pattern: &RawDocument) -> Result<KeyPattern, KeyPatternError> {
        let mut fields = Vec::new();
        for element in elements(pattern) {
            let path = parse_path(element.name())?;
            let order = match element.value() {
                // What stands for the terms of a text index, which are in order.
                RawBsonRef::String("text") if element.name() == TERM_FIELD => FieldOrder::Ascending,
                value => parse_order(value)?,
            };
            match order {
                FieldOrder::Ascending => {}
                _ if !is_wildcard(&path) => {}
                FieldOrder::Descending => return Err(KeyPatternError::WildcardOrder),
                FieldOrder::Hashed | FieldOrder::Sphere | FieldOrder::Plane => {
                    return Err(KeyPatternError::Dollar);
                }
            }
            fields.push((path, order));
        }
        let hashed = fields
            .iter()
            .filter(|(_, order)| *order == FieldOrder::Hashed)
            .count();
        let count = |wanted| fields.iter().filter(|(_, order)| *order == wanted).count();
        let (spheres, planes) = (count(FieldOrder::Sphere), count(FieldOrder::Plane));
        let is_first = matches!(fields.first(), Some((_, FieldOrder::Plane)));
        let wildcard = fields.iter().any(|(path, _)| is_wildcard(path));
        match fields.len() {
            0 => Err(KeyPatternError::Empty),
            n if n > FIELDS_MAX => Err(KeyPatternError::TooMany(n)),
            2.. if wildcard => Err(KeyPatternError::CompoundWildcard),
            _ if [hashed, spheres, planes].iter().filter(|&&n| n > 0).count() > 1 => {
                Err(KeyPatternError::ManyKinds)
            }
            _ if planes > 1 => Err(KeyPatternError::ManyPlanes),
            _ if planes > 0 && !is_first => Err(KeyPatternError::PlaneNotFirst),
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

    /// Whether its keys are of all fields, or all below a path.
    pub fn is_wildcard(&self) -> bool {
        self.fields.iter().any(|(path, _)| is_wildcard(path))
    }

    pub fn has_hashed_field(&self) -> bool {
        self.fields
            .iter()
            .any(|(_, order)| *order == FieldOrder::Hashed)
    }

    /// Whether a field holds cells of the plane.
    pub fn has_plane_field(&self) -> bool {
        let mut fields = self.fields.iter();
        fields.any(|(_, order)| *order == FieldOrder::Plane)
    }

    /// Whether a field holds cells of shapes.
    pub fn has_geo_field(&self) -> bool {
        self.fields.iter().any(|(_, order)| order.is_geo())
    }

    /// The keys of a document, at least one.
    pub fn keys(&self, document: &RawDocument) -> Result<Keys, KeyError> {
        self.collect(document, false)
    }

    /// The keys of a document under a sparse index: those that have a field.
    pub fn sparse_keys(&self, document: &RawDocument) -> Result<Keys, KeyError> {
        self.collect(document, true)
    }

    /// Appends the bytes of the document's first key.
    pub fn write_first(&self, document: &RawDocument, out: &mut Vec<u8>) -> Result<(), KeyError> {
        let start = out.len();
        for (path, order) in &self.fields {
            let mut passed = false;
            let slot = Slot::Open(RawBsonRef::Document(document), path.parts());
            let slot = slot.follow(&mut |_| passed = true);
            let is_plain = matches!(slot, Slot::Value(_) | Slot::Missing { .. });
            if passed || !is_plain || !order.is_of_values() {
                // An array: there may be several keys.
                out.truncate(start);
                let keys = self.keys(document)?.keys;
                out.extend_from_slice(keys.first().map_or(&[], |key| &key.bytes));
                return Ok(());
            }
            let value = slot.leaf().shown(*order, self.collator.as_ref());
            let field = out.len();
            encode_typed(value, self.collator.as_ref(), &mut NoTypes, out);
            if *order == FieldOrder::Descending {
                out[field..].iter_mut().for_each(|byte| *byte = !*byte);
            }
        }
        Ok(())
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
            if found.is_none() && key.is_none_or(|key| self.encode(values).bytes == key) {
                found = Some(self.show(values));
            }
        });
        found
    }

    fn collect(&self, document: &RawDocument, sparse: bool) -> Result<Keys, KeyError> {
        if let Some(keys) = self.only_key(document, sparse)? {
            return Ok(keys);
        }
        let mut keys = Vec::with_capacity(1);
        let met = self.generate(document, &mut |values| {
            if !sparse || values.iter().any(Leaf::is_some) {
                keys.push(self.encode(values));
            }
        })?;
        let path = |(field, depth): (usize, usize)| {
            let parts = self.fields[field].0.parts();
            parts[..depth].join(".").into_boxed_str()
        };
        let arrays = met.into_iter().map(path).collect();
        Ok(Keys::of(keys, arrays))
    }

    /// The key under fields that no array lies on, which is how most documents are.
    fn only_key(&self, document: &RawDocument, sparse: bool) -> Result<Option<Keys>, KeyError> {
        let mut key = KeyBuilder::with_capacity(16 * self.fields.len());
        let mut is_some = false;
        for (path, order) in &self.fields {
            let mut passed = false;
            let slot = Slot::Open(RawBsonRef::Document(document), path.parts());
            let slot = slot.follow(&mut |_| passed = true);
            if passed || !matches!(slot, Slot::Value(_) | Slot::Missing { .. }) {
                return Ok(None);
            }
            let leaf = slot.leaf();
            is_some |= leaf.is_some();
            self.push(&mut key, (path, *order), leaf);
        }
        if sparse && !is_some {
            return Ok(Some(Keys::default()));
        }
        Ok(Some(Keys {
            keys: vec![key.finish()],
            arrays: BTreeSet::new(),
        }))
    }

    pub(super) fn push(
        &self,
        key: &mut KeyBuilder,
        (path, order): (&Path, FieldOrder),
        leaf: Leaf<'_>,
    ) {
        let collator = self.collator.as_ref();
        if !order.is_of_values() {
            return key.push_opaque(leaf.shown(order, collator));
        }
        let field = match leaf {
            Leaf::Value(value) => KeyField::Value(value),
            Leaf::EmptyArray => KeyField::EmptyArray,
            Leaf::Missing { rest } => KeyField::Missing {
                documents: path.parts().len().saturating_sub(rest),
            },
        };
        key.push(field, order, collator);
    }

    fn encode(&self, values: &[Leaf<'_>]) -> Key {
        let mut key = KeyBuilder::with_capacity(16 * values.len());
        for ((path, order), leaf) in self.fields.iter().zip(values) {
            self.push(&mut key, (path, *order), *leaf);
        }
        key.finish()
    }

    fn show(&self, values: &[Leaf<'_>]) -> RawDocumentBuf {
        let mut writer = DocumentWriter::new();
        for ((path, order), leaf) in self.fields.iter().zip(values) {
            writer.append(
                &path.to_string(),
                leaf.shown(*order, self.collator.as_ref()),
            );
        }
        writer.finish()
    }

    /// Calls `f` with the values of each key; says where arrays were met.
    pub(super) fn generate<'a>(
        &self,
        document: &'a RawDocument,
        f: &mut dyn FnMut(&[Leaf<'a>]),
    ) -> Result<Met, KeyError> {
        let fields: Vec<Slot<'a, '_>> = self
            .fields
            .iter()
            .map(|(path, _)| Slot::Open(RawBsonRef::Document(document), path.parts()))
            .collect();
        let mut met = Met::new();
        self.expand(fields, &mut met, f)?;
        Ok(met)
    }

    /// Follows every open field to its value or to an array. All that stop at an array must stop
    /// at the same one, those too that name one of its items by its position; for the others its
    /// items are then taken one by one.
    fn expand<'a>(
        &self,
        mut slots: Vec<Slot<'a, '_>>,
        met: &mut Met,
        f: &mut dyn FnMut(&[Leaf<'a>]),
    ) -> Result<(), KeyError> {
        let mut array: Option<(usize, &'a RawArray)> = None;
        for index in 0..slots.len() {
            let length = self.fields[index].0.parts().len();
            slots[index] = slots[index].follow(&mut |rest| {
                let place = (index, length - rest);
                if !met.contains(&place) {
                    met.push(place);
                }
            });
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
        let mut has_entered = false;
        for slot in &mut slots {
            if let Some(entered) = slot.enter_named()? {
                *slot = entered;
                has_entered = true;
            }
        }
        if has_entered && !slots.iter().any(|slot| matches!(slot, Slot::At(..))) {
            return self.expand(slots, met, f);
        }
        let items = array.map(|(_, array)| items(array));
        let Some(items) = items.filter(|_| array.is_some_and(|(_, array)| !array.is_empty()))
        else {
            let values: Vec<_> = slots.iter().map(Slot::leaf).collect();
            f(&values);
            return Ok(());
        };
        for item in items {
            let value = item.value();
            let entered = slots.iter().map(|slot| slot.enter(value)).collect();
            self.expand(entered, met, f)?;
        }
        Ok(())
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

/// What a key has in a field.
#[derive(Clone, Copy)]
pub(super) enum Leaf<'a> {
    Value(RawBsonRef<'a>),
    EmptyArray,
    /// So many parts of the path lead to no document.
    Missing {
        rest: usize,
    },
}

impl<'a> Leaf<'a> {
    fn is_some(&self) -> bool {
        !matches!(self, Leaf::Missing { .. })
    }

    /// The value that stands for it in a key.
    fn shown(self, order: FieldOrder, collator: Option<&Collator>) -> RawBsonRef<'a> {
        let value = match self {
            Leaf::Value(value) => value,
            Leaf::EmptyArray => RawBsonRef::Undefined,
            Leaf::Missing { .. } => RawBsonRef::Null,
        };
        match order {
            FieldOrder::Hashed => RawBsonRef::Int64(hash_collated(value, collator)),
            FieldOrder::Ascending
            | FieldOrder::Descending
            | FieldOrder::Sphere
            | FieldOrder::Plane => value,
        }
    }
}

/// How far a field has been followed.
#[derive(Clone, Copy)]
enum Slot<'a, 'p> {
    Value(RawBsonRef<'a>),
    /// At an item without items, named by its position.
    Empty,
    /// So many parts of the path lead to no document.
    Missing {
        rest: usize,
    },
    Open(RawBsonRef<'a>, &'p [Box<str>]),
    /// At an array, with what is left of the path.
    At(&'a RawArray, &'p [Box<str>]),
}

impl<'a, 'p> Slot<'a, 'p> {
    /// Goes on to a value or an array. `met` is told of each array by how many parts follow it.
    fn follow(self, met: &mut dyn FnMut(usize)) -> Slot<'a, 'p> {
        let Slot::Open(mut value, mut parts) = self else {
            return self;
        };
        loop {
            if let RawBsonRef::Array(array) = value {
                met(parts.len());
                return Slot::At(array, parts);
            }
            let Some((part, rest)) = parts.split_first() else {
                return Slot::Value(value);
            };
            let Some(document) = value.as_document() else {
                let rest = parts.len() + 1;
                return Slot::Missing { rest };
            };
            match field(document, part) {
                Some(next) => (value, parts) = (next, rest),
                None => return Slot::Missing { rest: parts.len() },
            }
        }
    }

    /// The field seen from the item that it names by its position, if it stopped at an array and does.
    fn enter_named(&self) -> Result<Option<Slot<'a, 'p>>, KeyError> {
        let Slot::At(array, [part, rest @ ..]) = *self else {
            return Ok(None);
        };
        let item = item_named(array, part)?;
        Ok(item.map(|item| match (rest, item) {
            ([], RawBsonRef::Array(array)) if array.is_empty() => Slot::Empty,
            // It is not taken apart.
            ([], item) => Slot::Value(item),
            (rest, item) => Slot::Open(item, rest),
        }))
    }

    /// The field seen from inside one item of the array that it stopped at.
    fn enter(&self, item: RawBsonRef<'a>) -> Slot<'a, 'p> {
        match *self {
            Slot::At(_, []) => Slot::Value(item),
            // Arrays directly inside an array are not entered.
            Slot::At(_, rest) => match item {
                RawBsonRef::Document(_) => Slot::Open(item, rest),
                _ => Slot::Missing {
                    rest: rest.len() + 1,
                },
            },
            other => other,
        }
    }

    fn leaf(&self) -> Leaf<'a> {
        match *self {
            Slot::Value(value) => Leaf::Value(value),
            Slot::Missing { rest } => Leaf::Missing { rest },
            Slot::Empty | Slot::At(_, []) => Leaf::EmptyArray,
            Slot::At(_, rest) | Slot::Open(_, rest) => Leaf::Missing {
                rest: rest.len() + 1,
            },
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

fn is_wildcard(path: &Path) -> bool {
    path.parts().last().is_some_and(|part| &**part == WILDCARD)
}

/// A field's path, or one that ends with [`WILDCARD`].
fn parse_path(name: &str) -> Result<Path, KeyPatternError> {
    let above = name.strip_suffix(WILDCARD);
    let plain = match above.map(|above| (above, above.strip_suffix('.'))) {
        Some(("", _)) => None,
        Some((_, Some(above))) => Some(above),
        Some((_, None)) | None => Some(name),
    };
    if let Some(plain) = plain {
        if plain.split('.').any(str::is_empty) {
            return Err(KeyPatternError::EmptyField);
        }
        // DBRef fields may be indexed.
        let allowed = ["$id", "$ref", "$db"];
        let dollar = |part: &str| part.starts_with('$') && !allowed.contains(&part);
        if plain.starts_with('$') || plain.split('.').skip(1).any(dollar) {
            return Err(KeyPatternError::Dollar);
        }
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
        RawBsonRef::String("2dsphere" | SPHERE_OF_COLUMN) => Ok(FieldOrder::Sphere),
        RawBsonRef::String("2d") => Ok(FieldOrder::Plane),
        RawBsonRef::String(plugin @ ("text" | "geoHaystack")) => {
            Err(KeyPatternError::Unsupported(plugin.to_string()))
        }
        RawBsonRef::String(plugin) => Err(KeyPatternError::UnknownPlugin(plugin.to_string())),
        other => Err(KeyPatternError::Type(crate::kind::name(&other))),
    }
}
