//! A case: documents, and one command on them. A scene: several commands on the same documents.

use bson::{Bson, Document, doc};

use crate::{notation, story};

/// The name that stands for the collection in a command.
pub const COLLECTION: &str = "c";

/// The name that stands for the view over it.
pub const VIEW: &str = "w";

/// What the view makes of the collection.
pub fn view_pipeline() -> Vec<Document> {
    vec![
        doc! { "$match": { "_id": { "$ne": 2 } } },
        doc! { "$addFields": { "w": 1 } },
    ]
}

/// The name of the view over a collection.
pub fn view_over(collection: &str) -> String {
    format!("{VIEW}{}", collection.trim_start_matches(COLLECTION))
}

#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    pub documents: Vec<Document>,
    /// The indexes with which it is played besides, without names.
    pub indexes: Vec<Document>,
    /// Of a story: the commands before this one, in a database that was empty.
    pub before: Option<Vec<Document>>,
    pub command: Document,
}

/// Commands on the same documents, each by itself, or a story.
#[derive(Clone, Debug)]
pub struct Scene {
    pub documents: Vec<Document>,
    pub commands: Vec<Document>,
    /// The indexes with which the scene is played besides, without names.
    pub indexes: Vec<Document>,
    /// Each command is run on what those before it have left, in a database of its own.
    pub is_story: bool,
    /// Many documents with few values, and commands that want an order of them.
    pub is_ordered: bool,
}

impl Scene {
    pub fn case(&self, at: usize) -> Case {
        Case {
            documents: self.documents.clone(),
            indexes: self.indexes.clone(),
            before: self.is_story.then(|| self.commands[..at].to_vec()),
            command: self.commands[at].clone(),
        }
    }
}

impl Case {
    pub fn writes(&self) -> bool {
        writes(&self.command)
    }

    /// As one would type it.
    pub fn shell_text(&self) -> String {
        let documents: Vec<Bson> = self.documents.iter().cloned().map(Bson::Document).collect();
        let insert = if documents.is_empty() {
            String::new()
        } else {
            format!(
                "db.c.insertMany({})\n",
                notation::print_value(&Bson::Array(documents))
            )
        };
        if let Some(before) = &self.before {
            return story::shell_text(before, &self.command);
        }
        let mut text = "db.c.deleteMany({})\n".to_owned();
        if !self.indexes.is_empty() {
            let create = doc! { "createIndexes": COLLECTION, "indexes": named(&self.indexes) };
            text += &format!("db.runCommand({})\n", notation::print_document(&create));
        }
        text + &format!(
            "{insert}db.runCommand({})",
            notation::print_document(&self.command)
        )
    }
}

/// The name of a command, or of the one that it explains.
pub fn name(command: &Document) -> &str {
    match command.iter().next() {
        Some((name, Bson::Document(explained))) if name == "explain" => self::name(explained),
        first => first.map_or("", |(name, _)| name.as_str()),
    }
}

pub fn writes(command: &Document) -> bool {
    let name = command.keys().next().map_or("", String::as_str);
    matches!(name, "update" | "delete" | "insert" | "findAndModify")
}

/// The command for a collection of this name.
pub fn on(command: &Document, collection: &str) -> Document {
    let mut command = command.clone();
    if let Some((name, Bson::Document(explained))) = command.iter_mut().next()
        && name == "explain"
    {
        *explained = on(explained, collection);
    } else if let Some((_, value)) = command.iter_mut().next()
        && *value == Bson::String(COLLECTION.to_owned())
    {
        *value = Bson::String(collection.to_owned());
    } else if let Some((_, value)) = command.iter_mut().next()
        && *value == Bson::String(VIEW.to_owned())
    {
        *value = Bson::String(view_over(collection));
    }
    command
}

/// The definitions with the names that `createIndexes` asks for.
pub fn named(indexes: &[Document]) -> Vec<Document> {
    let name = |(at, index): (usize, &Document)| {
        let mut index = index.clone();
        index.insert("name", format!("i{at}"));
        index
    };
    indexes.iter().enumerate().map(name).collect()
}

/// The documents, and copies of them under other ids, until there are at least `count`. One whose id
/// is no whole number stays alone.
pub fn copies(documents: &[Document], count: usize) -> Vec<Document> {
    let mut all = documents.to_vec();
    let copied: Vec<(i32, &Document)> = documents
        .iter()
        .filter_map(|document| Some((document.get_i32("_id").ok()?, document)))
        .collect();
    let mut shift = 0;
    while all.len() < count && !copied.is_empty() {
        shift += 1000;
        all.extend(copied.iter().map(|(id, document)| {
            let mut copy = (*document).clone();
            copy.insert("_id", id + shift);
            copy
        }));
    }
    all
}

/// Has the command return its results in one batch, however many they are.
pub fn widen_batch(command: &mut Document, size: i32) {
    for options in ["", "cursor"] {
        let holder = match options {
            "" => Some(&mut *command),
            name => command.get_document_mut(name).ok(),
        };
        if let Some(holder) = holder
            && holder.contains_key("batchSize")
        {
            holder.insert("batchSize", size);
        }
    }
}

/// Sets of indexes of the usual kinds.
pub fn index_sets() -> Vec<Vec<Document>> {
    let plain = |key: Document| doc! { "key": key };
    vec![
        vec![plain(doc! { "a": 1 })],
        vec![plain(doc! { "a": 1, "b": -1 }), plain(doc! { "c": 1 })],
        vec![
            plain(doc! { "a.x": 1 }),
            plain(doc! { "b": 1 }),
            plain(doc! { "c.y": -1, "d": 1 }),
        ],
        vec![
            doc! { "key": { "a": 1 }, "sparse": true },
            plain(doc! { "d": -1 }),
        ],
        vec![
            doc! { "key": { "a": 1 }, "partialFilterExpression": { "b": { "$gt": 0 } } },
            plain(doc! { "b": 1, "a": 1 }),
        ],
        vec![plain(doc! { "$**": 1 })],
        vec![
            plain(doc! { "a.$**": 1 }),
            doc! { "key": { "$**": 1 }, "wildcardProjection": { "a": 0, "b.x": 0 } },
        ],
        vec![
            plain(doc! { "a": 1, "c": 1, "b": 1 }),
            plain(doc! { "b.x": 1, "b.y": 1, "d": -1 }),
        ],
        // These end with the id, and so give the orders of all documents that the cases want.
        vec![plain(doc! { "a": 1, "b": 1, "_id": 1 })],
        vec![
            plain(doc! { "b": 1, "a": -1, "c": 1, "_id": -1 }),
            plain(doc! { "a": 1, "_id": 1 }),
        ],
        vec![
            plain(doc! { "a.x": 1, "b": 1, "a.y": 1, "_id": 1 }),
            plain(doc! { "b": -1, "c": 1, "_id": 1 }),
        ],
        vec![
            plain(doc! { "c": 1, "a": 1, "b": 1, "_id": 1 }),
            plain(doc! { "b": 1, "c": -1, "_id": 1 }),
            plain(doc! { "a.x": 1, "_id": -1 }),
        ],
        vec![
            plain(doc! { "a": "hashed" }),
            plain(doc! { "b": "hashed", "c": 1, "_id": 1 }),
        ],
        vec![
            doc! {
                "key": { "a": 1, "b": 1, "_id": 1 },
                "partialFilterExpression": { "b": { "$gte": 1 } },
            },
            doc! { "key": { "c": 1, "b": 1, "_id": 1 }, "sparse": true },
        ],
    ]
}

/// The name of the collection at this place of a side; the first has no indexes.
pub fn collection_at(place: usize) -> String {
    match place {
        0 => COLLECTION.to_owned(),
        place => format!("{COLLECTION}{place}"),
    }
}

/// The documents of the collection `d`, which `$lookup` and others read.
pub fn foreign_documents() -> Vec<Document> {
    let text = r#"[
        {_id: 1, a: 1, b: "a"}, {_id: 2, a: 2.0, b: null}, {_id: 3, a: [1, 2], x: {y: 1}},
        {_id: 4, b: ["a", "b"]}, {_id: 5, a: NumberLong("3"), b: "abc"}, {_id: 6, a: null, x: []}
    ]"#;
    notation::split(text).expect("the foreign documents are well formed")
}
