//! Searches in collections with text indexes, whose documents are of several languages.

use bson::{Bson, Document, doc};

use super::Generator;
use crate::random::Random;

/// The collections, each with the version of its index.
pub const COLLECTIONS: &[(&str, i32)] = &[("text1", 1), ("text2", 2), ("text3", 3)];
const DOCUMENTS: u64 = 60;
const BATCH: i32 = 10_000;

/// A language and words of it.
type Words = (&'static str, &'static [&'static str]);

const LANGUAGES: &[Words] = &[
    (
        "english",
        &[
            "the",
            "running",
            "runner",
            "ran",
            "coffee",
            "cakes",
            "Cake",
            "isn't",
            "generously",
            "national",
            "nations",
            "dogs'",
            "dog's",
            "New-York",
            "naïve",
            "happily",
            "a",
            "skies",
        ],
    ),
    (
        "german",
        &[
            "der",
            "Häuser",
            "Haus",
            "häuslich",
            "Straße",
            "Straßen",
            "läuft",
            "gelaufen",
            "Äpfel",
            "und",
            "Bücher",
            "Übung",
            "Mädchen",
        ],
    ),
    (
        "french",
        &[
            "le",
            "l'été",
            "Château",
            "châteaux",
            "nationale",
            "nationaux",
            "être",
            "où",
            "chanter",
            "chantait",
            "élèves",
            "cœur",
        ],
    ),
    (
        "spanish",
        &[
            "el",
            "niños",
            "niña",
            "corriendo",
            "correr",
            "canción",
            "canciones",
            "está",
            "año",
            "rápidamente",
        ],
    ),
    (
        "russian",
        &[
            "и",
            "книга",
            "книги",
            "КНИГАМИ",
            "бежать",
            "бежал",
            "ещё",
            "хорошо",
            "москва",
            "москве",
        ],
    ),
    (
        "turkish",
        &[
            "ve",
            "İstanbul",
            "ISLAK",
            "evler",
            "evlerinden",
            "kitaplar",
            "Işık",
            "çocuk",
        ],
    ),
    (
        "swedish",
        &[
            "och",
            "flickorna",
            "flicka",
            "hästar",
            "hästen",
            "Ångström",
            "öppna",
        ],
    ),
    (
        "italian",
        &[
            "il",
            "ragazzi",
            "ragazza",
            "città",
            "perché",
            "dell'arte",
            "mangiando",
        ],
    ),
    (
        "portuguese",
        &[
            "não",
            "meninos",
            "menina",
            "ações",
            "coração",
            "rapidamente",
        ],
    ),
    (
        "none",
        &[
            "the",
            "Running",
            "CAFÉ",
            "x_y",
            "50%",
            "a.b",
            "日本語",
            "“quoted”",
            "—",
        ],
    ),
];

/// The documents of each of them.
pub fn documents() -> Vec<Document> {
    let mut random = Random::new(20, 26);
    let documents = 1..=DOCUMENTS;
    documents
        .map(|id| {
            let mut document = doc! { "_id": id as i64, "x": random.between(1, 3) };
            let (language, _) = *random.pick(LANGUAGES);
            if random.percent(60) {
                document.insert("language", language);
            }
            document.insert("a", sentence(&mut random, language));
            if random.percent(50) {
                document.insert("b", sentence(&mut random, "english"));
            }
            if random.percent(30) {
                let (other, _) = *random.pick(LANGUAGES);
                let inner = doc! { "text": sentence(&mut random, other), "language": other };
                document.insert(
                    "c",
                    Bson::Array(vec![inner.into(), doc! { "text": "tea" }.into()]),
                );
            }
            document
        })
        .collect()
}

/// The index of each of them.
pub fn index(version: i32) -> Document {
    doc! {
        "key": { "a": "text", "b": "text", "c.text": "text" },
        "name": "text",
        "weights": { "b": 3 },
        "textIndexVersion": version,
    }
}

fn sentence(random: &mut Random, language: &str) -> String {
    let count = random.between(1, 9);
    let words: Vec<&str> = (0..count).map(|_| word_of(random, language)).collect();
    let separator = *random.pick(&[" ", " ", ", ", " - "]);
    words.join(separator)
}

/// Mostly of this language.
fn word_of(random: &mut Random, language: &str) -> &'static str {
    let own = LANGUAGES.iter().find(|(name, _)| *name == language);
    let (_, words) = match own {
        Some(own) if random.percent(85) => own,
        _ => random.pick(LANGUAGES),
    };
    words[random.below(words.len())]
}

impl Generator {
    /// A search, by itself or beside other conditions.
    pub fn text_command(&mut self) -> Document {
        let (collection, _) = *self.random.pick(COLLECTIONS);
        let (language, _) = *self.random.pick(LANGUAGES);
        let mut search = doc! { "$search": self.search(language) };
        if self.random.percent(70) {
            search.insert("$language", language);
        }
        if self.random.percent(15) {
            search.insert("$caseSensitive", true);
        }
        if self.random.percent(15) {
            search.insert("$diacriticSensitive", true);
        }
        let mut filter = doc! { "$text": search };
        if self.random.percent(25) {
            filter.insert("x", self.random.between(1, 3));
        }
        let score = doc! { "$meta": "textScore" };
        match self.random.below(4) {
            0 => doc! { "count": collection, "query": filter },
            1 => doc! {
                "aggregate": collection,
                "pipeline": [
                    { "$match": filter },
                    { "$project": { "a": 1, "score": score } },
                    { "$sort": { "score": -1, "_id": 1 } },
                ],
                "cursor": { "batchSize": BATCH },
            },
            _ => doc! {
                "find": collection,
                "filter": filter,
                "projection": { "score": score.clone() },
                "sort": { "order": score, "_id": 1 },
                "batchSize": BATCH,
            },
        }
    }

    fn search(&mut self, language: &str) -> String {
        let count = self.random.between(1, 4);
        let mut parts = Vec::new();
        for _ in 0..count {
            let word = word_of(&mut self.random, language);
            let other = word_of(&mut self.random, language);
            parts.push(match self.random.below(10) {
                0 => format!("-{word}"),
                1 => format!("\"{word} {other}\""),
                2 => format!("\"{word}\""),
                3 => format!("-\"{word}\""),
                4 => word.to_uppercase(),
                _ => word.to_owned(),
            });
        }
        parts.join(" ")
    }
}
