//! What is remembered of a SASL conversation between two messages.

use banyan_security::UserName;
use banyan_security::scram::{Exchange, Mechanism};
use bson::Uuid;
use rand::Rng;

pub struct Conversation {
    pub name: UserName,
    /// Of the user whose salt was sent. `None`: there is none, or it is a member.
    pub user: Option<Uuid>,
    pub mechanism: Mechanism,
    /// The client wants to be told that it is done without another round.
    pub skips_last: bool,
    pub step: Step,
}

pub enum Step {
    Challenged(Box<Exchange>),
    /// The proof was right; an empty message ends it.
    Proved,
}

/// Printable and without a comma, from the process's source of randomness.
pub fn random_nonce() -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut random = rand::rng();
    (0..24)
        .map(|_| char::from(LETTERS[random.random_range(0..LETTERS.len())]))
        .collect()
}
