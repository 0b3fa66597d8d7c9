//! A request to another process, encoded once and sent as often as it takes.

use std::sync::atomic::{AtomicI32, Ordering};

use bson::RawDocument;

use crate::behalf;
use crate::frame::HEADER_BYTES;
use crate::message;

/// An OP_MSG ready to be written.
#[derive(Clone, Debug)]
pub struct Outgoing {
    bytes: Vec<u8>,
}

fn next_id() -> i32 {
    static IDS: AtomicI32 = AtomicI32::new(1);
    IDS.fetch_add(1, Ordering::Relaxed)
}

/// The elements of a document: what is between its length and its terminator.
fn elements(document: &RawDocument) -> &[u8] {
    let bytes = document.as_bytes();
    &bytes[4..bytes.len() - 1]
}

impl Outgoing {
    /// A command for `database`; the body doesn't hold `$db` yet.
    pub fn command(database: &str, body: &RawDocument) -> Outgoing {
        let mut out = Outgoing::begin(body.as_bytes().len() + database.len() + 16);
        out.bytes.extend_from_slice(elements(body));
        out.bytes.extend_from_slice(b"\x02$db\0");
        out.bytes
            .extend_from_slice(&(database.len() as i32 + 1).to_le_bytes());
        out.bytes.extend_from_slice(database.as_bytes());
        out.bytes.push(0);
        out.end_body()
    }

    /// A body that came from a client, `$db` and all, without the fields in `dropped` and with
    /// those of `added`.
    pub fn forward(body: &RawDocument, dropped: &[&str], added: &RawDocument) -> Outgoing {
        let mut out = Outgoing::begin(body.as_bytes().len() + added.as_bytes().len());
        if dropped.is_empty() {
            out.bytes.extend_from_slice(elements(body));
        } else {
            out.extend_without(body, dropped);
        }
        out.bytes.extend_from_slice(elements(added));
        out.end_body()
    }

    fn extend_without(&mut self, body: &RawDocument, dropped: &[&str]) {
        let mut offset = 4;
        for element in body.iter_elements().map_while(Result::ok) {
            let name = element.key().as_str();
            // Type, name, the name's terminator, value.
            let end = offset + 1 + name.len() + 1 + element.size();
            if !dropped.contains(&name) {
                self.bytes.extend_from_slice(&body.as_bytes()[offset..end]);
            }
            offset = end;
        }
    }

    fn begin(room: usize) -> Outgoing {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + 9 + room);
        message::begin(&mut bytes, next_id(), 0, message::OP_MSG);
        bytes.extend_from_slice(&[0; 4]);
        bytes.push(0);
        bytes.extend_from_slice(&[0; 4]);
        Outgoing { bytes }
    }

    fn end_body(mut self) -> Outgoing {
        const BODY_AT: usize = HEADER_BYTES + 5;
        behalf::with_client(|client| self.bytes.extend_from_slice(elements(client)));
        self.bytes.push(0);
        message::finish(&mut self.bytes, BODY_AT);
        message::finish(&mut self.bytes, 0);
        self
    }

    /// Adds a document sequence.
    pub fn sequence<'a>(
        mut self,
        identifier: &str,
        documents: impl Iterator<Item = &'a [u8]>,
    ) -> Outgoing {
        message::encode_sequence(&mut self.bytes, identifier, documents);
        message::finish(&mut self.bytes, 0);
        self
    }

    /// No reply is wanted.
    pub fn one_way(mut self) -> Outgoing {
        self.bytes[HEADER_BYTES] |= message::FLAG_MORE_TO_COME as u8;
        self
    }

    pub fn request_id(&self) -> i32 {
        message::Header::read(&self.bytes).map_or(0, |header| header.request_id)
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;

    fn read(outgoing: &Outgoing) -> crate::Request {
        message::decode(outgoing.bytes().to_vec().into())
            .unwrap()
            .request
    }

    #[test]
    fn a_command_reads_back() {
        let body = rawdoc! {"insert": "posts", "ordered": true};
        let (a, b) = (rawdoc! {"_id": 1}, rawdoc! {"_id": 2});
        let documents = [a.as_bytes(), b.as_bytes()];
        let outgoing =
            Outgoing::command("test", &body).sequence("documents", documents.into_iter());
        let request = read(&outgoing);
        assert_eq!(
            (request.name.as_str(), request.database.as_str()),
            ("insert", "test")
        );
        assert_eq!(request.batch("documents").unwrap(), [&*a, &*b]);
        assert!(!request.more_to_come);
        assert!(read(&outgoing.one_way()).more_to_come);
    }

    #[tokio::test]
    async fn a_request_says_whom_it_is_sent_for() {
        let client = Some(std::sync::Arc::new(rawdoc! {"$audit": {"user": "a"}}));
        let body = rawdoc! {"find": "posts"};
        let sent = behalf::on_behalf_of(client, async { Outgoing::command("test", &body) }).await;
        let want = rawdoc! {"find": "posts", "$db": "test", "$audit": {"user": "a"}};
        assert_eq!(&*read(&sent).body, &*want);
        let sent = Outgoing::command("test", &body);
        assert_eq!(
            &*read(&sent).body,
            &*rawdoc! {"find": "posts", "$db": "test"}
        );
    }

    #[test]
    fn forwarding_drops_and_adds_fields() {
        let body = rawdoc! {"find": "posts", "lsid": {"id": 1}, "limit": 1, "$db": "test"};
        let outgoing = Outgoing::forward(&body, &["lsid"], &rawdoc! {"shardVersion": 7});
        let request = read(&outgoing);
        let want = rawdoc! {"find": "posts", "limit": 1, "$db": "test", "shardVersion": 7};
        assert_eq!(&*request.body, &*want);
        let outgoing = Outgoing::forward(&body, &[], &rawdoc! {});
        assert_eq!(&*read(&outgoing).body, &*body);
    }
}
