//! Elements with the bytes they occupy, so that what is not changed can be copied as it lies.

use bson::raw::{RawElement, RawIter};
use bson::spec::ElementType;
use bson::{RawArray, RawBsonRef, RawDocument};

/// One field of a document, or one item of an array.
#[derive(Clone)]
pub struct Element<'a> {
    element: RawElement<'a>,
    bytes: &'a [u8],
}

impl<'a> Element<'a> {
    pub fn name(&self) -> &'a str {
        self.element.key().as_str()
    }

    pub fn kind(&self) -> ElementType {
        self.element.element_type()
    }

    /// The value. Documents are validated when they enter the process; what cannot be read is
    /// null.
    pub fn value(&self) -> RawBsonRef<'a> {
        self.element.value().unwrap_or(RawBsonRef::Null)
    }

    /// Type, name and value as they lie in the document.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The value alone as it lies in the document.
    pub fn value_bytes(&self) -> &'a [u8] {
        &self.bytes[self.bytes.len() - self.element.size()..]
    }
}

/// The elements of a validated document or array, in order.
pub struct Elements<'a> {
    iter: RawIter<'a>,
    whole: &'a [u8],
    next: usize,
}

/// The fields of a document.
pub fn elements(document: &RawDocument) -> Elements<'_> {
    Elements {
        iter: document.iter_elements(),
        whole: document.as_bytes(),
        next: 4,
    }
}

/// The items of an array; their names are their positions.
pub fn items(array: &RawArray) -> Elements<'_> {
    Elements {
        iter: array.iter_elements(),
        whole: array.as_bytes(),
        next: 4,
    }
}

/// The value of a direct field.
pub fn field<'a>(document: &'a RawDocument, name: &str) -> Option<RawBsonRef<'a>> {
    for element in document.iter_elements() {
        let element = element.ok()?;
        if element.key().as_str() == name {
            return element.value().ok();
        }
    }
    None
}

impl<'a> Iterator for Elements<'a> {
    type Item = Element<'a>;

    fn next(&mut self) -> Option<Element<'a>> {
        let element = self.iter.next()?.ok()?;
        let end = self.next + 1 + element.key().len() + 1 + element.size();
        let bytes = self.whole.get(self.next..end)?;
        self.next = end;
        Some(Element { element, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;

    #[test]
    fn bytes_add_up_to_the_document() {
        let document = rawdoc! {"a": 1, "longer": "text", "c": [1, {"d": true}], "e": {}};
        let joined: Vec<u8> = elements(&document)
            .flat_map(|e| e.bytes().to_vec())
            .collect();
        let whole = document.as_bytes();
        assert_eq!(joined, &whole[4..whole.len() - 1]);
        let third = elements(&document).nth(2).unwrap();
        assert_eq!(
            third.value_bytes(),
            third.value().as_array().unwrap().as_bytes()
        );
    }
}
