//! Messages between members that somebody else made up, sent to a set without keys.

use anyhow::{Result, ensure};
use banyan_tests::{Process, ReplicaSet, eventually};
use bson::spec::BinarySubtype;
use bson::{Binary, Document, doc};

use crate::operating::admin;

const APPEND: u64 = 3;
const HEARTBEAT: u64 = 8;

/// What a member tells whoever asks.
struct Known {
    peer: u64,
    term: u64,
    last_index: u64,
    last_term: u64,
}

async fn known(member: &Process) -> Result<Known> {
    let beat = admin(member, doc! { "replSetHeartbeat": "" }).await?;
    let number = |name: &str| beat.get_i64(name).map(|number| number as u64);
    Ok(Known {
        peer: number("peer")?,
        term: number("term")?,
        last_index: number("lastIndex")?,
        last_term: number("lastTerm")?,
    })
}

/// Protocol Buffers' encoding, of numbers and bytes.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(mut self, field: u64, value: u64) -> Message {
        self.varint(field << 3);
        self.varint(value);
        self
    }

    fn bytes(mut self, field: u64, bytes: &[u8]) -> Message {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    /// Sends it as `crates/consensus/src/message.rs` frames it, without a sender's address.
    async fn send(&self, to: &Process, peer: u64) -> Result<()> {
        let frame = [&[1, 0, 0], &self.0[..]].concat();
        let message = Binary {
            subtype: BinarySubtype::Generic,
            bytes: frame,
        };
        let command = doc! { "_raftMessages": 1, "to": peer as i64, "messages": [message] };
        admin(to, command).await?;
        Ok(())
    }
}

fn message(kind: u64, from: u64, to: u64, term: u64) -> Message {
    let message = Message::default().number(1, kind);
    message.number(2, to).number(3, from).number(4, term)
}

async fn insert_everywhere(set: &ReplicaSet, id: &str) -> Result<()> {
    let insert = doc! { "insert": "c", "documents": [{ "_id": id }],
    "writeConcern": { "w": set.members.len() as i32, "wtimeout": 20_000 } };
    eventually("a write on every member", || async {
        let primary = &set.members[set.primary().await];
        let test = primary.direct().await.database("test");
        let reply: Document = test.run_command(insert.clone()).await?;
        ensure!(!reply.contains_key("writeConcernError"), "{reply}");
        Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn a_forged_entry_ends_no_member() -> Result<()> {
    let mut set = ReplicaSet::start("forgedentry", 3, &[]).await;
    insert_everywhere(&set, "before").await?;
    let primary = set.primary().await;
    let victim = (primary + 1) % 3;
    let leader = known(&set.members[primary]).await?;
    const CHANGE_OF_MEMBER: u64 = 1;
    for (kind, data) in [(0, &b"garbage"[..]), (CHANGE_OF_MEMBER, &[0xff; 8])] {
        let target = &set.members[victim];
        let here = known(target).await?;
        let entry = Message::default()
            .number(1, kind)
            .number(2, leader.term)
            .number(3, here.last_index + 1)
            .bytes(4, data);
        // Committed already, as it says.
        let append = message(APPEND, leader.peer, here.peer, leader.term)
            .number(5, here.last_term)
            .number(6, here.last_index)
            .bytes(7, &entry.0)
            .number(8, here.last_index + 1);
        append.send(target, here.peer).await?;
    }
    let refused = "entries that cannot be applied were refused";
    eventually("the member has seen it", || async {
        ensure!(set.members[victim].log().contains(refused));
        Ok(())
    })
    .await;
    insert_everywhere(&set, "after").await?;
    set.members[victim].stop().await;
    set.members[victim].start().await;
    insert_everywhere(&set, "restarted").await
}

#[tokio::test]
async fn a_forged_term_takes_no_set_its_primary() -> Result<()> {
    let mut set = ReplicaSet::start("forgedterm", 3, &[]).await;
    insert_everywhere(&set, "before").await?;
    let mut members = Vec::new();
    for member in &set.members {
        members.push(known(member).await?);
    }
    let term = members.iter().map(|member| member.term).max();
    // The highest that a message can carry, one of a later forced change, the last of this epoch.
    for forged in [(1 << 60) - 1, (1 << 33) + 1, (1 << 32) - 1] {
        for (at, member) in members.iter().enumerate() {
            let from = members[(at + 1) % 3].peer;
            for kind in [HEARTBEAT, APPEND] {
                let message = message(kind, from, member.peer, forged);
                message.send(&set.members[at], member.peer).await?;
            }
        }
    }
    insert_everywhere(&set, "after").await?;
    for member in &mut set.members {
        member.stop().await;
        member.start().await;
    }
    insert_everywhere(&set, "restarted").await?;
    for member in &set.members {
        let now = known(member).await?.term;
        ensure!(now < term.unwrap_or(0) + 100, "{now} after {term:?}");
    }
    Ok(())
}
