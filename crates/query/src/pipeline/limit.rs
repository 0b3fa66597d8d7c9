//! $limit and $skip

use bson::{RawBsonRef, RawDocument};

use banyan_document::Number;

use super::execute::{Flow, Next, Step};
use super::stage::Stage;
use crate::context::Context;
use crate::error::QueryError;
use crate::expression::value::{error, show};

pub(super) fn parse_limit(
    value: RawBsonRef<'_>,
    _: &Context,
    out: &mut Vec<Stage>,
) -> Result<(), QueryError> {
    let limit = count("$limit", 5107201, value)?;
    if limit == 0 {
        return error(15958, "the limit must be positive");
    }
    out.push(Stage::Limit(limit));
    Ok(())
}

pub(super) fn parse_skip(
    value: RawBsonRef<'_>,
    _: &Context,
    out: &mut Vec<Stage>,
) -> Result<(), QueryError> {
    out.push(Stage::Skip(count("$skip", 5107200, value)?));
    Ok(())
}

fn count(stage: &str, code: u32, value: RawBsonRef<'_>) -> Result<u64, QueryError> {
    let failed = |problem: &str| {
        error(
            code,
            format!(
                "invalid argument to {stage} stage: {problem} {stage}: {}",
                show(value)
            ),
        )
    };
    let Some(number) = Number::from_raw(value) else {
        return failed("Expected a number in:");
    };
    match number.to_i64_exact() {
        None => failed("Expected an integer:"),
        Some(count) => match u64::try_from(count) {
            Ok(count) => Ok(count),
            Err(_) => failed("Expected a non-negative number in:"),
        },
    }
}

pub(super) struct LimitStep {
    left: u64,
}

impl LimitStep {
    pub(super) fn new(limit: u64) -> LimitStep {
        LimitStep { left: limit }
    }
}

impl Step for LimitStep {
    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        if self.left == 0 {
            return Ok(Flow::Stop);
        }
        self.left -= 1;
        let flow = next.push(document)?;
        Ok(if self.left == 0 { Flow::Stop } else { flow })
    }
}

pub(super) struct SkipStep {
    left: u64,
}

impl SkipStep {
    pub(super) fn new(skip: u64) -> SkipStep {
        SkipStep { left: skip }
    }
}

impl Step for SkipStep {
    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        if self.left > 0 {
            self.left -= 1;
            return Ok(Flow::Continue);
        }
        next.push(document)
    }
}
