//! Where some fields of a document are, for whoever reads the same ones of many documents.

use bson::{RawBsonRef, RawDocument};

use crate::element::{field_at, raw_fields};

/// So many names at most: each field of a document is compared with all of them.
const NAMES_MAX: usize = 8;

/// Names, and where one document has the fields that are called so. Learned from one document, they
/// are found in the next one in a single walk.
#[derive(Debug, Default)]
pub struct FieldPlaces {
    places: Vec<Place>,
}

#[derive(Debug)]
struct Place {
    name: Box<str>,
    found: Found,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// The name was learned after the walk.
    Unknown,
    Nowhere,
    /// Where the field begins in the document's bytes.
    At(u32),
}

/// What is known of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Known<'d> {
    /// The name is new.
    Nothing,
    /// The name has been learned; this document was not searched for it.
    Name,
    Value(Option<RawBsonRef<'d>>),
}

impl FieldPlaces {
    /// How many names it has learned.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Remembers a new name, as long as they are few.
    pub fn learn(&mut self, name: &str) {
        if self.places.len() < NAMES_MAX {
            self.places.push(Place {
                name: name.into(),
                found: Found::Unknown,
            });
        }
    }

    /// Forgets where the fields of the last document were.
    pub fn forget(&mut self) {
        for place in &mut self.places {
            place.found = Found::Unknown;
        }
    }

    /// Finds the fields of all names that have been learned. Of two fields of one name it is the first.
    pub fn find(&mut self, document: &RawDocument) {
        for place in &mut self.places {
            place.found = Found::Nowhere;
        }
        let end = document.as_bytes().len().saturating_sub(1);
        let mut left = self.places.len();
        let mut fields = raw_fields(document);
        while left > 0 {
            // A document has fewer bytes than a signed integer of 32 bits counts.
            let offset = (end - fields.bytes_left()) as u32;
            let Some(field) = fields.next() else { break };
            let name = field.name();
            let is_it = |place: &&mut Place| {
                let wanted = place.name.as_bytes();
                wanted.len() == name.len()
                    && wanted.first() == name.first()
                    && place.found == Found::Nowhere
                    && wanted == name
            };
            if let Some(place) = self.places.iter_mut().find(is_it) {
                place.found = Found::At(offset);
                left -= 1;
            }
        }
    }

    /// What is known of a field of the document that was searched last.
    #[inline]
    pub fn known<'d>(&self, document: &'d RawDocument, name: &str) -> Known<'d> {
        let mut places = self.places.iter();
        match places.find(|place| *place.name == *name) {
            None => Known::Nothing,
            Some(place) => match place.found {
                Found::Unknown => Known::Name,
                Found::Nowhere => Known::Value(None),
                Found::At(offset) => {
                    let field = field_at(document, offset as usize);
                    Known::Value(field.and_then(|field| field.value_in(document)))
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;
    use crate::element::{elements, field};
    use crate::validate::everything;

    #[test]
    fn one_walk_finds_what_a_walk_for_each_name_finds() {
        let document = everything();
        let names: Vec<&str> = elements(&document).map(|field| field.name()).collect();
        for names in names.chunks(NAMES_MAX - 1) {
            let mut places = FieldPlaces::default();
            for name in names.iter().chain(&["no such field"]) {
                assert_eq!(places.known(&document, name), Known::Nothing);
                places.learn(name);
                assert_eq!(places.known(&document, name), Known::Name);
            }
            places.find(&document);
            for name in names {
                let value = field(&document, name);
                assert_eq!(places.known(&document, name), Known::Value(value), "{name}");
            }
            let missing = places.known(&document, "no such field");
            assert_eq!(missing, Known::Value(None));
        }
    }

    #[test]
    fn of_two_fields_of_one_name_the_first_is_found() {
        let mut places = FieldPlaces::default();
        places.learn("a");
        places.learn("");
        let twice = rawdoc! { "a": 1, "": 2, "a": 3, "": 4 };
        places.find(&twice);
        let one = Known::Value(Some(RawBsonRef::Int32(1)));
        let two = Known::Value(Some(RawBsonRef::Int32(2)));
        assert_eq!(
            (places.known(&twice, "a"), places.known(&twice, "")),
            (one, two)
        );
    }

    #[test]
    fn names_are_few_and_a_document_is_forgotten() {
        let mut places = FieldPlaces::default();
        for number in 0..2 * NAMES_MAX {
            places.learn(&number.to_string());
        }
        assert_eq!(places.len(), NAMES_MAX);
        let document = rawdoc! { "0": 1 };
        places.find(&document);
        assert_eq!(
            places.known(&document, "0"),
            Known::Value(Some(RawBsonRef::Int32(1)))
        );
        places.forget();
        assert_eq!(places.known(&document, "0"), Known::Name);
        assert_eq!(places.known(&document, "9"), Known::Nothing);
    }
}
