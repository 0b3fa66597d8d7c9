//! RETURN_KEY: in place of each document the key of the index that it was found by.

use banyan_query::QueryError;
use banyan_query::sort::SortPattern;
use bson::RawDocumentBuf;

use super::{Member, Operator, Progress, Run, Stage, pass_on};
use crate::row::Row;

/// What no index has found becomes an empty document.
pub struct ReturnKey {
    /// What the documents are sorted by, where that comes with the keys.
    sort_key: Option<SortPattern>,
}

impl ReturnKey {
    pub fn new(sort_key: Option<SortPattern>) -> ReturnKey {
        ReturnKey { sort_key }
    }

    fn key_of(&self, member: &mut Member) -> Result<RawDocumentBuf, QueryError> {
        let key = member.key.take();
        let mut key = key.map_or_else(RawDocumentBuf::new, |key| *key);
        if let (Some(pattern), Some(row)) = (&self.sort_key, &member.row) {
            pattern.append_key(row, &mut key)?;
        }
        Ok(key)
    }
}

impl Operator for ReturnKey {
    fn name(&self) -> &'static str {
        "RETURN_KEY"
    }

    fn next(
        &mut self,
        inputs: &mut [Stage],
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<(u64, Progress), QueryError> {
        let before = out.len();
        let (works, progress) = pass_on(inputs, run, most, out)?;
        let new = out.get_mut(before..).unwrap_or_default();
        for member in new.iter_mut() {
            member.row = Some(Row::Owned(self.key_of(member)?));
        }
        Ok((works, progress))
    }

    fn passes_on(&self) -> bool {
        true
    }
}
