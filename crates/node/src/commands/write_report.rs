//! What a write command tells: how much was done, and which statements were refused.

use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArrayBuf, RawBsonRef, RawDocumentBuf, cstr, rawdoc};

use crate::context::CommandContext;
use crate::params::{self, Field};

/// Most statements of one command.
pub const WRITE_BATCH_MAX: usize = 100_000;

/// Between two looks whether the command has to end, so many statements may pass.
const STATEMENTS_PER_LOOK: usize = 16;

/// Looks once in a while, by the number of the statement that comes next, whether the command has
/// to end.
pub fn look(ctx: &CommandContext<'_>, at: usize) -> Result<(), CommandError> {
    match at > 0 && at.is_multiple_of(STATEMENTS_PER_LOOK) {
        true => ctx.check_interrupt(),
        false => Ok(()),
    }
}

pub fn ordered(ctx: &CommandContext<'_>) -> Result<bool, CommandError> {
    ctx.field("ordered")
        .filter(|field| !field.is_null())
        .map_or(Ok(true), |field| field.strict_bool())
}

/// What a statement is told of the index to use; an empty document says nothing.
pub fn hint(field: Field<'_>) -> Result<Option<RawBsonRef<'_>>, CommandError> {
    match field.value {
        RawBsonRef::Document(pattern) if pattern.is_empty() => Ok(None),
        hint @ (RawBsonRef::String(_) | RawBsonRef::Document(_)) => Ok(Some(hint)),
        _ => Err(CommandError::new(
            ErrorCode::FailedToParse,
            "Hint must be a string or an object",
        )),
    }
}

/// The statements' numbers within their transaction number.
pub enum StatementIds {
    From(i32),
    Listed(Vec<i32>),
}

impl StatementIds {
    pub fn of(&self, at: usize) -> i32 {
        match self {
            StatementIds::From(first) => {
                first.saturating_add(i32::try_from(at).unwrap_or(i32::MAX))
            }
            StatementIds::Listed(ids) => ids.get(at).copied().unwrap_or(-1),
        }
    }
}

pub fn statement_ids(ctx: &CommandContext<'_>, count: usize) -> Result<StatementIds, CommandError> {
    let Some(listed) = ctx.generic.stmt_ids else {
        return Ok(StatementIds::From(ctx.generic.stmt_id.unwrap_or(0)));
    };
    let ids: Option<Vec<i32>> = listed
        .into_iter()
        .map(|id| params::number(id.ok()?).and_then(|id| i32::try_from(id).ok()))
        .collect();
    let listed = ids.as_ref().map_or(0, Vec::len);
    let Some(ids) = ids.filter(|ids| ids.len() == count) else {
        return Err(CommandError::new(
            ErrorCode::InvalidLength,
            format!(
                "Number of statement ids must match the number of batch entries. Got {listed} \
                 statement ids but {count} operations."
            ),
        ));
    };
    match ctx.generic.stmt_id {
        None => Ok(StatementIds::Listed(ids)),
        Some(_) => Err(CommandError::new(
            ErrorCode::InvalidOptions,
            "May not specify both stmtId and stmtIds in write command.",
        )),
    }
}

/// Refuses a batch that is too small or too large, or whose statements have ids that do not fit.
pub fn check_batch(ctx: &CommandContext<'_>) -> Result<(), CommandError> {
    let Some(field) = ctx.spec.statements else {
        return Ok(());
    };
    let count = ctx.request.batch(field)?.len();
    check_size(count)?;
    statement_ids(ctx, count).map(drop)
}

/// Collects the outcome of one write command.
///
/// What errors tell beside their code is bounded: of the first ones everything is told, of the rest
/// no details.
pub struct WriteReport {
    ordered: bool,
    pub n: u64,
    /// Statements that an earlier try has settled.
    pub retried: Vec<i32>,
    /// What a router is told that asks before the statement is carried out.
    pub told: Option<RawDocumentBuf>,
    errors: Vec<(usize, CommandError)>,
    details_bytes: usize,
}

/// What the details of all errors may come to: they have to fit into a reply, at 100,000 statements.
const DETAILS_BYTES_MAX: usize = 14 << 20;

impl WriteReport {
    /// Refuses as many statements as there are, or the first if those behind it wait for it: what is
    /// written to cannot be.
    pub fn refuse_all(&mut self, statements: usize, error: &CommandError) {
        for at in 0..statements {
            if self.is_over() {
                return;
            }
            self.refuse(at, error.clone());
        }
    }

    pub fn new(ordered: bool) -> WriteReport {
        WriteReport {
            ordered,
            n: 0,
            retried: Vec::new(),
            told: None,
            errors: Vec::new(),
            details_bytes: 0,
        }
    }

    pub fn refuse(&mut self, at: usize, mut error: CommandError) {
        if let Some(extra) = &error.extra {
            let bytes = self.details_bytes + extra.as_bytes().len();
            match bytes > DETAILS_BYTES_MAX {
                true => error.extra = None,
                false => self.details_bytes = bytes,
            }
        }
        self.errors.push((at, error));
    }

    /// Notes in the command's work what was refused, and what an earlier try had settled.
    pub fn count(&self, ctx: &CommandContext<'_>) {
        ctx.work.write_errors.add(self.errors.len() as u64);
        ctx.work.retried.add(self.retried.len() as u64);
    }

    pub fn first_error(self) -> Option<CommandError> {
        self.errors.into_iter().map(|(_, error)| error).next()
    }

    /// Nothing further is tried.
    pub fn is_ordered(&self) -> bool {
        self.ordered
    }

    pub fn is_over(&self) -> bool {
        self.ordered && !self.errors.is_empty()
    }

    /// `more` adds the command's own fields.
    pub fn reply(mut self, more: impl FnOnce(&mut RawDocumentBuf)) -> RawDocumentBuf {
        let mut reply = rawdoc! { "n": i32::try_from(self.n).unwrap_or(i32::MAX) };
        if !self.errors.is_empty() {
            self.errors.sort_by_key(|(at, _)| *at);
            let mut errors = RawArrayBuf::new();
            for (at, error) in &self.errors {
                errors.push(write_error(*at, error));
            }
            reply.append(cstr!("writeErrors"), errors);
        }
        if !self.retried.is_empty() {
            let retried = RawArrayBuf::from_iter(self.retried.iter().copied());
            reply.append(cstr!("retriedStmtIds"), retried);
        }
        more(&mut reply);
        for (name, value) in self.told.iter().flat_map(|told| told.iter()).flatten() {
            reply.append(name, value);
        }
        reply.append(cstr!("ok"), 1.0);
        reply
    }
}

fn write_error(at: usize, error: &CommandError) -> RawDocumentBuf {
    let mut out = rawdoc! {
        "index": i32::try_from(at).unwrap_or(i32::MAX),
        "code": error.code.code(),
        "errmsg": error.message.as_str(),
    };
    if let Some(extra) = &error.extra {
        for (name, value) in extra.iter().flatten() {
            out.append(name, value);
        }
    }
    out
}

/// Refuses an empty batch, or one that is too large.
pub fn check_size(count: usize) -> Result<(), CommandError> {
    if (1..=WRITE_BATCH_MAX).contains(&count) {
        return Ok(());
    }
    Err(CommandError::new(
        ErrorCode::InvalidLength,
        format!(
            "Write batch sizes must be between 1 and {WRITE_BATCH_MAX}. Got {count} operations."
        ),
    ))
}

/// Errors of the member or of its shard's knowledge concern the whole command, not a statement. What a
/// test has a statement fail with is that statement's.
pub fn ends_command(ctx: &CommandContext<'_>, error: &CommandError) -> bool {
    let is_about_all = error.code.is_not_primary()
        || error.code.is_shutdown()
        || matches!(
            error.code,
            ErrorCode::StaleConfig
                | ErrorCode::MaxTimeMSExpired
                | ErrorCode::Interrupted
                | ErrorCode::ClientDisconnect
                | ErrorCode::InternalError
        );
    is_about_all && !ctx.has_tested_failure()
}
