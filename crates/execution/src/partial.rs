//! The filters of partial indexes, parsed once.

use std::sync::Arc;

use banyan_query::bounds::{Conjunction, implies};
use banyan_query::{Context, Filter};
use banyan_storage::Index;

/// The filter of a partial index, which compares strings as the index does. `Some(None)`: it cannot
/// be read. `None`: the index is not partial.
pub fn filter_of(index: &Index) -> Option<Arc<Option<Filter>>> {
    let partial = index.partial_filter.as_ref()?;
    index.extension(|| {
        let context = Context {
            collator: index.pattern.collator.clone(),
            ..Context::default()
        };
        Filter::parse(partial, &context).ok()
    })
}

/// Whether a partial index holds every document that matches.
pub(crate) fn is_complete_for(index: &Index, conjunction: &Conjunction<'_>) -> bool {
    if index.partial_filter.is_none() {
        return true;
    }
    match filter_of(index).as_deref() {
        Some(Some(needed)) => implies(conjunction, needed),
        _ => false,
    }
}
