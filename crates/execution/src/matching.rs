//! From a plan to the rows of a `find`: match, own, sort, skip, project.

use std::sync::Arc;

use banyan_query::Budget;
use banyan_query::QueryError;
use banyan_query::filter::Filter;
use banyan_query::projection::Projection;
use banyan_query::sort::{SortPattern, Sorter};
use banyan_storage::{Record, RecordId};
use bson::{RawDocument, cstr};

use crate::row::{Row, Rows};
use crate::source::Source;

/// Which documents of a collection this shard owns, as of one shard version.
pub trait ShardFilter: Send + Sync {
    fn owns(&self, document: &RawDocument) -> bool;
}

/// The records of a source that match and that this shard owns.
pub struct Matching {
    source: Source,
    /// `None` where the plan visits matching documents only.
    filter: Option<Arc<Filter>>,
    ownership: Option<Arc<dyn ShardFilter>>,
}

impl Matching {
    pub fn new(
        source: Source,
        filter: Option<Arc<Filter>>,
        ownership: Option<Arc<dyn ShardFilter>>,
    ) -> Matching {
        Matching {
            source,
            filter,
            ownership,
        }
    }
}

impl Matching {
    pub fn rows(self) -> impl Iterator<Item = Result<(RecordId, Row), QueryError>> + Send {
        self.map(|found| found.map(|(id, record)| (id, Row::Record(record))))
    }
}

impl Iterator for Matching {
    type Item = Result<(RecordId, Record), QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (id, record) = match self.source.next()? {
                Ok(found) => found,
                Err(error) => return Some(Err(error)),
            };
            let matches = match self
                .filter
                .as_ref()
                .map(|filter| filter.try_matches(&record))
            {
                Some(Err(error)) => return Some(Err(error)),
                Some(Ok(matches)) => matches,
                None => true,
            };
            if matches && self.ownership.as_ref().is_none_or(|own| own.owns(&record)) {
                return Some(Ok((id, record)));
            }
        }
    }
}

/// What happens to matching records on their way out.
#[derive(Default)]
pub struct Shape {
    /// Only set where the plan does not give the order already.
    pub sort: Option<SortPattern>,
    pub skip: u64,
    pub limit: Option<u64>,
    pub projection: Option<Arc<Projection>>,
    /// The filter, for projections that ask where in an array it matched.
    pub positions: Option<Arc<Filter>>,
    pub sort_bytes_max: usize,
    /// What sorting may use.
    pub budget: Budget,
    pub show_record_id: bool,
}

/// The rows of a query. With a sort that no index gives, all documents are read here.
pub fn rows<I>(matching: I, shape: Shape) -> Result<Rows, QueryError>
where
    I: Iterator<Item = Result<(RecordId, Row), QueryError>> + Send + 'static,
{
    let Shape {
        sort,
        skip,
        limit,
        projection,
        positions,
        sort_bytes_max,
        budget,
        show_record_id,
    } = shape;
    let skip = usize::try_from(skip).unwrap_or(usize::MAX);
    let finish = move |row: Row, id: Option<RecordId>| -> Result<Row, QueryError> {
        let mut row = match &projection {
            None if !show_record_id => return Ok(row),
            None => row.into_owned(),
            Some(projection) => {
                let position = match &positions {
                    Some(filter) => filter.matches_with_position(&row)?,
                    None => None,
                };
                projection.apply(&row, position)?
            }
        };
        if let Some(id) = id.filter(|_| show_record_id) {
            row.append(cstr!("$recordId"), i64::try_from(id).unwrap_or(i64::MAX));
        }
        Ok(Row::Owned(row))
    };
    let Some(pattern) = sort else {
        let found = skip_found(matching, skip);
        return Ok(Box::new(found.map(move |found| {
            let (id, row) = found?;
            finish(row, Some(id))
        })));
    };
    let wanted = limit.map(|limit| {
        usize::try_from(limit)
            .unwrap_or(usize::MAX)
            .saturating_add(skip)
    });
    let mut sorter = Sorter::with_memory(wanted, sort_bytes_max);
    for found in matching {
        let (id, row) = found?;
        let key = pattern.key(&row)?;
        if sorter.wants(&key) {
            // A copy: the record would keep its whole block alive.
            let document = row.into_owned();
            let bytes = document.as_bytes().len();
            sorter.push(key, (id, document), bytes)?;
        }
    }
    let sorted = sorter.finish(&budget)?.skip(skip);
    Ok(Box::new(sorted.map(move |(id, document)| {
        finish(Row::Owned(document), Some(id))
    })))
}

/// Passes over what was found without hiding an error among it.
fn skip_found<T>(
    mut found: impl Iterator<Item = Result<T, QueryError>>,
    count: usize,
) -> impl Iterator<Item = Result<T, QueryError>> {
    let mut left = count;
    std::iter::from_fn(move || {
        while left > 0 {
            left -= 1;
            match found.next()? {
                Ok(_) => {}
                error => return Some(error),
            }
        }
        found.next()
    })
}
