//! Indexes of every kind that a plan chooses among, and filters that come close to what they hold.

use bson::{Bson, Document, doc};

use super::Generator;
use super::command::collate;
use super::ordered::Shapes;
use crate::case::{index_sets, name};

/// Scenes whose indexes are made for them; the others have one of the usual sets.
const OWN_PERCENT: usize = 60;

impl Generator {
    /// The indexes of a scene. Its filters often ask for what they have to.
    pub fn scene_indexes(&mut self, shapes: Shapes) -> Vec<Document> {
        let indexes = match self.random.percent(OWN_PERCENT) {
            true => self.own_indexes(shapes),
            false => self.random.pick(&index_sets()).clone(),
        };
        self.asked = indexes.iter().flat_map(asked_by).collect();
        indexes
    }

    fn own_indexes(&mut self, shapes: Shapes) -> Vec<Document> {
        let mut indexes: Vec<Document> = Vec::new();
        for _ in 0..*self.random.weighted(&[(35, 1), (40, 2), (25, 3)]) {
            let index = self.planned_index(shapes);
            let key = index.get("key");
            if indexes.iter().all(|other| other.get("key") != key) {
                indexes.push(index);
            }
        }
        indexes
    }

    fn planned_index(&mut self, shapes: Shapes) -> Document {
        if self.random.percent(12) {
            return self.planned_wildcard(shapes);
        }
        let mut key = Document::new();
        for _ in 0..*self.random.weighted(&[(40, 1), (35, 2), (20, 3)]) {
            let path = self.key_path(shapes);
            let order = *self.random.weighted(&[(70, 1), (30, -1)]);
            key.insert(path, order);
        }
        if self.random.percent(8) {
            let path = self.key_path(shapes);
            key.insert(path, "hashed");
        }
        if self.random.percent(20) {
            key.insert("_id", *self.random.weighted(&[(70, 1), (30, -1)]));
        }
        let mut index = doc! { "key": key };
        match self.random.below(20) {
            0..=4 => drop(index.insert("sparse", true)),
            5..=9 => {
                let filter = self.implied_filter(shapes);
                index.insert("partialFilterExpression", filter);
            }
            10 | 11 => drop(index.insert("collation", self.planned_collation())),
            12 => drop(index.insert("hidden", true)),
            _ => {}
        }
        index
    }

    fn planned_wildcard(&mut self, shapes: Shapes) -> Document {
        let path = match self.random.percent(60) {
            true => "$**".to_owned(),
            false => format!("{}.$**", self.key_path(shapes)),
        };
        let mut index = doc! { "key": { path.clone(): 1 } };
        if path == "$**" && self.random.percent(50) {
            let kept = i32::from(self.random.percent(50));
            let mut projection = Document::new();
            for _ in 0..self.random.between(1, 2) {
                projection.insert(self.key_path(shapes), kept);
            }
            index.insert("wildcardProjection", projection);
        }
        if self.random.percent(15) {
            let filter = self.implied_filter(shapes);
            index.insert("partialFilterExpression", filter);
        }
        index
    }

    /// A command that wants an order, at times under a collation that an index may have.
    pub fn planned_command(&mut self, shapes: Shapes) -> Document {
        let mut command = self.ordered_command(shapes);
        // Of strings that are equal under it, the others show whichever comes first.
        let shows_any = ["aggregate", "distinct"].contains(&name(&command));
        if self.random.percent(10) && !shows_any {
            collate(&mut command, &self.planned_collation());
        }
        command
    }

    fn planned_collation(&mut self) -> Document {
        match self.random.percent(70) {
            true => doc! { "locale": "en", "strength": 2 },
            false => doc! { "locale": "en", "caseFirst": "upper" },
        }
    }

    /// What a partial index may ask for, and filters beside it often do.
    fn implied_filter(&mut self, shapes: Shapes) -> Document {
        let mut filter = Document::new();
        for _ in 0..*self.random.weighted(&[(80, 1), (20, 2)]) {
            let condition = self.implied_condition();
            filter.insert(self.key_path(shapes), condition);
        }
        let branches = match self.random.below(12) {
            0 => "$or",
            1 => "$and",
            _ => return filter,
        };
        let beside = self.implied_condition();
        let beside = doc! { self.key_path(shapes): beside };
        doc! { branches: [filter, beside] }
    }

    fn implied_condition(&mut self) -> Bson {
        let number = self.random.between(0, 2) as i32;
        match self.random.below(9) {
            0 | 1 => doc! { "$exists": true }.into(),
            2 => doc! { "$gt": number }.into(),
            3 => doc! { "$gte": number }.into(),
            4 => doc! { "$lt": number + 1 }.into(),
            5 => doc! { "$lte": number }.into(),
            6 => doc! { "$in": [number, self.key_value()] }.into(),
            7 => doc! { "$type": *self.random.pick(&["number", "string", "array", "null"]) }.into(),
            _ => self.key_value(),
        }
    }

    /// Whatever else there is beside the conditions that an index has bounds for.
    pub fn planned_filter(&mut self, shapes: Shapes, depth: usize) -> Document {
        let mut filter = match self.random.below(10) {
            0..=3 if !self.asked.is_empty() => self.random.pick(&self.asked).clone(),
            4..=5 => self.implied_filter(shapes),
            _ => self.key_filter(shapes),
        };
        for _ in 0..*self.random.weighted(&[(55, 0), (35, 1), (10, 2)]) {
            let condition = self.rare_condition(shapes);
            filter.insert(self.key_path(shapes), condition);
        }
        if depth > 0 && self.random.percent(25) {
            let name = *self.random.pick(&["$or", "$or", "$and", "$and", "$nor"]);
            let count = self.random.between(1, 3);
            let branch = |generator: &mut Self| generator.planned_filter(shapes, depth - 1);
            let branches: Vec<Document> = (0..count).map(|_| branch(self)).collect();
            filter.insert(name, branches);
        }
        if self.random.percent(5) {
            let name = *self.random.pick(&["$eq", "$gt", "$gte", "$lt", "$lte"]);
            let path = format!("${}", self.key_path(shapes));
            filter.insert("$expr", doc! { name: [path, self.key_value()] });
        }
        filter
    }

    fn rare_condition(&mut self, shapes: Shapes) -> Bson {
        match self.random.below(16) {
            0 | 1 | 13 | 14 => doc! { "$exists": self.random.percent(50) }.into(),
            2 => Bson::Null,
            3 => doc! { "$ne": Bson::Null }.into(),
            4 => doc! { "$in": [Bson::Null, self.key_value()] }.into(),
            5 => doc! { "$nin": [Bson::Null, self.key_value()] }.into(),
            6 => doc! { "$not": { "$in": [self.key_value(), self.key_value()] } }.into(),
            7 => doc! { "$not": { "$exists": self.random.percent(50) } }.into(),
            8 => doc! { "$size": self.random.between(0, 3) as i32 }.into(),
            9 => doc! { "$all": [self.key_value(), self.key_value()] }.into(),
            10 => {
                doc! { "$type": *self.random.pick(&["number", "array", "object", "null"]) }.into()
            }
            11 => {
                doc! { "$elemMatch": { "x": self.key_value(), "y": self.key_condition() } }.into()
            }
            12 => {
                let count = self.random.below(3);
                let item = |generator: &mut Self| generator.key_value();
                (0..count).map(|_| item(self)).collect::<Vec<_>>().into()
            }
            _ if shapes.is_nested() => doc! { "x": self.key_value() }.into(),
            _ => doc! { "$gte": Bson::MinKey, "$lte": self.key_value() }.into(),
        }
    }
}

/// What a filter has to ask for so that the index has every document it finds.
fn asked_by(index: &Document) -> Vec<Document> {
    let partial = index.get_document("partialFilterExpression").ok().cloned();
    let sparse = index.get_bool("sparse").unwrap_or(false);
    let fields = index.get_document("key").into_iter().flatten();
    let exist = fields.filter(|_| sparse);
    let exist = exist.map(|(field, _)| doc! { field: { "$exists": true } });
    partial.into_iter().chain(exist).collect()
}
