//! Bytes that no honest client sends: decoding them may fail, and may not panic.

#![allow(clippy::unwrap_used)] // A test that can't go on has failed.

use banyan_wire::message;
use banyan_wire::{Compressor, Outgoing};
use bson::rawdoc;
use proptest::prelude::*;

/// Whole messages of every kind, to be bent.
fn samples() -> Vec<Vec<u8>> {
    let body = rawdoc! {
        "insert": "posts",
        "documents": [{"_id": 1, "tags": ["a", "b"], "code": bson::RawBson::JavaScriptCode("f".into())}],
    };
    let document = rawdoc! {"_id": bson::oid::ObjectId::new(), "d": 1.5, "s": "text", "n": null};
    let msg = Outgoing::command("test", &body).sequence(
        "documents",
        [document.as_bytes(), document.as_bytes()].into_iter(),
    );
    let mut all = vec![msg.bytes().to_vec()];
    let zero = 0i32.to_le_bytes();
    let payloads: [(i32, Vec<&[u8]>); 6] = [
        (
            message::OP_QUERY,
            vec![&zero, b"a.$cmd\0", &zero, &zero, body.as_bytes()],
        ),
        (
            message::OP_QUERY,
            vec![&zero, b"a.b\0", &zero, &zero, document.as_bytes()],
        ),
        (
            message::OP_INSERT,
            vec![&zero, b"a.b\0", document.as_bytes(), document.as_bytes()],
        ),
        (
            message::OP_UPDATE,
            vec![&zero, b"a.b\0", &zero, body.as_bytes(), body.as_bytes()],
        ),
        (
            message::OP_DELETE,
            vec![&zero, b"a.b\0", &zero, document.as_bytes()],
        ),
        (
            message::OP_KILL_CURSORS,
            vec![&zero, &[2, 0, 0, 0], &[0; 16]],
        ),
    ];
    for (opcode, parts) in payloads {
        all.push(framed(opcode, &parts.concat()));
    }
    for compressor in Compressor::ALL {
        let payload = &msg.bytes()[16..];
        let mut packed = message::OP_MSG.to_le_bytes().to_vec();
        packed.extend((payload.len() as i32).to_le_bytes());
        packed.push(compressor as u8);
        compressor.compress(payload, &mut packed).unwrap();
        all.push(framed(message::OP_COMPRESSED, &packed));
    }
    all
}

fn framed(opcode: i32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for n in [16 + payload.len() as i32, 1, 0, opcode] {
        out.extend(n.to_le_bytes());
    }
    out.extend(payload);
    out
}

/// Decodes, and walks through whatever was accepted.
fn digest(bytes: Vec<u8>) {
    let Ok(incoming) = message::decode(bytes.into()) else {
        return;
    };
    let request = incoming.request;
    let _ = request.batch("documents");
    for element in request.body.iter().flatten() {
        let _ = format!("{element:?}");
    }
    for sequence in &request.sequences {
        assert_eq!(sequence.docs().count(), sequence.len());
    }
}

#[test]
fn the_samples_themselves_are_accepted() {
    for sample in samples() {
        message::decode(sample.into()).unwrap();
    }
}

#[test]
fn every_truncation_is_survived() {
    for sample in samples() {
        for length in 0..sample.len() {
            digest(sample[..length].to_vec());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn bent_messages_are_survived(
        which in 0usize..10,
        bends in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut sample = samples().swap_remove(which);
        for (at, byte) in bends {
            let at = at.index(sample.len());
            sample[at] = byte;
        }
        digest(sample);
    }

    #[test]
    fn noise_is_survived(noise in prop::collection::vec(any::<u8>(), 0..200), opcode in 2000i32..2014) {
        digest(framed(opcode, &noise));
    }
}
