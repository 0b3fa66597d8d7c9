//! What a `$group` is to do.

use std::sync::Arc;

use bson::{RawBsonRef, RawDocumentBuf};

use banyan_document::{DocumentWriter, Number, elements};

use crate::context::Context;
use crate::error::QueryError;
use crate::expression::{ComputedFields, Expression};
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

    /// A group of documents in which these fields are not computed yet. `None` if it has to find
    /// them there.
    pub(in crate::pipeline) fn with_computed(
        &self,
        computed: &mut ComputedFields<'_>,
    ) -> Option<Group> {
        if self.mode == Mode::Merge {
            return None;
        }
        let id = self.id.with_computed(computed)?;
        let each = self.accumulators.iter();
        let accumulators = each.map(|accumulator| accumulator.with_computed(computed));
        let accumulators: Arc<[Accumulator]> = accumulators.collect::<Option<_>>()?;
        let mut writer = DocumentWriter::with_capacity(2 * self.source.as_bytes().len());
        writer.append("_id", id.expression.source());
        let written = elements(&self.source).filter(|element| element.name() != "_id");
        for (element, accumulator) in written.zip(&*accumulators) {
            match accumulator.argument.is_constant() {
                true => writer.append_element(&element),
                false => {
                    writer.begin_document(&accumulator.field);
                    writer.append(accumulator.operator, accumulator.argument.source());
                    writer.end();
                }
            }
        }
        Some(Group {
            id,
            accumulators,
            mode: self.mode,
            source: writer.finish(),
        })
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
