//! Updates: operators mixed, positional paths, array filters, replacements, pipelines.

use bson::{Bson, Document, doc};

use super::Generator;

const OPERATORS: &[(usize, &str)] = &[
    (16, "$set"),
    (8, "$unset"),
    (8, "$inc"),
    (5, "$mul"),
    (5, "$min"),
    (5, "$max"),
    (5, "$rename"),
    (4, "$setOnInsert"),
    (12, "$push"),
    (8, "$addToSet"),
    (5, "$pop"),
    (8, "$pull"),
    (4, "$pullAll"),
    (4, "$bit"),
    (1, "$currentDate"),
];
const PATHS: &[&str] = &[
    "a",
    "b",
    "c",
    "d",
    "e",
    "a.x",
    "b.y",
    "a.0",
    "a.2",
    "a.x.y",
    "new",
    "new.deep.er",
    "b.0.x",
];
const POSITIONAL: &[&str] = &[
    "a.$",
    "a.$[]",
    "a.$[f]",
    "b.$[]",
    "a.$[].x",
    "a.$[f].x",
    "b.$",
    "a.$.x",
    "a.$[].$[]",
    "a.$[].x.$[f]",
    "a.$[f].$[f]",
    "a.x.$[]",
];

/// An update and the array filters that it needs.
pub struct Update {
    pub update: Bson,
    pub array_filters: Option<Vec<Document>>,
}

impl Generator {
    pub fn update(&mut self) -> Update {
        let update = match self.random.below(10) {
            0 => self.object(2).into(),
            1 => self.update_pipeline().into(),
            _ => self.modifiers().into(),
        };
        let text = crate::notation::print_value(&update);
        let needs = text.contains("$[f]") != self.random.percent(2);
        let array_filters = needs.then(|| {
            let condition = match self.random.percent(50) {
                true => doc! { "f": self.condition(1) },
                false => doc! { "f.x": self.value(1) },
            };
            vec![condition]
        });
        Update {
            update,
            array_filters,
        }
    }

    fn modifiers(&mut self) -> Document {
        let mut update = Document::new();
        for _ in 0..self.random.between(1, 3) {
            let name = *self.random.weighted(OPERATORS);
            let mut fields = Document::new();
            for _ in 0..*self.random.weighted(&[(75, 1), (25, 2)]) {
                let path = match self.random.percent(20) {
                    true => *self.random.pick(POSITIONAL),
                    false => *self.random.pick(PATHS),
                };
                let value = match self.random.percent(3) {
                    true => self.value(1),
                    false => self.modifier(name),
                };
                fields.insert(path, value);
            }
            update.insert(name, fields);
        }
        update
    }

    fn modifier(&mut self, name: &str) -> Bson {
        match name {
            "$inc" | "$mul" => self.number(),
            "$rename" => (*self.random.pick(PATHS)).into(),
            "$unset" => "".into(),
            "$push" => self.push(),
            "$addToSet" => match self.random.percent(40) {
                true => doc! { "$each": self.some_values() }.into(),
                false => self.value(1),
            },
            "$pop" => Bson::Int32(if self.random.percent(50) { 1 } else { -1 }),
            "$pull" => match self.random.below(3) {
                0 => self.value(1),
                1 => self.condition(1).into(),
                _ => doc! { "x": self.condition(0) }.into(),
            },
            "$pullAll" => self.some_values(),
            "$bit" => {
                let operation = *self.random.pick(&["and", "or", "xor"]);
                let number = match self.random.percent(70) {
                    true => Bson::Int32(self.random.between(0, 15) as i32),
                    false => Bson::Int64(self.random.between(0, 15)),
                };
                doc! { operation: number }.into()
            }
            "$currentDate" => match self.random.below(3) {
                0 => true.into(),
                1 => doc! { "$type": "date" }.into(),
                _ => doc! { "$type": "timestamp" }.into(),
            },
            _ => self.value(2),
        }
    }

    fn push(&mut self) -> Bson {
        if self.random.percent(50) {
            return self.value(1);
        }
        let mut push = doc! { "$each": self.some_values() };
        if self.random.percent(40) {
            push.insert("$position", self.random.between(-3, 3) as i32);
        }
        if self.random.percent(40) {
            push.insert("$slice", self.random.between(-3, 3) as i32);
        }
        if self.random.percent(40) {
            let by: Bson = match self.random.percent(50) {
                true => doc! { "x": 1 }.into(),
                false => Bson::Int32(if self.random.percent(50) { 1 } else { -1 }),
            };
            push.insert("$sort", by);
        }
        push.into()
    }

    fn some_values(&mut self) -> Bson {
        let count = self.random.below(4);
        (0..count).map(|_| self.value(1)).collect::<Vec<_>>().into()
    }

    fn update_pipeline(&mut self) -> Vec<Document> {
        let count = self.random.between(1, 2);
        let stage = |generator: &mut Self| match generator.random.below(5) {
            0 => doc! { "$unset": *generator.random.pick(PATHS) },
            1 => doc! { "$replaceWith": generator.argument('o', 1) },
            2 => doc! { "$project": generator.projection_fields() },
            _ => {
                let expression = generator.expression(1);
                doc! { "$set": { *generator.random.pick(PATHS): expression } }
            }
        };
        (0..count).map(|_| stage(self)).collect()
    }
}
