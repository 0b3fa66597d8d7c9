//! The scores of a search that only some of the documents match: one of the branches of an `$or`. They
//! are computed of the documents, which nothing has looked up.

use banyan_query::QueryError;
use banyan_query::text::{self, without_score};
use banyan_text::Matcher;
use bson::cstr;

use super::{Member, Operator, Progress, Run, Stage, pass_on};
use crate::row::Row;
use crate::shares::Share;

pub struct TextScore {
    matcher: Matcher,
}

impl TextScore {
    pub fn new(matcher: Matcher) -> TextScore {
        TextScore { matcher }
    }

    fn score(&self, row: Row) -> Result<Row, QueryError> {
        let Some(score) = text::score(&self.matcher, &row)? else {
            return Ok(row);
        };
        let mut document = without_score(&row).unwrap_or_else(|| row.into_owned());
        document.append(cstr!("$textScore"), score);
        Ok(Row::Owned(document))
    }
}

impl Operator for TextScore {
    fn name(&self) -> &'static str {
        "TEXT_OR"
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
        for member in out.get_mut(before..).unwrap_or_default() {
            if let Some(row) = member.row.take() {
                member.row = Some(self.score(row)?);
            }
        }
        Ok((works, progress))
    }

    fn part(&self, _: &Share) -> Option<Box<dyn Operator>> {
        Some(Box::new(TextScore::new(self.matcher.clone())))
    }

    fn passes_on(&self) -> bool {
        true
    }

    fn is_shown(&self) -> bool {
        false
    }
}
