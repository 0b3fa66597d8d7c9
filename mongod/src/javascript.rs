//! JavaScript inside queries (`$where`, `$function`, `$accumulator`), in script hosts.

use std::fmt;
use std::sync::Arc;

use banyan_execution::Interrupt;
use banyan_query::javascript::{self, Answers, Call, JavaScript};
use banyan_query::{ErrorKind, QueryError};
use banyan_script::hosts::Session;
use banyan_script::{Hosts, JobError};
use bson::{RawBson, RawDocument, RawDocumentBuf};

/// What scripts have in their variables.
pub struct Variables(Session);

impl Variables {
    pub fn new(hosts: &Hosts) -> Variables {
        Variables(hosts.session())
    }
}

/// The engine of one command: its scripts share variables with each other and with nobody else.
pub struct Engine {
    variables: Arc<Variables>,
    interrupt: Interrupt,
}

impl Engine {
    pub fn new(hosts: &Hosts, interrupt: &Interrupt) -> Engine {
        Engine::with(Arc::new(Variables::new(hosts)), interrupt)
    }

    /// One that goes on with what others have left.
    pub fn with(variables: Arc<Variables>, interrupt: &Interrupt) -> Engine {
        Engine {
            variables,
            interrupt: interrupt.clone(),
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

impl JavaScript for Engine {
    fn run(&self, request: &RawDocument) -> Result<RawBson, QueryError> {
        let answer = self.call(request)?;
        let value = answer.get("value").ok().flatten();
        Ok(value.map_or(RawBson::Null, RawBson::from))
    }

    fn run_each(&self, calls: &[&Call]) -> Result<Answers, QueryError> {
        self.each(&javascript::each(calls))
    }
}

impl Engine {
    /// What a request of several scripts ([`javascript::each`]) comes to.
    pub fn each(&self, request: &RawDocument) -> Result<Answers, QueryError> {
        let answer = self.call(request)?;
        let values = answer.get_array("values").into_iter().flatten();
        let failure = answer.get_document("failure").ok();
        let failed = |failure: &RawDocument| {
            self.query_error(JobError::Script {
                code: failure.get_i32("code").unwrap_or_default(),
                message: failure.get_str("message").unwrap_or_default().to_string(),
            })
        };
        Ok(Answers {
            values: values.map_while(Result::ok).map(RawBson::from).collect(),
            failure: failure.map(failed),
        })
    }

    fn call(&self, request: &RawDocument) -> Result<RawDocumentBuf, QueryError> {
        let interrupt = self.interrupt.clone();
        let interrupted = Arc::new(move || interrupt.check().is_err());
        let answer = self.variables.0.call(request, interrupted);
        answer.map_err(|error| self.query_error(error))
    }

    fn query_error(&self, error: JobError) -> QueryError {
        if error == JobError::Interrupted
            && let Err(cause) = self.interrupt.check()
        {
            return cause;
        }
        let kind = match &error {
            JobError::Script { code: 146, .. } | JobError::OutOfMemory => {
                ErrorKind::ExceededMemoryLimit
            }
            // A string or a number was thrown.
            JobError::Script { code: 8, .. } => ErrorKind::UnknownError,
            // What the script made has no form as a document.
            JobError::Script { code: 17260, .. } => ErrorKind::Location(17260),
            JobError::Script { code: 17279, .. } => ErrorKind::Location(17279),
            _ => ErrorKind::JsInterpreterFailure,
        };
        QueryError {
            kind,
            message: error.to_string(),
        }
    }
}
