//! The messages of a conversation. Each step takes what the client sent and consumes the state
//! before it, so that no step can be left out or taken twice.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use subtle::ConstantTimeEq;

use super::Credential;

/// A client's nonce beyond this length is refused.
const NONCE_BYTES_MAX: usize = 1024;

/// Why a conversation ends without success. A client is told only that authentication failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScramError {
    #[error("malformed SCRAM message: {0}")]
    Malformed(&'static str),
    #[error("channel binding is not supported")]
    ChannelBinding,
    #[error("the client's nonce does not continue the conversation")]
    Nonce,
    #[error("the client's proof does not fit")]
    Proof,
}

/// `client-first-message`, read: `n,,n=user,r=nonce`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFirst {
    user: String,
    nonce: String,
    /// `client-first-message-bare`, which the proof covers.
    bare: String,
    /// The GS2 header as sent, which `client-final-message` repeats.
    header: &'static str,
}

impl ClientFirst {
    /// # Errors
    /// A message that is not of that form, or asks for channel binding or another identity.
    pub fn parse(payload: &[u8]) -> Result<ClientFirst, ScramError> {
        let text = utf8(payload)?;
        let (header, bare) = if let Some(bare) = text.strip_prefix("n,,") {
            ("n,,", bare)
        } else if let Some(bare) = text.strip_prefix("y,,") {
            ("y,,", bare)
        } else if text.starts_with("p=") {
            return Err(ScramError::ChannelBinding);
        } else {
            return Err(ScramError::Malformed("GS2 header"));
        };
        let mut attributes = bare.split(',');
        let user = attribute(attributes.next(), "n=").ok_or(ScramError::Malformed("user"))?;
        let nonce = attribute(attributes.next(), "r=").ok_or(ScramError::Malformed("nonce"))?;
        let printable = nonce.bytes().all(|byte| byte.is_ascii_graphic());
        if nonce.is_empty() || nonce.len() > NONCE_BYTES_MAX || !printable {
            return Err(ScramError::Malformed("nonce"));
        }
        Ok(ClientFirst {
            user: unescape(user)?,
            nonce: nonce.to_owned(),
            bare: bare.to_owned(),
            header,
        })
    }

    pub fn user(&self) -> &str {
        &self.user
    }

    /// Answers with the credential's salt. `random` continues the client's nonce: printable ASCII
    /// without a comma, from a source that cannot be foretold.
    pub fn answer(self, credential: &Credential, random: &str) -> Exchange {
        self.exchange(credential, &[], random)
    }

    /// As [`ClientFirst::answer`], where the proof of any of several passwords will do: they
    /// share salt and iteration count. `None` if there are none.
    pub fn answer_any(self, credentials: &[Credential], random: &str) -> Option<Exchange> {
        let (first, others) = credentials.split_first()?;
        Some(self.exchange(first, others, random))
    }

    fn exchange(self, credential: &Credential, others: &[Credential], random: &str) -> Exchange {
        let nonce = format!("{}{random}", self.nonce);
        let server_first = format!(
            "r={nonce},s={},i={}",
            BASE64_STANDARD.encode(credential.salt()),
            credential.iterations()
        );
        Exchange {
            credential: credential.clone(),
            others: others.to_vec(),
            client_first: self,
            server_first,
            nonce,
        }
    }
}

/// A conversation whose `server-first-message` has been sent.
#[derive(Debug, Clone)]
pub struct Exchange {
    credential: Credential,
    /// Of the same salt and iteration count; a proof of one of them is as good.
    others: Vec<Credential>,
    client_first: ClientFirst,
    server_first: String,
    nonce: String,
}

/// A conversation whose proof was right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verifier {
    user: String,
    server_final: String,
}

impl Exchange {
    pub fn server_first(&self) -> &str {
        &self.server_first
    }

    /// Checks `client-final-message`: `c=header,r=nonce,p=proof`.
    ///
    /// # Errors
    /// A message that is not of that form, another nonce, or a wrong proof; the comparison takes
    /// the same time wherever the proofs differ.
    pub fn finish(self, payload: &[u8]) -> Result<Verifier, ScramError> {
        let text = utf8(payload)?;
        let (without_proof, proof) = text
            .rsplit_once(",p=")
            .ok_or(ScramError::Malformed("proof"))?;
        let mut attributes = without_proof.split(',');
        let header = attribute(attributes.next(), "c=").ok_or(ScramError::Malformed("header"))?;
        let nonce = attribute(attributes.next(), "r=").ok_or(ScramError::Malformed("nonce"))?;
        if BASE64_STANDARD.encode(self.client_first.header) != header {
            return Err(ScramError::ChannelBinding);
        }
        if nonce != self.nonce {
            return Err(ScramError::Nonce);
        }
        let proof = BASE64_STANDARD
            .decode(proof)
            .map_err(|_| ScramError::Malformed("proof"))?;

        let mechanism = self.credential.mechanism();
        let message = format!(
            "{},{},{without_proof}",
            self.client_first.bare, self.server_first
        );
        let proves = |credential: &Credential| {
            let signature = mechanism.hmac(credential.stored_key(), message.as_bytes());
            if proof.len() != signature.len() {
                return Err(ScramError::Malformed("proof"));
            }
            let client_key: Vec<u8> = proof.iter().zip(&signature).map(|(a, b)| a ^ b).collect();
            let stored_key = mechanism.hash(&client_key);
            Ok(bool::from(stored_key.ct_eq(credential.stored_key())))
        };
        let mut proven = None;
        for credential in std::iter::once(&self.credential).chain(&self.others) {
            if proves(credential)? && proven.is_none() {
                proven = Some(credential);
            }
        }
        let credential = proven.ok_or(ScramError::Proof)?;
        let server = mechanism.hmac(credential.server_key(), message.as_bytes());
        Ok(Verifier {
            user: self.client_first.user,
            server_final: format!("v={}", BASE64_STANDARD.encode(server)),
        })
    }
}

impl Verifier {
    /// Who has authenticated.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The server's own proof that it knows the keys.
    pub fn server_final(&self) -> &str {
        &self.server_final
    }
}

fn utf8(payload: &[u8]) -> Result<&str, ScramError> {
    std::str::from_utf8(payload).map_err(|_| ScramError::Malformed("UTF-8"))
}

fn attribute<'a>(part: Option<&'a str>, prefix: &str) -> Option<&'a str> {
    part?.strip_prefix(prefix)
}

/// `=2C` is a comma and `=3D` an equals sign; nothing else may follow an equals sign.
fn unescape(user: &str) -> Result<String, ScramError> {
    let mut parts = user.split('=');
    let mut unescaped = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        if let Some(rest) = part.strip_prefix("2C") {
            unescaped.push(',');
            unescaped.push_str(rest);
        } else if let Some(rest) = part.strip_prefix("3D") {
            unescaped.push('=');
            unescaped.push_str(rest);
        } else {
            return Err(ScramError::Malformed("user"));
        }
    }
    if unescaped.is_empty() {
        return Err(ScramError::Malformed("user"));
    }
    Ok(unescaped)
}

#[cfg(test)]
mod tests {
    use super::super::Mechanism;
    use super::*;

    fn salt(text: &str) -> Vec<u8> {
        BASE64_STANDARD.decode(text).expect("base64")
    }

    /// The example of RFC 7677, section 3.
    fn example() -> Exchange {
        let credential = Credential::new(
            Mechanism::Sha256,
            "user",
            "pencil",
            salt("W22ZaJ0SNY7soEsUEjb6gQ=="),
            4096,
        );
        let first = ClientFirst::parse(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO").expect("a message");
        assert_eq!(first.user(), "user");
        first.answer(
            &credential.expect("a password"),
            "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
        )
    }

    const FINAL: &str = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                         p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";

    #[test]
    fn the_example_of_the_rfc_is_played() {
        let exchange = example();
        assert_eq!(
            exchange.server_first(),
            "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
             s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
        );
        let verifier = exchange.finish(FINAL.as_bytes()).expect("the proof fits");
        assert_eq!(verifier.user(), "user");
        assert_eq!(
            verifier.server_final(),
            "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
        );
    }

    #[test]
    fn what_differs_from_it_is_refused() {
        let refuse = |message: String| example().finish(message.as_bytes()).expect_err("refused");
        assert_eq!(refuse(FINAL.replace("dHzb", "dHzc")), ScramError::Proof);
        assert_eq!(refuse(FINAL.replace("k0,p", "k1,p")), ScramError::Nonce);
        assert_eq!(
            refuse(FINAL.replace("biws", "eSws")),
            ScramError::ChannelBinding
        );
        for broken in [
            "",
            "c=biws",
            "p=",
            "c=biws,r=,p=AAAA",
            ",p=\u{e4}",
            "c=,p=a,p=b",
        ] {
            refuse(broken.to_owned());
        }
        assert!(matches!(
            refuse(FINAL.replace("VQ=", "")),
            ScramError::Malformed("proof")
        ));
    }

    #[test]
    fn first_messages_are_read_strictly() {
        let user = |message: &str| ClientFirst::parse(message.as_bytes()).map(|first| first.user);
        assert_eq!(user("n,,n=a=2Cb=3Dc,r=x"), Ok("a,b=c".to_owned()));
        assert_eq!(user("y,,n=a,r=x,e=1"), Ok("a".to_owned()));
        for broken in [
            "",
            "n",
            "n,",
            "n,,",
            "n,,n=a",
            "n,,r=x,n=a",
            "n,,n=,r=x",
            "n,,n=a=,r=x",
            "n,,n=a=2c,r=x",
            "n,,n=a,r=",
            "n,,n=a,r=\u{e4}",
            "n,a=b,n=a,r=x",
            "m,,n=a,r=x",
            "p=tls-unique,,n=a,r=x",
        ] {
            user(broken).expect_err(broken);
        }
        let long = format!("n,,n=a,r={}", "x".repeat(NONCE_BYTES_MAX + 1));
        user(&long).expect_err("a nonce without end");
    }

    #[test]
    fn an_unknown_user_is_answered_like_a_known_one_and_fails() {
        let made_up = |user: &str| Credential::made_up(Mechanism::Sha256, user, b"secret", 15_000);
        assert_eq!(made_up("a"), made_up("a"));
        assert_ne!(made_up("a").salt(), made_up("b").salt());
        assert_eq!(made_up("a").salt().len(), Mechanism::Sha256.salt_bytes());
        let first = ClientFirst::parse(b"n,,n=a,r=x").expect("a message");
        let exchange = first.answer(&made_up("a"), "y");
        let proof = BASE64_STANDARD.encode([0; 32]);
        let answer = exchange.finish(format!("c=biws,r=xy,p={proof}").as_bytes());
        assert_eq!(answer, Err(ScramError::Proof));
    }
}
