//! $limit and $skip

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use bson::{RawBsonRef, RawDocument};

use banyan_document::{DocumentWriter, Number};

use super::stage::{Changes, Division, Reads, Stage};
use super::stage_run::{Flow, Next, StageRun, Start};
use crate::context::Context;
use crate::error::QueryError;
use crate::expression::value::{error, show};

#[derive(Clone, Copy, Debug)]
pub struct Limit(pub u64);

#[derive(Clone, Copy, Debug)]
pub struct Skip(pub u64);

pub(super) fn parse_limit(
    value: RawBsonRef<'_>,
    _: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let limit = count("$limit", 5107201, value)?;
    if limit == 0 {
        return error(15958, "the limit must be positive");
    }
    out.push(Arc::new(Limit(limit)));
    Ok(())
}

pub(super) fn parse_skip(
    value: RawBsonRef<'_>,
    _: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    out.push(Arc::new(Skip(count("$skip", 5107200, value)?)));
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

/// What `$limit` and `$skip` differ in.
trait Count: Copy + fmt::Debug + Send + Sync + 'static {
    const NAME: &'static str;

    fn count(self) -> u64;

    fn division(self) -> Division;

    fn run(self) -> Box<dyn StageRun>;
}

impl<C: Count> Stage for C {
    fn name(&self) -> &'static str {
        C::NAME
    }

    fn serialize(&self, out: &mut DocumentWriter) {
        let count = self.count();
        out.append_i64(C::NAME, i64::try_from(count).unwrap_or(i64::MAX));
    }

    fn reads(&self, _: &mut BTreeSet<String>) -> Reads {
        Reads::AndPasses
    }

    fn changes(&self) -> Changes {
        Changes::nothing()
    }

    fn split(&self) -> Division {
        self.division()
    }

    fn run(self: Arc<Self>, _: &Start<'_>) -> Result<Box<dyn StageRun>, QueryError> {
        Ok(Count::run(*self))
    }
}

impl Count for Limit {
    const NAME: &'static str = "$limit";

    fn count(self) -> u64 {
        self.0
    }

    /// No shard need send more, and the router takes no more of all.
    fn division(self) -> Division {
        Division::Both {
            shards: vec![Arc::new(self)],
            order: None,
            router: vec![Arc::new(self)],
        }
    }

    fn run(self) -> Box<dyn StageRun> {
        Box::new(LimitRun { left: self.0 })
    }
}

impl Count for Skip {
    const NAME: &'static str = "$skip";

    fn count(self) -> u64 {
        self.0
    }

    fn division(self) -> Division {
        Division::Router
    }

    fn run(self) -> Box<dyn StageRun> {
        Box::new(SkipRun { left: self.0 })
    }
}

struct LimitRun {
    left: u64,
}

impl StageRun for LimitRun {
    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        if self.left == 0 {
            return Ok(Flow::Stop);
        }
        self.left -= 1;
        let flow = next.push(document)?;
        Ok(if self.left == 0 { Flow::Stop } else { flow })
    }
}

struct SkipRun {
    left: u64,
}

impl StageRun for SkipRun {
    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        if self.left > 0 {
            self.left -= 1;
            return Ok(Flow::Continue);
        }
        next.push(document)
    }
}
