//! `failCommand`: which commands it fails, and how.

use std::time::Duration;

use banyan_document::{field, is_true};
use bson::{RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, cstr};

use super::{FailPoint, FailPoints};
use crate::params::number;
use crate::{CommandError, Connection, ErrorCode, Request};

/// No command of this name fails, or a fail point could not be switched off.
const CONFIGURE: &str = "configureFailPoint";

const BLOCK: &str = "blockConnection";
const CLOSE: &str = "closeConnection";
const CODE: &str = "errorCode";
const CONCERN: &str = "writeConcernError";
const LABELS: &str = "errorLabels";

/// A command that may be failed.
#[derive(Clone, Copy)]
pub struct Failing<'a> {
    pub points: &'a FailPoints,
    pub connection: &'a Connection,
    pub request: &'a Request,
    /// Its name and its other spellings.
    pub name: &'static str,
    pub aliases: &'static [&'static str],
}

/// What a command is to do instead of, or before, what it is asked for.
#[derive(Debug, Default)]
pub struct Failure {
    /// How long it waits first.
    pub block: Option<Duration>,
    /// Its connection ends without a reply.
    pub closes: bool,
    pub error: Option<CommandError>,
    /// The labels of its reply, if those are not left to the server.
    pub labels: Option<RawArrayBuf>,
}

impl Failing<'_> {
    /// Whether the command is to fail before it runs.
    pub fn before(&self) -> Option<Failure> {
        let point = &self.points.command;
        let data = point.hit(|data| {
            let does = flag(data, CLOSE) || flag(data, BLOCK) || code(data).is_some();
            does && self.is_meant(data)
        })?;
        Some(Failure::of(&data))
    }

    /// The write concern error that a write's reply is given, and its labels.
    pub fn after_write(&self) -> Option<(RawBson, Option<RawArrayBuf>)> {
        let point = &self.points.command;
        let data = point.hit(|data| field(data, CONCERN).is_some() && self.is_meant(data))?;
        let error = RawBson::from(field(&data, CONCERN)?);
        Some((error, labels(&data)))
    }

    /// The error of a `getMore` that has taken its cursor, which reads `namespace`.
    pub fn after_checkout(&self, namespace: &str) -> Option<CommandError> {
        let point: &FailPoint = &self.points.get_more;
        let data = point.hit(|data| self.is_by_whom(data, || namespace.to_owned()))?;
        let code = code(&data).unwrap_or(ErrorCode::InternalError);
        let text = "Hit the 'failGetMoreAfterCursorCheckout' failpoint";
        Some(CommandError::new(code, text))
    }

    fn is_meant(&self, data: &RawDocument) -> bool {
        self.name != CONFIGURE && self.is_by_whom(data, || self.namespace()) && self.is_named(data)
    }

    /// Whether the client and the collection are those that the test means.
    fn is_by_whom(&self, data: &RawDocument, namespace: impl FnOnce() -> String) -> bool {
        // What names a thread of MongoDB's means none of ours.
        if field(data, "threadName").is_some() {
            return false;
        }
        if let Some(name) = field(data, "appName")
            && name.as_str() != self.app_name()
        {
            return false;
        }
        if let Some(wanted) = field(data, "namespace")
            && wanted.as_str() != Some(&namespace())
        {
            return false;
        }
        flag(data, "failInternalCommands") || !self.connection.is_internal()
    }

    fn is_named(&self, data: &RawDocument) -> bool {
        if flag(data, "failAllCommands") {
            return true;
        }
        let Some(RawBsonRef::Array(names)) = field(data, "failCommands") else {
            return false;
        };
        let mut names = names.into_iter().flatten();
        names.any(|name| name.as_str().is_some_and(|name| self.is_called(name)))
    }

    /// `hello` and `isMaster` are two commands to a test.
    fn is_called(&self, name: &str) -> bool {
        const GREETING: &str = "hello";
        if self.name == GREETING {
            let asked = self.request.name.as_str();
            return match asked == GREETING {
                true => name == GREETING,
                false => name != GREETING && self.aliases.contains(&name),
            };
        }
        self.name == name || self.aliases.contains(&name)
    }

    /// What the client calls itself, in the greeting that it does so with as well.
    fn app_name(&self) -> Option<&str> {
        let told = || self.request.get("client")?.as_document();
        let metadata = self.connection.metadata().map(|known| &**known);
        let metadata = metadata.or_else(told)?;
        let application = field(metadata, "application")?.as_document()?;
        field(application, "name")?.as_str()
    }

    /// The collection that the command's own field names, or else its database.
    fn namespace(&self) -> String {
        let database = &self.request.database;
        let collection = match self.name {
            "getMore" => self.request.get("collection"),
            _ => self.request.first_value(),
        };
        match collection {
            Some(RawBsonRef::String(collection)) => format!("{database}.{collection}"),
            _ => database.clone(),
        }
    }
}

impl Failure {
    fn of(data: &RawDocument) -> Failure {
        let mut failure = Failure {
            labels: labels(data),
            closes: flag(data, CLOSE),
            ..Failure::default()
        };
        if failure.closes {
            return failure;
        }
        if flag(data, BLOCK) {
            match block_time(data) {
                Ok(time) => failure.block = Some(time),
                Err(error) => {
                    failure.error = Some(error);
                    return failure;
                }
            }
        }
        failure.error = code(data)
            .filter(|code| *code != ErrorCode::OK)
            .map(|code| {
                let text = "Failing command via 'failCommand' failpoint";
                match field(data, "errorExtraInfo") {
                    Some(RawBsonRef::Document(extra)) => {
                        CommandError::new(code, text).with_extra(extra.to_owned())
                    }
                    _ => CommandError::new(code, text),
                }
            });
        failure
    }
}

/// A reply that is not an error's with the labels that a test names.
pub fn labelled_reply(mut reply: RawDocumentBuf, labels: &RawArrayBuf) -> RawDocumentBuf {
    let is_marked = field(&reply, CONCERN).is_some();
    if is_marked && !labels.is_empty() {
        reply.append(cstr!("errorLabels"), labels.clone());
    }
    reply
}

/// An error with the labels that a test names, and no others.
pub fn labelled(mut error: CommandError, labels: &RawArrayBuf) -> CommandError {
    error.labels.clear();
    if labels.is_empty() {
        return error;
    }
    let mut extra = match error.extra.take() {
        Some(extra) => *extra,
        None => RawDocumentBuf::new(),
    };
    extra.append(cstr!("errorLabels"), labels.clone());
    error.with_extra(extra)
}

fn labels(data: &RawDocument) -> Option<RawArrayBuf> {
    match field(data, LABELS)? {
        RawBsonRef::Array(labels) => Some(labels.to_owned()),
        _ => None,
    }
}

fn flag(data: &RawDocument, name: &str) -> bool {
    field(data, name).is_some_and(is_true)
}

fn code(data: &RawDocument) -> Option<ErrorCode> {
    let code = number(field(data, CODE)?)?;
    i32::try_from(code).ok().map(ErrorCode::from_code)
}

fn block_time(data: &RawDocument) -> Result<Duration, CommandError> {
    let bad = |text| CommandError::new(ErrorCode::InvalidOptions, text);
    let time = field(data, "blockTimeMS").and_then(number);
    let time =
        time.ok_or_else(|| bad("must specify 'blockTimeMS' when 'blockConnection' is true"))?;
    let time = u64::try_from(time).map_err(|_| bad("'blockTimeMS' must be non-negative"))?;
    Ok(Duration::from_millis(time))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;
    use tokio_util::sync::CancellationToken;

    fn connection(app_name: Option<&str>) -> Connection {
        let address = ([127, 0, 0, 1], 1).into();
        let connection = Connection::new(1, address, address, CancellationToken::new());
        if let Some(name) = app_name {
            connection.set_metadata(rawdoc! {"application": {"name": name}});
        }
        connection
    }

    /// Whether `data` fails an `insert` into `shop.items` of a client that calls itself `till`.
    fn fails(data: RawDocumentBuf, app_name: Option<&str>) -> Option<Failure> {
        let points = FailPoints::default();
        let body = rawdoc! {"configureFailPoint": "failCommand", "mode": "alwaysOn", "data": data};
        points.configure(&body).unwrap();
        let connection = connection(app_name);
        let request = Request::command("shop", rawdoc! {"insert": "items"});
        let failing = Failing {
            points: &points,
            connection: &connection,
            request: &request,
            name: "insert",
            aliases: &[],
        };
        failing.before()
    }

    #[test]
    fn a_command_is_failed_by_name_client_and_collection() {
        let till = Some("till");
        let data = |more: RawDocumentBuf| {
            let mut data = rawdoc! {"failCommands": ["find", "insert"], "errorCode": 91};
            for (name, value) in more.iter().flatten() {
                data.append(name, value);
            }
            data
        };
        let failure = fails(data(rawdoc! {}), till).unwrap();
        let error = failure.error.unwrap();
        assert_eq!(error.code, ErrorCode::ShutdownInProgress);
        assert!(failure.labels.is_none() && !failure.closes && failure.block.is_none());
        assert!(fails(rawdoc! {"failCommands": ["find"], "errorCode": 91}, till).is_none());
        assert!(fails(rawdoc! {"failCommands": ["insert"]}, till).is_none());
        assert!(fails(data(rawdoc! {"appName": "till"}), till).is_some());
        assert!(fails(data(rawdoc! {"appName": "shelf"}), till).is_none());
        assert!(fails(data(rawdoc! {"namespace": "shop.items"}), till).is_some());
        assert!(fails(data(rawdoc! {"namespace": "shop.goods"}), till).is_none());
        assert!(fails(data(rawdoc! {}), None).is_none());
        assert!(fails(data(rawdoc! {"failInternalCommands": true}), None).is_some());
    }

    #[test]
    fn what_a_failing_command_does_is_what_the_data_says() {
        let data = |more: RawDocumentBuf| {
            let mut data = rawdoc! {"failCommands": ["insert"]};
            for (name, value) in more.iter().flatten() {
                data.append(name, value);
            }
            fails(data, Some("till"))
        };
        assert!(data(rawdoc! {"closeConnection": true}).unwrap().closes);
        let blocked = data(rawdoc! {"blockConnection": true, "blockTimeMS": 5}).unwrap();
        assert_eq!(blocked.block, Some(Duration::from_millis(5)));
        assert!(blocked.error.is_none());
        let unclear = data(rawdoc! {"blockConnection": true}).unwrap();
        assert_eq!(unclear.error.unwrap().code, ErrorCode::InvalidOptions);
        let nothing = data(rawdoc! {"errorCode": 0}).unwrap();
        assert!(nothing.error.is_none());
        let labels = data(rawdoc! {"errorCode": 91, "errorLabels": ["a"]}).unwrap();
        let reply = labelled(labels.error.unwrap(), &labels.labels.unwrap()).to_reply();
        assert_eq!(
            reply.get_array("errorLabels").unwrap().into_iter().count(),
            1
        );
    }
}
