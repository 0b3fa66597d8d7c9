//! What an accumulator keeps of a group.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::document_key::DocumentKey;
use super::script::Script;
use crate::error::QueryError;
use crate::expression::Expression;

/// What is kept of a group, and what is evaluated of each document for it.
pub(super) type Parsed = Result<(Kind, Expression), QueryError>;

#[derive(Debug)]
pub(in crate::pipeline) enum Kind {
    Sum,
    Avg,
    Min,
    Max,
    First,
    Last,
    Push,
    AddToSet,
    /// Elements of arrays, all of them.
    ConcatArrays,
    /// Elements of arrays, each once.
    SetUnion,
    StdDev {
        sample: bool,
    },
    MergeObjects,
    /// The first or last `n` values.
    Positional {
        n: Expression,
        last: bool,
    },
    /// The `n` values that come first in an order; as an array unless there is one.
    Ranked {
        n: Expression,
        single: bool,
        order: Order,
    },
    Percentile {
        fractions: Vec<f64>,
        single: bool,
    },
    /// What scripts make of the documents.
    Script(Arc<Script>),
}

#[derive(Debug)]
pub(in crate::pipeline) enum Order {
    /// By the value itself; null values do not count.
    Value { descending: bool },
    /// By the document, `$bottom` from the end.
    Document { key: DocumentKey, reverse: bool },
}

impl Kind {
    /// What is evaluated over the key of each group: how many values are kept of it, or what a
    /// script begins with.
    pub(in crate::pipeline) fn of_key(&self) -> Option<&Expression> {
        match self {
            Kind::Positional { n, .. } | Kind::Ranked { n, .. } => Some(n),
            Kind::Script(script) => script.init_arguments(),
            _ => None,
        }
    }

    /// Whether parts of the documents come to exactly what all of them do: deviations do not, and a
    /// script's `merge` may do as it likes.
    pub(in crate::pipeline) fn is_exact_in_parts(&self) -> bool {
        !matches!(self, Kind::StdDev { .. } | Kind::Script(_))
    }

    /// Whether it looks at documents beside the values that it is given of them.
    pub(in crate::pipeline) fn reads_root(&self) -> bool {
        matches!(
            self,
            Kind::Ranked {
                order: Order::Document { .. },
                ..
            }
        )
    }

    /// Adds the paths read beside the argument; false if the whole document is.
    pub(in crate::pipeline) fn dependencies(&self, paths: &mut BTreeSet<String>) -> bool {
        if let Kind::Ranked {
            order: Order::Document { key, .. },
            ..
        } = self
        {
            key.dependencies(paths);
        }
        true
    }
}
