//! Shard key patterns, and the keys they take out of documents and filters.
//!
//! A key travels in two forms at once: as the document of its values (`{id: "42"}`, what
//! config.chunks stores) and as order-preserving bytes (what everything here compares).
//! A hashed field's value is its 64-bit hash in both.

use std::cmp::Ordering;
use std::fmt;

use banyan_document::{Path, key};
use bson::raw::CString;
use bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

/// MongoDB's limit on the fields of an index, and so of a shard key.
const FIELDS_MAX: usize = 32;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShardKeyError {
    #[error("shard key pattern must not be empty")]
    EmptyPattern,
    #[error("shard key pattern has {0} fields, at most {FIELDS_MAX} are allowed")]
    TooManyFields(usize),
    #[error(
        "Shard key {0} can contain either a single 'hashed' field or ascending fields (set to 1); \
         failed to parse field {1}"
    )]
    BadField(String, String),
    #[error("Shard key {0} can contain at most one 'hashed' field")]
    TwoHashedFields(String),
    #[error("Shard key cannot contain array values or array descendants: field {0}")]
    ArrayValue(String),
    #[error("key {0} does not have the fields of the shard key {1}")]
    WrongFields(String, String),
    #[error("malformed BSON: {0}")]
    Malformed(String),
}

impl From<bson::error::Error> for ShardKeyError {
    fn from(error: bson::error::Error) -> Self {
        ShardKeyError::Malformed(error.to_string())
    }
}

/// One field of a shard key pattern.
#[derive(Debug, Clone)]
pub struct Field {
    pub(crate) name: CString,
    pub(crate) path: Path,
    pub(crate) hashed: bool,
}

impl Field {
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn is_hashed(&self) -> bool {
        self.hashed
    }
}

/// `{a: 1, b: 1}`, or with one field `"hashed"`.
#[derive(Debug, Clone)]
pub struct ShardKeyPattern {
    fields: Vec<Field>,
    document: RawDocumentBuf,
}

impl PartialEq for ShardKeyPattern {
    fn eq(&self, other: &Self) -> bool {
        let flat = |pattern: &Self| -> Vec<(String, bool)> {
            pattern
                .fields
                .iter()
                .map(|f| (f.name().to_owned(), f.hashed))
                .collect()
        };
        flat(self) == flat(other)
    }
}

impl Eq for ShardKeyPattern {}

impl ShardKeyPattern {
    pub fn parse(pattern: &RawDocument) -> Result<Self, ShardKeyError> {
        let mut fields = Vec::new();
        for element in pattern.iter() {
            let (name, value) = element?;
            fields.push(parse_field(pattern, name.as_str(), value)?);
        }
        if fields.is_empty() {
            return Err(ShardKeyError::EmptyPattern);
        }
        if fields.len() > FIELDS_MAX {
            return Err(ShardKeyError::TooManyFields(fields.len()));
        }
        if fields.iter().filter(|field| field.hashed).count() > 1 {
            return Err(ShardKeyError::TwoHashedFields(show(pattern)));
        }
        Ok(ShardKeyPattern {
            fields,
            document: pattern.to_owned(),
        })
    }

    /// The pattern as it was written: `{id: 1}`.
    pub fn document(&self) -> &RawDocument {
        &self.document
    }

    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    pub fn is_hashed(&self) -> bool {
        self.fields.iter().any(|field| field.hashed)
    }

    /// The bytes of a document's key, appended to `out`. The hot path of routing.
    pub fn encode(&self, document: &RawDocument, out: &mut Vec<u8>) -> Result<(), ShardKeyError> {
        for field in &self.fields {
            let value = field.value(document)?.unwrap_or(RawBsonRef::Null);
            field.encode(value, out);
        }
        Ok(())
    }

    /// The key of a document; a missing field counts as null.
    pub fn key_of(&self, document: &RawDocument) -> Result<ShardKey, ShardKeyError> {
        let mut values = RawDocumentBuf::new();
        let mut encoded = Vec::with_capacity(32);
        for field in &self.fields {
            let value = field.value(document)?.unwrap_or(RawBsonRef::Null);
            field.push(value, &mut values, &mut encoded);
        }
        Ok(ShardKey { values, encoded })
    }

    /// The key that has in each field the value that `of_field` gives.
    pub fn key_of_values<'v>(
        &self,
        mut of_field: impl FnMut(&Path) -> Option<RawBsonRef<'v>>,
    ) -> Option<ShardKey> {
        let mut values = RawDocumentBuf::new();
        let mut encoded = Vec::with_capacity(32);
        for field in &self.fields {
            let value = of_field(&field.path)?;
            field.push(value, &mut values, &mut encoded);
        }
        Some(ShardKey { values, encoded })
    }

    /// A chunk bound or another key whose values are already hashed, field by field in the
    /// pattern's order. Fewer fields than the pattern's are filled up with MinKey, as MongoDB
    /// does with the bounds of zones.
    pub fn key_of_bound(&self, bound: &RawDocument) -> Result<ShardKey, ShardKeyError> {
        let mut values = RawDocumentBuf::new();
        let mut encoded = Vec::with_capacity(32);
        let mut given = bound.iter();
        for field in &self.fields {
            let value = match given.next() {
                None => RawBsonRef::MinKey,
                Some(element) => {
                    let (name, value) = element?;
                    if name.as_str() != field.name() {
                        return Err(self.wrong_fields(bound));
                    }
                    value
                }
            };
            if matches!(value, RawBsonRef::Array(_)) {
                return Err(ShardKeyError::ArrayValue(field.name().to_owned()));
            }
            key::encode(value, &mut encoded);
            values.append(&field.name, value);
        }
        if bound.is_empty() || given.next().is_some() {
            return Err(self.wrong_fields(bound));
        }
        Ok(ShardKey { values, encoded })
    }

    pub fn min_key(&self) -> ShardKey {
        self.filled(RawBsonRef::MinKey)
    }

    pub fn max_key(&self) -> ShardKey {
        self.filled(RawBsonRef::MaxKey)
    }

    /// Whether an index starts with this shard key's fields, so that a chunk is a range of it.
    pub fn is_prefix_of(&self, index: &RawDocument) -> bool {
        let mut index = index.iter();
        self.fields.iter().all(|field| match index.next() {
            Some(Ok((name, value))) => {
                name.as_str() == field.name() && is_hashed(value) == field.hashed && {
                    field.hashed || is_one(value)
                }
            }
            _ => false,
        })
    }

    /// Whether a unique index over these fields is unique in the whole collection because it is so
    /// on each shard: equal keys have equal shard keys, so they meet on one shard. (An `_id` is taken
    /// to be unique by itself.)
    pub fn keeps_unique(&self, index: &RawDocument) -> bool {
        let names: Vec<&str> = index
            .iter()
            .flatten()
            .map(|(name, _)| name.as_str())
            .collect();
        let own: Vec<&str> = self.fields.iter().map(Field::name).collect();
        names.first() == Some(&"_id") || names.starts_with(&own)
    }

    fn filled(&self, value: RawBsonRef<'_>) -> ShardKey {
        let mut values = RawDocumentBuf::new();
        let mut encoded = Vec::new();
        for field in &self.fields {
            key::encode(value, &mut encoded);
            values.append(&field.name, value);
        }
        ShardKey { values, encoded }
    }

    fn wrong_fields(&self, bound: &RawDocument) -> ShardKeyError {
        ShardKeyError::WrongFields(show(bound), show(&self.document))
    }
}

impl fmt::Display for ShardKeyPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&show(&self.document))
    }
}

fn parse_field(
    pattern: &RawDocument,
    name: &str,
    value: RawBsonRef<'_>,
) -> Result<Field, ShardKeyError> {
    let bad = || ShardKeyError::BadField(show(pattern), name.to_owned());
    let hashed = is_hashed(value);
    if !hashed && !is_one(value) {
        return Err(bad());
    }
    let path = Path::parse(name).map_err(|_| bad())?;
    if path
        .parts()
        .iter()
        .any(|part| part.is_empty() || part.starts_with('$'))
    {
        return Err(bad());
    }
    let name = CString::try_from(name)?;
    Ok(Field { name, path, hashed })
}

fn is_hashed(value: RawBsonRef<'_>) -> bool {
    value.as_str() == Some("hashed")
}

fn is_one(value: RawBsonRef<'_>) -> bool {
    match value {
        RawBsonRef::Int32(n) => n == 1,
        RawBsonRef::Int64(n) => n == 1,
        RawBsonRef::Double(n) => n == 1.0,
        _ => false,
    }
}

impl Field {
    /// The field's value in a document. Arrays are refused wherever the path meets one: a
    /// document with many keys would belong to many chunks.
    fn value<'a>(
        &self,
        document: &'a RawDocument,
    ) -> Result<Option<RawBsonRef<'a>>, ShardKeyError> {
        let mut parts = self.path.parts().iter();
        let Some(first) = parts.next() else {
            return Ok(None);
        };
        let mut value = document.get(first)?;
        for part in parts {
            value = match value {
                Some(RawBsonRef::Document(inner)) => inner.get(part)?,
                Some(RawBsonRef::Array(_)) => {
                    return Err(ShardKeyError::ArrayValue(self.name().to_owned()));
                }
                _ => return Ok(None),
            };
        }
        match value {
            Some(RawBsonRef::Array(_)) => Err(ShardKeyError::ArrayValue(self.name().to_owned())),
            other => Ok(other),
        }
    }

    /// The bytes of one value of this field, hashed first where the field is.
    pub(crate) fn encode(&self, value: RawBsonRef<'_>, out: &mut Vec<u8>) {
        if self.hashed {
            key::encode(RawBsonRef::Int64(key::hash(value)), out);
        } else {
            key::encode(value, out);
        }
    }

    fn push(&self, value: RawBsonRef<'_>, values: &mut RawDocumentBuf, encoded: &mut Vec<u8>) {
        let value = if self.hashed {
            RawBsonRef::Int64(key::hash(value))
        } else {
            value
        };
        key::encode(value, encoded);
        values.append(&self.name, value);
    }
}

/// A point in the space of a collection's shard keys.
#[derive(Clone)]
pub struct ShardKey {
    values: RawDocumentBuf,
    encoded: Vec<u8>,
}

impl ShardKey {
    /// `{id: "42"}`: what config.chunks stores as `min` and `max`.
    pub fn document(&self) -> &RawDocument {
        &self.values
    }

    /// Bytes whose order is the order of keys.
    pub fn encoded(&self) -> &[u8] {
        &self.encoded
    }

    /// The values alone, in the pattern's order.
    pub fn values(&self) -> impl Iterator<Item = RawBson> + '_ {
        self.values
            .iter()
            .filter_map(|element| element.ok())
            .map(|(_, value)| value.into())
    }

    /// Whether every value is MinKey: the lower end of the key space.
    pub fn is_global_min(&self) -> bool {
        self.values
            .iter()
            .all(|e| matches!(e, Ok((_, RawBsonRef::MinKey))))
    }

    /// Whether every value is MaxKey: the upper end of the key space.
    pub fn is_global_max(&self) -> bool {
        self.values
            .iter()
            .all(|e| matches!(e, Ok((_, RawBsonRef::MaxKey))))
    }
}

impl PartialEq for ShardKey {
    fn eq(&self, other: &Self) -> bool {
        self.encoded == other.encoded
    }
}

impl Eq for ShardKey {}

impl PartialOrd for ShardKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ShardKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.encoded.cmp(&other.encoded)
    }
}

impl fmt::Display for ShardKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&show(&self.values))
    }
}

impl fmt::Debug for ShardKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A document in the notation of error messages: `{ id: "42" }`.
pub(crate) fn show(document: &RawDocument) -> String {
    match bson::Document::try_from(document) {
        Ok(document) => document.to_string(),
        Err(_) => "<malformed>".to_owned(),
    }
}
