//! Data that a few rows need: loaded only where one of them is measured.

use anyhow::Result;
use bson::{Document, RawDocumentBuf, doc};
use mongodb::Database;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::data::{self, Sizes};

/// Documents of one message of the load.
const BATCH: usize = 1_000;
const EDGES: usize = 10;
const WORDS: f64 = 5_000.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// `nodes`: half as many as there are documents, each with ten edges to others.
    Graph,
    /// `places`: half as many points between 10° west and 10° east, 40° and 50° north.
    Places,
    /// `writings`: a quarter as many texts, of few common words and many rare ones.
    Writings,
}

impl Extra {
    pub async fn load(self, database: &Database, sizes: Sizes) -> Result<()> {
        let (collection, count, document): (_, _, fn(usize, Sizes) -> Document) = match self {
            Extra::Graph => ("nodes", nodes(sizes), node),
            Extra::Places => ("places", sizes.documents / 2, place),
            Extra::Writings => ("writings", sizes.documents / 4, writing),
        };
        let filled = database.collection::<RawDocumentBuf>(collection);
        for from in (0..count).step_by(BATCH) {
            let batch = from..count.min(from + BATCH);
            let batch = batch.map(|at| data::raw(&document(at, sizes)));
            filled.insert_many(batch).await?;
        }
        let index = match self {
            Extra::Graph => return Ok(()),
            Extra::Places => places_index(),
            Extra::Writings => writings_index(),
        };
        database.run_command(index).await?;
        Ok(())
    }
}

pub fn places_index() -> Document {
    let index = doc! { "key": { "at": "2dsphere" }, "name": "at" };
    doc! { "createIndexes": "places", "indexes": [index] }
}

pub fn writings_index() -> Document {
    let index = doc! { "key": { "text": "text" }, "name": "text" };
    doc! { "createIndexes": "writings", "indexes": [index] }
}

pub fn drop_index(collection: &str, name: &str) -> Document {
    doc! { "dropIndexes": collection, "index": name }
}

fn nodes(sizes: Sizes) -> usize {
    (sizes.documents / 2).max(1)
}

fn random(seed: usize) -> StdRng {
    StdRng::seed_from_u64(seed as u64)
}

fn node(at: usize, sizes: Sizes) -> Document {
    let mut random = random(at);
    let to = (0..EDGES).map(|_| data::number(random.random_range(0..nodes(sizes))));
    doc! { "_id": data::number(at), "to": to.collect::<Vec<_>>() }
}

fn place(at: usize, _: Sizes) -> Document {
    let mut random = random(at);
    let point = [
        random.random_range(-10.0..10.0),
        random.random_range(40.0..50.0),
    ];
    doc! { "_id": data::number(at), "at": { "type": "Point", "coordinates": point.to_vec() } }
}

fn writing(at: usize, _: Sizes) -> Document {
    let mut random = random(at);
    let words = (0..random.random_range(20..40)).map(|_| {
        // The first words are the most common ones.
        let part: f64 = random.random();
        word((part.powi(3) * WORDS) as usize)
    });
    doc! { "_id": data::number(at), "text": words.collect::<Vec<_>>().join(" ") }
}

/// The words in the order of how common they are: three syllables each.
pub fn word(at: usize) -> String {
    const SYLLABLES: [&str; 18] = [
        "ba", "ko", "ri", "du", "me", "lo", "ta", "vi", "no", "pe", "ga", "zu", "ro", "mi", "da",
        "fe", "ku", "la",
    ];
    let count = SYLLABLES.len();
    let parts = [at % count, at / count % count, at / count / count % count];
    let word: String = parts.iter().map(|&part| SYLLABLES[part]).collect();
    format!("{word}k")
}
