//! What a shard answers.

use std::sync::Arc;

use banyan_wire::{CommandError, Pool};
use bson::RawDocumentBuf;

use crate::fields;

/// A shard's reply, whatever it says, and the member that gave it.
pub struct Answer {
    pub shard: Arc<str>,
    pub member: Pool,
    pub reply: RawDocumentBuf,
}

impl Answer {
    pub fn error(&self) -> Option<CommandError> {
        if fields::is_ok(&self.reply) {
            None
        } else {
            CommandError::from_reply(&self.reply)
        }
    }

    /// The reply, or the error that it holds.
    pub fn checked(self) -> Result<Answer, CommandError> {
        match self.error() {
            Some(error) => Err(error),
            None => Ok(self),
        }
    }
}
