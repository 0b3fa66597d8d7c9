//! The documents of one partition, in their order.

use bson::{RawBson, RawDocumentBuf};

use crate::budget::Budget;
use crate::error::QueryError;
use crate::expression::{Expression, byte_len};
use crate::memory::Holding;
use crate::spill::{Cursor, List, Spilled};
use crate::variables::Variables;

/// A document with how much of its key is its partition; `sortBy` is the rest.
#[derive(Debug)]
pub(super) struct Placed {
    pub partition: usize,
    pub document: RawDocumentBuf,
}

impl Placed {
    /// Instead of a length: the partition is an array, which is told when its turn has come.
    pub const REFUSED: usize = usize::MAX;

    pub fn is_refused(&self) -> bool {
        self.partition == Placed::REFUSED
    }

    /// Appends what is in front of the document where one is read.
    pub fn put_partition(partition: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(&(partition as u64).to_le_bytes());
    }
}

impl Spilled for Placed {
    fn write(&self, out: &mut Vec<u8>) {
        Placed::put_partition(self.partition, out);
        out.extend_from_slice(self.document.as_bytes());
    }

    fn read(bytes: &[u8]) -> Option<Placed> {
        let (partition, document) = bytes.split_first_chunk()?;
        Some(Placed {
            partition: usize::try_from(u64::from_le_bytes(*partition)).ok()?,
            document: RawDocumentBuf::read(document)?,
        })
    }
}

pub(super) type Outcome = Result<Option<RawBson>, QueryError>;

pub(super) struct Partition<'p> {
    pub documents: &'p List,
    /// Of the `$lookup` stages around.
    pub variables: &'p Variables,
    pub budget: &'p Budget,
}

impl Partition<'_> {
    pub fn len(&self) -> usize {
        self.documents.len()
    }

    /// The value of an expression for each document.
    pub fn values(
        &self,
        expression: &Expression,
        holding: &mut Holding,
    ) -> Result<Vec<Option<RawBson>>, QueryError> {
        let expression = expression.bind(self.variables);
        let mut values = Vec::with_capacity(self.len());
        let mut cursor = Cursor::default();
        while let Some(document) = self.documents.next(&mut cursor)? {
            self.budget.spend_bytes(document.as_bytes().len())?;
            let value = expression.evaluate_owned(document)?;
            hold(value.as_ref(), holding)?;
            values.push(value);
        }
        Ok(values)
    }

    /// What an expression comes to for each of the documents that are wanted, errors among it: one
    /// counts for who looks at its document. Of the other documents it has no value.
    pub fn outcomes(
        &self,
        expression: &Expression,
        wanted: &[bool],
        holding: &mut Holding,
    ) -> Result<Vec<Outcome>, QueryError> {
        let expression = expression.bind(self.variables);
        let mut outcomes = Vec::with_capacity(self.len());
        let mut cursor = Cursor::default();
        while let Some(document) = self.documents.next(&mut cursor)? {
            self.budget.spend_bytes(document.as_bytes().len())?;
            let outcome = match wanted.get(outcomes.len()) {
                Some(true) => expression.evaluate_owned(document),
                _ => Ok(None),
            };
            hold(outcome.as_ref().ok().and_then(Option::as_ref), holding)?;
            outcomes.push(outcome);
        }
        Ok(outcomes)
    }

    /// The documents themselves, for a function that looks at them again and again.
    pub fn roots(&self, holding: &mut Holding) -> Result<Vec<RawDocumentBuf>, QueryError> {
        let mut roots = Vec::with_capacity(self.len());
        let mut cursor = Cursor::default();
        while let Some(document) = self.documents.next(&mut cursor)? {
            self.budget.spend_bytes(document.as_bytes().len())?;
            holding.add(document.as_bytes().len() + size_of::<RawDocumentBuf>())?;
            roots.push(document.to_owned());
        }
        Ok(roots)
    }
}

/// Counts a value that is kept until the partition is done.
pub(super) fn hold(value: Option<&RawBson>, holding: &mut Holding) -> Result<(), QueryError> {
    holding.add(held(value))
}

/// What keeping a value takes.
pub(super) fn held(value: Option<&RawBson>) -> usize {
    let bytes = value.map_or(0, |value| byte_len(value.as_raw_bson_ref()));
    bytes + size_of::<RawBson>()
}
