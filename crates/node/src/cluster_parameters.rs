//! Parameters of a whole set or cluster: `setClusterParameter`.
//!
//! What was set of one is a replicated document, so every member of a set knows it. In a cluster the
//! config servers keep them, and members of shards and routers fetch them from there again and again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use banyan_access::audit_config;
use banyan_execution::by_id;
use banyan_query::query_settings::{self, KnownSettings};
use banyan_replication::machine::Machine;
use banyan_replication::op_observer::Change;
use banyan_replication::replica::Replica;
use banyan_storage::Namespace;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, Timestamp, cstr, rawdoc};
use parking_lot::{Mutex, RwLock};

use crate::errors;
use crate::params::{self, Field};

/// In the database `config`.
pub const COLLECTION: &str = "clusterParameters";

/// When a parameter was set.
const TIME: &str = "clusterParameterTime";

/// Only there in processes that hold to it.
pub const AUDIT: &str = audit_config::PARAMETER;
const IMAGES: &str = "changeStreamOptions";
const MAX_TIME: &str = "defaultMaxTimeMS";
/// Set by commands of their own.
pub const QUERY_SETTINGS: &str = query_settings::PARAMETER;

/// What can be set.
pub struct Parameter {
    pub name: &'static str,
    /// Its fields while nobody has set it.
    default: fn() -> RawDocumentBuf,
    /// A value as it is kept, if it is one.
    parse: fn(&RawDocument) -> Result<RawDocumentBuf, CommandError>,
}

/// In the order of their names.
static PARAMETERS: &[Parameter] = &[
    Parameter {
        name: AUDIT,
        default: audit_config::default,
        parse: |value| audit_config::parse(value).map_err(|error| bad(AUDIT, error)),
    },
    Parameter {
        name: IMAGES,
        default: || rawdoc! { "preAndPostImages": { "expireAfterSeconds": "off" } },
        parse: parse_images,
    },
    Parameter {
        name: MAX_TIME,
        default: || rawdoc! { "readOperations": 0_i64 },
        parse: parse_max_time,
    },
    Parameter {
        name: QUERY_SETTINGS,
        default: || KnownSettings::default().to_value(),
        parse: parse_query_settings,
    },
];

pub fn find(name: &str) -> Option<&'static Parameter> {
    all().find(|parameter| parameter.name == name)
}

fn all() -> impl Iterator<Item = &'static Parameter> {
    let is_there = |parameter: &&Parameter| parameter.name != AUDIT || audit_config::is_in_force();
    PARAMETERS.iter().filter(is_there)
}

impl Parameter {
    /// The document that is kept of a value.
    pub fn document(
        &self,
        value: &RawDocument,
        time: Timestamp,
    ) -> Result<RawDocumentBuf, CommandError> {
        Ok(self.with_fields(time, &(self.parse)(value)?))
    }

    fn initial(&self) -> RawDocumentBuf {
        let never = Timestamp {
            time: 0,
            increment: 0,
        };
        self.with_fields(never, &(self.default)())
    }

    fn with_fields(&self, time: Timestamp, fields: &RawDocument) -> RawDocumentBuf {
        let mut document = rawdoc! { "_id": self.name, "clusterParameterTime": time };
        for (name, value) in fields.iter().flatten() {
            document.append(name, value);
        }
        document
    }
}

/// Finds fault with a value as MongoDB's parser of it does.
fn bad(parameter: &str, error: CommandError) -> CommandError {
    CommandError::new(
        ErrorCode::BadValue,
        format!("Failed parsing new {parameter} value{}", error.message),
    )
}

/// `{preAndPostImages: {expireAfterSeconds: 'off' or a number}}`.
fn parse_images(value: &RawDocument) -> Result<RawDocumentBuf, CommandError> {
    let images = only_field(value, IMAGES, "preAndPostImages")?;
    let images = Field {
        command: IMAGES,
        name: "preAndPostImages",
        value: images,
    };
    let images = images.document().map_err(|error| bad(IMAGES, error))?;
    let parser = format!("{IMAGES}.preAndPostImages");
    let seconds = only_field(images, &parser, "expireAfterSeconds")?;
    let refuse = |text| Err(CommandError::new(ErrorCode::BadValue, text));
    let seconds = match seconds {
        RawBsonRef::String("off") => {
            return Ok(rawdoc! { "preAndPostImages": { "expireAfterSeconds": "off" } });
        }
        RawBsonRef::String(_) => {
            return refuse("Non-numeric value of 'expireAfterSeconds' should be 'off'");
        }
        other => params::number(other).ok_or_else(|| {
            let field = Field {
                command: IMAGES,
                name: "expireAfterSeconds",
                value: other,
            };
            bad(
                IMAGES,
                field.wrong_type("types '[string, int, decimal, double, long']"),
            )
        })?,
    };
    match seconds > 0 {
        true => Ok(rawdoc! { "preAndPostImages": { "expireAfterSeconds": seconds } }),
        false => refuse("Numeric value of 'expireAfterSeconds' should be positive"),
    }
}

/// `{readOperations: milliseconds}`.
fn parse_max_time(value: &RawDocument) -> Result<RawDocumentBuf, CommandError> {
    let field = Field {
        command: MAX_TIME,
        name: "readOperations",
        value: only_field(value, MAX_TIME, "readOperations")?,
    };
    let number = field.i64().map_err(|error| bad(MAX_TIME, error))?;
    match (0..=i64::from(i32::MAX)).contains(&number) {
        true => Ok(rawdoc! { "readOperations": number }),
        false => Err(CommandError::new(
            ErrorCode::BadValue,
            format!(
                "Invalid value for parameter {MAX_TIME}.readOperations: {number} is not between 0 \
                 and {}",
                i32::MAX
            ),
        )),
    }
}

/// `{settingsArray: [...]}`.
fn parse_query_settings(value: &RawDocument) -> Result<RawDocumentBuf, CommandError> {
    let field = Field {
        command: QUERY_SETTINGS,
        name: query_settings::ARRAY.as_str(),
        value: only_field(value, QUERY_SETTINGS, query_settings::ARRAY.as_str())?,
    };
    if field.value.as_array().is_none() {
        return Err(bad(QUERY_SETTINGS, field.wrong_type("type 'array'")));
    }
    Ok(KnownSettings::of(value).to_value())
}

/// The value of a document's only field.
fn only_field<'d>(
    document: &'d RawDocument,
    parser: &str,
    name: &str,
) -> Result<RawBsonRef<'d>, CommandError> {
    let parameter = parser.split('.').next().unwrap_or(parser);
    let value = banyan_document::field(document, name)
        .ok_or_else(|| bad(parameter, params::missing_field(parameter, name)))?;
    for (other, _) in document.iter().flatten() {
        if !matches!(other.as_str(), "_id" | TIME) && other.as_str() != name {
            let unknown = params::unknown_field(parser, other.as_str());
            return Err(bad(parameter, unknown));
        }
    }
    Ok(value)
}

/// What holds of all parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct Known {
    /// One of each, in the order of their names.
    documents: Vec<RawDocumentBuf>,
    /// For reads that name no time; `None`: they may take as long as they like.
    pub read_time_max: Option<Duration>,
    /// How long change streams show how a document was.
    pub images_expire_after: Option<Duration>,
    pub query_settings: KnownSettings,
}

impl Default for Known {
    fn default() -> Known {
        Known::of(&[])
    }
}

impl Known {
    /// Out of what was set.
    fn of(set: &[RawDocumentBuf]) -> Known {
        let current = |parameter: &Parameter| {
            let is_it = |document: &&RawDocumentBuf| {
                document.get_str("_id").ok() == Some(parameter.name)
                    // What a newer version has set may be none of ours.
                    && (parameter.parse)(document).is_ok()
            };
            let found = set.iter().find(is_it);
            found.cloned().unwrap_or_else(|| parameter.initial())
        };
        let mut known = Known {
            documents: all().map(current).collect(),
            read_time_max: None,
            images_expire_after: None,
            query_settings: KnownSettings::default(),
        };
        let positive = |number: Option<i64>| number.and_then(|n| u64::try_from(n).ok());
        let number = |document: &RawDocument, name| {
            let value = banyan_document::field(document, name);
            value.and_then(params::number)
        };
        let milliseconds = known.find(MAX_TIME);
        let milliseconds = milliseconds.and_then(|document| number(document, "readOperations"));
        let milliseconds = positive(milliseconds).filter(|milliseconds| *milliseconds > 0);
        let images = known.find(IMAGES);
        let images = images.and_then(|document| document.get_document("preAndPostImages").ok());
        let seconds = images.and_then(|images| number(images, "expireAfterSeconds"));
        let seconds = positive(seconds);
        known.read_time_max = milliseconds.map(Duration::from_millis);
        known.images_expire_after = seconds.map(Duration::from_secs);
        let settings = known.find(QUERY_SETTINGS).map(KnownSettings::of);
        known.query_settings = settings.unwrap_or_default();
        known
    }

    /// Of one parameter: what holds of it, and since when.
    pub fn find(&self, name: &str) -> Option<&RawDocument> {
        let mut documents = self.documents.iter();
        let found = documents.find(|document| document.get_str("_id").ok() == Some(name));
        found.map(|document| &**document)
    }

    /// Those of these names; all without any.
    pub fn show(&self, names: Option<&[&str]>) -> RawArrayBuf {
        let is_shown = |document: &&RawDocumentBuf| {
            let name = document.get_str("_id").unwrap_or_default();
            names.is_none_or(|names| names.contains(&name))
        };
        self.documents.iter().filter(is_shown).cloned().collect()
    }
}

/// What this process knows of them.
pub struct ClusterParameters {
    known: RwLock<Arc<Known>>,
    /// What every read looks at, in milliseconds; 0: none is set.
    read_time_max: AtomicU64,
    /// What every query looks at.
    has_query_settings: AtomicBool,
    /// Held by who changes the settings of queries.
    pub query_settings_changes: tokio::sync::Mutex<()>,
    /// How often one of the documents has changed.
    changes: Arc<AtomicU64>,
    /// How many of the changes are known.
    seen: AtomicU64,
    /// Whoever comes while they are read waits for what is found.
    reading: Mutex<()>,
}

impl Default for ClusterParameters {
    fn default() -> ClusterParameters {
        ClusterParameters {
            known: RwLock::default(),
            read_time_max: AtomicU64::new(0),
            has_query_settings: AtomicBool::new(false),
            query_settings_changes: tokio::sync::Mutex::new(()),
            changes: Arc::default(),
            seen: AtomicU64::new(0),
            reading: Mutex::new(()),
        }
    }
}

impl ClusterParameters {
    /// Has them read anew when the log changes them.
    pub fn watch(&self, machine: &Machine) {
        let changes = self.changes.clone();
        changes.fetch_add(1, Ordering::AcqRel);
        let listener = move |_: Option<Change<'_>>| {
            changes.fetch_add(1, Ordering::AcqRel);
        };
        machine.watch_collection(Namespace::new("config", COLLECTION), Box::new(listener));
    }

    /// Cheap where nothing has changed.
    pub fn known(&self, replica: &Replica) -> Arc<Known> {
        if self.is_stale() {
            let _reading = self.reading.lock();
            let changes = self.changes.load(Ordering::Acquire);
            if self.is_stale() {
                match stored(replica) {
                    Ok(set) => {
                        self.replace(&set);
                        self.seen.store(changes, Ordering::Release);
                    }
                    Err(error) => tracing::warn!(%error, "cannot read the cluster's parameters"),
                }
            }
        }
        self.known.read().clone()
    }

    fn is_stale(&self) -> bool {
        self.seen.load(Ordering::Acquire) != self.changes.load(Ordering::Acquire)
    }

    /// Takes what the config servers answer.
    pub fn note(&self, reply: &RawDocument) {
        let documents = reply.get_array("clusterParameters").into_iter().flatten();
        let documents = documents.flatten();
        let set: Vec<_> = documents
            .filter_map(|document| Some(document.as_document()?.to_owned()))
            .collect();
        // They count, and not what lies here.
        self.seen
            .store(self.changes.load(Ordering::Acquire), Ordering::Release);
        self.replace(&set);
    }

    fn replace(&self, set: &[RawDocumentBuf]) {
        let known = Known::of(set);
        if let Some(document) = known.find(AUDIT) {
            audit_config::apply(document);
        }
        let limit = known.read_time_max.map_or(0, |limit| limit.as_millis());
        let limit = u64::try_from(limit).unwrap_or(u64::MAX);
        self.read_time_max.store(limit, Ordering::Relaxed);
        let has_settings = !known.query_settings.is_empty();
        self.has_query_settings
            .store(has_settings, Ordering::Relaxed);
        *self.known.write() = Arc::new(known);
    }

    /// For who is about to change them.
    pub fn known_query_settings(&self, replica: &Replica) -> KnownSettings {
        self.known(replica).query_settings.clone()
    }

    /// Has what was changed hold from now on.
    pub fn keep_up(&self, replica: &Replica) {
        if self.is_stale() {
            self.known(replica);
        }
    }

    /// Whether any queries have settings.
    pub fn have_query_settings(&self, replica: &Replica) -> bool {
        self.keep_up(replica);
        self.has_query_settings.load(Ordering::Relaxed)
    }

    /// How long a read may take that names no time.
    pub fn read_time_max(&self, replica: &Replica) -> Option<Duration> {
        self.keep_up(replica);
        let limit = self.read_time_max.load(Ordering::Relaxed);
        (limit > 0).then(|| Duration::from_millis(limit))
    }
}

fn stored(replica: &Replica) -> Result<Vec<RawDocumentBuf>, CommandError> {
    let (catalog, snapshot) = replica.view();
    let Some(collection) = catalog.get("config", COLLECTION) else {
        return Ok(Vec::new());
    };
    let mut set = Vec::new();
    for parameter in all() {
        let id = RawBsonRef::String(parameter.name);
        let found = by_id::lookup(collection, &snapshot, id).map_err(errors::query)?;
        set.extend(found.map(|document| RawDocument::to_owned(&document)));
    }
    Ok(set)
}

/// How the config servers are asked for all of them.
pub fn ask() -> RawDocumentBuf {
    let mut command = RawDocumentBuf::new();
    command.append(cstr!("getClusterParameter"), "*");
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(name: &str, value: &RawDocumentBuf) -> Result<RawDocumentBuf, String> {
        let parsed = (find(name).unwrap().parse)(value);
        parsed.map_err(|error| error.message)
    }

    #[test]
    fn a_value_is_checked_before_it_is_kept() {
        let images = |seconds: RawBsonRef<'_>| {
            parsed(
                IMAGES,
                &rawdoc! { "preAndPostImages": { "expireAfterSeconds": seconds } },
            )
        };
        let kept = rawdoc! { "preAndPostImages": { "expireAfterSeconds": 1_i64 } };
        assert_eq!(images(RawBsonRef::Double(1.5)), Ok(kept));
        assert!(images(RawBsonRef::String("off")).is_ok());
        assert!(images(RawBsonRef::String("on")).is_err());
        assert!(images(RawBsonRef::Int32(0)).is_err());
        assert!(images(RawBsonRef::Boolean(true)).is_err());
        assert_eq!(
            parsed(IMAGES, &rawdoc! {}).unwrap_err(),
            "Failed parsing new changeStreamOptions valueBSON field \
             'changeStreamOptions.preAndPostImages' is missing but a required field"
        );
        let unknown = rawdoc! { "preAndPostImages": { "expireAfterSeconds": 1, "q": 1 } };
        assert_eq!(
            parsed(IMAGES, &unknown).unwrap_err(),
            "Failed parsing new changeStreamOptions valueBSON field \
             'changeStreamOptions.preAndPostImages.q' is an unknown field."
        );
        assert!(parsed(MAX_TIME, &rawdoc! { "readOperations": -1 }).is_err());
        assert!(parsed(MAX_TIME, &rawdoc! { "readOperations": 1_i64 << 40 }).is_err());
    }

    #[test]
    fn what_was_set_takes_the_place_of_the_default() {
        let time = Timestamp {
            time: 7,
            increment: 1,
        };
        let set = find(MAX_TIME)
            .unwrap()
            .document(&rawdoc! { "readOperations": 50 }, time)
            .unwrap();
        let known = Known::of(&[set.clone(), rawdoc! { "_id": "newer", "x": 1 }]);
        assert_eq!(known.read_time_max, Some(Duration::from_millis(50)));
        assert_eq!(known.images_expire_after, None);
        assert_eq!(known.documents[1], set);
        assert_eq!(known.documents.len(), all().count());
        assert!(PARAMETERS.is_sorted_by_key(|parameter| parameter.name));
    }
}
