//! SCRAM (RFC 5802, RFC 7677): what is kept of a password, and the conversation in which a client
//! proves that it knows it.
//!
//! * [`credential`]: salt, iteration count and keys, made from a password.
//! * [`conversation`]: the messages, from `client-first` to `server-final`, as a server takes them.
//! * [`client`]: the other side, for members that prove themselves to each other.

pub mod client;
mod conversation;
mod credential;

pub use conversation::{ClientFirst, Exchange, ScramError, Verifier};
pub use credential::{Credential, Credentials, PasswordError};

use hmac::{Hmac, Mac};
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// The hash that a conversation uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mechanism {
    Sha1,
    Sha256,
}

impl Mechanism {
    pub const ALL: &[Mechanism] = &[Mechanism::Sha1, Mechanism::Sha256];

    pub const fn name(self) -> &'static str {
        match self {
            Mechanism::Sha1 => "SCRAM-SHA-1",
            Mechanism::Sha256 => "SCRAM-SHA-256",
        }
    }

    pub fn from_name(name: &str) -> Option<Mechanism> {
        Mechanism::ALL
            .iter()
            .copied()
            .find(|own| own.name() == name)
    }

    /// MongoDB's salts have the hash's length less the four bytes of the block number.
    pub const fn salt_bytes(self) -> usize {
        match self {
            Mechanism::Sha1 => 16,
            Mechanism::Sha256 => 28,
        }
    }

    /// Iterations that MongoDB takes by default.
    pub const fn iterations_default(self) -> u32 {
        match self {
            Mechanism::Sha1 => 10_000,
            Mechanism::Sha256 => 15_000,
        }
    }

    const fn hash_bytes(self) -> usize {
        match self {
            Mechanism::Sha1 => 20,
            Mechanism::Sha256 => 32,
        }
    }

    fn hash(self, data: &[u8]) -> Vec<u8> {
        match self {
            Mechanism::Sha1 => Sha1::digest(data).to_vec(),
            Mechanism::Sha256 => Sha256::digest(data).to_vec(),
        }
    }

    fn hmac(self, key: &[u8], data: &[u8]) -> Vec<u8> {
        fn code<M: Mac + hmac::digest::KeyInit>(key: &[u8], data: &[u8]) -> Vec<u8> {
            // HMAC takes keys of every length.
            let mut mac = <M as Mac>::new_from_slice(key).expect("a key of any length");
            mac.update(data);
            mac.finalize().into_bytes().to_vec()
        }
        match self {
            Mechanism::Sha1 => code::<Hmac<Sha1>>(key, data),
            Mechanism::Sha256 => code::<Hmac<Sha256>>(key, data),
        }
    }

    /// `Hi` of RFC 5802, which is PBKDF2 with one block.
    fn salted_password(self, password: &[u8], salt: &[u8], iterations: u32) -> Vec<u8> {
        let mut out = vec![0; self.hash_bytes()];
        match self {
            Mechanism::Sha1 => {
                pbkdf2::pbkdf2_hmac::<Sha1>(password, salt, iterations, &mut out);
            }
            Mechanism::Sha256 => {
                pbkdf2::pbkdf2_hmac::<Sha256>(password, salt, iterations, &mut out);
            }
        }
        out
    }
}
