//! The groups that there are, and what they hold.

use bson::{RawBson, RawDocument, RawDocumentBuf};
use foldhash::fast::RandomState;
use indexmap::IndexMap;

use banyan_document::{DocumentWriter, elements};

use super::specification::{Group, Mode};
use crate::budget::Budget;
use crate::error::QueryError;
use crate::expression::byte_len;
use crate::expression::value::{check_depth, error};
use crate::pipeline::accumulator::State;

/// By the order-preserving encoding of `_id`: equal values share it whatever their type.
pub(super) type Groups = IndexMap<Box<[u8]>, Entry, RandomState>;

pub(super) struct Entry {
    pub id: RawBson,
    pub states: Box<[State]>,
}

impl Entry {
    pub fn take(&mut self) -> Entry {
        Entry {
            id: std::mem::replace(&mut self.id, RawBson::Null),
            states: std::mem::take(&mut self.states),
        }
    }
}

impl Group {
    /// What a group has come to, as documents that come out in this mode are.
    pub(super) fn result(
        &self,
        entry: &mut Entry,
        mode: Mode,
        budget: &Budget,
    ) -> Result<RawDocumentBuf, QueryError> {
        let mut writer = DocumentWriter::new();
        writer.append("_id", entry.id.as_raw_bson_ref());
        for (accumulator, state) in self.accumulators.iter().zip(&mut entry.states) {
            let value = match mode {
                Mode::Partial => state.partial(&accumulator.kind, budget)?,
                Mode::Complete | Mode::Merge => state.finish(&accumulator.kind, budget)?,
            };
            budget.spend_bytes(byte_len(value.as_raw_bson_ref()))?;
            check_depth(value.as_raw_bson_ref())?;
            writer.append(&accumulator.field, value.as_raw_bson_ref());
        }
        Ok(writer.finish())
    }

    /// Adds a partial result to the states; how much they have grown.
    pub(super) fn merge(
        &self,
        states: &mut [State],
        partial: &RawDocument,
        budget: &Budget,
    ) -> Result<isize, QueryError> {
        let mut grown = 0;
        let mut values = elements(partial).skip(1);
        for (accumulator, state) in self.accumulators.iter().zip(states) {
            let value = values.next().filter(|v| v.name() == &*accumulator.field);
            let Some(value) = value else {
                let field = &accumulator.field;
                return error(9961601, format!("there is no partial result for '{field}'"));
            };
            let before = state.memory_bytes();
            state.merge(&accumulator.kind, value.value(), budget)?;
            let after = state.memory_bytes();
            accumulator.check(after, budget.memory())?;
            grown += after as isize - before as isize;
        }
        Ok(grown)
    }
}
