//! Commands that are made of others.

use std::time::Instant;

use banyan_execution::Interrupt;
use banyan_wire::{CommandError, ErrorCode, Request};
use bson::RawDocumentBuf;

use crate::account;
use crate::blocked_writes;
use crate::commands::table::Run;
use crate::context::CommandContext;

impl CommandContext<'_> {
    /// Runs another command as a part of this one: on the same connection, within the same time,
    /// under the same session but without its transaction number.
    pub async fn nested(
        &self,
        database: &str,
        body: RawDocumentBuf,
    ) -> Result<RawDocumentBuf, CommandError> {
        self.check_interrupt()?;
        // What ends the whole ends its parts.
        let handle = self.handle().clone();
        let reply = self.run_part(database, body, self.deadline, handle).await;
        checked(reply?)
    }

    /// The same for a write, under its transaction number if it names one: its reply, whatever became
    /// of its statements.
    pub async fn nested_write(
        &self,
        database: &str,
        body: RawDocumentBuf,
    ) -> Result<RawDocumentBuf, CommandError> {
        self.check_interrupt()?;
        let handle = self.handle().clone();
        self.run_part(database, body, self.deadline, handle).await
    }

    /// The same for what has to be done even when the whole is told to end.
    pub async fn nested_to_the_end(
        &self,
        database: &str,
        body: RawDocumentBuf,
    ) -> Result<RawDocumentBuf, CommandError> {
        let handle = self.node.operations.interrupt(None);
        checked(self.run_part(database, body, None, handle).await?)
    }

    async fn run_part(
        &self,
        database: &str,
        body: RawDocumentBuf,
        deadline: Option<Instant>,
        handle: Interrupt,
    ) -> Result<RawDocumentBuf, CommandError> {
        let request = Request {
            request_id: self.request.request_id,
            origin: self.request.origin,
            ..Request::command(database, body)
        };
        let Some(spec) = self.table.find(&request.name) else {
            return Err(CommandError::new(
                ErrorCode::CommandNotFound,
                format!("no such command: '{}'", request.name),
            ));
        };
        let mut ctx = self.part(&request, spec, deadline, handle)?;
        if spec.writes {
            ctx.concern = self.concern.clone();
        }
        let reply = match (blocked_writes::refusal(&ctx), spec.run) {
            (Some(refused), _) => refused,
            (None, Run::Inline(run)) => run(&ctx),
            (None, Run::Future(run) | Run::Either(_, run)) => run(&ctx).await,
        };
        account::settle_part(self, &ctx, &reply);
        if ctx.is_late() {
            self.note_late();
        }
        let reply = reply?;
        if spec.writes {
            self.note_write(self.node.replica.machine.applied_index());
        }
        Ok(reply)
    }
}

/// A reply that tells of no error.
fn checked(reply: RawDocumentBuf) -> Result<RawDocumentBuf, CommandError> {
    match CommandError::from_write_reply(&reply) {
        Some(error) => Err(error),
        None => Ok(reply),
    }
}
