//! How far time has come, as processes and clients tell each other.
//!
//! Every process appends the time to its replies, and clients hand it on. Where access is controlled
//! it is signed, and one that is not, or wrongly, is refused: else a client could push the clock of
//! all to the end of its range, after which nothing could be written any more. Who has the action
//! `advanceClusterTime`, as members have, is believed and told a time without proof.

use banyan_document::field;
use banyan_security::cluster_time::{Refusal, Signature};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocumentBuf, Timestamp};

use crate::cluster_time::{FIELD, SignedTime, bits};
use crate::control::AccessControl;
use crate::identity::Identity;

/// What a client is told at the end of a reply; `None`: nothing, as there is no key to sign it with.
pub fn for_client(
    access: &AccessControl,
    identity: &Identity,
    time: Timestamp,
) -> Option<SignedTime> {
    let signature = match is_believed(access, identity) {
        true => Signature::default(),
        false => access.times.sign(time)?,
    };
    Some(SignedTime { time, signature })
}

/// Whether the client may say what it likes of the time, and needs no proof of what it is told.
fn is_believed(access: &AccessControl, identity: &Identity) -> bool {
    !access.is_enforced() || identity.may_advance_clock()
}

/// Whether what a client tells is to be taken note of. `latest` is how far time has come here:
/// what is not later pushes nothing. `refresh` brings keys that this process does not know yet.
///
/// # Errors
/// The signature is not by a key of the cluster.
pub async fn judge(
    access: &AccessControl,
    identity: &Identity,
    told: &SignedTime,
    latest: Timestamp,
    refresh: impl Future<Output = ()>,
) -> Result<bool, CommandError> {
    if is_believed(access, identity) {
        return Ok(true);
    }
    // Before it has logged in a client may repeat what it heard elsewhere, which counts for nothing.
    let is_stranger = !identity.is_authenticated() && told.signature.is_dummy();
    if is_stranger {
        return Ok(false);
    }
    let (time, id) = (told.time, told.signature.key_id);
    let shown = || format!("{{ ts: Timestamp({}, {}) }}", time.time, time.increment);
    if access.times.is_cluster_missing() {
        return Err(CommandError::new(
            ErrorCode::CannotVerifyAndSignLogicalTime,
            format!(
                "Cannot accept logicalTime: {}. May not be a part of a sharded cluster",
                shown()
            ),
        ));
    }
    if told.bits() <= bits(latest) {
        return Ok(false);
    }
    let mut verified = access.times.verify(told);
    if verified == Err(Refusal::UnknownKey) {
        refresh.await;
        verified = access.times.verify(told);
    }
    verified.map(|()| true).map_err(|refusal| match refusal {
        Refusal::Mismatch => CommandError::new(ErrorCode::TimeProofMismatch, refusal.to_string()),
        Refusal::UnknownKey => CommandError::new(
            ErrorCode::KeyNotFound,
            format!(
                "No keys found for HMAC that is valid for time: {} with id: {id}",
                shown()
            ),
        ),
    })
}

/// Puts what this process tells in the place of what another one's reply did. `None` takes it out.
pub fn replace(reply: &mut RawDocumentBuf, told: Option<&SignedTime>) {
    let Some(RawBsonRef::Document(before)) = field(reply, FIELD) else {
        if let Some(told) = told {
            reply.append(bson::cstr!("$clusterTime"), told.document());
        }
        return;
    };
    let document = told.map(SignedTime::document);
    if let Some(document) = &document
        && document.as_bytes().len() == before.as_bytes().len()
    {
        // Both are documents of one length: what holds them stays as it is.
        let start = before.as_bytes().as_ptr() as usize - reply.as_bytes().as_ptr() as usize;
        let mut bytes = std::mem::take(reply).into_bytes();
        if let Some(place) = bytes.get_mut(start..start + document.as_bytes().len()) {
            place.copy_from_slice(document.as_bytes());
        }
        *reply = RawDocumentBuf::from_bytes(bytes).unwrap_or_default();
        return;
    }
    let mut out = banyan_document::DocumentWriter::with_capacity(reply.as_bytes().len() + 128);
    for element in banyan_document::elements(reply) {
        if element.name() != FIELD {
            out.append_element(&element);
        }
    }
    if let Some(document) = &document {
        out.append_doc(FIELD, document);
    }
    *reply = out.finish();
}

#[cfg(test)]
mod tests {
    use banyan_security::RoleName;
    use banyan_security::cluster_time::{HASH_BYTES, SigningKey, SigningKeys};
    use bson::rawdoc;

    use super::*;
    use crate::control::AccessOptions;
    use crate::fixture;

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

    fn access(enforced: bool) -> AccessControl {
        let access = AccessControl::new(AccessOptions {
            authorization: enforced,
            ..AccessOptions::default()
        });
        let keys = vec![key(1, 100), key(2, 200)];
        access.times.install(SigningKeys::new(keys));
        access
    }

    fn user(role: &str) -> Identity {
        fixture::identity(&[RoleName::new(role, "admin")], &[])
    }

    fn signed(key: &SigningKey, time: Timestamp) -> SignedTime {
        let hash = key.sign(bits(time));
        let signature = Signature {
            hash,
            key_id: key.id,
        };
        SignedTime { time, signature }
    }

    async fn judged(
        access: &AccessControl,
        identity: &Identity,
        told: &SignedTime,
    ) -> Result<bool, ErrorCode> {
        let judged = judge(access, identity, told, NOW, async {}).await;
        judged.map_err(|error| error.code)
    }

    #[tokio::test]
    async fn only_what_was_signed_moves_the_clock() {
        let access = access(true);
        let (reader, member) = (user("read"), user("__system"));
        let nobody = Identity::default();
        let told = for_client(&access, &reader, later(5)).expect("a key");
        assert_eq!(told, signed(&key(1, 100), later(5)));
        assert_eq!(judged(&access, &reader, &told).await, Ok(true));
        assert_eq!(judged(&access, &nobody, &told).await, Ok(true));

        let pushed = SignedTime {
            time: later(50),
            ..told
        };
        let mismatch = Err(ErrorCode::TimeProofMismatch);
        assert_eq!(judged(&access, &reader, &pushed).await, mismatch);
        assert_eq!(judged(&access, &nobody, &pushed).await, mismatch);
        let unsigned = SignedTime {
            time: later(50),
            signature: Signature::default(),
        };
        let unknown = Err(ErrorCode::KeyNotFound);
        assert_eq!(judged(&access, &reader, &unsigned).await, unknown);
        // What a stranger cannot prove is not heard, and what is no news pushes nothing.
        assert_eq!(judged(&access, &nobody, &unsigned).await, Ok(false));
        let old = SignedTime {
            time: NOW,
            ..pushed
        };
        assert_eq!(judged(&access, &reader, &old).await, Ok(false));
        // Members need no proof.
        assert_eq!(judged(&access, &member, &unsigned).await, Ok(true));
        let dummy = for_client(&access, &member, later(5)).map(|told| told.signature);
        assert_eq!(dummy, Some(Signature::default()));
    }

    #[tokio::test]
    async fn without_access_control_nothing_is_signed() {
        let access = access(false);
        let told = for_client(&access, &Identity::default(), NOW).expect("always");
        assert_eq!(told.signature, Signature::default());
        let pushed = SignedTime {
            time: later(5),
            ..told
        };
        assert_eq!(
            judged(&access, &Identity::default(), &pushed).await,
            Ok(true)
        );
    }

    #[tokio::test]
    async fn a_shard_without_a_cluster_believes_members_alone() {
        let access = access(true);
        access.times.set_cluster_missing(true);
        let told = signed(&key(1, 100), NOW);
        let refused = Err(ErrorCode::CannotVerifyAndSignLogicalTime);
        assert_eq!(judged(&access, &user("read"), &told).await, refused);
        assert_eq!(judged(&access, &user("__system"), &told).await, Ok(true));
        access.times.set_cluster_missing(false);
        assert_eq!(judged(&access, &user("read"), &told).await, Ok(false));
    }

    #[tokio::test]
    async fn a_key_that_is_not_known_yet_is_asked_for() {
        let access = access(true);
        let third = key(3, 300);
        let told = signed(&third, later(9));
        let reader = user("read");
        assert_eq!(
            judged(&access, &reader, &told).await,
            Err(ErrorCode::KeyNotFound)
        );
        let refresh = async {
            let keys = vec![key(1, 100), third.clone()];
            access.times.install(SigningKeys::new(keys));
        };
        let judged = judge(&access, &reader, &told, NOW, refresh).await;
        assert!(judged.unwrap());
    }

    #[test]
    fn a_shards_word_is_replaced_by_the_routers() {
        let told = signed(&key(1, 100), NOW);
        let dummy = SignedTime {
            signature: Signature::default(),
            ..told
        };
        let expected = rawdoc! { "ok": 1.0, "$clusterTime": told.document(), "n": 1 };
        let mut reply = rawdoc! { "ok": 1.0, "$clusterTime": dummy.document(), "n": 1 };
        replace(&mut reply, Some(&told));
        assert_eq!(reply, expected);
        replace(&mut reply, None);
        assert_eq!(reply, rawdoc! { "ok": 1.0, "n": 1 });
        replace(&mut reply, None);
        replace(&mut reply, Some(&told));
        let appended = rawdoc! { "ok": 1.0, "n": 1, "$clusterTime": told.document() };
        assert_eq!(reply, appended);
        let mut odd = rawdoc! { "$clusterTime": {}, "n": 1 };
        replace(&mut odd, Some(&told));
        assert_eq!(odd, rawdoc! { "n": 1, "$clusterTime": told.document() });
    }
}
