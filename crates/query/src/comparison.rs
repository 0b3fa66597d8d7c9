//! The comparisons that filters and expressions have in common.

use std::cmp::Ordering;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    Eq,
    Lt,
    Lte,
    Gt,
    Gte,
}

impl Comparison {
    /// The comparison with its sides exchanged.
    pub fn reversed(self) -> Comparison {
        match self {
            Comparison::Eq => Comparison::Eq,
            Comparison::Lt => Comparison::Gt,
            Comparison::Lte => Comparison::Gte,
            Comparison::Gt => Comparison::Lt,
            Comparison::Gte => Comparison::Lte,
        }
    }

    pub fn accepts(self, order: Ordering) -> bool {
        match self {
            Comparison::Eq => order == Ordering::Equal,
            Comparison::Lt => order == Ordering::Less,
            Comparison::Lte => order != Ordering::Greater,
            Comparison::Gt => order == Ordering::Greater,
            Comparison::Gte => order != Ordering::Less,
        }
    }
}
