//! Fail points: places at which a test has a server fail on purpose.
//!
//! `configureFailPoint` sets them by name, in a server whose `enableTestCommands` is on; the tests
//! that drivers share use them. How often one fails is its [`mode`], where and how its `data`, which
//! [`fail_command`] and [`numbered_write`] read. What they are and what a test may ask of them: MongoDB's "The failCommand
//! Fail Point" (<https://github.com/mongodb/mongo/wiki/The-%22failCommand%22-fail-point>).

pub mod fail_command;
mod fail_point;
mod mode;
mod numbered_write;

pub use fail_command::{Failing, Failure};
pub use fail_point::FailPoint;

use std::time::{Duration, Instant};

use banyan_document::field;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use crate::{CommandError, ErrorCode};
use mode::Mode;

/// What `getParameter` calls one begins so.
pub const PARAMETER_PREFIX: &str = "failpoint.";

/// The fail points of one process.
#[derive(Default)]
pub struct FailPoints {
    /// Fails commands before or after they run.
    pub command: FailPoint,
    /// Fails a `getMore` that has its cursor in hand.
    pub get_more: FailPoint,
    /// Fails statements of retryable writes. `None`: the process writes nothing itself.
    numbered_write: Option<FailPoint>,
    /// Whatever has a `maxTimeMS` is out of time at once.
    max_time_always: FailPoint,
    /// Nothing ever is.
    max_time_never: FailPoint,
}

impl FailPoints {
    /// Those of a process that has data.
    pub fn of_writer() -> FailPoints {
        FailPoints {
            numbered_write: Some(FailPoint::default()),
            ..FailPoints::default()
        }
    }

    fn named(&self, name: &str) -> Option<&FailPoint> {
        match name {
            "failCommand" => Some(&self.command),
            "failGetMoreAfterCursorCheckout" => Some(&self.get_more),
            "maxTimeAlwaysTimeOut" => Some(&self.max_time_always),
            "maxTimeNeverTimeOut" => Some(&self.max_time_never),
            "onPrimaryTransactionalWrite" => self.numbered_write.as_ref(),
            _ => None,
        }
    }

    /// `{configureFailPoint: name, mode: …, data: …}`; how often it has failed something before.
    pub fn configure(&self, body: &RawDocument) -> Result<RawDocumentBuf, CommandError> {
        let name = match banyan_document::first_value(body) {
            Some(RawBsonRef::String(name)) => name,
            _ => "",
        };
        let Some(point) = self.named(name) else {
            return Err(CommandError::new(
                ErrorCode::FailPointSetFailed,
                format!("{name} not found"),
            ));
        };
        let mode = field(body, "mode").ok_or_else(|| {
            let text = "When setting a failpoint, you must supply a 'mode'";
            CommandError::new(ErrorCode::IllegalOperation, text)
        })?;
        let mode = Mode::parse(mode)?;
        let data = match field(body, "data") {
            None => RawDocumentBuf::new(),
            Some(RawBsonRef::Document(data)) => data.to_owned(),
            Some(_) => {
                let text = "the 'data' option must be a JSON object";
                return Err(CommandError::new(ErrorCode::TypeMismatch, text));
            }
        };
        let mut reply = rawdoc! { "count": point.set(mode, data) };
        reply.append(cstr!("ok"), 1.0);
        Ok(reply)
    }

    /// When an operation is out of time that begins now and may take so long.
    pub fn deadline(&self, began: Instant, time: Option<Duration>) -> Option<Instant> {
        let deadline = began + time?;
        if self.max_time_never.hit(|_| true).is_some() {
            return None;
        }
        let is_over = self.max_time_always.hit(|_| true).is_some();
        Some(if is_over { began } else { deadline })
    }

    /// The parameter of this name, if that is a fail point's.
    pub fn parameter(&self, name: &str) -> Option<RawDocumentBuf> {
        let point = self.named(name.strip_prefix(PARAMETER_PREFIX)?)?;
        Some(point.shown())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(points: &FailPoints, body: RawDocumentBuf) -> i64 {
        points.configure(&body).unwrap().get_i64("count").unwrap()
    }

    #[test]
    fn a_fail_point_counts_for_as_long_as_the_process_lives() {
        let points = FailPoints::default();
        let on =
            rawdoc! {"configureFailPoint": "failCommand", "mode": "alwaysOn", "data": {"a": 1}};
        assert_eq!(count(&points, on.clone()), 0);
        assert!(
            points
                .command
                .hit(|data| data.get_i32("a").is_ok_and(|a| a == 1))
                .is_some()
        );
        assert!(points.command.hit(|_| false).is_none());
        assert_eq!(count(&points, on), 1);
        let off = rawdoc! {"configureFailPoint": "failCommand", "mode": "off"};
        assert_eq!(count(&points, off), 1);
        assert!(points.command.hit(|_| true).is_none());
        let shown = points.parameter("failpoint.failCommand").unwrap();
        assert_eq!(
            shown,
            rawdoc! {"mode": 0, "data": {}, "timesEntered": 1_i64}
        );
        assert!(points.parameter("failCommand").is_none());
    }

    #[test]
    fn what_cannot_be_set_is_refused_with_the_references_codes() {
        let points = FailPoints::default();
        let refused = |body: RawDocumentBuf| points.configure(&body).unwrap_err().code.code();
        assert_eq!(
            refused(rawdoc! {"configureFailPoint": "nope", "mode": "off"}),
            266
        );
        assert_eq!(
            refused(rawdoc! {"configureFailPoint": 3, "mode": "off"}),
            266
        );
        assert_eq!(refused(rawdoc! {"configureFailPoint": "failCommand"}), 20);
        let data = rawdoc! {"configureFailPoint": "failCommand", "mode": "off", "data": 3};
        assert_eq!(refused(data), 14);
    }
}
