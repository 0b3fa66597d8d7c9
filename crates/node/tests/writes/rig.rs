//! A standalone node in this process, and the commands that the tests give it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_node::info::{ClusterRole, ServerInfo};
use banyan_node::node::{Node, NodeOptions};
use banyan_node::service::NodeService;
use banyan_node::upkeep;
use banyan_wire::{Connection, Request, Service};
use bson::spec::BinarySubtype;
use bson::{Binary, RawArrayBuf, RawDocument, RawDocumentBuf, rawdoc};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

pub struct Rig {
    pub service: Arc<NodeService>,
    pub connection: Arc<Connection>,
}

impl Rig {
    pub async fn open(path: &Path) -> Rig {
        Rig::open_as(path, ClusterRole::None).await
    }

    pub async fn open_as(path: &Path, role: ClusterRole) -> Rig {
        let mut info = ServerInfo::new("mongod", "localhost:1".to_owned(), 1, path.to_owned());
        info.role = role;
        let node = Node::open(NodeOptions::new(info)).unwrap();
        upkeep::start(&node);
        let deadline = Instant::now() + Duration::from_secs(20);
        while !node.replica.is_primary() {
            assert!(
                Instant::now() < deadline,
                "a standalone becomes primary at once"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let nowhere: SocketAddr = ([127, 0, 0, 1], 1).into();
        let connection = Connection::new(1, nowhere, nowhere, CancellationToken::new());
        Rig {
            service: Arc::new(NodeService::new(node, &[])),
            connection: Arc::new(connection),
        }
    }

    pub async fn run(&self, command: RawDocumentBuf) -> RawDocumentBuf {
        let request = Request::command("db", command);
        self.service.call(&self.connection, request).await.body
    }

    pub async fn ok(&self, command: RawDocumentBuf) -> RawDocumentBuf {
        let reply = self.run(command).await;
        assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{reply:?}");
        assert!(reply.get("writeErrors").unwrap().is_none(), "{reply:?}");
        reply
    }

    /// The error's code, whether the command or its only statement was refused.
    pub async fn code(&self, command: RawDocumentBuf) -> i32 {
        let reply = self.run(command).await;
        if let Ok(errors) = reply.get_array("writeErrors") {
            let error = errors.get_document(0).unwrap();
            return error.get_i32("code").unwrap();
        }
        reply
            .get_i32("code")
            .unwrap_or_else(|_| panic!("{reply:?}"))
    }

    pub async fn find(&self, filter: RawDocumentBuf) -> Vec<RawDocumentBuf> {
        let command =
            rawdoc! { "find": "c", "filter": filter, "batchSize": 100_000, "singleBatch": true };
        let reply = self.ok(command).await;
        let batch = reply
            .get_document("cursor")
            .unwrap()
            .get_array("firstBatch")
            .unwrap();
        batch
            .into_iter()
            .map(|item| item.unwrap().as_document().unwrap().to_owned())
            .collect()
    }

    /// The records are counted right and agree with all indexes; how many there are.
    pub async fn validate(&self) -> i64 {
        let found = self.ok(rawdoc! { "validate": "c" }).await;
        assert_eq!(found.get_bool("valid").ok(), Some(true), "{found:?}");
        let records = i64::from(found.get_i32("nrecords").unwrap());
        let catalog = self.service.node.replica.store.catalog();
        assert_eq!(catalog.get("db", "c").unwrap().documents() as i64, records);
        records
    }

    pub async fn close(self) {
        let node = self.service.node.clone();
        tokio::task::spawn_blocking(move || node.close())
            .await
            .unwrap();
    }
}

pub async fn rig() -> (TempDir, Rig) {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::open(dir.path()).await;
    (dir, rig)
}

pub fn array(documents: impl IntoIterator<Item = RawDocumentBuf>) -> RawArrayBuf {
    documents.into_iter().collect()
}

pub fn insert(documents: impl IntoIterator<Item = RawDocumentBuf>) -> RawDocumentBuf {
    rawdoc! { "insert": "c", "documents": array(documents) }
}

pub fn update(q: RawDocumentBuf, u: RawDocumentBuf) -> RawDocumentBuf {
    rawdoc! { "update": "c", "updates": [{ "q": q, "u": u }] }
}

pub fn index(key: RawDocumentBuf, name: &str, unique: bool) -> RawDocumentBuf {
    rawdoc! {
        "createIndexes": "c", "indexes": [{ "key": key, "name": name, "unique": unique }],
    }
}

pub fn in_session(mut command: RawDocumentBuf, txn_number: i64) -> RawDocumentBuf {
    let id = Binary {
        subtype: BinarySubtype::Uuid,
        bytes: vec![7; 16],
    };
    command.append(bson::cstr!("lsid"), rawdoc! { "id": id });
    command.append(bson::cstr!("txnNumber"), txn_number);
    command
}

pub fn i32_of(document: &RawDocument, field: &str) -> i32 {
    document
        .get_i32(field)
        .unwrap_or_else(|_| panic!("{field} in {document:?}"))
}
