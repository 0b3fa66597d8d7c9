//! Accumulators that keep a few of the values: $firstN, $lastN, $minN, $maxN, $top, $bottom.

use std::collections::VecDeque;

use bson::{RawArray, RawBson, RawBsonRef, RawDocument};

use banyan_document::{DocumentWriter, key};

use super::state::value_bytes;
use super::{Kind, Order, null};
use crate::error::QueryError;
use crate::expression::value::{Value, is_nullish, items};

/// The first or the last `n` values, null for missing ones.
#[derive(Debug)]
pub(in crate::pipeline) struct Positional {
    n: usize,
    last: bool,
    values: VecDeque<RawBson>,
}

impl Positional {
    pub(super) fn new(n: usize, last: bool) -> Positional {
        Positional {
            n,
            last,
            values: VecDeque::new(),
        }
    }

    pub(super) fn add(&mut self, value: Value<'_>) {
        if self.values.len() == self.n {
            if !self.last {
                return;
            }
            self.values.pop_front();
        }
        self.values.push_back(value.map_or(null(), Into::into));
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.values.iter().map(value_bytes).sum()
    }

    pub(super) fn finish(&mut self) -> RawBson {
        array(self.values.drain(..))
    }
}

/// The `n` values with the lowest keys, in order; among equals the earlier one stays.
#[derive(Debug)]
pub(in crate::pipeline) struct Ranked {
    n: usize,
    values: Vec<(Vec<u8>, RawBson)>,
}

impl Ranked {
    pub(super) fn new(n: usize) -> Ranked {
        Ranked {
            n,
            values: Vec::new(),
        }
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
                let mut encoded = Vec::new();
                let value = value.unwrap_or(RawBsonRef::Null);
                match descending {
                    true => key::encode_descending(value, &mut encoded),
                    false => key::encode(value, &mut encoded),
                }
                encoded
            }
            Order::Document { key, reverse } => {
                let mut encoded = key.pattern.key(root)?;
                if *reverse {
                    // The highest key first. No key is a prefix of another's, so that inverting
                    // the bytes inverts the order.
                    encoded.iter_mut().for_each(|byte| *byte = !*byte);
                }
                encoded
            }
        };
        // $bottom prefers the later of equals, having read from the end.
        let later_wins = matches!(order, Order::Document { reverse: true, .. });
        self.insert(sort_key, value.map_or(null(), Into::into), later_wins);
        Ok(())
    }

    fn insert(&mut self, sort_key: Vec<u8>, value: RawBson, later_wins: bool) {
        let at = match later_wins {
            true => self.values.partition_point(|(known, _)| *known < sort_key),
            false => self.values.partition_point(|(known, _)| *known <= sort_key),
        };
        if at < self.n {
            self.values.insert(at, (sort_key, value));
            self.values.truncate(self.n);
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.values
            .iter()
            .map(|(key, value)| key.len() + value_bytes(value) + 24)
            .sum()
    }

    pub(super) fn finish(&mut self, kind: &Kind) -> RawBson {
        let Kind::Ranked { single, order, .. } = kind else {
            return null();
        };
        if *single {
            return self
                .values
                .drain(..)
                .next()
                .map_or(null(), |(_, value)| value);
        }
        let values = std::mem::take(&mut self.values)
            .into_iter()
            .map(|(_, value)| value);
        match order {
            // $bottomN gives its values in the order of the sort.
            Order::Document { reverse: true, .. } => array(values.rev()),
            _ => array(values),
        }
    }

    /// Pairs of key and value.
    pub(super) fn partial(&mut self) -> RawBson {
        let pairs = self.values.drain(..).map(|(key, value)| {
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

    pub(super) fn merge(&mut self, partial: &RawArray) -> Option<()> {
        for item in items(partial) {
            let document = item.as_document()?;
            let sort_key = match banyan_document::field(document, "k")? {
                RawBsonRef::Binary(binary) => binary.bytes.to_vec(),
                _ => return None,
            };
            let value = banyan_document::field(document, "v")?;
            self.insert(sort_key, value.into(), false);
        }
        Some(())
    }
}

fn array(values: impl Iterator<Item = RawBson>) -> RawBson {
    RawBson::Array(values.collect())
}
