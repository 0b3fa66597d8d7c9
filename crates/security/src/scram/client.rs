//! The client's side of a conversation, for members that prove themselves to each other.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use subtle::ConstantTimeEq;

use super::{Credential, Mechanism, ScramError};

/// A server that asks for fewer iterations may be after the password.
const ITERATIONS_MIN: u32 = 4_096;
/// More would be an attack on this process's time.
const ITERATIONS_MAX: u32 = 10_000_000;

/// What a server asks to be answered with, `r=nonce,s=salt,i=iterations`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Challenge {
    pub salt: Vec<u8>,
    pub iterations: u32,
    nonce: String,
    text: String,
}

/// A conversation whose `client-first-message` has been sent.
#[derive(Debug, Clone)]
pub struct Client {
    nonce: String,
    bare: String,
}

/// What the server has to prove in turn.
#[derive(Debug, Clone)]
pub struct Expected(String);

impl Client {
    /// `nonce` is printable ASCII without a comma, from a source that cannot be foretold; `user`
    /// has neither a comma nor an equals sign.
    pub fn new(user: &str, nonce: &str) -> Client {
        Client {
            nonce: nonce.to_owned(),
            bare: format!("n={user},r={nonce}"),
        }
    }

    pub fn first(&self) -> String {
        format!("n,,{}", self.bare)
    }

    /// # Errors
    /// A message of another form, a nonce that does not continue ours, or an iteration count
    /// beyond reason.
    pub fn read(&self, server_first: &[u8]) -> Result<Challenge, ScramError> {
        let malformed = ScramError::Malformed("server-first-message");
        let text = std::str::from_utf8(server_first).map_err(|_| malformed.clone())?;
        let mut attributes = text.split(',');
        let mut next = |prefix: &str| {
            let attribute = attributes.next().and_then(|part| part.strip_prefix(prefix));
            attribute.ok_or(malformed.clone())
        };
        let (nonce, salt, iterations) = (next("r=")?, next("s=")?, next("i=")?);
        if !nonce.starts_with(&self.nonce) || nonce.len() == self.nonce.len() {
            return Err(ScramError::Nonce);
        }
        let iterations: u32 = iterations.parse().map_err(|_| malformed.clone())?;
        if !(ITERATIONS_MIN..=ITERATIONS_MAX).contains(&iterations) {
            return Err(ScramError::Malformed("iteration count"));
        }
        Ok(Challenge {
            salt: BASE64_STANDARD
                .decode(salt)
                .map_err(|_| malformed.clone())?,
            iterations,
            nonce: nonce.to_owned(),
            text: text.to_owned(),
        })
    }
}

/// What a client derives from a password, a salt and an iteration count; worth keeping, since
/// deriving it takes long.
#[derive(Clone)]
pub struct ClientKeys {
    mechanism: Mechanism,
    client_key: Vec<u8>,
    /// The server's side of the same.
    credential: Credential,
}

impl ClientKeys {
    /// Derives the keys of a password, which is taken as it is: those of key files need no
    /// preparation.
    pub fn derive(mechanism: Mechanism, password: &str, salt: Vec<u8>, iterations: u32) -> Self {
        let password = password.as_bytes();
        let salted = mechanism.salted_password(password, &salt, iterations);
        ClientKeys {
            mechanism,
            client_key: mechanism.hmac(&salted, b"Client Key"),
            credential: Credential::of_salted(mechanism, &salted, salt, iterations),
        }
    }

    /// What a server keeps to check proofs made with these keys.
    pub fn credential(&self) -> &Credential {
        &self.credential
    }

    pub fn fit(&self, challenge: &Challenge) -> bool {
        self.credential.salt() == challenge.salt
            && self.credential.iterations() == challenge.iterations
    }

    /// `client-final-message`, and what has to come back.
    pub fn answer(&self, client: &Client, challenge: &Challenge) -> (String, Expected) {
        let without_proof = format!("c={},r={}", BASE64_STANDARD.encode("n,,"), challenge.nonce);
        let message = format!("{},{},{without_proof}", client.bare, challenge.text);
        let sign = |key: &[u8]| self.mechanism.hmac(key, message.as_bytes());
        let signature = sign(self.credential.stored_key());
        let proof = self.client_key.iter().zip(&signature);
        let proof: Vec<u8> = proof.map(|(a, b)| a ^ b).collect();
        let last = format!("{without_proof},p={}", BASE64_STANDARD.encode(proof));
        let server = BASE64_STANDARD.encode(sign(self.credential.server_key()));
        (last, Expected(format!("v={server}")))
    }
}

impl Expected {
    /// Whether the server has proved that it knows the keys, too.
    pub fn is(&self, server_final: &[u8]) -> bool {
        bool::from(self.0.as_bytes().ct_eq(server_final))
    }
}

#[cfg(test)]
mod tests {
    use super::super::ClientFirst;
    use super::*;

    fn keys(password: &str) -> ClientKeys {
        ClientKeys::derive(Mechanism::Sha256, password, vec![3; 28], ITERATIONS_MIN)
    }

    #[test]
    fn both_sides_agree_on_any_of_the_servers_keys_and_on_no_other() {
        let (old, new) = (keys("oldold"), keys("newnew"));
        let converse = |mine: &ClientKeys| {
            let client = Client::new("__system", "abc");
            let first = ClientFirst::parse(client.first().as_bytes()).expect("a message");
            let accepted = [new.credential().clone(), old.credential().clone()];
            let exchange = first.answer_any(&accepted, "def").expect("a credential");
            let challenge = client
                .read(exchange.server_first().as_bytes())
                .expect("a challenge");
            assert!(mine.fit(&challenge));
            let (last, expected) = mine.answer(&client, &challenge);
            let verified = exchange.finish(last.as_bytes())?;
            Ok::<_, ScramError>(expected.is(verified.server_final().as_bytes()))
        };
        assert_eq!(converse(&old), Ok(true));
        assert_eq!(converse(&new), Ok(true));
        assert_eq!(converse(&keys("other!")), Err(ScramError::Proof));
    }

    #[test]
    fn a_server_that_cheats_is_found_out() {
        let client = Client::new("__system", "abc");
        for wrong in [
            "r=abcdef,s=AAAA,i=1",
            "r=abcdef,s=AAAA,i=4000000000",
            "r=abc,s=AAAA,i=5000",
            "r=xyz,s=AAAA,i=5000",
            "r=abcdef,s=!,i=5000",
            "r=abcdef,i=5000,s=AAAA",
            "",
        ] {
            client.read(wrong.as_bytes()).expect_err(wrong);
        }
        let challenge = client.read(b"r=abcdef,s=AAAA,i=5000").expect("a challenge");
        let (_, expected) = keys("newnew").answer(&client, &challenge);
        assert!(!expected.is(b"v=AAAA") && !expected.is(b""));
    }
}
