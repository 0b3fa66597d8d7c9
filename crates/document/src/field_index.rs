//! Where the fields of a document are, for whoever reads many of them.

use bson::{RawBsonRef, RawDocument};

use crate::element::{field_at, raw_fields};

/// The direct fields of one document by name. It can be filled with one document after the other,
/// and keeps its memory.
#[derive(Debug, Default)]
pub struct FieldIndex {
    /// A hash table with open addressing, at most half full.
    places: Vec<Place>,
    fields: Vec<Place>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    hash: u32,
    /// Where the field begins in the document's bytes; 0 if there is none.
    offset: u32,
}

/// Names that hash so much alike that it takes more steps are not worth an index.
const STEPS_MAX: usize = 64;

impl FieldIndex {
    /// Notes where the fields of `document` are. False if that is of no use: the names hash alike.
    pub fn fill(&mut self, document: &RawDocument) -> bool {
        let end = document.as_bytes().len() - 1;
        let mut fields = raw_fields(document);
        self.fields.clear();
        loop {
            // A document has fewer bytes than a signed integer of 32 bits counts.
            let offset = (end - fields.bytes_left()) as u32;
            let Some(field) = fields.next() else { break };
            let hash = hash(field.name());
            self.fields.push(Place { hash, offset });
        }
        self.places.clear();
        let places = (2 * self.fields.len()).next_power_of_two();
        self.places.resize(places, Place::default());
        (0..self.fields.len()).all(|at| self.insert(self.fields[at]))
    }

    /// Of two fields of one name the first comes first.
    fn insert(&mut self, field: Place) -> bool {
        let mut at = self.home(field.hash);
        for _ in 0..STEPS_MAX {
            if self.places[at].offset == 0 {
                self.places[at] = field;
                return true;
            }
            at = (at + 1) & (self.places.len() - 1);
        }
        false
    }

    /// The value of a field of the document that the index was filled with.
    pub fn field<'d>(&self, document: &'d RawDocument, name: &str) -> Option<RawBsonRef<'d>> {
        let hash = hash(name.as_bytes());
        let mut at = self.home(hash);
        loop {
            let place = self.places.get(at).filter(|place| place.offset > 0)?;
            if place.hash == hash {
                let found = field_at(document, place.offset as usize)?;
                if found.name() == name.as_bytes() {
                    return found.value_in(document);
                }
            }
            at = (at + 1) & (self.places.len() - 1);
        }
    }

    fn home(&self, hash: u32) -> usize {
        ((u64::from(hash) * self.places.len() as u64) >> 32) as usize
    }
}

/// Multiplicative hashing, eight bytes at a time: names are short. Who makes them hash alike gets
/// no index.
fn hash(name: &[u8]) -> u32 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let (words, rest) = name.as_chunks::<8>();
    let mut hash = name.len() as u64;
    let mut mix = |word: u64| hash = (hash.rotate_left(5) ^ word).wrapping_mul(FACTOR);
    words.iter().for_each(|word| mix(u64::from_le_bytes(*word)));
    mix(rest
        .iter()
        .fold(0, |word, byte| word << 8 | u64::from(*byte)));
    (hash >> 32) as u32
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;
    use crate::element::{elements, field};
    use crate::validate::everything;
    use crate::writer::DocumentWriter;

    fn check(index: &mut FieldIndex, document: &RawDocument) {
        assert!(index.fill(document));
        for element in elements(document) {
            let name = element.name();
            assert_eq!(index.field(document, name), field(document, name), "{name}");
        }
        assert_eq!(index.field(document, "no such field"), None);
    }

    #[test]
    fn an_index_finds_what_a_walk_finds() {
        let index = &mut FieldIndex::default();
        check(index, &everything());
        check(index, &rawdoc! {});
        let mut writer = DocumentWriter::new();
        for n in 0..5000 {
            writer.append_i32(&format!("f{n}"), n);
            writer.append_i32(&format!("a name of several words {n}"), -n);
        }
        writer.append_i32("f7", 1);
        check(index, &writer.finish());
        check(index, &rawdoc! { "": 1, "a": 2, "": 3 });
    }

    #[test]
    fn names_that_hash_alike_are_left_alone() {
        let mut writer = DocumentWriter::new();
        (0..200).for_each(|n| writer.append_i32("same", n));
        assert!(!FieldIndex::default().fill(&writer.finish()));
    }
}
