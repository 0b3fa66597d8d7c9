//! How many values $firstN and its like keep of a group: an expression over the group's key.

use bson::{RawBsonRef, RawDocument};

use crate::error::QueryError;
use crate::expression::value::wanted_number;
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
    wanted_number(value)
}
