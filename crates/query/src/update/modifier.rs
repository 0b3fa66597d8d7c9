//! What an update does at one path.

use banyan_document::MAX_STORED_DEPTH;
use banyan_document::element::{elements, items};
use banyan_document::number::Number;
use banyan_document::path::Path;
use bson::{RawBson, RawBsonRef};

use super::array::{Pull, Push};

/// What happens at one path.
#[derive(Clone, Debug)]
pub(super) enum Modifier {
    Set(RawBson),
    SetOnInsert(RawBson),
    Unset,
    Increment(Number),
    Multiply(Number),
    Min(RawBson),
    Max(RawBson),
    CurrentDate,
    CurrentTimestamp,
    Bit(Vec<(BitOperation, Number)>),
    /// The source of a `$rename`.
    RenameFrom,
    /// The target, with its source.
    RenameTo(Path),
    Push(Push),
    AddToSet(Vec<RawBson>),
    PopFirst,
    PopLast,
    Pull(Pull),
    PullAll(Vec<RawBson>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BitOperation {
    And,
    Or,
    Xor,
}

impl Modifier {
    /// Whether the operator makes the path where it does not exist.
    pub fn creates(&self, is_upsert: bool, has: impl FnOnce(&Path) -> bool) -> bool {
        match self {
            Modifier::Unset
            | Modifier::RenameFrom
            | Modifier::PopFirst
            | Modifier::PopLast
            | Modifier::Pull(_)
            | Modifier::PullAll(_) => false,
            Modifier::SetOnInsert(_) => is_upsert,
            Modifier::RenameTo(from) => has(from),
            _ => true,
        }
    }

    /// Whether a path that leads through a scalar is an error even to operators that create
    /// nothing.
    pub fn needs_viable_path(&self) -> bool {
        matches!(
            self,
            Modifier::PopFirst | Modifier::PopLast | Modifier::Pull(_) | Modifier::PullAll(_)
        )
    }

    /// Whether what it leaves at its path is best told as a whole: it was given as one, or an
    /// array was treated as one.
    pub fn leaves_a_whole(&self) -> bool {
        match self {
            Modifier::Set(v) | Modifier::SetOnInsert(v) | Modifier::Min(v) | Modifier::Max(v) => {
                matches!(v, RawBson::Document(_) | RawBson::Array(_))
            }
            Modifier::Push(push) => !push.only_appends(),
            Modifier::RenameTo(_)
            | Modifier::PopFirst
            | Modifier::PopLast
            | Modifier::AddToSet(_)
            | Modifier::Pull(_)
            | Modifier::PullAll(_) => true,
            _ => false,
        }
    }

    /// How deep the operand nests. A moved value is as deep as can be.
    pub fn operand_depth(&self) -> usize {
        match self {
            Modifier::Set(v) | Modifier::SetOnInsert(v) | Modifier::Min(v) | Modifier::Max(v) => {
                depth(v.as_raw_bson_ref())
            }
            Modifier::Push(push) => 1 + deepest(push.items()),
            Modifier::AddToSet(items) => 1 + deepest(items),
            Modifier::RenameTo(_) => MAX_STORED_DEPTH,
            _ => 0,
        }
    }
}

fn deepest(items: &[RawBson]) -> usize {
    items
        .iter()
        .map(|item| depth(item.as_raw_bson_ref()))
        .max()
        .unwrap_or(0)
}

/// Operands come out of a validated message, so this recursion is bounded.
fn depth(value: RawBsonRef<'_>) -> usize {
    match value {
        RawBsonRef::Document(document) => {
            1 + elements(document)
                .map(|element| depth(element.value()))
                .max()
                .unwrap_or(0)
        }
        RawBsonRef::Array(array) => {
            1 + items(array)
                .map(|item| depth(item.value()))
                .max()
                .unwrap_or(0)
        }
        _ => 0,
    }
}
