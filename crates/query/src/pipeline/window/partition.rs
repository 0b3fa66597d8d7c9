//! The documents of one partition, in their order.

use bson::{RawBson, RawDocumentBuf};

use crate::budget::{Budget, Holding};
use crate::error::QueryError;
use crate::expression::{Expression, byte_len};
use crate::variables::Variables;

/// A document and where it stands.
#[derive(Debug)]
pub(super) struct Placed {
    /// What it is sorted by: its partition, then `sortBy`.
    pub key: Box<[u8]>,
    /// How much of the key is the partition.
    pub partition: usize,
    pub document: RawDocumentBuf,
}

impl Placed {
    /// Whether it is in the same partition.
    pub fn is_beside(&self, other: &Placed) -> bool {
        self.key[..self.partition] == other.key[..other.partition]
    }
}

pub(super) struct Partition<'p> {
    pub placed: &'p [Placed],
    /// Of the `$lookup` stages around.
    pub variables: &'p Variables,
    pub budget: &'p Budget,
}

impl Partition<'_> {
    pub fn len(&self) -> usize {
        self.placed.len()
    }

    /// The value of an expression for each document.
    pub fn values(
        &self,
        expression: &Expression,
        holding: &mut Holding,
    ) -> Result<Vec<Option<RawBson>>, QueryError> {
        let expression = expression.bind(self.variables);
        let mut values = Vec::with_capacity(self.len());
        for placed in self.placed {
            self.budget.spend_bytes(placed.document.as_bytes().len())?;
            let value = expression.evaluate_owned(&placed.document)?;
            hold(value.as_ref(), holding)?;
            values.push(value);
        }
        Ok(values)
    }
}

/// Counts a value that is kept until the partition is done.
pub(super) fn hold(value: Option<&RawBson>, holding: &mut Holding) -> Result<(), QueryError> {
    let bytes = value.map_or(0, |value| byte_len(value.as_raw_bson_ref()));
    holding.add(bytes + size_of::<RawBson>())
}
