//! What a job's failure is on the wire.

use banyan_execution::Interrupt;
use banyan_node::errors;
use banyan_query::QueryError;
use banyan_script::JobError;
use banyan_wire::{CommandError, ErrorCode};

/// Either side's failure, on its way through the merge.
#[derive(Debug)]
pub enum Failure {
    Job(JobError),
    Command(CommandError),
}

impl From<JobError> for Failure {
    fn from(error: JobError) -> Self {
        Failure::Job(error)
    }
}

impl From<QueryError> for Failure {
    fn from(error: QueryError) -> Self {
        Failure::Command(errors::query(error))
    }
}

impl From<CommandError> for Failure {
    fn from(error: CommandError) -> Self {
        Failure::Command(error)
    }
}

impl Failure {
    /// The error to answer. An interrupted job says why it was.
    pub fn into_error(self, interrupt: &Interrupt) -> CommandError {
        let job = match self {
            Failure::Command(error) => return error,
            Failure::Job(job) => job,
        };
        if job == JobError::Interrupted
            && let Err(error) = interrupt.check()
        {
            return errors::query(error);
        }
        let code = match &job {
            JobError::Script { code, .. } => ErrorCode::from_code(*code),
            JobError::OutOfMemory => ErrorCode::ExceededMemoryLimit,
            JobError::HostDied { .. } => ErrorCode::JSInterpreterFailure,
            JobError::Interrupted => ErrorCode::Interrupted,
            JobError::TooLarge => ErrorCode::BSONObjectTooLarge,
            JobError::Spill { .. } => ErrorCode::OutOfDiskSpace,
            JobError::Start { .. } | JobError::Protocol => ErrorCode::OperationFailed,
        };
        if let JobError::HostDied { how } = &job {
            tracing::warn!(%how, "a script host died in a job");
        }
        CommandError::new(
            code,
            format!("MapReduce internal error :: caused by :: {job}"),
        )
    }
}
