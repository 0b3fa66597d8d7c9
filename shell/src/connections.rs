//! Connections through the official driver, for callers that block.

use std::fmt;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use bson::{Bson, Document, RawDocumentBuf, doc};
use mongodb::event::EventHandler;
use mongodb::event::command::CommandEvent;
use mongodb::options::{ClientOptions, ReadPreference, SelectionCriteria, ServerAddress};
use mongodb::{Client, ClientSession};
use tokio::runtime::Runtime;

use crate::encryption::Encryption;
use crate::ending::{self, Whose};
use crate::interrupt::Interrupt;
use crate::login::Login;
use crate::preference;

/// How long a server may take to be found.
const SELECTION_TIMEOUT: Duration = Duration::from_secs(10);

pub struct Connections {
    runtime: Runtime,
    open: Vec<Connection>,
    /// The sessions that scripts started; `None` once they have ended.
    sessions: Vec<Option<ClientSession>>,
    interrupt: Interrupt,
    encryption: Encryption,
    login: Login,
}

struct Connection {
    client: Client,
    address: String,
    /// What the address says of reads and writes, for the shell's own commands.
    defaults: Document,
    /// Whether a router answers: it is told the read preference in full.
    routed: bool,
    last_server: Arc<Mutex<Option<Server>>>,
}

/// A server, and the number that it gives the connection that was used.
#[derive(Clone)]
struct Server {
    address: ServerAddress,
    connection: Option<i64>,
}

/// Where a command goes, and as a part of what.
#[derive(Default)]
pub struct Route {
    pub preference: Option<Document>,
    /// The server that holds the cursor.
    pub server: Option<String>,
    pub session: Option<usize>,
}

/// The connection broke under a command: nobody knows whether it was done.
#[derive(Debug)]
pub struct ConnectionLost(String);

impl fmt::Display for ConnectionLost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for ConnectionLost {}

impl Connections {
    pub fn new(interrupt: Interrupt, encryption: Encryption, login: Login) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("the runtime does not start")?;
        Ok(Self {
            runtime,
            open: Vec::new(),
            sessions: Vec::new(),
            interrupt,
            encryption,
            login,
        })
    }

    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Connects to `host:port`, `set/host:port,…` or a `mongodb://` address; the connection's number.
    pub fn connect(&mut self, address: &str) -> Result<usize> {
        let uri = uri(address);
        let last_server = Arc::new(Mutex::new(None));
        let (client, defaults) = self.runtime.block_on(async {
            let mut options = ClientOptions::parse(&uri).await?;
            self.encryption.apply(&mut options)?;
            self.login.apply(&mut options)?;
            options
                .server_selection_timeout
                .get_or_insert(SELECTION_TIMEOUT);
            options.connect_timeout.get_or_insert(SELECTION_TIMEOUT);
            options
                .app_name
                .get_or_insert_with(|| "Banyan shell".to_owned());
            options.command_event_handler = Some(noting_the_server(last_server.clone()));
            if let ([host], None) = (&options.hosts[..], &options.repl_set_name) {
                // A host by itself is that process, whatever its part in a set.
                options.direct_connection.get_or_insert(true);
                reachable(&host.to_string())?;
            }
            let defaults = defaults(&options)?;
            anyhow::Ok((Client::with_options(options)?, defaults))
        })?;
        self.open.push(Connection {
            client,
            address: address.to_owned(),
            defaults,
            routed: false,
            last_server,
        });
        let number = self.open.len() - 1;
        let route = Route {
            preference: Some(doc! { "mode": "nearest" }),
            ..Route::default()
        };
        let hello = self
            .run(number, "admin", bson::rawdoc! { "hello": 1 }, &route)
            .with_context(|| format!("couldn't connect to server {address}"))?;
        let connection = &mut self.open[number];
        connection.routed = matches!(hello.get_str("msg"), Ok("isdbgrid"));
        let sessions = matches!(hello.get("logicalSessionTimeoutMinutes"), Ok(Some(_)));
        connection.defaults.insert("sessions", sessions);
        Ok(number)
    }

    pub fn address(&self, number: usize) -> Option<&str> {
        Some(&self.open.get(number)?.address)
    }

    /// `readPreference`, `readConcern`, `writeConcern` and `retryWrites`, as far as the address
    /// says something of them, whether it names a whole `set`, and whether there are `sessions`.
    pub fn defaults(&self, number: usize) -> Option<&Document> {
        Some(&self.open.get(number)?.defaults)
    }

    /// Who answered the last command.
    pub fn last_server(&self, number: usize) -> Option<String> {
        let last = &self.open.get(number)?.last_server;
        let last = last.lock().unwrap_or_else(PoisonError::into_inner);
        Some(last.as_ref()?.address.to_string())
    }

    /// Waits, unless it is interrupted.
    pub fn sleep(&self, time: Duration) {
        let interrupted = self.interrupt.raised();
        // Either end will do.
        let _ = self
            .runtime
            .block_on(async { tokio::time::timeout(time, interrupted).await });
    }

    /// Runs a command and returns the server's reply, also one with `ok: 0`. If it is interrupted
    /// the server is told to end what it does for it.
    pub fn run(
        &mut self,
        number: usize,
        database: &str,
        command: RawDocumentBuf,
        route: &Route,
    ) -> Result<RawDocumentBuf> {
        let connection = self.open.get(number).context("no such connection")?;
        let (command, criteria) = connection.routed(command, route)?;
        let session = match route.session {
            Some(at) => {
                let session = self.sessions.get_mut(at).and_then(Option::as_mut);
                Some(session.context("the session has ended")?)
            }
            None => None,
        };
        if self.interrupt.is_raised() {
            bail!("interrupted");
        }
        connection.forget_server();
        let whose = session
            .as_ref()
            .and_then(|session| session.id().get("id").cloned());
        let database = connection.client.database(database);
        let reply = self.runtime.block_on(async {
            let mut action = database.run_raw_command(command);
            if let Some(criteria) = criteria {
                action = action.selection_criteria(criteria);
            }
            if let Some(session) = session {
                action = action.session(session);
            }
            let mut action = action.into_future();
            tokio::select! {
                reply = &mut action => return reply.map_err(Failure::Driver),
                () = self.interrupt.raised() => {}
            }
            if let Some((server, whose)) = connection.running(whose) {
                ending::end(action, &connection.client, server, whose).await;
            }
            Err(Failure::Interrupted)
        });
        match reply {
            Ok(reply) => Ok(RawDocumentBuf::try_from(reply)?),
            Err(Failure::Interrupted) => bail!("interrupted"),
            Err(Failure::Driver(error)) => match error.server_response() {
                Some(reply) => Ok(reply.clone()),
                None => Err(unanswered(&error, route)),
            },
        }
    }

    /// Starts a session; its number and id.
    pub fn start_session(&mut self, number: usize) -> Result<(usize, Document)> {
        let connection = self.open.get(number).context("no such connection")?;
        // What a session promises is added to its commands by the shell's own scripts.
        let session = connection.client.start_session().causal_consistency(false);
        let session = self.runtime.block_on(async { session.await })?;
        let id = session.id().clone();
        self.sessions.push(Some(session));
        Ok((self.sessions.len() - 1, id))
    }

    /// Makes the session's commands carry a cluster time that is at least this one.
    pub fn advance_cluster_time(&mut self, session: usize, time: &RawDocumentBuf) -> Result<()> {
        let time = bson::deserialize_from_slice(time.as_bytes())
            .context("a cluster time is {clusterTime: Timestamp, signature: {…}}")?;
        let session = self.sessions.get_mut(session).and_then(Option::as_mut);
        session
            .context("the session has ended")?
            .advance_cluster_time(&time);
        Ok(())
    }

    /// Gives the session's id back.
    pub fn end_session(&mut self, session: usize) {
        // The driver puts the id aside in a task of the runtime's.
        let _inside = self.runtime.enter();
        if let Some(session) = self.sessions.get_mut(session) {
            *session = None;
        }
    }

    /// Ends the driver's background work, waiting at most this long.
    pub fn shut_down(mut self, limit: Duration) {
        for at in 0..self.sessions.len() {
            self.end_session(at);
        }
        self.runtime.shutdown_timeout(limit);
    }
}

impl Connection {
    fn forget_server(&self) {
        *self
            .last_server
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Where a command of the session runs, if it has been sent, and what it can be told by there.
    fn running(&self, session: Option<Bson>) -> Option<(ServerAddress, Whose)> {
        let last = self.last_server.lock();
        let server = last.unwrap_or_else(PoisonError::into_inner).clone()?;
        let whose = match (session, server.connection) {
            (Some(id), _) => Whose::Session(id),
            // A router's number means nothing to the shards, where the operations are.
            (None, Some(number)) if !self.routed => Whose::Connection(number),
            _ => return None,
        };
        Some((server.address, whose))
    }

    /// The command as it is sent, and which servers may get it.
    fn routed(
        &self,
        mut command: RawDocumentBuf,
        route: &Route,
    ) -> Result<(RawDocumentBuf, Option<SelectionCriteria>)> {
        if let Some(server) = &route.server {
            let server = ServerAddress::parse(server)?;
            let is_it = move |info: &mongodb::ServerInfo| *info.address() == server;
            return Ok((command, Some(SelectionCriteria::Predicate(Arc::new(is_it)))));
        }
        let Some(given) = &route.preference else {
            return Ok((command, None));
        };
        let preference: ReadPreference = preference::parse(given)?;
        if self.routed {
            // The router chooses: it gets what was asked for, not what the driver makes of it.
            let given = RawDocumentBuf::try_from(given.clone())?;
            command.append(bson::cstr!("$readPreference"), given);
            return Ok((command, None));
        }
        Ok((command, Some(preference.into())))
    }
}

enum Failure {
    Driver(mongodb::error::Error),
    Interrupted,
}

/// An error that no server told.
fn unanswered(error: &mongodb::error::Error, route: &Route) -> anyhow::Error {
    use mongodb::error::ErrorKind;
    let text = error.kind.to_string();
    match &*error.kind {
        ErrorKind::Io(_) | ErrorKind::ConnectionPoolCleared { .. } => ConnectionLost(text).into(),
        ErrorKind::ServerSelection { message, .. } => match (servers(message), route) {
            (servers, _) if servers.is_empty() => anyhow!(text),
            (
                servers,
                Route {
                    server: Some(wanted),
                    ..
                },
            ) => {
                anyhow!("{wanted}, which holds the cursor, cannot be reached; there are {servers}")
            }
            (
                servers,
                Route {
                    preference: Some(wanted),
                    ..
                },
            ) => {
                anyhow!("no server suits the read preference {wanted}; there are {servers}")
            }
            (servers, _) => anyhow!("no primary was found; there are {servers}"),
        },
        _ => anyhow!(text),
    }
}

/// The servers that the driver knew when it found none to ask, out of what it says of them.
fn servers(message: &str) -> String {
    let of = |text: &str, name: &str| {
        let value = text.split_once(name)?.1;
        Some(value.split([',', '}']).next()?.trim().to_owned())
    };
    let server = |text: &str| {
        let address = text.split(',').next()?.trim();
        let kind = of(text, "Type: ")?;
        let kind = match kind.strip_prefix("Rs") {
            Some(kind) => kind.to_uppercase(),
            None if kind == "Unknown" => not_reachable(text),
            None => kind,
        };
        Some(format!("{address} ({kind})"))
    };
    let told: Vec<String> = message
        .split("Address: ")
        .skip(1)
        .filter_map(server)
        .collect();
    told.join(", ")
}

/// With the reason, if the driver has one: a handshake that failed looks like a host that is away.
fn not_reachable(server: &str) -> String {
    let reason = server.split_once("Error: Kind: ");
    let reason = reason.and_then(|(_, error)| Some(error.split_once(", labels:")?.0));
    match reason {
        Some(reason) => format!("not reachable: {reason}"),
        None => "not reachable".to_owned(),
    }
}

/// The driver chooses servers; a cursor lives on the one that was chosen.
fn noting_the_server(last: Arc<Mutex<Option<Server>>>) -> EventHandler<CommandEvent> {
    EventHandler::callback(move |event| {
        if let CommandEvent::Started(started) = event {
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            *last = Some(Server {
                address: started.connection.address,
                connection: started.connection.server_id,
            });
        }
    })
}

fn defaults(options: &ClientOptions) -> Result<Document> {
    let mut defaults = doc! { "set": options.repl_set_name.is_some() };
    if let Some(SelectionCriteria::ReadPreference(preference)) = &options.selection_criteria {
        defaults.insert("readPreference", preference::told(preference));
    }
    if let Some(concern) = &options.read_concern {
        defaults.insert("readConcern", bson::serialize_to_bson(concern)?);
    }
    if let Some(concern) = &options.write_concern {
        defaults.insert("writeConcern", bson::serialize_to_bson(concern)?);
    }
    if let Some(retry) = options.retry_writes {
        defaults.insert("retryWrites", retry);
    }
    Ok(defaults)
}

fn uri(address: &str) -> String {
    if address.starts_with("mongodb://") || address.starts_with("mongodb+srv://") {
        return address.to_owned();
    }
    match address.split_once('/') {
        Some((set, hosts)) => format!("mongodb://{hosts}/?replicaSet={set}"),
        None => format!("mongodb://{address}/"),
    }
}

/// Asks for a TCP connection first: "refused" at once says more than a selection that times out.
fn reachable(host: &str) -> Result<()> {
    let refused = || format!("couldn't connect to server {host}");
    let addresses: Vec<_> = host.to_socket_addrs().with_context(refused)?.collect();
    let mut last = anyhow!("the name has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, SELECTION_TIMEOUT) {
            Ok(_) => return Ok(()),
            Err(error) => last = error.into(),
        }
    }
    Err(last).with_context(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_are_found_in_what_the_driver_says() {
        let message = "Server selection timeout: None of the available servers suitable. Topology: \
            { Type: ReplicaSetNoPrimary, Set Name: rs0, Servers: [ \
            { Address: localhost:27017, Type: RsSecondary, Average RTT: 1ms, Tags: {\"dc\": \"x\"} }, \
            { Address: [::1]:27018, Type: Unknown, Error: Kind: I/O error: no, none, labels: {}, \
              source: None, server response: None }, { Address: a:1, Type: Unknown } ] }";
        assert_eq!(
            servers(message),
            "localhost:27017 (SECONDARY), [::1]:27018 (not reachable: I/O error: no, none), \
             a:1 (not reachable)"
        );
        assert_eq!(
            servers("Server selection timeout: No available servers"),
            ""
        );
    }
}
