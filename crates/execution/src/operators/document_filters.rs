//! What is matched against documents once their keys have said what they can.

use std::sync::Arc;

use banyan_query::QueryError;
use banyan_query::filter::Filter;
use banyan_query::javascript::ahead;
use bson::RawDocument;

use super::Member;

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

    /// Whether scripts decide.
    pub fn call_script(&self) -> bool {
        let mut filters = self.all.iter().chain(&self.settled);
        filters.any(|filter| filter.calls_script())
    }

    /// Leaves those of the members from one on whose documents match; the scripts of all of them are
    /// run together.
    pub fn keep_matching(&self, members: &mut Vec<Member>, first: usize) -> Result<(), QueryError> {
        let asked = members.iter().skip(first);
        let asked: Vec<(Option<&RawDocument>, bool)> = asked
            .map(|member| (member.row.as_deref(), member.is_settled))
            .collect();
        let matches = ahead::for_all(&asked, |(document, is_settled)| {
            match (self.for_one(is_settled), document) {
                (Some(filter), Some(document)) => filter.try_matches(document),
                _ => Ok(true),
            }
        })?;
        let rest = members.split_off(first.min(members.len()));
        let rest = rest.into_iter().zip(matches);
        members.extend(
            rest.filter(|(_, matches)| *matches)
                .map(|(member, _)| member),
        );
        Ok(())
    }

    pub fn for_one(&self, is_settled: bool) -> Option<&Arc<Filter>> {
        match is_settled {
            true => self.settled.as_ref(),
            false => self.all.as_ref(),
        }
    }
}
