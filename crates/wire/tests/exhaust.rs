//! Replies that follow one another, over real sockets; and a set that is watched.

#![allow(clippy::unwrap_used)] // A test that can't go on has failed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_wire::message::{FLAG_EXHAUST_ALLOWED, FLAG_MORE_TO_COME, encode_msg};
use banyan_wire::{
    Connection, FrameReader, Options, PoolOptions, ReadMode, ReadPreference, ReplicaSet, Reply,
    Request, RequestOptions, Server, Service, TagSet,
};
use bson::oid::ObjectId;
use bson::{RawBsonRef, RawDocumentBuf, rawdoc};
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// A member that can be told what to be. It answers `hello` when that has changed, has a cursor of
/// three batches, and says who it is.
struct Member {
    process: ObjectId,
    hello: watch::Sender<(i64, RawDocumentBuf)>,
    batches: Mutex<i32>,
    asked: Mutex<Vec<String>>,
    closed: watch::Sender<usize>,
    address: String,
    shutdown: CancellationToken,
}

impl Service for Member {
    async fn call(self: &Arc<Self>, _: &Arc<Connection>, request: Request) -> Reply {
        match &*request.name {
            "hello" => self.hello(&request).await.into(),
            "getMore" => {
                let mut left = self.batches.lock();
                *left -= 1;
                let id = i64::from(*left > 0);
                rawdoc! {"cursor": {"id": id, "ns": "a.b", "nextBatch": [{}]}, "ok": 1.0}.into()
            }
            name => {
                self.asked.lock().push(name.to_owned());
                rawdoc! {"ok": 1.0, "from": self.address.as_str()}.into()
            }
        }
    }

    fn closed(&self, _: &Connection) {
        self.closed.send_modify(|count| *count += 1);
    }
}

impl Member {
    async fn start() -> Arc<Member> {
        let options = Options::default();
        let server = Server::bind(&["localhost"], 0, options).await.unwrap();
        let member = Arc::new(Member {
            process: ObjectId::new(),
            hello: watch::Sender::new((0, rawdoc! {})),
            batches: Mutex::new(3),
            asked: Mutex::default(),
            closed: watch::Sender::new(0),
            address: server.addresses()[0].to_string(),
            shutdown: CancellationToken::new(),
        });
        tokio::spawn(server.serve(member.clone(), member.shutdown.clone()));
        member
    }

    fn becomes(&self, fields: RawDocumentBuf) {
        self.hello.send_modify(|hello| {
            hello.0 += 1;
            hello.1 = fields;
        });
    }

    async fn hello(&self, request: &Request) -> RawDocumentBuf {
        let version = request.body.get_document("topologyVersion");
        let counter = version.ok().and_then(|v| v.get_i64("counter").ok());
        if let (Some(counter), Some(RawBsonRef::Int32(most))) =
            (counter, request.get("maxAwaitTimeMS"))
        {
            let mut hello = self.hello.subscribe();
            let newer = hello.wait_for(|(now, _)| *now != counter);
            let _ = tokio::time::timeout(Duration::from_millis(most as u64), newer).await;
        }
        let (counter, mut reply) = self.hello.borrow().clone();
        let version = rawdoc! {"processId": self.process, "counter": counter};
        reply.append(bson::raw::cstr!("topologyVersion"), version);
        reply.append(bson::raw::cstr!("ok"), 1.0);
        reply
    }
}

struct Client {
    stream: TcpStream,
    frames: FrameReader,
}

/// What a reply's head says, and its body.
struct Got {
    id: i32,
    response_to: i32,
    more: bool,
    body: RawDocumentBuf,
}

impl Client {
    async fn connect(address: &str) -> Client {
        let stream = TcpStream::connect(address).await.unwrap();
        let frames = FrameReader::default();
        Client { stream, frames }
    }

    async fn send(&mut self, id: i32, flags: u32, body: &RawDocumentBuf) {
        let mut bytes = Vec::new();
        encode_msg(&mut bytes, id, 0, flags, body);
        self.stream.write_all(&bytes).await.unwrap();
    }

    async fn got(&mut self) -> Got {
        let next = self.frames.next(&mut self.stream);
        let message = tokio::time::timeout(Duration::from_secs(10), next).await;
        let message = message.unwrap().unwrap().unwrap();
        let int = |at: usize| i32::from_le_bytes(message[at..at + 4].try_into().unwrap());
        Got {
            id: int(4),
            response_to: int(8),
            more: int(16) as u32 & FLAG_MORE_TO_COME != 0,
            body: RawDocumentBuf::from_bytes(message[21..].to_vec()).unwrap(),
        }
    }
}

fn awaiting(member: &Member, counter: i64, milliseconds: i32) -> RawDocumentBuf {
    rawdoc! {
        "hello": 1,
        "topologyVersion": {"processId": member.process, "counter": counter},
        "maxAwaitTimeMS": milliseconds,
        "$db": "admin",
    }
}

#[tokio::test]
async fn a_hello_is_answered_again_and_again_until_the_client_leaves() {
    let member = Member::start().await;
    let mut client = Client::connect(&member.address).await;
    let hello = awaiting(&member, 0, 60_000);
    client.send(7, FLAG_EXHAUST_ALLOWED, &hello).await;
    let mut before = 7;
    for change in 1..4 {
        member.becomes(rawdoc! {"change": change});
        let got = client.got().await;
        assert!(got.more);
        assert_eq!(got.response_to, before);
        assert_eq!(got.body.get_i32("change").unwrap(), change);
        before = got.id;
    }
    // The next answer would be due in a minute; the server notices the end at once.
    drop(client);
    let mut closed = member.closed.subscribe();
    let ended = closed.wait_for(|count| *count == 1);
    let ended = tokio::time::timeout(Duration::from_secs(10), ended).await;
    ended.unwrap().unwrap();
}

#[tokio::test]
async fn a_stream_goes_on_when_nothing_changes_and_only_if_it_was_allowed() {
    let member = Member::start().await;
    let mut client = Client::connect(&member.address).await;
    let hello = awaiting(&member, 0, 30);
    client.send(1, 0, &hello).await;
    assert!(!client.got().await.more);
    client.send(2, FLAG_EXHAUST_ALLOWED, &hello).await;
    for _ in 0..3 {
        assert!(client.got().await.more);
    }
    // A server that ends says that nothing more comes.
    member.shutdown.cancel();
    while client.got().await.more {}
}

#[tokio::test]
async fn a_cursor_is_sent_to_its_end() {
    let member = Member::start().await;
    let mut client = Client::connect(&member.address).await;
    let more = rawdoc! {"getMore": 1i64, "collection": "b", "$db": "a"};
    client.send(5, FLAG_EXHAUST_ALLOWED, &more).await;
    let mut flags = Vec::new();
    for _ in 0..3 {
        flags.push(client.got().await.more);
    }
    assert_eq!(flags, [true, true, false]);
    // The connection is an ordinary one again.
    client.send(6, 0, &rawdoc! {"ping": 1, "$db": "a"}).await;
    assert_eq!(client.got().await.response_to, 6);
}

/// Two members of a set, the first one primary; each has a tag that says which it is.
async fn set_of_two() -> (Vec<Arc<Member>>, ReplicaSet) {
    let members = vec![Member::start().await, Member::start().await];
    lead(&members, 0, 1);
    let hosts: Vec<&str> = members.iter().map(|member| &*member.address).collect();
    let address = format!("s/{}", hosts.join(","));
    let set = ReplicaSet::parse(&address, PoolOptions::default()).unwrap();
    set.monitor();
    (members, set)
}

fn lead(members: &[Arc<Member>], leader: usize, term: u8) {
    let hosts: Vec<&str> = members.iter().map(|member| &*member.address).collect();
    for (index, member) in members.iter().enumerate() {
        let mut fields = rawdoc! {
            "setName": "s",
            "setVersion": 1,
            "hosts": bson::RawArrayBuf::from_iter(hosts.iter().copied()),
            "isWritablePrimary": index == leader,
            "secondary": index != leader,
            "tags": {"n": index.to_string()},
        };
        if index == leader {
            let id = ObjectId::from_bytes([term; 12]);
            fields.append(bson::raw::cstr!("electionId"), id);
        }
        member.becomes(fields);
    }
}

async fn served_by(set: &ReplicaSet, preference: impl Into<ReadPreference>) -> String {
    let read = RequestOptions::read(preference).server_selection_timeout(Duration::from_secs(5));
    let reply = set.command(read, "a", &rawdoc! {"ping": 1}).await.unwrap();
    reply.get_str("from").unwrap().to_owned()
}

#[tokio::test]
async fn a_watched_set_tells_of_a_failover_by_itself() {
    let (members, set) = set_of_two().await;
    assert_eq!(served_by(&set, ReadMode::Primary).await, members[0].address);
    lead(&members, 1, 2);
    let started = Instant::now();
    while set.primary().as_deref() != Some(&*members[1].address) {
        assert!(started.elapsed() < Duration::from_secs(5), "not noticed");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(served_by(&set, ReadMode::Primary).await, members[1].address);
    assert_eq!(
        served_by(&set, ReadMode::Secondary).await,
        members[0].address
    );
}

#[tokio::test]
async fn reads_go_where_the_preference_says_and_on_when_that_member_dies() {
    let (members, set) = set_of_two().await;
    let tagged = |tag: &str| ReadPreference {
        mode: ReadMode::Nearest,
        tags: vec![TagSet(vec![("n".to_owned(), tag.to_owned())])],
        max_staleness: None,
    };
    assert_eq!(served_by(&set, tagged("0")).await, members[0].address);
    assert_eq!(served_by(&set, tagged("1")).await, members[1].address);
    let none =
        RequestOptions::read(tagged("2")).server_selection_timeout(Duration::from_millis(20));
    let error = set.command(none, "a", &rawdoc! {"ping": 1}).await;
    assert_eq!(error.unwrap_err().code().code(), 133);

    // Both are as good as each other for `nearest`, so both get their share.
    for member in &members {
        member.asked.lock().clear();
    }
    for _ in 0..20 {
        served_by(&set, ReadMode::Nearest).await;
    }
    assert!(members.iter().all(|member| member.asked.lock().len() >= 5));

    members[1].shutdown.cancel();
    let preferred = ReadMode::SecondaryPreferred;
    assert_eq!(served_by(&set, preferred).await, members[0].address);
}
