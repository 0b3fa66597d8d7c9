//! JavaScript inside queries (`$where`, `$function`, `$accumulator`), in script hosts.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use banyan_execution::{Interrupt, parallel};
use banyan_query::javascript::{self, Answers, Call, JavaScript, Running};
use banyan_query::{ErrorKind, QueryError};
use banyan_script::hosts::{BegunCall, Interrupted, Session};
use banyan_script::{Hosts, JobError};
use bson::{RawBson, RawDocument, RawDocumentBuf};

/// What scripts have in their variables. Each call is of a session, and no two calls of one run at the
/// same time: where several workers call scripts, there are as many sessions. A single one always has
/// the first.
pub struct Variables {
    hosts: Hosts,
    /// There are none before the first call: most commands have no scripts.
    places: OnceLock<Box<[Place]>>,
}

#[derive(Default)]
struct Place {
    is_taken: AtomicBool,
    session: OnceLock<Session>,
}

impl Variables {
    pub fn new(hosts: &Hosts) -> Variables {
        Variables {
            hosts: hosts.clone(),
            places: OnceLock::new(),
        }
    }

    /// The first session that is free; if there is none, the first, which is waited for.
    fn begin(
        &self,
        request: &RawDocument,
        interrupted: Interrupted,
    ) -> Result<(BegunCall<'_>, Taken<'_>), JobError> {
        let places = self.places.get_or_init(|| {
            let places = std::iter::repeat_with(Place::default);
            places.take(parallel::workers().max(1)).collect()
        });
        let is_free = |place: &&Place| !place.is_taken.swap(true, Ordering::Acquire);
        let place = places.iter().find(is_free);
        let taken = Taken(place);
        let place = place.or(places.first()).ok_or(JobError::Protocol)?;
        let session = place.session.get_or_init(|| self.hosts.session());
        Ok((session.begin(request, interrupted)?, taken))
    }
}

/// A place that is given back with this, if it was free.
struct Taken<'v>(Option<&'v Place>);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            place.is_taken.store(false, Ordering::Release);
        }
    }
}

/// The engine of one command. No other command's scripts see the variables of its own.
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

    fn begin_each(&self, calls: &[&Call]) -> Result<Box<dyn Running + '_>, QueryError> {
        let (call, _taken) = self.begin(&javascript::each(calls))?;
        Ok(Box::new(Begun {
            engine: self,
            call,
            _taken,
        }))
    }
}

/// Calls that a script host makes.
struct Begun<'e> {
    engine: &'e Engine,
    call: BegunCall<'e>,
    // Dropped behind the call.
    _taken: Taken<'e>,
}

impl Running for Begun<'_> {
    fn finish(self: Box<Self>) -> Result<Answers, QueryError> {
        let Begun {
            engine,
            call,
            _taken,
        } = *self;
        let answer = call.finish().map_err(|error| engine.query_error(error))?;
        Ok(engine.answers(&answer))
    }
}

impl Engine {
    /// What a request of several scripts ([`javascript::each`]) comes to.
    pub fn each(&self, request: &RawDocument) -> Result<Answers, QueryError> {
        let answer = self.call(request)?;
        Ok(self.answers(&answer))
    }

    fn answers(&self, answer: &RawDocument) -> Answers {
        let values = answer.get_array("values").into_iter().flatten();
        let failure = answer.get_document("failure").ok();
        let failed = |failure: &RawDocument| {
            self.query_error(JobError::Script {
                code: failure.get_i32("code").unwrap_or_default(),
                message: failure.get_str("message").unwrap_or_default().to_string(),
            })
        };
        Answers {
            values: values.map_while(Result::ok).map(RawBson::from).collect(),
            failure: failure.map(failed),
        }
    }

    fn begin(&self, request: &RawDocument) -> Result<(BegunCall<'_>, Taken<'_>), QueryError> {
        let interrupt = self.interrupt.clone();
        let interrupted = Arc::new(move || interrupt.check().is_err());
        let begun = self.variables.begin(request, interrupted);
        begun.map_err(|error| self.query_error(error))
    }

    fn call(&self, request: &RawDocument) -> Result<RawDocumentBuf, QueryError> {
        let (call, _taken) = self.begin(request)?;
        let answer = call.finish();
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
