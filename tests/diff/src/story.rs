//! A story: commands that are run one after the other in a database that begins empty. After each
//! that may change something the collections are looked at.

use bson::{Bson, Document, doc};

use crate::notation;
use crate::shape::Shape;

/// The collection that most commands of a story are about, another one and a view.
pub const COLLECTION: &str = "s";
pub const OTHER: &str = "t";
pub const VIEW: &str = "v";

/// Stands for the story's database in the namespaces of a command.
const DATABASE: &str = "db";

/// Where a worker tells its stories.
pub fn database(own: &str) -> String {
    format!("{own}_story")
}

/// The command as it is sent, and the database that it is sent to.
pub fn addressed(command: &Document, database: &str) -> (String, Document) {
    if command.keys().next().map(String::as_str) != Some("renameCollection") {
        return (database.to_owned(), command.clone());
    }
    let mut command = command.clone();
    for (_, value) in command.iter_mut() {
        if let Bson::String(namespace) = value
            && let Some(("", collection)) = namespace.split_once(DATABASE)
        {
            *namespace = format!("{database}{collection}");
        }
    }
    ("admin".to_owned(), command)
}

pub fn only_reads(command: &Document) -> bool {
    let name = command.keys().next().map_or("", String::as_str);
    if name == "aggregate" {
        return !has_output(command);
    }
    let reads = [
        "find",
        "count",
        "distinct",
        "explain",
        "validate",
        "listIndexes",
        "listCollections",
    ];
    reads.contains(&name)
}

/// Whether an aggregation ends with a stage that writes.
fn has_output(aggregate: &Document) -> bool {
    let stages = aggregate.get_array("pipeline").into_iter().flatten();
    let last = stages.last().and_then(Bson::as_document);
    last.is_some_and(|stage| stage.contains_key("$out") || stage.contains_key("$merge"))
}

/// The commands that show what a story has come to.
pub fn looks() -> Vec<Document> {
    // Where views are kept is nobody's business.
    let listed = doc! { "name": { "$ne": "system.views" } };
    let mut looks = vec![doc! { "listCollections": 1, "filter": listed }];
    for collection in [COLLECTION, OTHER] {
        looks.push(doc! { "listIndexes": collection });
        looks.push(doc! { "find": collection, "batchSize": 1000 });
    }
    looks
}

pub fn name_of(look: &Document) -> String {
    let (name, of) = look
        .iter()
        .next()
        .map_or(("", &Bson::Null), |(n, of)| (n, of));
    match of {
        Bson::String(of) => format!("{name} {of}"),
        _ => name.to_owned(),
    }
}

/// What a look has shown, in an order of its own.
pub fn as_state(shape: Shape) -> Shape {
    let batch = shape
        .get("cursor")
        .and_then(|cursor| cursor.get("firstBatch"));
    match batch {
        Some(Shape::Array(batch)) => {
            let mut batch = batch.clone();
            batch.sort();
            Shape::Array(batch)
        }
        _ => shape,
    }
}

/// As one would type it.
pub fn shell_text(before: &[Document], command: &Document) -> String {
    let commands = before.iter().chain([command]);
    let run = |c: &Document| format!("db.runCommand({})\n", notation::print_document(c));
    let commands: String = commands.map(run).collect();
    format!("db.dropDatabase()\n{}", commands.trim_end())
}
