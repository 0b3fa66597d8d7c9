//! A command as it arrived: one body, perhaps document sequences, all sharing the message's bytes.

use std::ops::Deref;

use bson::{RawBsonRef, RawDocument};
use bytes::Bytes;

use crate::codes::ErrorCode;
use crate::error::CommandError;
use crate::params::{is_null, no_array};

/// A document that shares the buffer of the message it came in.
///
/// Its length and terminator were checked when it was made; documents that come off the network
/// were validated all the way down as well.
#[derive(Clone)]
pub struct Doc(Bytes);

impl Doc {
    /// `None` unless the bytes are exactly one document by their length and terminator.
    pub fn new(bytes: Bytes) -> Option<Doc> {
        RawDocument::from_bytes(&bytes[..]).ok()?;
        Some(Doc(bytes))
    }

    pub fn bytes(&self) -> &Bytes {
        &self.0
    }

    /// A part of this document (an element's document, say) that shares its buffer.
    pub fn slice_of(&self, part: &RawDocument) -> Doc {
        Doc(self.0.slice_ref(part.as_bytes()))
    }
}

impl Deref for Doc {
    type Target = RawDocument;

    // `new` made the same check, and nothing changes the bytes of a `Bytes`.
    #[allow(clippy::expect_used)]
    fn deref(&self) -> &RawDocument {
        RawDocument::from_bytes(&self.0[..]).expect("checked when the Doc was made")
    }
}

impl From<bson::RawDocumentBuf> for Doc {
    fn from(document: bson::RawDocumentBuf) -> Doc {
        Doc(document.into_bytes().into())
    }
}

impl std::fmt::Debug for Doc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

/// A kind 1 section: documents laid out one after another under a name.
#[derive(Clone, Debug)]
pub struct Sequence {
    pub identifier: String,
    documents: Bytes,
    count: usize,
}

impl Sequence {
    /// The bytes must be whole documents, one after another; `count` says how many.
    pub(crate) fn new(identifier: String, documents: Bytes, count: usize) -> Sequence {
        Sequence {
            identifier,
            documents,
            count,
        }
    }

    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The documents' bytes, one after another.
    pub fn bytes(&self) -> &Bytes {
        &self.documents
    }

    pub fn docs(&self) -> impl Iterator<Item = &RawDocument> {
        let mut rest = &self.documents[..];
        std::iter::from_fn(move || {
            let (document, tail) = split_document(rest)?;
            rest = tail;
            Some(document)
        })
    }
}

/// Takes the document at the head of `bytes`, by its own length.
pub(crate) fn split_document(bytes: &[u8]) -> Option<(&RawDocument, &[u8])> {
    let length = i32::from_le_bytes(bytes.get(..4)?.try_into().ok()?);
    let length = usize::try_from(length).ok()?;
    let (head, tail) = bytes.split_at_checked(length)?;
    Some((RawDocument::from_bytes(head).ok()?, tail))
}

/// The way a request came in, which is the way its reply has to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// OP_MSG.
    Msg,
    /// A command in an OP_QUERY on `$cmd`.
    LegacyQueryCommand,
    /// OP_INSERT, OP_UPDATE, OP_DELETE, OP_GET_MORE, OP_KILL_CURSORS, or OP_QUERY on a collection,
    /// turned into a command.
    LegacyOp,
}

#[derive(Clone, Debug)]
pub struct Request {
    pub request_id: i32,
    /// `$db`.
    pub database: String,
    /// The first element's key, as it was sent.
    pub name: String,
    pub body: Doc,
    pub sequences: Vec<Sequence>,
    /// No reply is expected.
    pub more_to_come: bool,
    /// The client takes several replies to one request.
    pub exhaust_allowed: bool,
    pub origin: Origin,
}

impl Request {
    /// A request that no client sent: a command for `database`, the body without `$db`.
    pub fn command(database: &str, mut body: bson::RawDocumentBuf) -> Request {
        body.append(bson::raw::cstr!("$db"), database);
        let name = first_name(&body).unwrap_or_default().to_owned();
        Request {
            request_id: 0,
            database: database.to_owned(),
            name,
            body: body.into(),
            sequences: Vec::new(),
            more_to_come: false,
            exhaust_allowed: false,
            origin: Origin::Msg,
        }
    }

    pub fn get(&self, field: &str) -> Option<RawBsonRef<'_>> {
        banyan_document::field(&self.body, field)
    }

    pub fn sequence(&self, field: &str) -> Option<&Sequence> {
        self.sequences
            .iter()
            .find(|sequence| sequence.identifier == field)
    }

    /// The documents of a batch, whether they came as a document sequence or as an array in the
    /// body. Nulls in the array are passed over, as in every list of a command.
    pub fn batch(&self, field: &str) -> Result<Vec<&RawDocument>, CommandError> {
        if let Some(sequence) = self.sequence(field) {
            return Ok(sequence.docs().collect());
        }
        let Some(value) = self.get(field) else {
            return Err(CommandError::new(
                ErrorCode::Location(40414),
                format!(
                    "BSON field '{}.{field}' is missing but a required field",
                    self.name
                ),
            ));
        };
        let wrong_type = |what: &str, expected: &str| {
            CommandError::new(
                ErrorCode::TypeMismatch,
                format!(
                    "BSON field '{}.{what}' is the wrong type, expected {expected}",
                    self.name
                ),
            )
        };
        let RawBsonRef::Array(array) = value else {
            return Err(match is_null(value) {
                true => no_array(field),
                false => wrong_type(field, "type 'array'"),
            });
        };
        let items = array.into_iter().flatten().enumerate();
        items
            .filter(|(_, item)| !is_null(*item))
            .map(|(at, item)| match item {
                RawBsonRef::Document(document) => Ok(document),
                _ => Err(wrong_type(&format!("{field}.{at}"), "type 'object'")),
            })
            .collect()
    }

    /// The value of the first element: usually the collection's name.
    pub fn first_value(&self) -> Option<RawBsonRef<'_>> {
        banyan_document::first_value(&self.body)
    }
}

pub(crate) fn first_name(body: &RawDocument) -> Option<&str> {
    let first = banyan_document::raw_fields(body).next()?;
    std::str::from_utf8(first.name()).ok()
}
