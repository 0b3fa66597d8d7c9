//! Single calls of functions, for queries and expressions.

use bson::RawDocumentBuf;

use super::job::Channel;
use super::{Hosts, Interrupted, JobError};
use crate::frame::Kind;

impl Hosts {
    /// Calls a function: `request` is `{source, this?, scope?, arguments: [], expression?}`, the
    /// answer `{value}`. With `expression`, the source may be an expression, and the answer is
    /// whether it is true. Calls of one `session` (i64) share a global object, those of
    /// different sessions never do.
    /// What the function throws is an error; the host goes on.
    pub fn call(
        &self,
        request: &RawDocumentBuf,
        interrupted: Interrupted,
    ) -> Result<RawDocumentBuf, JobError> {
        let host = self.acquire(&interrupted)?;
        let called = call_in(&host, request, interrupted);
        match &called {
            Ok(_) | Err(JobError::Script { .. }) => self.release(host),
            Err(_) => {
                drop(host);
                self.forget();
            }
        }
        called
    }
}

fn call_in(
    host: &super::process::Host,
    request: &RawDocumentBuf,
    interrupted: Interrupted,
) -> Result<RawDocumentBuf, JobError> {
    let mut channel = Channel::open(host, 0, interrupted)?;
    channel.send(Kind::Call, request.as_bytes())?;
    let mut payload = Vec::new();
    match channel.receive(&mut payload)? {
        Kind::Returned => {}
        _ => return Err(JobError::Protocol),
    }
    let answer = RawDocumentBuf::from_bytes(payload).map_err(|_| JobError::Protocol)?;
    if let Ok(error) = answer.get_document("error") {
        return Err(JobError::Script {
            code: error.get_i32("code").unwrap_or_default(),
            message: error.get_str("message").unwrap_or_default().to_string(),
        });
    }
    Ok(answer)
}
