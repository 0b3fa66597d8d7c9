//! Between which values each field of a bucket's measurements is: `control.min` and `control.max`.
//!
//! Documents and arrays are compared part by part, so that both have the same parts. A bucket holds
//! values of one type at each place: one that is of another type opens a new bucket. So every value
//! lies between the two in the order of its own type as well.

use std::cmp::Ordering;

use bson::{RawBson, RawBsonRef, RawDocument};

use crate::collation::Collator;
use crate::compare::{canonical_rank, compare_collated};
use crate::element::{elements, values};
use crate::writer::DocumentWriter;

#[derive(Clone, Debug, Default)]
pub struct Extremes {
    fields: Fields,
}

#[derive(Clone, Debug, Default)]
struct Fields(Vec<(Box<str>, Node)>);

#[derive(Clone, Debug)]
enum Node {
    Value { min: RawBson, max: RawBson },
    Document(Fields),
    Array(Vec<Node>),
}

#[derive(Clone, Copy)]
enum Side {
    Min,
    Max,
}

impl Extremes {
    /// Of a bucket. `None`: its two sides do not belong together.
    pub fn parse(min: &RawDocument, max: &RawDocument) -> Option<Extremes> {
        let fields = Fields::parse(min, max)?;
        Some(Extremes { fields })
    }

    /// Whether the value may lie in the same bucket as those before it.
    pub fn suits(&self, name: &str, value: RawBsonRef<'_>) -> bool {
        self.fields.find(name).is_none_or(|node| node.suits(value))
    }

    /// Takes a value into account that suits.
    pub fn add(&mut self, name: &str, value: RawBsonRef<'_>, collator: Option<&Collator>) {
        self.fields.add(name, value, collator);
    }

    /// Begins a field with a value below those that it will have.
    pub fn begin(&mut self, name: &str, min: RawBson, max: RawBson) {
        if self.fields.find(name).is_none() {
            self.fields.0.push((name.into(), Node::Value { min, max }));
        }
    }

    pub fn min(&self, name: &str) -> Option<RawBsonRef<'_>> {
        match self.fields.find(name)? {
            Node::Value { min, .. } => Some(min.as_raw_bson_ref()),
            _ => None,
        }
    }

    pub fn append_to(&self, out: &mut DocumentWriter) {
        out.begin_document("min");
        self.fields.append_to(out, Side::Min);
        out.end();
        out.begin_document("max");
        self.fields.append_to(out, Side::Max);
        out.end();
    }
}

impl Fields {
    fn parse(min: &RawDocument, max: &RawDocument) -> Option<Fields> {
        let mut fields = Vec::new();
        let mut others = elements(max);
        for element in elements(min) {
            let other = others.next().filter(|other| other.name() == element.name());
            let node = Node::parse(element.value(), other?.value())?;
            fields.push((element.name().into(), node));
        }
        others.next().is_none().then_some(Fields(fields))
    }

    fn find(&self, name: &str) -> Option<&Node> {
        let mut fields = self.0.iter();
        fields
            .find(|(known, _)| **known == *name)
            .map(|(_, node)| node)
    }

    fn add(&mut self, name: &str, value: RawBsonRef<'_>, collator: Option<&Collator>) {
        match self.0.iter_mut().find(|(known, _)| **known == *name) {
            Some((_, node)) => node.add(value, collator),
            None => self.0.push((name.into(), Node::of(value))),
        }
    }

    fn suit(&self, document: &RawDocument) -> bool {
        elements(document).all(|element| {
            let node = self.find(element.name());
            node.is_none_or(|node| node.suits(element.value()))
        })
    }

    fn append_to(&self, out: &mut DocumentWriter, side: Side) {
        for (name, node) in &self.0 {
            node.append_to(out, Some(name), side);
        }
    }
}

impl Node {
    fn of(value: RawBsonRef<'_>) -> Node {
        match value {
            RawBsonRef::Document(document) => {
                let mut fields = Fields::default();
                for element in elements(document) {
                    fields.add(element.name(), element.value(), None);
                }
                Node::Document(fields)
            }
            RawBsonRef::Array(array) => Node::Array(values(array).map(Node::of).collect()),
            value => Node::Value {
                min: RawBson::from(value),
                max: RawBson::from(value),
            },
        }
    }

    fn parse(min: RawBsonRef<'_>, max: RawBsonRef<'_>) -> Option<Node> {
        match (min, max) {
            (RawBsonRef::Document(min), RawBsonRef::Document(max)) => {
                Fields::parse(min, max).map(Node::Document)
            }
            (RawBsonRef::Array(min), RawBsonRef::Array(max)) => {
                let (mut nodes, mut others) = (Vec::new(), values(max));
                for min in values(min) {
                    nodes.push(Node::parse(min, others.next()?)?);
                }
                others.next().is_none().then_some(Node::Array(nodes))
            }
            (min, max) if canonical_rank(&min) == canonical_rank(&max) => Some(Node::Value {
                min: RawBson::from(min),
                max: RawBson::from(max),
            }),
            _ => None,
        }
    }

    fn suits(&self, value: RawBsonRef<'_>) -> bool {
        match (self, value) {
            (Node::Document(fields), RawBsonRef::Document(document)) => fields.suit(document),
            (Node::Array(nodes), RawBsonRef::Array(array)) => {
                let mut pairs = nodes.iter().zip(values(array));
                pairs.all(|(node, value)| node.suits(value))
            }
            (Node::Value { min, .. }, value) => {
                canonical_rank(&min.as_raw_bson_ref()) == canonical_rank(&value)
            }
            _ => false,
        }
    }

    fn add(&mut self, value: RawBsonRef<'_>, collator: Option<&Collator>) {
        match (self, value) {
            (Node::Document(fields), RawBsonRef::Document(document)) => {
                for element in elements(document) {
                    fields.add(element.name(), element.value(), collator);
                }
            }
            (Node::Array(nodes), RawBsonRef::Array(array)) => {
                for (at, value) in values(array).enumerate() {
                    match nodes.get_mut(at) {
                        Some(node) => node.add(value, collator),
                        None => nodes.push(Node::of(value)),
                    }
                }
            }
            (Node::Value { min, max }, value) => {
                let order =
                    |known: &RawBson| compare_collated(value, known.as_raw_bson_ref(), collator);
                if order(min) == Ordering::Less {
                    *min = RawBson::from(value);
                }
                if order(max) == Ordering::Greater {
                    *max = RawBson::from(value);
                }
            }
            // It does not suit, and is not added.
            _ => {}
        }
    }

    fn append_to(&self, out: &mut DocumentWriter, name: Option<&str>, side: Side) {
        match self {
            Node::Value { min, max } => {
                let value = match side {
                    Side::Min => min.as_raw_bson_ref(),
                    Side::Max => max.as_raw_bson_ref(),
                };
                match name {
                    Some(name) => out.append(name, value),
                    None => out.push(value),
                }
            }
            Node::Document(fields) => {
                match name {
                    Some(name) => out.begin_document(name),
                    None => out.push_document(),
                }
                fields.append_to(out, side);
                out.end();
            }
            Node::Array(nodes) => {
                match name {
                    Some(name) => out.begin_array(name),
                    None => out.push_array(),
                }
                for node in nodes {
                    node.append_to(out, None, side);
                }
                out.end();
            }
        }
    }
}
