//! What the keys of an index over shapes tell of the shape that is asked for. Documents whose keys say
//! that they do not match are not read, and those whose keys say that they do need not be looked at
//! again for it.

use std::sync::Arc;

use banyan_document::FieldOrder;
use banyan_document::key::KeyReader;
use banyan_geo::leaf::{LeafTest, Verdict};
use banyan_geo::parse::Relation;

use banyan_query::QueryError;
use banyan_storage::Index;

use super::key_document::unreadable;
use crate::plan::IndexBounds;

#[derive(Clone)]
pub struct CellTest {
    test: Arc<LeafTest>,
    relation: Relation,
    cells: CellReader,
    /// Whether a document may have other keys than the one that is looked at.
    is_multikey: bool,
}

/// Reads the cells in the keys of an index.
#[derive(Clone)]
pub struct CellReader {
    index: Arc<Index>,
    /// Of the fields in front of the cell's.
    before: Vec<FieldOrder>,
}

impl CellReader {
    /// `field`: the place of the cell's field in the keys.
    pub fn new(bounds: &IndexBounds, field: usize) -> CellReader {
        let before = bounds.layout.fields.iter().take(field);
        CellReader {
            index: bounds.index.clone(),
            before: before.map(|(_, order)| *order).collect(),
        }
    }

    /// `None`: the key has no cell.
    pub fn read(&self, key: &[u8], types: &[u8]) -> Result<Option<i64>, QueryError> {
        let mut reader = KeyReader::new(key, types);
        let mut before = self.before.iter();
        let passed = before.try_for_each(|order| reader.skip(*order));
        let cell = passed.and_then(|()| reader.cell());
        cell.map_err(|_| unreadable(&self.index.name))
    }
}

impl CellTest {
    /// `None`: the bounds are not those of a shape.
    pub fn new(bounds: &IndexBounds) -> Option<CellTest> {
        let asked = bounds.asked_shape.as_ref()?;
        Some(CellTest {
            test: Arc::new(LeafTest::new(asked.relation, &asked.shape)),
            relation: asked.relation,
            cells: CellReader::new(bounds, asked.field),
            is_multikey: bounds.multikey,
        })
    }

    /// From now on documents may have several keys.
    pub fn become_multikey(&mut self) {
        self.is_multikey = true;
    }

    pub fn check(&self, key: &[u8], types: &[u8]) -> Result<Verdict, QueryError> {
        let Some(cell) = self.cells.read(key, types)? else {
            return Ok(Verdict::Unsure);
        };
        Ok(match self.test.check(cell) {
            // Of several points all have to lie in it.
            Verdict::Holds if self.is_multikey && self.relation == Relation::Within => {
                Verdict::Unsure
            }
            verdict => verdict,
        })
    }
}
