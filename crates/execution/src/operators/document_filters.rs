//! What is matched against documents once their keys have said what they can.

use std::sync::Arc;

use banyan_query::filter::Filter;

/// What documents are matched against. `None`: the input names matching documents only.
#[derive(Clone)]
pub struct DocumentFilters {
    pub all: Option<Arc<Filter>>,
    /// Of those whose keys have settled what is asked of their shapes.
    pub settled: Option<Arc<Filter>>,
}

impl DocumentFilters {
    /// Keys settle nothing.
    pub fn of(filter: Option<Arc<Filter>>) -> DocumentFilters {
        DocumentFilters {
            settled: filter.clone(),
            all: filter,
        }
    }

    pub fn for_one(&self, is_settled: bool) -> Option<&Arc<Filter>> {
        match is_settled {
            true => self.settled.as_ref(),
            false => self.all.as_ref(),
        }
    }
}
