//! Keys some of whose fields a kind of index computes by itself: cells of shapes.

use std::collections::BTreeSet;

use bson::spec::BinarySubtype;
use bson::{RawBinaryRef, RawBsonRef, RawDocument};

use super::KeyBuilder;
use super::order::FieldOrder;
use super::pattern::{KeyError, KeyPattern, Keys};
use crate::path::Path;

/// What a kind of index has in a field instead of the document's values there.
#[derive(Debug, Clone, Default)]
pub struct Computed {
    /// Without any: null.
    pub numbers: Vec<i64>,
    /// Whether an array was met on the way.
    pub is_array: bool,
}

/// More keys of one document are refused.
const KEYS_MAX: usize = 100_000;

/// The keys of a field, where the index's own kind computes them.
pub type Compute<'c> = dyn FnMut(&Path, FieldOrder) -> Result<Option<Computed>, KeyError> + 'c;

impl KeyPattern {
    /// The keys of a document some of whose fields `compute` gives: every combination of what the
    /// fields have, each for itself.
    pub fn combined_keys(
        &self,
        document: &RawDocument,
        compute: &mut Compute<'_>,
    ) -> Result<Keys, KeyError> {
        let mut builders = vec![KeyBuilder::with_capacity(16 * self.fields.len())];
        let mut arrays = BTreeSet::new();
        for (path, order) in &self.fields {
            let mut longer: Vec<KeyBuilder> = Vec::new();
            let mut is_too_many = false;
            let mut add = |push: &dyn Fn(&mut KeyBuilder)| {
                is_too_many |= longer.len() + builders.len() > KEYS_MAX;
                for builder in builders.iter().filter(|_| !is_too_many) {
                    let mut builder = builder.clone();
                    push(&mut builder);
                    longer.push(builder);
                }
            };
            match compute(path, *order)? {
                Some(computed) => {
                    if computed.is_array || computed.numbers.len() > 1 {
                        arrays.insert(path.to_string().into_boxed_str());
                    }
                    if computed.numbers.is_empty() {
                        add(&|key| key.push_opaque(RawBsonRef::Null));
                    }
                    for number in computed.numbers {
                        add(&|key| match order {
                            FieldOrder::Plane => {
                                key.push_opaque(cell_of_plane(&number.to_be_bytes()))
                            }
                            _ => key.push_opaque(RawBsonRef::Int64(number)),
                        });
                    }
                }
                None => {
                    let field = KeyPattern {
                        fields: vec![(path.clone(), *order)],
                        collator: self.collator.clone(),
                    };
                    let met = field.generate(document, &mut |values| {
                        for leaf in values {
                            add(&|key| field.push(key, (path, *order), *leaf));
                        }
                    })?;
                    for (_, depth) in met {
                        arrays.insert(path.parts()[..depth].join(".").into_boxed_str());
                    }
                }
            }
            if is_too_many {
                return Err(KeyError::TooMany);
            }
            builders = longer;
        }
        let keys = builders.into_iter().map(KeyBuilder::finish).collect();
        Ok(Keys::of(keys, arrays))
    }
}

/// What stands for a cell of the plane in a key and in bounds, as in MongoDB: bytes in the order of
/// the cells.
pub fn cell_of_plane(bytes: &[u8; 8]) -> RawBsonRef<'_> {
    RawBsonRef::Binary(RawBinaryRef {
        subtype: BinarySubtype::UserDefined(128),
        bytes,
    })
}
