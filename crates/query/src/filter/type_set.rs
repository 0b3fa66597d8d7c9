//! The operand of `$type`.

use banyan_document::kind;
use bson::spec::ElementType;

/// The types that `$type` asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TypeSet {
    /// `number`: all four of them.
    pub numbers: bool,
    /// In the order of their codes, each once.
    pub types: Vec<ElementType>,
}

impl TypeSet {
    pub(super) fn insert(&mut self, kind: ElementType) {
        let number = kind::number(kind);
        let place = self
            .types
            .binary_search_by_key(&number, |known| kind::number(*known));
        if let Err(place) = place {
            self.types.insert(place, kind);
        }
    }

    pub fn contains(&self, kind: ElementType) -> bool {
        use ElementType::{Decimal128, Double, Int32, Int64};
        (self.numbers && matches!(kind, Double | Int32 | Int64 | Decimal128))
            || self.types.contains(&kind)
    }

    /// Whether every type of this set is in the other.
    pub(crate) fn is_within(&self, other: &TypeSet) -> bool {
        (!self.numbers || other.numbers) && self.types.iter().all(|kind| other.contains(*kind))
    }
}
