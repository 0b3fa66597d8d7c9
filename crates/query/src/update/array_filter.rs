//! `arrayFilters`: which items `$[identifier]` stands for.

use banyan_document::element::{elements, items};
use banyan_document::writer::DocumentWriter;
use bson::{RawBsonRef, RawDocument};

use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::filter::{Filter, MatchNode};
use crate::names::Named;

#[derive(Clone, Debug)]
pub(super) struct ArrayFilter {
    pub identifier: String,
    filter: Filter,
}

impl ArrayFilter {
    fn parse(document: &RawDocument, context: &Context) -> Result<ArrayFilter, QueryError> {
        let caused = |error: QueryError| {
            let message = format!(
                "Error parsing array filter :: caused by :: {}",
                error.message
            );
            QueryError::new(error.kind, message)
        };
        refuse_features(document)?;
        // A condition that nothing meets has an identifier all the same.
        let (filter, identifier) = Filter::parse_looking(document, context, |written| {
            let mut identifier = None;
            find_identifier(written, &mut identifier)?;
            Ok(identifier)
        })
        .map_err(caused)?;
        let Some(identifier) = identifier else {
            let message = "Cannot use an expression without a top-level field name in arrayFilters";
            return Err(QueryError::new(ErrorKind::FailedToParse, message));
        };
        let lower = identifier.starts_with(|c: char| c.is_ascii_lowercase());
        if !lower || !identifier.chars().all(|c| c.is_ascii_alphanumeric()) {
            let message = format!(
                "The top-level field name must be an alphanumeric string beginning with a \
                 lowercase letter, found '{identifier}'"
            );
            return Err(caused(QueryError::new(ErrorKind::BadValue, message)));
        }
        Ok(ArrayFilter { identifier, filter })
    }

    pub fn parse_all(
        documents: &[&RawDocument],
        context: &Context,
    ) -> Result<Named<ArrayFilter>, QueryError> {
        let mut filters = Named::default();
        for document in documents {
            let filter = ArrayFilter::parse(document, context)?;
            if filters.get(&filter.identifier).is_some() {
                let message = format!(
                    "Found multiple array filters with the same top-level field name {}",
                    filter.identifier
                );
                return Err(QueryError::new(ErrorKind::FailedToParse, message));
            }
            filters.push(filter.identifier.as_str().into(), filter);
        }
        Ok(filters)
    }

    pub fn matches(&self, item: RawBsonRef<'_>) -> Result<bool, QueryError> {
        let mut writer = DocumentWriter::new();
        writer.append(&self.identifier, item);
        self.filter.try_matches(&writer.finish())
    }
}

/// Refuses what looks at more than the elements of an array.
pub(super) fn refuse_features(filter: &RawDocument) -> Result<(), QueryError> {
    for element in elements(filter) {
        let kind = match (element.name(), element.value()) {
            ("$expr" | "$jsonSchema", _) => ErrorKind::QueryFeatureNotAllowed,
            ("$where" | "$text", _) => ErrorKind::BadValue,
            ("$and" | "$or" | "$nor", RawBsonRef::Array(branches)) => {
                let mut branches = items(branches).filter_map(|item| item.value().as_document());
                branches.try_for_each(refuse_features)?;
                continue;
            }
            _ => continue,
        };
        let message = format!("{} is not allowed in this context", element.name());
        return Err(QueryError::new(kind, message));
    }
    Ok(())
}

/// All paths of the filter start with one name.
fn find_identifier(node: &MatchNode, found: &mut Option<String>) -> Result<(), QueryError> {
    match node {
        MatchNode::And(children) | MatchNode::Or(children) | MatchNode::Nor(children) => children
            .iter()
            .try_for_each(|child| find_identifier(child, found)),
        MatchNode::Not(child) => find_identifier(child, found),
        MatchNode::Path { path, .. } => {
            match found {
                Some(known) if known != path.head() => {
                    let mut names = [known.as_str(), path.head()];
                    names.sort_unstable();
                    let message = format!(
                        "Expected a single top-level field name, found '{}' and '{}'",
                        names[0], names[1]
                    );
                    return Err(QueryError::new(ErrorKind::FailedToParse, message));
                }
                Some(_) => {}
                None => *found = Some(path.head().to_string()),
            }
            Ok(())
        }
        MatchNode::Expression { .. }
        | MatchNode::Where(_)
        | MatchNode::Schema { .. }
        | MatchNode::Text(_)
        | MatchNode::AlwaysTrue
        | MatchNode::AlwaysFalse => Ok(()),
    }
}
