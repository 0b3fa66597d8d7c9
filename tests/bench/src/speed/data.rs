//! The documents of the speed table: the same on every peer and in every run.

use anyhow::Result;
use bson::spec::BinarySubtype;
use bson::{Binary, DateTime, Document, RawDocumentBuf, doc};
use mongodb::{Client, Database};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};

use crate::tag_count::TAGS;

/// Documents of one message of the load.
const BATCH: usize = 1_000;
const LARGE_BYTES: usize = 4_000_000;
/// Four documents have the same `user`.
const DOCUMENTS_PER_USER: usize = 4;
/// Prime, so that the products with 0.. modulo the number of documents are a permutation.
const SHUFFLE_SERIALS: usize = 1_000_003;
const SHUFFLE_TIMES: usize = 998_244_353;
const SHUFFLE_USERS: usize = 15_485_863;

/// How much data there is. All that a row touches is a share of it: ten times the documents are ten
/// times the work.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub documents: usize,
}

impl Sizes {
    /// A share of the documents: one in `divisor`, and at least one.
    pub fn part(self, divisor: usize) -> i32 {
        number((self.documents / divisor).max(1))
    }

    pub fn users(self) -> usize {
        self.documents.div_ceil(DOCUMENTS_PER_USER)
    }
}

pub fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

pub fn database(client: &Client) -> Database {
    client.database("speed")
}

/// The indexes of `posts` and `edits` besides that of `_id`.
pub fn indexes() -> [Document; 4] {
    [
        doc! { "serial": 1 },
        doc! { "user": 1 },
        doc! { "section": 1, "amount": 1 },
        doc! { "tags": 1 },
    ]
}

/// Builds these indexes in one command.
pub fn create_indexes(collection: &str, keys: &[Document]) -> Document {
    let name = |keys: &Document| {
        let fields: Vec<String> = keys.keys().map(|field| format!("{field}_1")).collect();
        fields.join("_")
    };
    let indexes: Vec<Document> = keys
        .iter()
        .map(|keys| doc! { "key": keys.clone(), "name": name(keys) })
        .collect();
    doc! { "createIndexes": collection, "indexes": indexes }
}

/// Fills an empty server: `posts` for what reads, `edits` with the same documents for what writes,
/// `users` to join with, `large` documents.
pub async fn load(client: &Client, sizes: Sizes) -> Result<()> {
    let database = database(client);
    let posts = database.collection::<RawDocumentBuf>("posts");
    for from in (0..sizes.documents).step_by(BATCH) {
        let to = sizes.documents.min(from + BATCH);
        posts
            .insert_many((from..to).map(|number| post(number, sizes)))
            .await?;
    }
    let users = database.collection::<Document>("users");
    for from in (0..sizes.users()).step_by(BATCH) {
        let to = sizes.users().min(from + BATCH);
        users
            .insert_many((from..to).map(|number| user(number, sizes)))
            .await?;
    }
    let large = database.collection::<RawDocumentBuf>("large");
    for document in large_documents(sizes) {
        large.insert_one(document).await?;
    }
    let copy = doc! { "aggregate": "posts", "pipeline": [{ "$out": "edits" }], "cursor": {} };
    database.run_command(copy).await?;
    for collection in ["posts", "edits"] {
        let command = create_indexes(collection, &indexes());
        database.run_command(command).await?;
    }
    Ok(())
}

/// Some 250 bytes. Amounts are multiples of a quarter: their sums do not depend on the order.
pub fn post(at: usize, sizes: Sizes) -> RawDocumentBuf {
    let documents = sizes.documents;
    let mut random = StdRng::seed_from_u64(at as u64);
    let tags: Vec<String> = (0..random.random_range(2..=5))
        .map(|_| format!("tag{}", random.random_range(0..TAGS)))
        .collect();
    let minutes = (at * SHUFFLE_TIMES % documents) as i64;
    let document = doc! {
        "_id": number(at),
        "serial": number(at * SHUFFLE_SERIALS % documents),
        "user": user_name(at * SHUFFLE_USERS % documents / DOCUMENTS_PER_USER),
        "section": format!("section{:02}", random.random_range(0..20)),
        "amount": f64::from(random.random_range(0..40_000)) / 4.0,
        "tags": tags,
        "place": {
            "city": format!("city{:03}", random.random_range(0..500)),
            "zone": random.random_range(0..100),
        },
        "at": DateTime::from_millis(1_600_000_000_000 + minutes * 60_000),
        "likes": random.random_range(0..1_000),
        "content": format!("data for content {at} {:x}", random.next_u64()),
    };
    raw(&document)
}

fn user(at: usize, sizes: Sizes) -> Document {
    doc! {
        "_id": user_name(at),
        "name": format!("name of user {at}"),
        "friend": user_name((at * 7 + 1) % sizes.users()),
    }
}

fn user_name(at: usize) -> String {
    format!("user{at:06}")
}

pub fn large_documents(sizes: Sizes) -> Vec<RawDocumentBuf> {
    let one = |id: i32| {
        let mut bytes = vec![0; LARGE_BYTES];
        StdRng::seed_from_u64(id.unsigned_abs().into()).fill_bytes(&mut bytes);
        let subtype = BinarySubtype::Generic;
        raw(&doc! { "_id": id, "bytes": Binary { subtype, bytes } })
    };
    (0..sizes.part(10_000)).map(one).collect()
}

pub fn raw(document: &Document) -> RawDocumentBuf {
    RawDocumentBuf::try_from(document).expect("its keys hold no zero byte")
}
