//! What a `$group` is to do.

use std::sync::Arc;

use bson::{RawBsonRef, RawDocumentBuf};

use banyan_document::Number;

use crate::context::Context;
use crate::error::QueryError;
use crate::expression::Expression;
use crate::pipeline::accumulator::{Accumulator, Kind};
use crate::pipeline::group_key::Key;
use crate::pipeline::stage::Stage;

#[derive(Debug)]
pub struct Group {
    pub(super) id: Key,
    pub(super) accumulators: Arc<[Accumulator]>,
    pub(super) mode: Mode,
    pub(super) source: RawDocumentBuf,
}

/// Which document of a group is enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Representative {
    Any,
    First,
    Last,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Documents in, results out.
    Complete,
    /// On a shard: documents in, partial states out.
    Partial,
    /// On the router: partial states in, results out.
    Merge,
}

impl Group {
    /// The top-level field that it groups by, if that is all there is to `_id`.
    pub(in crate::pipeline) fn key_field(&self) -> Option<&str> {
        let field = match self.id.expression.source() {
            RawBsonRef::String(path) => path.strip_prefix('$')?,
            _ => return None,
        };
        let plain = self.mode == Mode::Complete && !field.starts_with('$') && !field.contains('.');
        plain.then_some(field)
    }

    /// Whether it puts all documents into one group and does nothing but count them.
    pub fn counts(&self) -> bool {
        let is_count = |accumulator: &Accumulator| {
            let argument = accumulator.argument.as_constant();
            matches!(accumulator.kind, Kind::Sum) && argument == Some(RawBsonRef::Int32(1))
        };
        self.mode != Mode::Merge
            && self.id.expression.as_constant().is_some()
            && self.accumulators.iter().all(is_count)
    }

    /// A group that makes of one document what this one, which counts, makes of `count` documents.
    pub fn of_count(&self, count: u64) -> Result<Arc<dyn Stage>, QueryError> {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        let count = Number::narrow(count).to_raw();
        let argument = Expression::parse(count, &Context::default())?;
        let accumulator = |accumulator: &Accumulator| Accumulator {
            field: accumulator.field.clone(),
            operator: accumulator.operator,
            kind: Kind::Sum,
            argument: argument.clone(),
        };
        Ok(Arc::new(Group {
            accumulators: self.accumulators.iter().map(accumulator).collect(),
            ..self.with_mode(self.mode)
        }))
    }

    /// The path whose values it groups by, where it needs no more than one document of each group:
    /// any, the first or the last.
    pub fn representative(&self) -> Option<(String, Representative)> {
        let path = self
            .id
            .expression
            .as_field_path()
            .filter(|_| self.mode != Mode::Merge)?;
        let mut kinds = self
            .accumulators
            .iter()
            .map(|accumulator| &accumulator.kind);
        let representative = match self.accumulators.first().map(|first| &first.kind) {
            None => Representative::Any,
            Some(Kind::First) => Representative::First,
            Some(Kind::Last) => Representative::Last,
            Some(_) => return None,
        };
        let is_alike = |kind: &Kind| match representative {
            Representative::Any => true,
            Representative::First => matches!(kind, Kind::First),
            Representative::Last => matches!(kind, Kind::Last),
        };
        kinds
            .all(is_alike)
            .then(|| (path.to_string(), representative))
    }

    pub(super) fn with_mode(&self, mode: Mode) -> Group {
        Group {
            id: self.id.clone(),
            accumulators: self.accumulators.clone(),
            mode,
            source: self.source.clone(),
        }
    }
}
