//! How many values $firstN and its like keep of a group: an expression over the group's key.

use bson::{RawBsonRef, RawDocument};

use banyan_document::Number;

use crate::error::QueryError;
use crate::expression::value::{error, show};
use crate::expression::{Arena, Expression};
use crate::variables::Variables;

/// What the number depends on.
#[derive(Clone, Copy)]
pub(in crate::pipeline) struct Group<'g> {
    key: &'g RawDocument,
    variables: &'g Variables,
}

impl<'g> Group<'g> {
    pub(super) fn key(&self) -> &'g RawDocument {
        self.key
    }

    pub(super) fn variables(&self) -> &'g Variables {
        self.variables
    }

    /// Only the fields of a key that is a document can be named.
    pub fn new(key: RawBsonRef<'g>, variables: &'g Variables) -> Group<'g> {
        let key = match key {
            RawBsonRef::Document(key) => key,
            _ => Group::nothing(),
        };
        Group { key, variables }
    }

    /// Where there are no groups.
    pub fn none() -> Group<'static> {
        Group {
            key: Group::nothing(),
            variables: Variables::NONE,
        }
    }

    fn nothing() -> &'static RawDocument {
        const EMPTY: &[u8] = &[5, 0, 0, 0, 0];
        RawDocument::from_bytes(EMPTY).expect("five bytes are the empty document")
    }
}

pub(super) fn count(n: &Expression, group: Group<'_>) -> Result<usize, QueryError> {
    let (n, arena) = (n.bind(group.variables), Arena::new());
    let value = n.evaluate(group.key, &arena)?;
    let no_integer = |code| {
        let shown = value.map_or("MISSING".into(), show);
        let message = format!("Value for 'n' must be of integral type, but found {shown}");
        error(code, message)
    };
    let Some(number) = value.and_then(Number::from_raw) else {
        return no_integer(5787902);
    };
    match number.to_i64_exact() {
        None => no_integer(5787903),
        Some(n) if n <= 0 => error(5787908, format!("'n' must be greater than 0, found {n}")),
        Some(n) => Ok(usize::try_from(n).unwrap_or(usize::MAX)),
    }
}
