//! Bytes and documents as the store hands them out: slices that keep their block alive.

use std::fmt;
use std::ops::Deref;

use bson::RawDocument;

use crate::StorageError;

/// A cheaply cloned byte string of the store.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub(crate) fjall::Slice);

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0[..], f)
    }
}

/// One stored document. Cloning it copies no bytes.
///
/// The slice may share a block of the engine with its neighbours: copy the document out before
/// keeping it for long.
#[derive(Clone)]
pub struct Record(fjall::Slice);

impl Record {
    /// Checks what `Deref` relies on: that the bytes have a document's outer shape.
    pub(crate) fn new(
        bytes: fjall::Slice,
        place: impl FnOnce() -> String,
    ) -> Result<Record, StorageError> {
        match RawDocument::from_bytes(&bytes[..]) {
            Ok(_) => Ok(Record(bytes)),
            Err(error) => Err(StorageError::damaged(place(), error)),
        }
    }
}

impl Deref for Record {
    type Target = RawDocument;

    #[expect(
        clippy::expect_used,
        reason = "the same bytes passed the same check in `new`"
    )]
    fn deref(&self) -> &RawDocument {
        RawDocument::from_bytes(&self.0[..]).expect("checked when the record was made")
    }
}

impl AsRef<RawDocument> for Record {
    fn as_ref(&self) -> &RawDocument {
        self
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
