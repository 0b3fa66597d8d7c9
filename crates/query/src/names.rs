//! Looking up by name without going over everything each time: requests may name as many fields as
//! a document may have.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use banyan_document::element::{Element, elements};
use bson::{RawBsonRef, RawDocument};

/// Up to so many names, comparing with each is faster than hashing.
const FEW: usize = 16;

/// Values under names, in an order of their own.
#[derive(Clone, Debug)]
pub(crate) struct Named<T> {
    entries: Vec<(Box<str>, T)>,
    /// The place of each name, where they are many.
    places: HashMap<Box<str>, usize>,
}

impl<T> Default for Named<T> {
    fn default() -> Named<T> {
        Named {
            entries: Vec::new(),
            places: HashMap::new(),
        }
    }
}

impl<T> Named<T> {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn iter(&self) -> std::slice::Iter<'_, (Box<str>, T)> {
        self.entries.iter()
    }

    pub fn place(&self, name: &str) -> Option<usize> {
        if self.entries.len() <= FEW {
            self.entries.iter().position(|(known, _)| **known == *name)
        } else {
            self.places.get(name).copied()
        }
    }

    /// As [`Named::place`], of a name as it lies in a document.
    pub fn place_of(&self, name: &[u8]) -> Option<usize> {
        if self.entries.len() <= FEW {
            // Most names differ in the first byte, without which all of both is compared.
            let first = name.first();
            let is_it = |(known, _): &(Box<str>, T)| {
                let known = known.as_bytes();
                known.len() == name.len() && known.first() == first && known == name
            };
            self.entries.iter().position(is_it)
        } else {
            self.place(std::str::from_utf8(name).ok()?)
        }
    }

    pub fn get(&self, name: &str) -> Option<&T> {
        self.place(name).map(|at| &self.entries[at].1)
    }

    pub fn at(&self, place: usize) -> &(Box<str>, T) {
        &self.entries[place]
    }

    pub fn value_mut(&mut self, place: usize) -> &mut T {
        &mut self.entries[place].1
    }

    /// Adds a name that is not there yet, and says where.
    pub fn push(&mut self, name: Box<str>, value: T) -> usize {
        let place = self.entries.len();
        self.entries.push((name, value));
        if place > FEW {
            self.places.insert(self.entries[place].0.clone(), place);
        } else if place == FEW {
            self.index();
        }
        place
    }

    pub fn push_first(&mut self, name: Box<str>, value: T) {
        self.entries.insert(0, (name, value));
        self.index();
    }

    pub fn retain(&mut self, mut keep: impl FnMut(&str, &T) -> bool) {
        self.entries.retain(|(name, value)| keep(name, value));
        self.index();
    }

    pub fn sort_by(&mut self, mut order: impl FnMut(&str, &str) -> std::cmp::Ordering) {
        self.entries.sort_by(|(a, _), (b, _)| order(a, b));
        self.index();
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().map(|(_, value)| value)
    }

    fn index(&mut self) {
        self.places.clear();
        if self.entries.len() > FEW {
            let places = self.entries.iter().enumerate();
            self.places = places.map(|(at, (name, _))| (name.clone(), at)).collect();
        }
    }
}

impl<T> IntoIterator for Named<T> {
    type Item = (Box<str>, T);
    type IntoIter = std::vec::IntoIter<(Box<str>, T)>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.into_iter()
    }
}

/// Finds fields of one document, and remembers where they are once it was asked a few times.
pub(crate) struct Finder<'d> {
    document: &'d RawDocument,
    asked: Cell<usize>,
    fields: OnceCell<HashMap<&'d str, Element<'d>>>,
    below: RefCell<HashMap<Box<str>, Rc<Finder<'d>>>>,
}

impl<'d> Finder<'d> {
    pub fn new(document: &'d RawDocument) -> Finder<'d> {
        Finder {
            document,
            asked: Cell::new(0),
            fields: OnceCell::new(),
            below: RefCell::default(),
        }
    }

    pub fn document(&self) -> &'d RawDocument {
        self.document
    }

    /// The first field of the name.
    pub fn element(&self, name: &str) -> Option<Element<'d>> {
        self.asked.set(self.asked.get() + 1);
        if self.asked.get() <= FEW {
            let is_it = |element: &Element<'_>| element.name_bytes() == name.as_bytes();
            return elements(self.document).find(is_it);
        }
        let fields = self.fields.get_or_init(|| {
            let mut fields = HashMap::new();
            for element in elements(self.document) {
                fields.entry(element.name()).or_insert(element);
            }
            fields
        });
        fields.get(name).cloned()
    }

    pub fn field(&self, name: &str) -> Option<RawBsonRef<'d>> {
        self.element(name).map(|element| element.value())
    }

    /// The document under a name.
    pub fn below(&self, name: &str) -> Option<Rc<Finder<'d>>> {
        if let Some(known) = self.below.borrow().get(name) {
            return Some(Rc::clone(known));
        }
        let finder = Rc::new(Finder::new(self.field(name)?.as_document()?));
        self.below
            .borrow_mut()
            .insert(name.into(), Rc::clone(&finder));
        Some(finder)
    }

    /// What is at a path through documents.
    pub fn get(&self, parts: &[Box<str>]) -> Option<RawBsonRef<'d>> {
        match parts {
            [] => None,
            [last] => self.field(last),
            [first, rest @ ..] => self.below(first)?.get(rest),
        }
    }
}
