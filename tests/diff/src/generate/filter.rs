//! Filters with every operator that a query can have.

use bson::{Bson, Document, doc};

use super::Generator;

const TYPE_NAMES: &[&str] = &[
    "double",
    "string",
    "object",
    "array",
    "binData",
    "undefined",
    "objectId",
    "bool",
    "date",
    "null",
    "regex",
    "dbPointer",
    "javascript",
    "symbol",
    "javascriptWithScope",
    "int",
    "timestamp",
    "long",
    "decimal",
    "minKey",
    "maxKey",
    "number",
    "nosuch",
];

impl Generator {
    pub fn filter(&mut self, depth: usize) -> Document {
        let mut filter = Document::new();
        for _ in 0..*self.random.weighted(&[(5, 0), (65, 1), (22, 2), (8, 3)]) {
            self.clause(&mut filter, depth);
        }
        filter
    }

    fn clause(&mut self, filter: &mut Document, depth: usize) {
        let logical = if depth > 0 { 10 } else { 0 };
        match *self
            .random
            .weighted(&[(34, "="), (50, "op"), (logical, "$or"), (6, "$expr")])
        {
            "=" => {
                let value = self.value(2);
                filter.insert(self.path(), value);
            }
            "op" => {
                let condition = self.condition(depth);
                filter.insert(self.path(), condition);
            }
            "$expr" => {
                let expression = self.expression(2);
                filter.insert("$expr", expression);
            }
            _ => {
                let name = *self.random.pick(&["$or", "$and", "$nor", "$or"]);
                let count = self.random.between(1, 3);
                let branches: Vec<Document> = (0..count).map(|_| self.filter(depth - 1)).collect();
                filter.insert(name, branches);
            }
        }
    }

    /// What stands at a path: one operator or two.
    pub fn condition(&mut self, depth: usize) -> Document {
        let mut condition = Document::new();
        for _ in 0..*self.random.weighted(&[(80, 1), (20, 2)]) {
            self.operator(&mut condition, depth);
        }
        condition
    }

    fn operator(&mut self, condition: &mut Document, depth: usize) {
        if self.random.percent(3) {
            let name = *self.random.pick(&[
                "$size",
                "$type",
                "$mod",
                "$in",
                "$all",
                "$bitsAllSet",
                "$elemMatch",
                "$not",
                "$exists",
                "$regex",
                "$nin",
                "$nosuch",
            ]);
            let wrong = self.value(1);
            condition.insert(name, wrong);
            return;
        }
        let nested = if depth > 0 { 8 } else { 0 };
        let names = [
            (10, "$eq"),
            (10, "$gt"),
            (10, "$gte"),
            (10, "$lt"),
            (10, "$lte"),
            (8, "$ne"),
            (9, "$in"),
            (6, "$nin"),
            (6, "$exists"),
            (7, "$type"),
            (5, "$size"),
            (4, "$mod"),
            (6, "$regex"),
            (4, "$all"),
            (nested, "$elemMatch"),
            (nested, "$not"),
            (2, "$bitsAllSet"),
            (2, "$bitsAnyClear"),
            (1, "$bitsAllClear"),
            (1, "$bitsAnySet"),
        ];
        let name = *self.random.weighted(&names);
        let value = match name {
            "$in" | "$nin" | "$all" => {
                let count = self.random.below(4);
                let mut items: Vec<Bson> = (0..count).map(|_| self.value(1)).collect();
                if name == "$all" && depth > 0 && self.random.percent(20) {
                    items = vec![doc! { "$elemMatch": self.elem_match(depth - 1) }.into()];
                }
                items.into()
            }
            "$exists" => self
                .random
                .pick(&[
                    Bson::Boolean(true),
                    Bson::Boolean(false),
                    Bson::Int32(1),
                    Bson::Int32(0),
                    Bson::Null,
                ])
                .clone(),
            "$type" => self.types(),
            "$size" => Bson::Int32(self.random.between(-1, 3) as i32),
            "$mod" => vec![self.number(), self.number()].into(),
            "$regex" => {
                if self.random.percent(30) {
                    condition.insert("$regex", self.random.pick(&["a", "^A", "b$"]).to_string());
                    condition.insert(
                        "$options",
                        self.random.pick(&["i", "", "mi", "q"]).to_string(),
                    );
                    return;
                }
                self.regex()
            }
            "$elemMatch" => self.elem_match(depth - 1).into(),
            "$not" => match self.random.below(5) {
                0 => self.regex(),
                _ => self.condition(depth - 1).into(),
            },
            name if name.starts_with("$bits") => self.bits(),
            _ => self.value(2),
        };
        condition.insert(name, value);
    }

    fn elem_match(&mut self, depth: usize) -> Document {
        if self.random.percent(50) {
            return self.condition(depth);
        }
        let mut inner = Document::new();
        for name in ["x", "y"] {
            if self.random.percent(60) {
                let value = match self.random.percent(50) {
                    true => self.condition(depth).into(),
                    false => self.value(1),
                };
                inner.insert(name, value);
            }
        }
        inner
    }

    fn types(&mut self) -> Bson {
        let one = |generator: &mut Self| match generator.random.percent(70) {
            true => Bson::from(*generator.random.pick(TYPE_NAMES)),
            false => Bson::Int32(generator.random.between(-1, 20) as i32),
        };
        match self.random.percent(30) {
            true => vec![one(self), one(self)].into(),
            false => one(self),
        }
    }

    fn bits(&mut self) -> Bson {
        match self.random.below(4) {
            0 => self.number(),
            1 => self.value(0),
            2 => vec![
                Bson::Int32(self.random.between(0, 70) as i32),
                Bson::Int32(1),
            ]
            .into(),
            _ => Bson::Int32(self.random.between(0, 7) as i32),
        }
    }
}
