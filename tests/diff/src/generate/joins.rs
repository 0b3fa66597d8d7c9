//! Stages that read other collections.

use bson::{Bson, Document, doc};

use super::Generator;

/// Collections to read from: some are there, one is a view, one is not there.
const COLLECTIONS: &[(usize, &str)] = &[(70, "d"), (12, "c"), (8, "w"), (4, "nosuch")];

impl Generator {
    fn collection(&mut self) -> &'static str {
        self.random.weighted::<&'static str>(COLLECTIONS)
    }

    pub fn lookup(&mut self) -> Document {
        let to = *self.random.pick(&["j", "j", "a", "b.j"]);
        match self.random.below(7) {
            0 => {
                let variables = doc! { "v": format!("${}", self.path()) };
                let on = doc! { "$expr": { "$eq": ["$$v", format!("${}", self.path())] } };
                let from = self.collection();
                doc! { "from": from, "let": variables, "pipeline": [{ "$match": on }], "as": to }
            }
            1 => {
                let mut lookup = doc! { "from": self.collection(), "localField": self.path() };
                lookup.insert("foreignField", self.path());
                lookup.insert("pipeline", self.pipeline(2));
                lookup.insert("as", to);
                lookup
            }
            2 => {
                let variables = doc! { "v": self.argument('v', 1) };
                let from = self.collection();
                let pipeline = self.pipeline_with(&["$$v"], 3);
                doc! { "from": from, "let": variables, "pipeline": pipeline, "as": to }
            }
            3 => {
                let variables = doc! { "v": format!("${}", self.path()) };
                let mut pipeline = vec![self.documents_stage()];
                pipeline.extend(self.pipeline_with(&["$$v"], 2));
                doc! { "let": variables, "pipeline": pipeline, "as": to }
            }
            _ => {
                let (local, foreign) = (self.path(), self.path());
                let from = self.collection();
                doc! { "from": from, "localField": local, "foreignField": foreign, "as": to }
            }
        }
    }

    /// A pipeline that may name these variables.
    fn pipeline_with(&mut self, variables: &[&'static str], most: i64) -> Vec<Document> {
        let before = self.variables.len();
        self.variables.extend(variables);
        let pipeline = self.pipeline(most);
        self.variables.truncate(before);
        pipeline
    }

    pub fn graph_lookup(&mut self) -> Document {
        let mut graph = doc! { "from": self.collection(), "startWith": self.argument('v', 1) };
        graph.insert("connectFromField", self.path());
        graph.insert("connectToField", self.path());
        graph.insert("as", *self.random.pick(&["g", "g", "a", "b.g"]));
        if self.random.percent(40) {
            let depth = match self.random.below(8) {
                0 => self.number(),
                1 => Bson::Double(1.0),
                _ => Bson::Int32(self.random.between(-1, 3) as i32),
            };
            graph.insert("maxDepth", depth);
        }
        if self.random.percent(40) {
            graph.insert("depthField", *self.random.pick(&["l", "a", "b.l", "$l"]));
        }
        if self.random.percent(30) {
            graph.insert("restrictSearchWithMatch", self.filter(1));
        }
        graph
    }

    pub fn union(&mut self) -> Bson {
        let coll = self.collection();
        match self.random.below(4) {
            0 | 1 => coll.into(),
            2 => doc! { "coll": coll, "pipeline": self.pipeline(3) }.into(),
            _ => {
                let mut pipeline = vec![self.documents_stage()];
                pipeline.extend(self.pipeline(2));
                doc! { "pipeline": pipeline }.into()
            }
        }
    }

    pub fn documents_stage(&mut self) -> Document {
        let documents = match self.random.below(8) {
            0 => self.argument('v', 1),
            1 => self.value(1),
            _ => {
                let some = (1..=self.random.between(1, 3)).map(|id| {
                    let mut document = doc! { "_id": id as i32 };
                    document.insert("a", self.argument('v', 1));
                    document.insert("x", self.value(1));
                    document
                });
                some.collect::<Vec<_>>().into()
            }
        };
        doc! { "$documents": documents }
    }
}
