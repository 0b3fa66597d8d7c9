//! Cluster times are signed, so that a client hands on what a server told it and cannot make up a
//! time of its own.
//!
//! The keys are the documents of `admin.system.keys`, the signature is MongoDB's: HMAC-SHA1 over the
//! time as a little-endian integer whose lowest 16 bits are set. One signature so serves all times
//! that differ in these bits alone, and is made about once in a second.
//!
//! Times are 64 bits: seconds since 1970 in the upper half, a counter in the lower.

use bson::spec::BinarySubtype;
use bson::{Binary, RawBsonRef, RawDocument, RawDocumentBuf, Timestamp, rawdoc};
use hmac::{Hmac, Mac};
use sha1::Sha1;
use subtle::ConstantTimeEq;

use crate::field::{DefinitionError, missing, wrong_type};

/// As long as a SHA-1.
pub const HASH_BYTES: usize = 20;
pub type Hash = [u8; HASH_BYTES];

/// The bits of a time that its signature does not tell apart.
const RANGE_MASK: u64 = 0xffff;

/// What `admin.system.keys` calls the keys of cluster times.
const PURPOSE: &str = "HMAC";

/// Keys that are kept at once. There are two unless keys are changed every few moments.
const KEYS_MAX: usize = 1_000;

/// What is appended to a time. Where there are no keys, or who is told needs no proof, all of it is 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Signature {
    pub hash: Hash,
    pub key_id: i64,
}

impl Signature {
    pub fn is_dummy(&self) -> bool {
        self.hash == [0; HASH_BYTES]
    }
}

/// The last of the times that have the same signature as this one.
pub fn ceiling(time: u64) -> u64 {
    time | RANGE_MASK
}

/// A document of `admin.system.keys`.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningKey {
    pub id: i64,
    pub secret: Hash,
    /// It signs times before this one.
    pub expires_at: u64,
}

impl SigningKey {
    /// # Errors
    /// A field is missing or of another type, or the secret of another length.
    pub fn parse(document: &RawDocument) -> Result<SigningKey, DefinitionError> {
        let field = |name: &str| {
            let value = document.get(name).ok().flatten();
            value.ok_or_else(|| missing("a key of cluster times", name))
        };
        let id = match field("_id")? {
            RawBsonRef::Int64(id) => id,
            other => return Err(wrong_type("_id", "a long", other)),
        };
        let secret = match field("key")? {
            RawBsonRef::Binary(secret) => Hash::try_from(secret.bytes).map_err(|_| {
                let length = secret.bytes.len();
                DefinitionError::Invalid(format!("a key of {length} bytes"))
            })?,
            other => return Err(wrong_type("key", "binary data", other)),
        };
        let expires_at = match field("expiresAt")? {
            RawBsonRef::Timestamp(time) => bits(time),
            other => return Err(wrong_type("expiresAt", "a timestamp", other)),
        };
        Ok(SigningKey {
            id,
            secret,
            expires_at,
        })
    }

    pub fn document(&self) -> RawDocumentBuf {
        let key = Binary {
            subtype: BinarySubtype::Generic,
            bytes: self.secret.to_vec(),
        };
        let expires_at = Timestamp {
            time: (self.expires_at >> 32) as u32,
            increment: self.expires_at as u32,
        };
        rawdoc! { "_id": self.id, "purpose": PURPOSE, "key": key, "expiresAt": expires_at }
    }

    pub fn sign(&self, time: u64) -> Hash {
        self.mac(time).finalize().into_bytes().into()
    }

    fn mac(&self, time: u64) -> Hmac<Sha1> {
        // Invariant: HMAC takes keys of any length.
        let mut mac = Hmac::<Sha1>::new_from_slice(&self.secret).expect("a key of any length");
        mac.update(&ceiling(time).to_le_bytes());
        mac
    }

    fn proves(&self, time: u64, hash: &Hash) -> bool {
        self.sign(time).ct_eq(hash).into()
    }
}

/// Keys do not belong into a log.
impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SigningKey({})", self.id)
    }
}

/// Why a time is not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("no key of that id signs times as late as that")]
    UnknownKey,
    #[error("Proof does not match the cluster time")]
    Mismatch,
}

/// A key that is to be made; its secret is drawn by who makes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing {
    pub id: i64,
    pub expires_at: u64,
}

/// The keys that a process knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SigningKeys {
    /// Those that expire first come first.
    keys: Vec<SigningKey>,
}

impl SigningKeys {
    pub fn new(mut keys: Vec<SigningKey>) -> SigningKeys {
        keys.sort_by_key(|key| (key.expires_at, key.id));
        // The latest ones: times go on.
        keys.drain(..keys.len().saturating_sub(KEYS_MAX));
        SigningKeys { keys }
    }

    fn valid_at(&self, time: u64) -> &[SigningKey] {
        let expired = self.keys.partition_point(|key| key.expires_at <= time);
        &self.keys[expired..]
    }

    /// The key that signs this time.
    pub fn for_signing(&self, time: u64) -> Option<&SigningKey> {
        self.valid_at(time).first()
    }

    /// # Errors
    /// The signature is by a key that is not known, or by nobody who has that key.
    pub fn verify(&self, time: u64, signature: &Signature) -> Result<(), Refusal> {
        let mut refusal = Refusal::UnknownKey;
        // Two of an id are never made, and nothing forbids them.
        for key in self.valid_at(time) {
            if key.id == signature.key_id {
                if key.proves(time, &signature.hash) {
                    return Ok(());
                }
                refusal = Refusal::Mismatch;
            }
        }
        Err(refusal)
    }

    /// The keys that have to be made so that there is one now and one for when that expires; each
    /// signs for `interval_seconds`.
    pub fn missing(&self, now: u64, interval_seconds: u32) -> Vec<Missing> {
        let after = |time: u64| {
            let seconds = (time >> 32) + u64::from(interval_seconds);
            seconds.min(u64::from(u32::MAX)) << 32
        };
        let mut missing = Vec::new();
        let valid = self.valid_at(now);
        // Ids are times, so later keys have greater ones, also where an earlier primary's clock
        // was ahead.
        let greatest = self.keys.iter().map(|key| key.id).max().unwrap_or(0);
        let mut id = i64::try_from(now).unwrap_or(i64::MAX).max(greatest);
        let mut add = |expires_at: u64| {
            id = id.saturating_add(1);
            missing.push(Missing { id, expires_at });
            expires_at
        };
        let present = match valid.first() {
            Some(key) => key.expires_at,
            None => add(after(now)),
        };
        if valid.len() < 2 {
            add(after(present));
        }
        missing
    }

    /// When keys are to be read again, in seconds from now: as soon as there is no key for the time
    /// after the present one, so that there always is one before it is needed.
    pub fn seconds_left(&self, now: u64) -> Option<u64> {
        match self.valid_at(now) {
            [present, _, ..] => Some((present.expires_at - now) >> 32),
            _ => None,
        }
    }
}

fn bits(time: Timestamp) -> u64 {
    u64::from(time.time) << 32 | u64::from(time.increment)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u32 = 3_600;
    const NOW: u64 = 1_800_000_000 << 32 | 7;

    fn key(id: i64, seconds: u64) -> SigningKey {
        SigningKey {
            id,
            secret: [id as u8; HASH_BYTES],
            expires_at: ((NOW >> 32) + seconds) << 32,
        }
    }

    fn signed(key: &SigningKey, time: u64) -> Signature {
        Signature {
            hash: key.sign(time),
            key_id: key.id,
        }
    }

    fn hash(hexadecimal: &str) -> Hash {
        let byte = |at| u8::from_str_radix(&hexadecimal[at..at + 2], 16).expect("two digits");
        std::array::from_fn(|at| byte(2 * at))
    }

    #[test]
    fn signatures_are_mongodbs() {
        // Recorded from a mongod 6.0.
        let key = SigningKey {
            id: 7_711_249_296_158_359_559,
            secret: hash("9276754b277084edfbc83af8ee66653910ea1e63"),
            expires_at: u64::MAX,
        };
        let time = 1_795_416_175 << 32 | 97;
        assert_eq!(
            key.sign(time),
            hash("39423e6104f1423b83f25c66b93000bffb4f5d0a")
        );
        assert_eq!(key.sign(time), key.sign(time | 0xffff), "of one range");
        assert_ne!(key.sign(time), key.sign(ceiling(time) + 1));
    }

    #[test]
    fn what_was_not_signed_with_a_known_key_is_refused() {
        let (first, second) = (key(1, 100), key(2, 200));
        let keys = SigningKeys::new(vec![second.clone(), first.clone()]);
        assert_eq!(keys.for_signing(NOW), Some(&first));
        for key in [&first, &second] {
            assert_eq!(keys.verify(NOW, &signed(key, NOW)), Ok(()));
        }
        let mut forged = signed(&first, NOW);
        forged.hash[19] ^= 1;
        assert_eq!(keys.verify(NOW, &forged), Err(Refusal::Mismatch));
        let other = signed(&first, NOW + 0x10000);
        assert_eq!(keys.verify(NOW, &other), Err(Refusal::Mismatch));
        let mistaken = Signature {
            key_id: 2,
            ..signed(&first, NOW)
        };
        assert_eq!(keys.verify(NOW, &mistaken), Err(Refusal::Mismatch));
        for unknown in [signed(&key(3, 100), NOW), Signature::default()] {
            assert_eq!(keys.verify(NOW, &unknown), Err(Refusal::UnknownKey));
        }
        // A key says nothing of times after its own.
        let late = first.expires_at;
        assert_eq!(keys.for_signing(late), Some(&second));
        let signature = signed(&first, late);
        assert_eq!(keys.verify(late, &signature), Err(Refusal::UnknownKey));
        assert_eq!(keys.for_signing(second.expires_at), None);
        assert_eq!(SigningKeys::default().for_signing(NOW), None);
    }

    #[test]
    fn there_is_always_a_key_for_later() {
        let made = |missing: &Missing| SigningKey {
            id: missing.id,
            secret: [7; HASH_BYTES],
            expires_at: missing.expires_at,
        };
        let hours = |n: u64| ((NOW >> 32) + n * u64::from(HOUR)) << 32;
        let missing = SigningKeys::default().missing(NOW, HOUR);
        let expiries: Vec<_> = missing.iter().map(|key| key.expires_at).collect();
        assert_eq!(expiries, [hours(1), hours(2)]);
        assert_ne!(missing[0].id, missing[1].id);
        let mut keys: Vec<_> = missing.iter().map(made).collect();
        let known = SigningKeys::new(keys.clone());
        assert_eq!(known.missing(NOW, HOUR), []);
        assert_eq!(known.seconds_left(NOW), Some(u64::from(HOUR) - 1));

        // The first has expired: the second signs, and a third is made.
        let later = hours(1);
        let missing = known.missing(later, HOUR);
        assert_eq!(missing.len(), 1);
        assert_eq!(missing[0].expires_at, hours(3));
        assert_eq!(known.seconds_left(later), None);
        keys.push(made(&missing[0]));
        let known = SigningKeys::new(keys);
        assert_eq!(
            known.for_signing(later).map(|key| key.expires_at),
            Some(hours(2))
        );
        let ids: Vec<_> = known.keys.iter().map(|key| key.id).collect();
        assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");

        // Nobody has made any for long.
        assert_eq!(known.missing(hours(9), HOUR).len(), 2);
    }

    #[test]
    fn keys_are_read_as_they_are_written() {
        let written = key(5, 10);
        let document = written.document();
        assert_eq!(SigningKey::parse(&document), Ok(written));
        assert_eq!(document.get_str("purpose").ok(), Some("HMAC"));
        let short = Binary {
            subtype: BinarySubtype::Generic,
            bytes: vec![1; 19],
        };
        let time = Timestamp {
            time: 1,
            increment: 0,
        };
        for wrong in [
            rawdoc! { "_id": 1_i64, "key": short.clone(), "expiresAt": time },
            rawdoc! { "_id": "x", "key": short, "expiresAt": time },
            rawdoc! { "_id": 1_i64, "expiresAt": time },
            rawdoc! {},
        ] {
            assert!(SigningKey::parse(&wrong).is_err(), "{wrong:?}");
        }
    }
}
