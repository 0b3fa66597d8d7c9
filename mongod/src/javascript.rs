//! JavaScript inside queries (`$where`), in the script hosts of map-reduce.

use std::fmt;
use std::sync::Arc;

use banyan_document::writer::DocumentWriter;
use banyan_execution::Interrupt;
use banyan_query::{ErrorKind, JavaScript, QueryError};
use banyan_script::hosts::Session;
use banyan_script::{Hosts, JobError};
use bson::RawDocument;

/// The engine of one command: its scripts share variables with each other and with nobody else.
pub struct Engine {
    session: Session,
    interrupt: Interrupt,
}

impl Engine {
    pub fn new(hosts: &'static Hosts, interrupt: &Interrupt) -> Engine {
        Engine {
            session: hosts.session(),
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
    fn is_true(
        &self,
        code: &str,
        scope: Option<&RawDocument>,
        document: &RawDocument,
    ) -> Result<bool, QueryError> {
        let mut request = DocumentWriter::with_capacity(document.as_bytes().len() + 256);
        request.append_str("source", code);
        request.append_bool("expression", true);
        if let Some(scope) = scope {
            request.append_doc("scope", scope);
        }
        request.append_doc("this", document);
        request.begin_array("arguments");
        request.end();
        let interrupt = self.interrupt.clone();
        let interrupted = Arc::new(move || interrupt.check().is_err());
        let answer = self
            .session
            .call(&request.finish(), interrupted)
            .map_err(|error| self.query_error(error))?;
        Ok(answer.get_bool("value").unwrap_or(false))
    }
}

impl Engine {
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
            _ => ErrorKind::JsInterpreterFailure,
        };
        QueryError {
            kind,
            message: error.to_string(),
        }
    }
}
