//! Cluster times as requests and replies carry them, `$clusterTime {clusterTime, signature: {hash,
//! keyId}}`, and the keys that sign them.
//!
//! Keys are made by the primary of the set, in a cluster by that of the config servers
//! ([`banyan_security::cluster_time`] says which). Where they come from is the process's own affair:
//! it [installs](ClusterTimes::install) them, or has them [fetched](ClusterTimes::keep_fetching).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use banyan_document::{field, kind};
use banyan_security::cluster_time::{Hash, Refusal, Signature, SigningKey, SigningKeys, ceiling};
use banyan_wire::{CommandError, ErrorCode};
use bson::spec::BinarySubtype;
use bson::{Binary, RawBinaryRef, RawBsonRef, RawDocument, RawDocumentBuf, Timestamp, rawdoc};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tracing::{debug, warn};

/// The field of requests and replies.
pub const FIELD: &str = "$clusterTime";
/// For how long a key signs, in seconds.
pub const ROTATION_PARAMETER: &str = "KeysRotationIntervalSec";
pub const ROTATION_SECONDS_DEFAULT: i64 = 90 * 24 * 3600;
/// How far ahead of the wall clock a time may be, in seconds.
pub const DRIFT_PARAMETER: &str = "maxAcceptableLogicalClockDriftSecs";
pub const DRIFT_SECONDS_DEFAULT: i64 = 365 * 24 * 3600;

/// The collection of the keys.
pub const KEYS_DATABASE: &str = "admin";
pub const KEYS_COLLECTION: &str = "system.keys";

/// Keys are not fetched more often than this, whatever clients bring.
const FETCH_PAUSE_MIN: Duration = Duration::from_secs(1);
const FETCH_PAUSE_MAX: Duration = Duration::from_secs(60);

/// A time as a request tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignedTime {
    pub time: Timestamp,
    pub signature: Signature,
}

impl SignedTime {
    /// # Errors
    /// MongoDB's, where a part is missing or of another type.
    pub fn parse(value: RawBsonRef<'_>) -> Result<SignedTime, CommandError> {
        let RawBsonRef::Document(told) = value else {
            return Err(CommandError::new(
                ErrorCode::Location(10065),
                format!("invalid parameter: expected an object ({FIELD})"),
            ));
        };
        let time = match required(told, "clusterTime")? {
            RawBsonRef::Timestamp(time) => time,
            other => return Err(wrong_type("clusterTime", "timestamp", other)),
        };
        let signature = match required(told, "signature")? {
            RawBsonRef::Document(signature) => signature,
            other => return Err(wrong_type("signature", "object", other)),
        };
        let hash = match required(signature, "hash")? {
            RawBsonRef::Binary(RawBinaryRef { bytes, .. }) => {
                Hash::try_from(bytes).map_err(|_| {
                    CommandError::new(
                        ErrorCode::UnsupportedFormat,
                        format!("Unsupported SHA1Block hash length: {}", bytes.len()),
                    )
                })?
            }
            other => return Err(wrong_type("hash", "binData", other)),
        };
        let key_id = match required(signature, "keyId")? {
            RawBsonRef::Int64(id) => id,
            RawBsonRef::Int32(id) => id.into(),
            RawBsonRef::Double(id) if id.fract() == 0.0 => id as i64,
            other => {
                let found = kind::name(&other);
                return Err(CommandError::new(
                    ErrorCode::TypeMismatch,
                    format!("Expected field \"keyId\" to have numeric type, but found {found}"),
                ));
            }
        };
        Ok(SignedTime {
            time,
            signature: Signature { hash, key_id },
        })
    }

    pub fn document(&self) -> RawDocumentBuf {
        let hash = Binary {
            subtype: BinarySubtype::Generic,
            bytes: self.signature.hash.to_vec(),
        };
        let signature = rawdoc! { "hash": hash, "keyId": self.signature.key_id };
        rawdoc! { "clusterTime": self.time, "signature": signature }
    }

    /// Refuses a time too far ahead of this machine's clock: nothing could be written once the end
    /// of all times is reached.
    pub fn check_drift(&self, wall_seconds: u64, seconds_max: i64) -> Result<(), CommandError> {
        let seconds = self.time.time;
        let latest = wall_seconds.saturating_add(seconds_max.max(0).unsigned_abs());
        if u64::from(seconds) <= latest {
            return Ok(());
        }
        Err(CommandError::new(
            ErrorCode::ClusterTimeFailsRateLimiter,
            format!(
                "New {FIELD}, {seconds}, is too far from this node's wall clock time, \
                 {wall_seconds}."
            ),
        ))
    }

    pub fn bits(&self) -> u64 {
        bits(self.time)
    }
}

pub fn bits(time: Timestamp) -> u64 {
    u64::from(time.time) << 32 | u64::from(time.increment)
}

fn required<'a>(document: &'a RawDocument, name: &str) -> Result<RawBsonRef<'a>, CommandError> {
    field(document, name).ok_or_else(|| {
        CommandError::new(
            ErrorCode::NoSuchKey,
            format!("Missing expected field \"{name}\""),
        )
    })
}

fn wrong_type(name: &str, expected: &str, found: RawBsonRef<'_>) -> CommandError {
    let found = kind::name(&found);
    CommandError::new(
        ErrorCode::TypeMismatch,
        format!("\"{name}\" had the wrong type. Expected {expected}, found {found}"),
    )
}

/// The signature of a range of times.
struct Proof {
    ceiling: u64,
    expires_at: u64,
    signature: Signature,
}

/// What a process needs to sign and verify cluster times.
pub struct ClusterTimes {
    keys: RwLock<Arc<SigningKeys>>,
    /// The last one that was made: a range of times shares one.
    proof: Mutex<Option<Proof>>,
    /// They lie in this process's own state.
    stored_here: AtomicBool,
    /// They are to be those of a cluster that this process does not belong to yet.
    cluster_missing: AtomicBool,
    /// Grows when the stored keys change.
    stored_changes: AtomicU64,
    /// Up to which of those changes the keys were read.
    read_changes: AtomicU64,
    /// Held while stored keys are read: whoever needs them meanwhile waits for them.
    reading: Mutex<()>,
    /// Grows when keys were read or may be others.
    rounds: watch::Sender<u64>,
    /// Somebody has met a key that is not known.
    wanted: Notify,
}

impl Default for ClusterTimes {
    fn default() -> ClusterTimes {
        ClusterTimes {
            keys: RwLock::default(),
            proof: Mutex::default(),
            stored_here: AtomicBool::new(false),
            cluster_missing: AtomicBool::new(false),
            stored_changes: AtomicU64::new(0),
            read_changes: AtomicU64::new(0),
            reading: Mutex::default(),
            rounds: watch::Sender::new(0),
            wanted: Notify::new(),
        }
    }
}

impl ClusterTimes {
    /// The keys that hold from now on.
    pub fn install(&self, keys: SigningKeys) {
        // Held until both are new: nothing is signed with a key that is not there any more.
        let mut proof = self.proof.lock();
        *self.keys.write() = Arc::new(keys);
        *proof = None;
    }

    pub fn keys(&self) -> Arc<SigningKeys> {
        self.keys.read().clone()
    }

    /// Takes note that the keys are to be read from this process's own state.
    pub fn store_here(&self) {
        self.stored_here.store(true, Ordering::Release);
        self.invalidate();
    }

    pub fn are_stored_here(&self) -> bool {
        self.stored_here.load(Ordering::Acquire)
    }

    /// Takes note whether there is a cluster whose keys could be fetched.
    pub fn set_cluster_missing(&self, missing: bool) {
        self.cluster_missing.store(missing, Ordering::Release);
    }

    pub fn is_cluster_missing(&self) -> bool {
        self.cluster_missing.load(Ordering::Acquire)
    }

    /// Takes note that the stored keys have changed.
    pub fn invalidate(&self) {
        self.stored_changes.fetch_add(1, Ordering::AcqRel);
        self.round_ended();
    }

    /// Has the stored keys read if they are others than those that were read last. When it returns
    /// the keys are those that were stored when it was called, also where another thread reads them.
    ///
    /// # Errors
    /// That of `read`. The next call reads again.
    pub fn refresh<E>(&self, read: impl Fn() -> Result<SigningKeys, E>) -> Result<(), E> {
        let is_current = |changes| self.read_changes.load(Ordering::Acquire) == changes;
        if is_current(self.stored_changes.load(Ordering::Acquire)) {
            return Ok(());
        }
        let _one_reader = self.reading.lock();
        let changes = self.stored_changes.load(Ordering::Acquire);
        if is_current(changes) {
            return Ok(());
        }
        self.install(read()?);
        self.read_changes.store(changes, Ordering::Release);
        Ok(())
    }

    fn round_ended(&self) {
        self.rounds
            .send_modify(|rounds| *rounds = rounds.wrapping_add(1));
    }

    /// `None` without a key for that time.
    pub fn sign(&self, time: Timestamp) -> Option<Signature> {
        let time = bits(time);
        let mut proof = self.proof.lock();
        if let Some(known) = &*proof
            && known.ceiling == ceiling(time)
            && time < known.expires_at
        {
            return Some(known.signature);
        }
        let keys = self.keys();
        let key = keys.for_signing(time)?;
        let signature = Signature {
            hash: key.sign(time),
            key_id: key.id,
        };
        *proof = Some(Proof {
            ceiling: ceiling(time),
            expires_at: key.expires_at,
            signature,
        });
        Some(signature)
    }

    pub fn verify(&self, told: &SignedTime) -> Result<(), Refusal> {
        self.keys().verify(told.bits(), &told.signature)
    }

    /// Waits until keys were fetched again, or may be others, but no longer than this.
    pub async fn ask_again(&self, wait_max: Duration) {
        let mut rounds = self.rounds.subscribe();
        self.wanted.notify_one();
        let _ = tokio::time::timeout(wait_max, rounds.changed()).await;
    }

    /// Fetches keys again and again: often enough that the next one is known before it signs, and
    /// when somebody asks. Never ends by itself.
    pub async fn keep_fetching<F>(&self, fetch: impl Fn() -> F, now: impl Fn() -> Timestamp)
    where
        F: Future<Output = Result<SigningKeys, CommandError>>,
    {
        loop {
            let began = Instant::now();
            match fetch().await {
                Ok(keys) => self.install(keys),
                Err(error) => debug!(%error, "cannot fetch the keys of cluster times"),
            }
            self.round_ended();
            let left = self.keys().seconds_left(bits(now()));
            let pause = left.map_or(FETCH_PAUSE_MIN, Duration::from_secs);
            let pause = pause.clamp(FETCH_PAUSE_MIN, FETCH_PAUSE_MAX);
            tokio::select! {
                () = tokio::time::sleep_until(began + pause) => {}
                () = self.wanted.notified() => {
                    tokio::time::sleep_until(began + FETCH_PAUSE_MIN).await;
                }
            }
        }
    }
}

/// What the command that reads all keys is.
pub fn find_keys() -> RawDocumentBuf {
    rawdoc! { "find": KEYS_COLLECTION, "batchSize": 10_000, "singleBatch": true }
}

/// Reads documents of `admin.system.keys`; one that is none is passed over.
pub fn read_keys<'a>(documents: impl Iterator<Item = &'a RawDocument>) -> SigningKeys {
    let keys = documents.filter_map(|document| {
        let parsed = SigningKey::parse(document);
        let parsed = parsed.inspect_err(|error| warn!(%error, "a key of cluster times is no use"));
        parsed.ok()
    });
    SigningKeys::new(keys.collect())
}

/// The reply to [`find_keys`].
///
/// # Errors
/// It is no reply with a cursor.
pub fn read_reply(reply: &RawDocument) -> Result<SigningKeys, CommandError> {
    let batch = reply
        .get_document("cursor")
        .and_then(|cursor| cursor.get_array("firstBatch"));
    let batch = batch.map_err(|error| {
        CommandError::new(
            ErrorCode::InternalError,
            format!("malformed reply: {error}"),
        )
    })?;
    let documents = batch.into_iter().flatten();
    Ok(read_keys(documents.filter_map(|one| one.as_document())))
}

#[cfg(test)]
mod tests {
    use banyan_security::cluster_time::HASH_BYTES;

    use super::*;

    const NOW: Timestamp = Timestamp {
        time: 1_800_000_000,
        increment: 1,
    };

    fn later(seconds: u32) -> Timestamp {
        Timestamp {
            time: NOW.time + seconds,
            ..NOW
        }
    }

    fn key(id: i64, seconds: u32) -> SigningKey {
        SigningKey {
            id,
            secret: [id as u8; HASH_BYTES],
            expires_at: bits(later(seconds)),
        }
    }

    #[test]
    fn a_signature_serves_until_its_key_expires() {
        let times = ClusterTimes::default();
        times.install(SigningKeys::new(vec![key(1, 100), key(2, 200)]));
        let last = Timestamp {
            time: later(99).time,
            increment: 9,
        };
        assert_eq!(times.sign(last).map(|made| made.key_id), Some(1));
        // The next key takes over amid the range of one signature.
        let keys = vec![
            SigningKey {
                expires_at: bits(last) + 1,
                ..key(1, 0)
            },
            key(2, 200),
        ];
        times.install(SigningKeys::new(keys));
        assert_eq!(times.sign(last).map(|made| made.key_id), Some(1));
        let next = Timestamp {
            increment: 10,
            ..last
        };
        assert_eq!(times.sign(next).map(|made| made.key_id), Some(2));
        let signature = times.sign(last).expect("either");
        let time = SignedTime {
            time: last,
            signature,
        };
        assert_eq!(times.verify(&time), Ok(()));
        assert_eq!(times.sign(later(200)), None, "nobody made a third");
    }

    #[test]
    fn nobody_goes_on_with_old_keys_while_another_reads_new_ones() {
        let times = ClusterTimes::default();
        times.store_here();
        let (begun, wait_begun) = std::sync::mpsc::channel();
        let (go_on, wait_go_on) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let times = &times;
            let second = scope.spawn(move || {
                wait_begun.recv().expect("the first reads");
                let helper = scope.spawn(move || {
                    // Goes on if it did not wait: the first one is let go by time alone.
                    std::thread::sleep(Duration::from_millis(50));
                    go_on.send(()).expect("the first waits");
                });
                let others = || -> Result<SigningKeys, ()> { panic!("read twice") };
                times.refresh(others).expect("was read");
                let signed = times.sign(NOW).map(|made| made.key_id);
                helper.join().expect("it sleeps");
                signed
            });
            let wait_go_on = Mutex::new(wait_go_on);
            let slow = || {
                begun.send(()).expect("the second waits");
                wait_go_on.lock().recv().expect("told to go on");
                Ok::<_, ()>(SigningKeys::new(vec![key(1, 100)]))
            };
            times.refresh(slow).expect("read");
            assert_eq!(second.join().expect("signs"), Some(1));
        });
        // A read that fails is done again.
        times.invalidate();
        assert_eq!(times.refresh(|| Err("unreadable")), Err("unreadable"));
        let keys = || Ok::<_, ()>(SigningKeys::new(vec![key(2, 100)]));
        times.refresh(keys).expect("read");
        assert_eq!(times.sign(NOW).map(|made| made.key_id), Some(2));
    }

    #[tokio::test]
    async fn keys_are_fetched_when_somebody_asks_and_not_all_the_time() {
        let times = ClusterTimes::default();
        let fetched = std::sync::atomic::AtomicU32::new(0);
        let fetch = || async {
            fetched.fetch_add(1, Ordering::Relaxed);
            Ok(SigningKeys::new(vec![key(1, 100_000), key(2, 200_000)]))
        };
        let asking = async {
            let began = Instant::now();
            times.ask_again(Duration::from_secs(30)).await;
            assert!(times.sign(NOW).is_some());
            let ask = || times.ask_again(Duration::from_secs(30));
            tokio::join!(ask(), ask(), ask());
            assert!(began.elapsed() >= FETCH_PAUSE_MIN, "{:?}", began.elapsed());
        };
        tokio::select! {
            biased;
            () = asking => {}
            () = times.keep_fetching(fetch, || NOW) => {}
        }
        assert_eq!(fetched.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn what_is_no_time_is_refused() {
        let hash = |length| Binary {
            subtype: BinarySubtype::Generic,
            bytes: vec![0; length],
        };
        let good = SignedTime {
            time: NOW,
            signature: Signature::default(),
        };
        let document = good.document();
        let parsed = SignedTime::parse(RawBsonRef::Document(&document));
        assert_eq!(parsed.unwrap(), good);
        for (wrong, code) in [
            (rawdoc! {}, 4),
            (rawdoc! { "clusterTime": 5 }, 14),
            (rawdoc! { "clusterTime": NOW }, 4),
            (rawdoc! { "clusterTime": NOW, "signature": 5 }, 14),
            (
                rawdoc! { "clusterTime": NOW, "signature": { "keyId": 0 } },
                4,
            ),
            (
                rawdoc! { "clusterTime": NOW, "signature": { "hash": 5 } },
                14,
            ),
            (
                rawdoc! { "clusterTime": NOW, "signature": { "hash": hash(19) } },
                12,
            ),
            (
                rawdoc! { "clusterTime": NOW, "signature": { "hash": hash(20) } },
                4,
            ),
            (
                rawdoc! { "clusterTime": NOW, "signature": { "hash": hash(20), "keyId": "x" } },
                14,
            ),
        ] {
            let error = SignedTime::parse(RawBsonRef::Document(&wrong)).unwrap_err();
            assert_eq!(error.code.code(), code, "{wrong:?}");
        }
        let error = SignedTime::parse(RawBsonRef::Int32(1)).unwrap_err();
        assert_eq!(error.code.code(), 10065);
        let wall = u64::from(NOW.time);
        good.check_drift(wall, 0).unwrap();
        let ahead = good.check_drift(wall - 11, 10).unwrap_err();
        assert_eq!(ahead.code, ErrorCode::ClusterTimeFailsRateLimiter);
    }
}
