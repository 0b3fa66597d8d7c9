//! Audit events: what they look like, as MongoDB's manual documents them ("System Event Audit
//! Messages"), and which of them are wanted.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use banyan_query::filter::Filter;
use bson::spec::BinarySubtype;
use bson::{
    Binary, Bson, DateTime, Document, RawDocument, RawDocumentBuf, Timestamp, Uuid, cstr, rawdoc,
};

use crate::role::RoleName;
use crate::user::UserName;

/// What was done, by whom.
pub struct Event<'a> {
    /// As in `createCollection`.
    pub action: &'a str,
    pub at: DateTime,
    /// `None`: the process itself has done it.
    pub client: Option<Client>,
    pub users: Vec<UserName>,
    pub roles: Vec<RoleName>,
    pub param: RawDocumentBuf,
    /// The error's code; 0 if it went well.
    pub result: i32,
}

/// The connection that somebody sits at.
#[derive(Clone, Copy)]
pub struct Client {
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// The same for all events of a connection.
    pub id: Uuid,
}

fn endpoint(address: SocketAddr) -> RawDocumentBuf {
    rawdoc! { "ip": address.ip().to_canonical().to_string(), "port": i32::from(address.port()) }
}

impl Event<'_> {
    pub fn to_document(&self) -> RawDocumentBuf {
        let mut document = rawdoc! { "atype": self.action, "ts": self.at };
        match &self.client {
            Some(client) => {
                let id = Binary {
                    subtype: BinarySubtype::Uuid,
                    bytes: client.id.bytes().to_vec(),
                };
                document.append(cstr!("uuid"), id);
                document.append(cstr!("local"), endpoint(client.local));
                document.append(cstr!("remote"), endpoint(client.remote));
            }
            None => {
                document.append(cstr!("local"), rawdoc! { "isSystemUser": true });
                document.append(cstr!("remote"), rawdoc! { "isSystemUser": true });
            }
        }
        document.append(cstr!("users"), users(&self.users));
        document.append(cstr!("roles"), RoleName::array(&self.roles));
        document.append(cstr!("param"), self.param.clone());
        document.append(cstr!("result"), self.result);
        document
    }
}

/// As events list users.
pub fn users(names: &[UserName]) -> bson::RawArrayBuf {
    let shown =
        |name: &UserName| rawdoc! { "user": name.user.as_str(), "db": name.database.as_str() };
    names.iter().map(shown).collect()
}

/// An event's document as a line of JSON. The connection's id is written as the old notation has
/// it, which is what MongoDB writes.
pub fn to_json(document: &RawDocument) -> String {
    let Ok(document) = Document::try_from(document) else {
        // It was made a moment ago, out of values that were read as such.
        return String::from("{}");
    };
    let mut line = serde_json::Map::new();
    for (name, value) in document {
        let value = match value {
            Bson::Binary(binary) if name == "uuid" => serde_json::json!({
                "$binary": base64::Engine::encode(
                    &base64::engine::general_purpose::STANDARD, &binary.bytes),
                "$type": "04",
            }),
            value => value.into_relaxed_extjson(),
        };
        line.insert(name, value);
    }
    serde_json::Value::Object(line).to_string()
}

/// Which events are wanted.
#[derive(Default)]
pub struct Wanted {
    filter: Option<Filter>,
    source: RawDocumentBuf,
    /// Requests that were let in, too.
    successes: bool,
    /// When that was said; `None`: when the process was started.
    since: Option<Timestamp>,
}

impl Wanted {
    /// # Errors
    /// What is wrong with the filter.
    pub fn new(
        filter: &RawDocument,
        successes: bool,
        since: Option<Timestamp>,
    ) -> Result<Wanted, String> {
        let parsed = Filter::parse(filter, &Default::default());
        let parsed = parsed.map_err(|error| error.to_string())?;
        Ok(Wanted {
            filter: (!filter.is_empty()).then_some(parsed),
            source: filter.to_owned(),
            successes,
            since,
        })
    }

    /// As it was written; empty: every event.
    pub fn filter(&self) -> &RawDocument {
        &self.source
    }

    pub fn wants_successes(&self) -> bool {
        self.successes
    }

    pub fn since(&self) -> Option<Timestamp> {
        self.since
    }
}

/// Where events go: those that are wanted.
pub struct Auditor {
    wanted: RwLock<Arc<Wanted>>,
    is_configurable: bool,
    write: Box<dyn Fn(&RawDocument) + Send + Sync>,
}

/// Which events are wanted was changed. Who does that is to be seen, whatever is wanted.
pub const CONFIGURED: &str = "auditConfigure";

static AUDITOR: OnceLock<Auditor> = OnceLock::new();

impl Auditor {
    /// `is_configurable`: what is wanted may change while the process runs.
    pub fn new(
        wanted: Wanted,
        is_configurable: bool,
        write: impl Fn(&RawDocument) + Send + Sync + 'static,
    ) -> Auditor {
        Auditor {
            wanted: RwLock::new(Arc::new(wanted)),
            is_configurable,
            write: Box::new(write),
        }
    }

    /// Makes it the one of this process; the first one stays.
    pub fn install(self) {
        AUDITOR.get_or_init(|| self);
    }

    pub fn is_configurable(&self) -> bool {
        self.is_configurable
    }

    /// Changes what is wanted, where that may be.
    pub fn configure(&self, wanted: Wanted) {
        if self.is_configurable {
            let mut current = self.wanted.write().unwrap_or_else(PoisonError::into_inner);
            *current = Arc::new(wanted);
        }
    }

    pub fn wanted(&self) -> Arc<Wanted> {
        let wanted = self.wanted.read().unwrap_or_else(PoisonError::into_inner);
        wanted.clone()
    }

    pub fn note(&self, event: &Event<'_>) {
        let document = event.to_document();
        // What cannot be decided is written rather than lost.
        let is_wanted = |filter: &Filter| filter.try_matches(&document).unwrap_or(true);
        let is_always = event.action == CONFIGURED;
        if is_always || self.wanted().filter.as_ref().is_none_or(is_wanted) {
            (self.write)(&document);
        }
    }
}

/// The one of this process, if it keeps an audit log.
pub fn auditor() -> Option<&'static Auditor> {
    AUDITOR.get()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn event(action: &str) -> Event<'_> {
        let address = |text: &str| text.parse().expect("an address");
        Event {
            action,
            at: DateTime::from_millis(1_700_000_000_000),
            client: Some(Client {
                local: address("127.0.0.1:27017"),
                remote: address("[::ffff:192.0.2.7]:5000"),
                id: Uuid::from_bytes([7; 16]),
            }),
            users: vec![UserName::new("alice", "admin")],
            roles: vec![RoleName::new("read", "test")],
            param: rawdoc! { "ns": "test.c" },
            result: 0,
        }
    }

    #[test]
    fn an_event_is_written_as_the_manual_has_it() {
        let line = to_json(&event("createCollection").to_document());
        let wanted = r#"{"atype":"createCollection","ts":{"$date":"2023-11-14T22:13:20Z"},"uuid":{"$binary":"BwcHBwcHBwcHBwcHBwcHBw==","$type":"04"},"local":{"ip":"127.0.0.1","port":27017},"remote":{"ip":"192.0.2.7","port":5000},"users":[{"user":"alice","db":"admin"}],"roles":[{"role":"read","db":"test"}],"param":{"ns":"test.c"},"result":0}"#;
        assert_eq!(line, wanted);
        let own = Event {
            client: None,
            ..event("startup")
        };
        assert!(to_json(&own.to_document()).contains(r#""local":{"isSystemUser":true}"#));
    }

    #[test]
    fn a_filter_says_which_events_are_kept() {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let keep = {
            let kept = kept.clone();
            move |document: &RawDocument| {
                let action = document.get_str("atype").expect("an action").to_owned();
                kept.lock().expect("nobody panics").push(action);
            }
        };
        let filter = rawdoc! { "atype": { "$regex": "^drop" }, "users.user": "alice", "result": 0 };
        let wanted = Wanted::new(&filter, false, None).expect("a filter");
        let auditor = Auditor::new(wanted, true, keep);
        for action in ["createCollection", "dropCollection", "dropIndex"] {
            auditor.note(&event(action));
        }
        assert_eq!(
            *kept.lock().expect("nobody panics"),
            ["dropCollection", "dropIndex"]
        );
        let wanted = rawdoc! { "atype": "createCollection" };
        auditor.configure(Wanted::new(&wanted, true, None).expect("a filter"));
        auditor.note(&event("dropIndex"));
        auditor.note(&event("createCollection"));
        auditor.note(&event(CONFIGURED));
        assert_eq!(kept.lock().expect("nobody panics").len(), 4);
        assert!(auditor.wanted().wants_successes());
        let wrong = rawdoc! { "atype": { "$no": 1 } };
        assert!(Wanted::new(&wrong, false, None).is_err());
    }
}
