//! A server that keeps documents in memory and speaks enough of the protocol to be a shard or the
//! config server of a router under test.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use banyan_query::Context;
use banyan_query::filter::Filter;
use banyan_query::pipeline::Pipeline;
use banyan_query::projection::Projection;
use banyan_query::sort::{NEEDS_MERGE, SortPattern};
use banyan_query::update::{Update, UpdateContext};
use banyan_wire::{CommandError, Connection, ErrorCode, Options, Reply, Request, Server, Service};
use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, Timestamp, rawdoc};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

#[derive(Default)]
struct State {
    data: HashMap<String, Vec<RawDocumentBuf>>,
    /// The versions that requests have to carry, by namespace.
    versions: HashMap<String, RawDocumentBuf>,
    cursors: HashMap<i64, VecDeque<RawDocumentBuf>>,
    cursors_made: i64,
    seen: Vec<String>,
}

#[derive(Default)]
pub struct Fake {
    state: Mutex<State>,
}

pub struct Running {
    pub fake: Arc<Fake>,
    pub address: String,
    _stop: tokio_util::sync::DropGuard,
}

pub async fn start() -> Running {
    let server = Server::bind(&["localhost"], 0, Options::default())
        .await
        .unwrap();
    let address = server.addresses()[0].to_string();
    let (fake, stop) = (Arc::new(Fake::default()), CancellationToken::new());
    tokio::spawn(server.serve(fake.clone(), stop.clone()));
    Running {
        fake,
        address,
        _stop: stop.drop_guard(),
    }
}

impl Service for Fake {
    async fn call(self: &Arc<Self>, _: &Arc<Connection>, request: Request) -> Reply {
        let mut state = self.state.lock();
        state.seen.push(request.name.clone());
        state.run(&request).into()
    }
}

impl Fake {
    pub fn put(&self, ns: &str, documents: impl IntoIterator<Item = RawDocumentBuf>) {
        self.state
            .lock()
            .data
            .insert(ns.to_owned(), documents.into_iter().collect());
    }

    pub fn documents(&self, ns: &str) -> Vec<RawDocumentBuf> {
        self.state.lock().data.get(ns).cloned().unwrap_or_default()
    }

    /// From now on only requests with this version are answered.
    pub fn expect_version(&self, ns: &str, version: RawDocumentBuf) {
        self.state.lock().versions.insert(ns.to_owned(), version);
    }

    pub fn take_seen(&self) -> Vec<String> {
        let seen = std::mem::take(&mut self.state.lock().seen);
        seen.into_iter().filter(|name| name != "hello").collect()
    }

    pub fn open_cursors(&self) -> usize {
        self.state.lock().cursors.len()
    }
}

type Outcome = Result<RawDocumentBuf, CommandError>;

fn document<'a>(body: &'a RawDocument, name: &str) -> Option<&'a RawDocument> {
    body.get_document(name).ok()
}

fn int(body: &RawDocument, name: &str) -> Option<usize> {
    match body.get(name).unwrap()? {
        RawBsonRef::Int32(n) => Some(n as usize),
        RawBsonRef::Int64(n) => Some(n as usize),
        RawBsonRef::Double(n) => Some(n as usize),
        _ => None,
    }
}

fn filter(filter: Option<&RawDocument>) -> Filter {
    let empty = rawdoc! {};
    Filter::parse(filter.unwrap_or(&empty), &Context::default()).unwrap()
}

impl State {
    fn run(&mut self, request: &Request) -> Outcome {
        if request.name == "hello" {
            return Ok(rawdoc! {"isWritablePrimary": true, "ok": 1.0});
        }
        if request.name.starts_with("_configsvr") {
            return self.config(request);
        }
        let collection = match request.first_value() {
            Some(RawBsonRef::String(name)) => name.to_owned(),
            _ => request
                .get("collection")
                .and_then(|c| c.as_str())
                .unwrap_or("")
                .to_owned(),
        };
        let ns = format!("{}.{collection}", request.database);
        if let (Some(expected), Some(given)) = (
            self.versions.get(&ns),
            document(&request.body, "shardVersion"),
        ) && **expected != *given
        {
            return Err(CommandError::new(
                ErrorCode::StaleConfig,
                format!("stale: {ns}"),
            ));
        }
        // A shard would wait for ever: nobody writes at this time.
        let concern = document(&request.body, "readConcern");
        if concern.is_some_and(|concern| concern.get("afterClusterTime").unwrap().is_some()) {
            return Err(CommandError::new(
                ErrorCode::ExceededTimeLimit,
                "a time to come",
            ));
        }
        match request.name.as_str() {
            "find" => self.find(&ns, &request.body),
            "aggregate" => self.aggregate(&ns, &request.body),
            "getMore" => self.get_more(&ns, request),
            "killCursors" => {
                let ids = request.body.get_array("cursors").unwrap();
                for id in ids {
                    self.cursors.remove(&id.unwrap().as_i64().unwrap());
                }
                Ok(rawdoc! {"ok": 1.0})
            }
            "count" => {
                let n = self.matching(&ns, document(&request.body, "query")).len();
                Ok(rawdoc! {"n": n as i32, "ok": 1.0})
            }
            "distinct" => self.distinct(&ns, &request.body),
            "insert" => self.insert(&ns, request),
            "update" => self.update(&ns, request),
            "delete" => self.delete(&ns, request),
            other => Err(CommandError::new(ErrorCode::CommandNotFound, other)),
        }
    }

    fn config(&mut self, request: &Request) -> Outcome {
        let argument = request.first_value().unwrap().as_str().unwrap().to_owned();
        match request.name.as_str() {
            "_configsvrCreateDatabase" => {
                let entry = rawdoc! {"_id": argument, "primary": "a", "version": {"lastMod": 1}};
                self.data
                    .entry("config.databases".to_owned())
                    .or_default()
                    .push(entry);
                Ok(rawdoc! {"ok": 1.0})
            }
            other => Err(CommandError::new(ErrorCode::CommandNotFound, other)),
        }
    }

    fn matching(&self, ns: &str, wanted: Option<&RawDocument>) -> Vec<RawDocumentBuf> {
        let filter = filter(wanted);
        let all = self.data.get(ns).into_iter().flatten();
        all.filter(|document| filter.try_matches(document).unwrap())
            .cloned()
            .collect()
    }

    fn find(&mut self, ns: &str, body: &RawDocument) -> Outcome {
        let mut found = self.matching(ns, document(body, "filter"));
        let sort = document(body, "sort").map(|sort| SortPattern::parse(sort, None).unwrap());
        if let Some(sort) = &sort {
            found.sort_by_cached_key(|document| sort.key(document).unwrap());
        }
        found.drain(..int(body, "skip").unwrap_or(0).min(found.len()));
        found.truncate(int(body, "limit").unwrap_or(usize::MAX));
        let projection = document(body, "projection")
            .map(|projection| Projection::parse(projection, &Context::default()).unwrap());
        let needs_merge = body.get_bool(NEEDS_MERGE).unwrap_or(false);
        for document in &mut found {
            let mut sent = match &projection {
                Some(projection) => projection.apply(document, None).unwrap(),
                None => document.clone(),
            };
            if let Some(sort) = sort.as_ref().filter(|_| needs_merge) {
                sort.append_key(document, &mut sent).unwrap();
            }
            *document = sent;
        }
        Ok(self.first_batch(ns, found, int(body, "batchSize").unwrap_or(101)))
    }

    fn first_batch(
        &mut self,
        ns: &str,
        mut found: Vec<RawDocumentBuf>,
        size: usize,
    ) -> RawDocumentBuf {
        let rest = found.split_off(size.min(found.len()));
        let mut id = 0;
        if !rest.is_empty() {
            self.cursors_made += 1;
            id = self.cursors_made;
            self.cursors.insert(id, rest.into());
        }
        let batch = RawArrayBuf::from_iter(found);
        rawdoc! {"cursor": {"firstBatch": batch, "id": id, "ns": ns}, "ok": 1.0}
    }

    fn get_more(&mut self, ns: &str, request: &Request) -> Outcome {
        let id = request.first_value().unwrap().as_i64().unwrap();
        let size = int(&request.body, "batchSize").unwrap_or(usize::MAX);
        let Some(rest) = self.cursors.get_mut(&id) else {
            return Err(CommandError::new(
                ErrorCode::CursorNotFound,
                "no such cursor",
            ));
        };
        let batch: Vec<_> = rest.drain(..size.min(rest.len())).collect();
        let done = rest.is_empty();
        if done {
            self.cursors.remove(&id);
        }
        let batch = RawArrayBuf::from_iter(batch);
        let id = if done { 0 } else { id };
        Ok(rawdoc! {"cursor": {"nextBatch": batch, "id": id, "ns": ns}, "ok": 1.0})
    }

    fn aggregate(&mut self, ns: &str, body: &RawDocument) -> Outcome {
        let stages = body.get_array("pipeline").unwrap();
        let stages: Vec<&RawDocument> = stages
            .into_iter()
            .map(|stage| stage.unwrap().as_document().unwrap())
            .collect();
        let pipeline = Pipeline::parse(&stages, &Context::default()).unwrap();
        let mut execution = pipeline.start(None).unwrap();
        for document in self.data.get(ns).into_iter().flatten() {
            execution.push(document).unwrap();
        }
        while execution.drain().unwrap() {}
        let found = std::iter::from_fn(|| execution.pop().unwrap()).collect();
        Ok(self.first_batch(ns, found, 101))
    }

    fn distinct(&self, ns: &str, body: &RawDocument) -> Outcome {
        let key = body.get_str("key").unwrap();
        let found = self.matching(ns, document(body, "query"));
        let values = found
            .iter()
            .filter_map(|document| document.get(key).unwrap());
        let values = RawArrayBuf::from_iter(values.map(bson::RawBson::from));
        Ok(rawdoc! {"values": values, "ok": 1.0})
    }

    fn insert(&mut self, ns: &str, request: &Request) -> Outcome {
        let ordered = request.body.get_bool("ordered").unwrap_or(true);
        let stored = self.data.entry(ns.to_owned()).or_default();
        let (mut n, mut errors) = (0, RawArrayBuf::new());
        let mut failed = false;
        for (index, document) in request.batch("documents")?.into_iter().enumerate() {
            let id = document.get("_id").unwrap();
            if stored.iter().any(|known| known.get("_id").unwrap() == id) {
                errors.push(rawdoc! {"index": index as i32, "code": 11000, "errmsg": "duplicate"});
                failed = true;
                if ordered {
                    break;
                }
                continue;
            }
            stored.push(document.to_owned());
            n += 1;
        }
        let mut reply = rawdoc! {"n": n, "ok": 1.0};
        if failed {
            reply.append(bson::raw::cstr!("writeErrors"), errors);
        }
        Ok(reply)
    }

    fn update(&mut self, ns: &str, request: &Request) -> Outcome {
        let stored = self.data.entry(ns.to_owned()).or_default();
        let mut n = 0;
        for statement in request.batch("updates")? {
            let filter = filter(document(statement, "q"));
            let multi = statement.get_bool("multi").unwrap_or(false);
            let u = statement.get("u").unwrap().unwrap();
            let update = Update::parse(u, &[], &Context::default()).unwrap();
            let now = bson::DateTime::now();
            for found in stored
                .iter_mut()
                .filter(|document| filter.try_matches(document).unwrap())
            {
                let context = UpdateContext::new(
                    now,
                    Timestamp {
                        time: 1,
                        increment: 1,
                    },
                );
                if let Some(after) = update.apply(found, &context).unwrap() {
                    *found = after;
                }
                n += 1;
                if !multi {
                    break;
                }
            }
        }
        Ok(rawdoc! {"n": n, "nModified": n, "ok": 1.0})
    }

    fn delete(&mut self, ns: &str, request: &Request) -> Outcome {
        let stored = self.data.entry(ns.to_owned()).or_default();
        let before = stored.len();
        for statement in request.batch("deletes")? {
            let filter = filter(document(statement, "q"));
            stored.retain(|document| !filter.try_matches(document).unwrap());
        }
        Ok(rawdoc! {"n": (before - stored.len()) as i32, "ok": 1.0})
    }
}
