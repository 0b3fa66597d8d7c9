//! TEXT_MATCH: of the documents that have one of the terms of a search, those that match it.

use std::any::Any;
use std::sync::Arc;

use banyan_query::QueryError;
use banyan_query::text::{self, without_score};
use banyan_storage::Collection;
use bson::{RawArrayBuf, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::text_or::SCORE;
use super::{Counts, Explainer, Member, Operator, Progress, Run, Stage, pull};
use crate::plan::TextAccess;
use crate::plan::explain::clamp;
use crate::row::Row;
use crate::shares::Share;

pub struct TextMatch {
    text: Arc<TextAccess>,
    /// Whether documents are given their scores.
    is_scored: bool,
    /// Documents may have changed since the index has named them.
    is_restored: bool,
    pulled: Vec<Member>,
    rejected: u64,
}

impl TextMatch {
    pub fn new(text: Arc<TextAccess>, is_scored: bool) -> TextMatch {
        TextMatch {
            text,
            is_scored,
            is_restored: false,
            pulled: Vec::new(),
            rejected: 0,
        }
    }
}

/// The document with its score beside its own fields.
fn scored(row: Row, key: Option<&RawDocument>) -> Row {
    let score = key.and_then(|key| key.get_f64(SCORE).ok());
    let mut document = without_score(&row).unwrap_or_else(|| row.into_owned());
    document.append(cstr!("$textScore"), score.unwrap_or_default());
    Row::Owned(document)
}

fn list<'t>(texts: impl IntoIterator<Item = &'t String>) -> RawArrayBuf {
    texts.into_iter().map(String::as_str).collect()
}

impl Operator for TextMatch {
    fn name(&self) -> &'static str {
        "TEXT_MATCH"
    }

    fn next(
        &mut self,
        inputs: &mut [Stage],
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<(u64, Progress), QueryError> {
        let (matcher, is_scored, is_restored) =
            (&self.text.matcher, self.is_scored, self.is_restored);
        let rejected = &mut self.rejected;
        let take = |_: &mut Run<'_>, from: &mut Vec<Member>, out: &mut Vec<Member>| {
            for mut member in from.drain(..) {
                let Some(row) = member.row.take() else {
                    continue;
                };
                let matches = match is_restored {
                    true => matcher.matches(&row),
                    false => matcher.matches_found(&row),
                };
                if !matches.map_err(text::error)? {
                    *rejected += 1;
                    continue;
                }
                member.row = Some(match is_scored {
                    true => scored(row, member.key.take().as_deref().map(|key| &**key)),
                    false => row,
                });
                out.push(member);
            }
            Ok(())
        };
        pull(inputs, run, most, out, &mut self.pulled, take)
    }

    fn restore(&mut self, _: &Collection) -> Result<(), QueryError> {
        self.is_restored = true;
        Ok(())
    }

    fn part(&self, _: &Share) -> Option<Box<dyn Operator>> {
        let mut part = TextMatch::new(self.text.clone(), self.is_scored);
        part.is_restored = self.is_restored;
        Some(Box::new(part))
    }

    fn absorb(&mut self, part: &dyn Operator) {
        let part: &dyn Any = part;
        if let Some(part) = part.downcast_ref::<TextMatch>() {
            self.rejected += part.rejected;
        }
    }

    fn describe(&self, stage: &mut RawDocumentBuf, _: &Counts, explainer: Explainer) {
        let search = &self.text.matcher.search;
        stage.append(cstr!("indexPrefix"), self.text.prefix.clone());
        stage.append(cstr!("indexName"), self.text.index.name.as_str());
        stage.append(
            cstr!("parsedTextQuery"),
            rawdoc! {
                "terms": list(&search.terms),
                "negatedTerms": list(&search.negated_terms),
                "phrases": list(&search.phrases),
                "negatedPhrases": list(&search.negated_phrases),
            },
        );
        let version = self.text.matcher.index.version;
        stage.append(cstr!("textIndexVersion"), version.number());
        if explainer.ran() {
            stage.append(cstr!("docsRejected"), clamp(self.rejected));
        }
    }
}
