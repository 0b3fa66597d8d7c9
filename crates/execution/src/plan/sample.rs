//! Whether a sample is drawn by record ids instead of out of a scan.

use std::ops::RangeInclusive;

use banyan_query::QueryError;

use super::{Access, Solution};
use crate::error;
use crate::request::{ReadView, Request};

/// Of fewer documents, or for more than a twentieth of them, everything is read.
const DOCUMENTS_MIN: u64 = 100;
const SHARE_MAX: u64 = 20;
/// Where of so many ids no more than one is that of a record, too many are drawn in vain.
const IDS_PER_RECORD_MAX: u64 = 16;

/// The plan that draws records, if one is to.
pub fn solution(view: &ReadView, request: &Request<'_>) -> Result<Option<Solution>, QueryError> {
    let Some(size) = request.sample else {
        return Ok(None);
    };
    let asks = !request.query.filter.is_empty() || request.query.order.pattern().is_some();
    if asks || request.hint.is_some() {
        return Ok(None);
    }
    let Some(ids) = ids(view, size)? else {
        return Ok(None);
    };
    Ok(Some(Solution {
        access: Access::Sample(ids),
        ..Solution::nothing()
    }))
}

fn ids(view: &ReadView, size: u64) -> Result<Option<RangeInclusive<u64>>, QueryError> {
    let Some(collection) = &view.collection else {
        return Ok(None);
    };
    let (documents, _) = view
        .snapshot
        .counts(collection.id)
        .map_err(error::storage)?;
    let documents = u64::try_from(documents).unwrap_or_default();
    if documents <= DOCUMENTS_MIN || size.saturating_mul(SHARE_MAX) >= documents {
        return Ok(None);
    }
    let end = |reverse| {
        let mut records = view.snapshot.records(collection.id, .., reverse);
        let found = records.next().transpose().map_err(error::storage)?;
        // Ids of bytes, those of a clustered collection, are not drawn.
        Ok::<_, QueryError>(found.and_then(|(record, _)| record.as_number()))
    };
    let (Some(first), Some(last)) = (end(false)?, end(true)?) else {
        return Ok(None);
    };
    let is_dense = last - first < documents.saturating_mul(IDS_PER_RECORD_MAX);
    Ok(is_dense.then_some(first..=last))
}
