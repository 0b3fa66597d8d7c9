//! Accumulators that keep a few of the values: $firstN, $lastN, $minN, $maxN, $top, $bottom.

use std::collections::{BTreeMap, VecDeque};

use bson::{RawArray, RawBson, RawBsonRef, RawDocument};

use banyan_document::{Collator, DocumentWriter, key};

use super::kind::{Kind, Order};
use super::value::{null, value_bytes};
use crate::error::QueryError;
use crate::expression::value::{Value, is_nullish, items};

/// The first or the last `n` values, null for missing ones.
#[derive(Clone, Debug)]
pub(in crate::pipeline) struct Positional {
    n: usize,
    last: bool,
    values: VecDeque<RawBson>,
    /// Whether a value came that has no place any more. As in MongoDB, that one is still worked out.
    is_over: bool,
    bytes: usize,
}

impl Positional {
    pub(super) fn new(n: usize, last: bool) -> Positional {
        Positional {
            n,
            last,
            values: VecDeque::new(),
            is_over: false,
            bytes: 0,
        }
    }

    /// Whether a further value could make a difference.
    pub(super) fn needs_input(&self) -> bool {
        !self.is_over
    }

    pub(super) fn add(&mut self, value: Value<'_>) {
        if self.values.len() == self.n {
            if !self.last {
                self.is_over = true;
                return;
            }
            let dropped = self.values.pop_front();
            self.bytes -= dropped.as_ref().map_or(0, value_bytes);
        }
        let value = value.map_or(null(), Into::into);
        self.bytes += value_bytes(&value);
        self.values.push_back(value);
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn finish(&mut self) -> RawBson {
        self.bytes = 0;
        array(self.values.drain(..))
    }
}

/// The `n` values with the lowest keys, in order; among equals the earlier one stays.
#[derive(Clone, Debug)]
pub(in crate::pipeline) struct Ranked {
    n: usize,
    /// By key, and among equal keys by who comes first.
    values: BTreeMap<(Vec<u8>, i64), RawBson>,
    arrived: i64,
    bytes: usize,
    /// How values are compared as strings.
    collator: Option<Collator>,
    /// Of a window that slides, which lets go of values.
    slides: bool,
}

impl Ranked {
    pub(super) fn new(n: usize, collator: Option<Collator>) -> Ranked {
        Ranked {
            n,
            collator,
            values: BTreeMap::new(),
            arrived: 0,
            bytes: 0,
            slides: false,
        }
    }

    /// For a window that slides.
    pub(super) fn sliding(mut self) -> Ranked {
        self.slides = true;
        self
    }

    pub(super) fn add(
        &mut self,
        kind: &Kind,
        value: Value<'_>,
        root: &RawDocument,
    ) -> Result<(), QueryError> {
        let Kind::Ranked { order, .. } = kind else {
            return Ok(());
        };
        let sort_key = match order {
            Order::Value { .. } if is_nullish(value) => return Ok(()),
            Order::Value { descending } => {
                let (mut encoded, collator) = (Vec::new(), self.collator.as_ref());
                let value = value.unwrap_or(RawBsonRef::Null);
                match descending {
                    true => key::encode_descending_collated(value, collator, &mut encoded),
                    false => key::encode_collated(value, collator, &mut encoded),
                }
                encoded
            }
            Order::Document { key, reverse } => {
                let mut encoded = key.encode(root)?;
                if *reverse {
                    // The highest key first. No key is a prefix of another's, so that inverting
                    // the bytes inverts the order.
                    encoded.iter_mut().for_each(|byte| *byte = !*byte);
                }
                encoded
            }
        };
        self.insert(sort_key, value.map_or(null(), Into::into), self.ties(kind));
        Ok(())
    }

    fn ties(&self, kind: &Kind) -> Ties {
        match kind {
            Kind::Ranked {
                order: Order::Document { reverse: true, .. },
                ..
            } if self.slides => Ties::LaterWins,
            Kind::Ranked {
                order: Order::Value { descending: true },
                ..
            } => Ties::LaterFirst,
            _ => Ties::EarlierWins,
        }
    }

    fn insert(&mut self, sort_key: Vec<u8>, value: RawBson, ties: Ties) {
        self.arrived += 1;
        let place = match ties {
            Ties::EarlierWins => self.arrived,
            Ties::LaterWins | Ties::LaterFirst => -self.arrived,
        };
        let entry = (sort_key, place);
        let full = self.values.len() >= self.n;
        let comes_too_late = |worst: &(Vec<u8>, i64)| match ties {
            Ties::LaterFirst => entry.0 >= worst.0,
            Ties::EarlierWins | Ties::LaterWins => entry >= *worst,
        };
        let worst = self.values.last_key_value();
        if full && worst.is_none_or(|(worst, _)| comes_too_late(worst)) {
            return;
        }
        self.bytes += entry_bytes(&entry.0, &value);
        self.values.insert(entry, value);
        if full && let Some(((key, _), value)) = self.values.pop_last() {
            self.bytes -= entry_bytes(&key, &value);
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn finish(&mut self, kind: &Kind) -> RawBson {
        let Kind::Ranked { single, order, .. } = kind else {
            return null();
        };
        let mut values = std::mem::take(&mut self.values).into_iter();
        if *single {
            return values.next().map_or(null(), |(_, value)| value);
        }
        match order {
            // $bottomN gives its values in the order of the sort, equal ones as they came.
            Order::Document { reverse: true, .. } => {
                let mut entries: Vec<_> = values.collect();
                entries.sort_by(|((a, came), _), ((b, then), _)| {
                    b.cmp(a).then(came.unsigned_abs().cmp(&then.unsigned_abs()))
                });
                array(entries.into_iter().map(|(_, value)| value))
            }
            _ => array(values.map(|(_, value)| value)),
        }
    }

    /// Pairs of key and value.
    pub(super) fn partial(&mut self) -> RawBson {
        let pairs = std::mem::take(&mut self.values).into_iter();
        let pairs = pairs.map(|((key, _), value)| {
            let mut writer = DocumentWriter::new();
            let binary = bson::Binary {
                subtype: bson::spec::BinarySubtype::Generic,
                bytes: key,
            };
            writer.append("k", RawBsonRef::from(&binary));
            writer.append("v", value.as_raw_bson_ref());
            RawBson::Document(writer.finish())
        });
        array(pairs)
    }

    /// Takes the pairs of values that came after all that are here.
    pub(super) fn merge(&mut self, kind: &Kind, partial: &RawArray) -> Option<()> {
        let mut pairs = Vec::new();
        for item in items(partial) {
            let document = item.as_document()?;
            let sort_key = match banyan_document::field(document, "k")? {
                RawBsonRef::Binary(binary) => binary.bytes.to_vec(),
                _ => return None,
            };
            pairs.push((sort_key, banyan_document::field(document, "v")?));
        }
        // In the order in which they came.
        let ties = self.ties(kind);
        if ties != Ties::EarlierWins {
            pairs.reverse();
        }
        for (sort_key, value) in pairs {
            self.insert(sort_key, value.into(), ties);
        }
        Some(())
    }
}

/// Which of equal values are kept, and which of them comes first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ties {
    EarlierWins,
    /// In windows that slide `$bottom` prefers the later of equals.
    LaterWins,
    /// $maxN keeps the earlier ones, but gives them from the end.
    LaterFirst,
}

/// What a kept value takes beside its key's and its own bytes.
const ENTRY_BYTES: usize = 64;

fn entry_bytes(key: &[u8], value: &RawBson) -> usize {
    key.len() + value_bytes(value) + ENTRY_BYTES
}

fn array(values: impl Iterator<Item = RawBson>) -> RawBson {
    RawBson::Array(values.collect())
}
