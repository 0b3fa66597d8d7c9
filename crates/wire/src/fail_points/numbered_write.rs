//! `onPrimaryTransactionalWrite`: which statements of retryable writes it fails, and how.

use banyan_document::{field, kind};
use bson::{RawBsonRef, RawDocument};

use super::FailPoints;
use crate::params::number;
use crate::{CommandError, Connection, ErrorCode, SessionId};

const CLOSE: &str = "closeConnection";
const CODE: &str = "failBeforeCommitExceptionCode";

impl FailPoints {
    /// A statement with a number is about to be written: the error that it fails with, if a test wants
    /// that. Its client may lose the connection, whether it fails or not.
    pub fn before_numbered_write(
        &self,
        connection: &Connection,
        session: &SessionId,
        txn_number: i64,
    ) -> Result<(), CommandError> {
        let point = self.numbered_write.as_ref();
        let Some(data) = point.and_then(|point| point.hit(|_| true)) else {
            return Ok(());
        };
        if closes(&data)? {
            connection.hang_up();
        }
        match code(&data)? {
            None => Ok(()),
            Some(code) => Err(CommandError::new(
                code,
                format!(
                    "Failing write for {session}:{txn_number} due to failpoint. The write must not \
                     be reflected."
                ),
            )),
        }
    }
}

/// It does unless it is told not to.
fn closes(data: &RawDocument) -> Result<bool, CommandError> {
    match field(data, CLOSE) {
        None => Ok(true),
        Some(RawBsonRef::Boolean(closes)) => Ok(closes),
        Some(other) => Err(CommandError::new(
            ErrorCode::Location(13111),
            format!(
                "wrong type for field ({CLOSE}) {} != bool",
                kind::name(&other)
            ),
        )),
    }
}

fn code(data: &RawDocument) -> Result<Option<ErrorCode>, CommandError> {
    let Some(value) = field(data, CODE) else {
        return Ok(None);
    };
    let Some(code) = number(value) else {
        return Err(CommandError::new(
            ErrorCode::Location(13118),
            format!(
                "expected {CODE} to have a numeric type, but it is a {}",
                kind::name(&value)
            ),
        ));
    };
    let code = i32::try_from(code).ok().map(ErrorCode::from_code);
    Ok(code.filter(|code| *code != ErrorCode::OK))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{RawDocumentBuf, rawdoc};
    use tokio_util::sync::CancellationToken;

    /// The code that a write fails with, and whether its client loses the connection.
    fn written(data: RawDocumentBuf) -> (Option<i32>, bool) {
        let points = FailPoints::of_writer();
        let name = "onPrimaryTransactionalWrite";
        let body = rawdoc! {"configureFailPoint": name, "mode": {"times": 1}, "data": data};
        points.configure(&body).unwrap();
        let address = ([127, 0, 0, 1], 1).into();
        let connection = Connection::new(1, address, address, CancellationToken::new());
        let write = || points.before_numbered_write(&connection, &SessionId::shared([7; 16]), 1);
        let failed = write().err().map(|error| error.code.code());
        assert!(write().is_ok());
        (failed, connection.is_hung_up())
    }

    #[test]
    fn a_write_is_failed_as_the_data_says() {
        assert_eq!(written(rawdoc! {}), (None, true));
        assert_eq!(written(rawdoc! {"closeConnection": false}), (None, false));
        let failed = rawdoc! {"failBeforeCommitExceptionCode": 1};
        assert_eq!(written(failed), (Some(1), true));
        let failed = rawdoc! {"closeConnection": false, "failBeforeCommitExceptionCode": 5.7};
        assert_eq!(written(failed), (Some(5), false));
        let failed = rawdoc! {"closeConnection": false, "failBeforeCommitExceptionCode": "x"};
        assert_eq!(written(failed), (Some(13118), false));
        assert_eq!(
            written(rawdoc! {"closeConnection": 1}),
            (Some(13111), false)
        );
    }

    #[test]
    fn who_writes_nothing_cannot_fail_it() {
        let body = rawdoc! {"configureFailPoint": "onPrimaryTransactionalWrite", "mode": "off"};
        let refused = FailPoints::default().configure(&body).unwrap_err();
        assert_eq!(refused.code, ErrorCode::FailPointSetFailed);
        assert!(FailPoints::of_writer().configure(&body).is_ok());
    }
}
