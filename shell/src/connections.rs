//! Connections through the official driver, for callers that block.

use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use bson::{Document, RawDocumentBuf};
use mongodb::Client;
use mongodb::options::{ClientOptions, ReadPreference, SelectionCriteria};
use tokio::runtime::Runtime;
use tokio::sync::Notify;

/// How long a server may take to be found.
const SELECTION_TIMEOUT: Duration = Duration::from_secs(10);

pub struct Connections {
    runtime: Runtime,
    open: Vec<Connection>,
    interrupt: Arc<Notify>,
}

struct Connection {
    client: Client,
    address: String,
}

impl Connections {
    pub fn new(interrupt: Arc<Notify>) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("the runtime does not start")?;
        Ok(Self {
            runtime,
            open: Vec::new(),
            interrupt,
        })
    }

    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Connects to `host:port`, `set/host:port,…` or a `mongodb://` address; the connection's number.
    pub fn connect(&mut self, address: &str) -> Result<usize> {
        let uri = uri(address);
        let client = self.runtime.block_on(async {
            let mut options = ClientOptions::parse(&uri).await?;
            options
                .server_selection_timeout
                .get_or_insert(SELECTION_TIMEOUT);
            options.connect_timeout.get_or_insert(SELECTION_TIMEOUT);
            options
                .app_name
                .get_or_insert_with(|| "Banyan shell".to_owned());
            if let ([host], None) = (&options.hosts[..], &options.repl_set_name) {
                // A host by itself is that process, whatever its part in a set.
                options.direct_connection.get_or_insert(true);
                reachable(&host.to_string())?;
            }
            anyhow::Ok(Client::with_options(options)?)
        })?;
        self.open.push(Connection {
            client,
            address: address.to_owned(),
        });
        let number = self.open.len() - 1;
        self.run(number, "admin", bson::rawdoc! { "ping": 1 }, None)
            .with_context(|| format!("couldn't connect to server {address}"))?;
        Ok(number)
    }

    pub fn address(&self, number: usize) -> Option<&str> {
        Some(&self.open.get(number)?.address)
    }

    /// Runs a command and returns the server's reply, also one with `ok: 0`. The cluster's clock,
    /// which the driver keeps, is left out of it.
    pub fn run(
        &self,
        number: usize,
        database: &str,
        command: RawDocumentBuf,
        preference: Option<ReadPreference>,
    ) -> Result<RawDocumentBuf> {
        let connection = self.open.get(number).context("no such connection")?;
        let database = connection.client.database(database);
        let reply = self.runtime.block_on(async {
            let mut action = database.run_raw_command(command);
            if let Some(preference) = preference {
                action = action.selection_criteria(SelectionCriteria::ReadPreference(preference));
            }
            tokio::select! {
                reply = action => reply.map_err(Failure::Driver),
                () = self.interrupt.notified() => Err(Failure::Interrupted),
            }
        });
        let reply = match reply {
            Ok(reply) => reply,
            Err(Failure::Interrupted) => bail!("interrupted"),
            Err(Failure::Driver(error)) => match error.server_response() {
                Some(reply) => Document::try_from(reply)?,
                None => return Err(anyhow!("{}", error.kind)),
            },
        };
        let shown = reply
            .into_iter()
            .filter(|(name, _)| name != "$clusterTime" && name != "operationTime");
        Ok(RawDocumentBuf::try_from(shown.collect::<Document>())?)
    }
}

enum Failure {
    Driver(mongodb::error::Error),
    Interrupted,
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

impl Connections {
    /// Ends the driver's background work, waiting at most this long.
    pub fn shut_down(self, limit: Duration) {
        self.runtime.shutdown_timeout(limit);
    }
}
