//! Searches: a `$text` is answered by the text index and by nothing else.

use std::sync::Arc;

use banyan_document::path::Path;
use banyan_query::bounds::{Conjunction, equality_of};
use banyan_query::canonical::Order;
use banyan_query::text::index_required;
use banyan_query::{Context, ErrorKind, Filter, QueryError};
use banyan_storage::{Collection, Index};
use banyan_text::{Matcher, TERM_FIELD};
use bson::raw::CString;
use bson::{RawBsonRef, RawDocumentBuf};

use super::bounds::{self, IndexBounds};
use super::min_max;
use crate::partial::is_complete_for;
use crate::request::Request;

/// How a search finds its documents.
#[derive(Debug, Clone)]
pub struct TextAccess {
    pub index: Arc<Index>,
    pub matcher: Matcher,
    /// Which of the filter's conjuncts it is.
    pub conjunct: usize,
    /// For each term, where it is in the index.
    pub terms: Vec<Arc<IndexBounds>>,
    /// What the filter says of the fields in front of the terms.
    pub prefix: RawDocumentBuf,
}

/// How the search in a filter is answered, if there is one that all documents have to match.
pub(super) fn access(
    collection: &Arc<Collection>,
    request: &Request<'_>,
    conjunction: &Conjunction<'_>,
) -> Result<Option<TextAccess>, QueryError> {
    if !request.query.filter.searches() {
        return Ok(None);
    }
    let bad = |message: &str| Err(QueryError::new(ErrorKind::BadValue, message));
    if request.hint.is_some() {
        return bad("text and hint not allowed in same query");
    }
    if let Order::Natural { .. } = request.query.order {
        return bad("text expression not allowed with $natural sort order");
    }
    if request.has_ends() {
        return Err(min_max::hint_required());
    }
    let Some((conjunct, query)) = request.query.filter.search() else {
        return Ok(None);
    };
    let matcher = query.matcher.clone().ok_or_else(index_required)?;
    let index = searched(collection, &matcher).ok_or_else(index_required)?;
    let Some((_, layout)) = index.kind.text() else {
        return Err(index_required());
    };
    let Some(prefix) =
        prefix(&matcher, conjunction).filter(|_| is_complete_for(index, conjunction))
    else {
        return Err(unserved());
    };
    let mut terms = Vec::new();
    for term in &matcher.search.looked_up {
        let mut filter = prefix.clone();
        append(
            &mut filter,
            TERM_FIELD,
            RawBsonRef::String(&matcher.index.key_term(term)),
        );
        let filter = Filter::parse(&filter, &Context::default())?;
        let found = bounds::of_layout(index, layout.clone(), &Conjunction::of(&filter), None);
        terms.extend(found.map(Arc::new));
    }
    Ok(Some(TextAccess {
        index: index.clone(),
        matcher,
        conjunct,
        terms,
        prefix,
    }))
}

/// Refuses a search within an `$or` if the index does not hold all that its branch may match.
pub(super) fn check_branches(
    collection: &Arc<Collection>,
    request: &Request<'_>,
    conjunction: &Conjunction<'_>,
) -> Result<(), QueryError> {
    let matchers = request.query.filter.matchers();
    let index = matchers.first().and_then(|matcher| {
        let index = searched(collection, matcher)?;
        Some((matcher, index))
    });
    let Some((matcher, index)) = index else {
        return Ok(());
    };
    let disjunctions = conjunction.disjunctions.iter();
    let mut branches = disjunctions.flat_map(|found| &found.branches).peekable();
    let is_whole = is_complete_for(index, conjunction);
    let is_served = |branch: &Conjunction<'_>| {
        prefix(matcher, branch).is_some() && (is_whole || is_complete_for(index, branch))
    };
    match branches.peek().is_none() || branches.any(is_served) {
        true => Ok(()),
        false => Err(unserved()),
    }
}

/// The index that a search is about.
fn searched<'c>(collection: &'c Collection, matcher: &Matcher) -> Option<&'c Arc<Index>> {
    let mut indexes = collection.indexes.iter().filter(|index| !index.hidden);
    indexes.find(|index| {
        let text = index.kind.text();
        text.is_some_and(|(known, _)| **known == *matcher.index)
    })
}

fn unserved() -> QueryError {
    QueryError::new(
        ErrorKind::NoQueryExecutionPlans,
        "error processing query: planner returned error :: caused by :: failed to use text index \
         to satisfy $text query (if text index is compound, are equality predicates given for all \
         prefix fields?)",
    )
}

/// The values of the fields in front of the terms; `None`: not all are known.
fn prefix(matcher: &Matcher, conjunction: &Conjunction<'_>) -> Option<RawDocumentBuf> {
    let mut prefix = RawDocumentBuf::new();
    for name in &matcher.index.before {
        let path = Path::parse(name).ok()?;
        append(&mut prefix, name, equality_of(conjunction, &path)?);
    }
    Some(prefix)
}

fn append(document: &mut RawDocumentBuf, name: &str, value: RawBsonRef<'_>) {
    if let Ok(name) = CString::try_from(name) {
        document.append(name, value);
    }
}
