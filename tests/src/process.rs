//! One program as a child process, and replica sets of them.

use std::ffi::OsString;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bson::{Document, doc};
use mongodb::Client;
use mongodb::options::ClientOptions;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::wait::eventually;

/// The root of the checkout.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ has a parent")
        .to_owned()
}

/// A built program: in the folder of the running binary, or above it for a test
/// (`target/<profile>/deps/stories-…`). The folder in `BANYAN_PROGRAMS` comes before both.
pub fn program(name: &str) -> PathBuf {
    if let Some(folder) = std::env::var_os("BANYAN_PROGRAMS") {
        return Path::new(&folder).join(name);
    }
    let running = std::env::current_exe().expect("the running binary has a path");
    let folders = running.ancestors().skip(1).take(2);
    let path = folders
        .map(|folder| folder.join(name))
        .find(|path| path.is_file());
    path.unwrap_or_else(|| panic!("{name} is not built: cargo build --workspace --bins"))
}

/// A port that was free a moment ago, and that nobody else is likely to take.
pub fn free_port() -> u16 {
    // Below the range that Linux takes ports from by itself, for whom it connects or binds
    // meanwhile; and never the same twice.
    const FIRST: u32 = 20_000;
    const COUNT: u32 = 12_000;
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let begin = std::process::id().wrapping_mul(101);
    for _ in 0..COUNT {
        let turn = begin.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed));
        let port = (FIRST + turn % COUNT) as u16;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("loopback has no free port");
}

/// How to start a program: its arguments besides port and directory.
#[derive(Clone, Debug)]
pub struct Launch {
    program: PathBuf,
    arguments: Vec<String>,
    variables: Vec<(String, OsString)>,
    has_data: bool,
    /// What addresses of it say besides, `&tls=true` and so on.
    uri_options: String,
}

impl Launch {
    pub fn mongod() -> Self {
        Self {
            program: program("mongod"),
            arguments: Vec::new(),
            variables: Vec::new(),
            has_data: true,
            uri_options: String::new(),
        }
    }

    pub fn configsvr() -> Self {
        Self {
            program: program("configsvr"),
            arguments: Vec::new(),
            variables: Vec::new(),
            has_data: true,
            uri_options: String::new(),
        }
    }

    pub fn mongos(config_database: &str) -> Self {
        let launch = Self {
            program: program("mongos"),
            arguments: Vec::new(),
            variables: Vec::new(),
            has_data: false,
            uri_options: String::new(),
        };
        launch.with(["--configdb", config_database])
    }

    /// Another data node than ours that takes the same flags: the reference.
    pub fn other(program: PathBuf) -> Self {
        Self {
            program,
            arguments: Vec::new(),
            variables: Vec::new(),
            has_data: true,
            uri_options: String::new(),
        }
    }

    pub fn with<const N: usize>(mut self, arguments: [&str; N]) -> Self {
        self.arguments.extend(arguments.map(str::to_owned));
        self
    }

    pub fn with_all(mut self, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|&argument| argument.to_owned());
        self.arguments.extend(arguments);
        self
    }

    /// Its clients have to say this besides, as in `tls=true&tlsCAFile=…`.
    pub fn asked_with(mut self, uri_options: &str) -> Self {
        self.uri_options = format!("&{uri_options}");
        self
    }

    /// With this variable in its environment.
    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    /// Starts on a free port with an empty directory and waits until it answers.
    pub async fn start(self) -> Process {
        let mut process = self.prepare();
        process.start().await;
        process
    }

    /// The process with its port and directory, not yet started.
    pub fn prepare(self) -> Process {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let data = directory.path().join("data");
        Process {
            launch: self,
            port: free_port(),
            directory,
            data,
            makes_data: true,
            child: None,
        }
    }

    /// Like [`Self::prepare`], but on this data directory, which is taken as it is.
    pub fn prepare_on(self, data: PathBuf) -> Process {
        let mut process = self.prepare();
        process.data = data;
        process.makes_data = false;
        process
    }
}

/// A program of ours with its port and directory; killed when dropped.
pub struct Process {
    launch: Launch,
    pub port: u16,
    directory: TempDir,
    data: PathBuf,
    makes_data: bool,
    child: Option<Child>,
}

impl Process {
    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// From the next start on: this variable in its environment, or not.
    pub fn set_variable(&mut self, name: &str, value: Option<String>) {
        let variables = &mut self.launch.variables;
        variables.retain(|(known, _)| known != name);
        variables.extend(value.map(|value| (name.to_owned(), value.into())));
    }

    pub fn data_directory(&self) -> &Path {
        &self.data
    }

    pub fn log_path(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
            + &fs::read_to_string(self.directory.path().join("output")).unwrap_or_default()
    }

    pub fn pid(&self) -> Pid {
        let child = self.child.as_ref().expect("the process runs");
        Pid::from_raw(child.id().try_into().expect("a process id fits"))
    }

    /// Starts without waiting.
    pub fn spawn(&mut self) {
        assert!(self.child.is_none(), "already running");
        let output = fs::File::options()
            .create(true)
            .append(true)
            .open(self.directory.path().join("output"))
            .expect("the output file opens");
        let mut command = Command::new(&self.launch.program);
        command
            .args(&self.launch.arguments)
            .envs(self.launch.variables.iter().cloned())
            // A member names itself by the address that it listens on, as `host` does.
            .args(["--bind_ip", "127.0.0.1"])
            .arg("--port")
            .arg(self.port.to_string());
        command
            .arg("--logpath")
            .arg(self.log_path())
            .arg("--logappend");
        if self.launch.has_data {
            if self.makes_data {
                fs::create_dir_all(&self.data).expect("the data directory");
            }
            command.arg("--dbpath").arg(&self.data);
        }
        command.stdin(Stdio::null());
        command
            .stderr(output.try_clone().expect("a second handle"))
            .stdout(output);
        self.child = Some(command.spawn().expect("the program starts"));
    }

    /// Starts and waits until it answers a ping.
    pub async fn start(&mut self) {
        self.spawn();
        self.ready().await;
    }

    pub async fn ready(&mut self) {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.as_mut().and_then(|child| child.try_wait().ok()?) {
                panic!(
                    "{} ended with {status}:\n{}",
                    self.launch.program.display(),
                    self.log()
                );
            }
            let admin = self.direct().await.database("admin");
            let ping = admin.run_command(doc! { "ping": 1 });
            if matches!(
                tokio::time::timeout(Duration::from_secs(2), ping).await,
                Ok(Ok(_))
            ) {
                return;
            }
            assert!(
                started.elapsed() < Duration::from_secs(60),
                "{} does not answer:\n{}",
                self.launch.program.display(),
                self.log()
            );
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }

    /// Waits for the process to end by itself.
    pub async fn ended(&mut self) -> ExitStatus {
        let child = self.child.as_mut().expect("the process runs");
        let started = Instant::now();
        loop {
            if let Some(status) = child.try_wait().expect("the child can be waited for") {
                self.child = None;
                return status;
            }
            assert!(
                started.elapsed() < Duration::from_secs(30),
                "did not end: {}",
                self.log()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Whether it runs; once it has ended by itself, that and how.
    pub fn is_running(&mut self) -> Result<(), Option<ExitStatus>> {
        let child = self.child.as_mut().ok_or(None)?;
        match child.try_wait().expect("the child can be waited for") {
            None => Ok(()),
            Some(status) => {
                self.child = None;
                Err(Some(status))
            }
        }
    }

    /// SIGKILL, and gone when this returns.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// SIGTERM, and a clean end within seconds.
    pub async fn stop(&mut self) {
        kill(self.pid(), Signal::SIGTERM).expect("the signal is sent");
        let status = self.ended().await;
        assert!(
            status.success(),
            "a clean end, not {status}: {}",
            self.log()
        );
    }

    /// A client of this process alone.
    pub async fn direct(&self) -> Client {
        connect(&self.uri()).await
    }

    /// The address of this process alone.
    pub fn uri(&self) -> String {
        self.uri_with("directConnection=true")
    }

    pub(crate) fn uri_with(&self, option: &str) -> String {
        let (host, more) = (self.host(), &self.launch.uri_options);
        format!("mongodb://{host}/?{option}{more}")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let log = if std::thread::panicking() {
            Some(self.log())
        } else {
            None
        };
        self.kill();
        if let Some(log) = log {
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(15)..].join("\n");
            eprintln!(
                "-- log of {} on port {}:\n{tail}",
                self.launch.program.display(),
                self.port
            );
        }
    }
}

/// A driver client with time-outs that suit tests.
pub async fn connect(uri: &str) -> Client {
    let mut options = ClientOptions::parse(uri)
        .await
        .expect("the address is well formed");
    options.server_selection_timeout = Some(Duration::from_secs(20));
    options.connect_timeout = Some(Duration::from_secs(5));
    // The driver's own default of ten would make 64 concurrent clients into ten.
    options.max_pool_size = Some(128);
    Client::with_options(options).expect("the options are valid")
}

/// A replica set of `mongod`s.
pub struct ReplicaSet {
    pub name: String,
    pub members: Vec<Process>,
}

impl ReplicaSet {
    pub async fn start(name: &str, count: usize, extra: &[&str]) -> Self {
        Self::start_as(Launch::mongod(), name, count, extra).await
    }

    pub async fn start_as(launch: Launch, name: &str, count: usize, extra: &[&str]) -> Self {
        let mut members = Vec::new();
        for _ in 0..count {
            let mut launch = launch.clone().with(["--replSet", name]);
            launch
                .arguments
                .extend(extra.iter().map(|&argument| argument.to_owned()));
            let mut process = launch.prepare();
            process.spawn();
            members.push(process);
        }
        for member in &mut members {
            member.ready().await;
        }
        let set = Self {
            name: name.to_owned(),
            members,
        };
        initiate(&set.name, &set.members).await;
        set.settled().await;
        set
    }

    /// Waits until every member is PRIMARY or SECONDARY and one leads.
    pub async fn settled(&self) {
        eventually(&format!("set {} settles", self.name), || async {
            let status = self.status().await?;
            let states = states(&status);
            let leads = states.iter().filter(|&&state| state == 1).count() == 1;
            if leads && states.iter().all(|state| matches!(state, 1 | 2)) {
                return Ok(());
            }
            bail!("{status}")
        })
        .await;
    }

    /// `replSetGetStatus` of the first running member.
    pub async fn status(&self) -> Result<Document> {
        let member = self.members.iter().find(|member| member.child.is_some());
        let member = member.context("no member runs")?;
        let admin = member.direct().await.database("admin");
        Ok(admin.run_command(doc! { "replSetGetStatus": 1 }).await?)
    }

    /// The index of the member that calls itself primary.
    pub async fn primary(&self) -> usize {
        eventually("a primary", || async {
            for (index, member) in self.members.iter().enumerate() {
                if member.child.is_none() {
                    continue;
                }
                let admin = member.direct().await.database("admin");
                let Ok(hello) = admin.run_command(doc! { "hello": 1 }).await else {
                    continue;
                };
                if hello.get_bool("isWritablePrimary").unwrap_or(false) {
                    return Ok(index);
                }
            }
            bail!("none leads")
        })
        .await
    }

    pub fn hosts(&self) -> String {
        self.members
            .iter()
            .map(Process::host)
            .collect::<Vec<_>>()
            .join(",")
    }

    pub fn connection_string(&self) -> String {
        format!("{}/{}", self.name, self.hosts())
    }

    pub fn uri(&self) -> String {
        let options = &self.members[0].launch.uri_options;
        format!(
            "mongodb://{}/?replicaSet={}{options}",
            self.hosts(),
            self.name
        )
    }

    pub async fn client(&self) -> Client {
        connect(&self.uri()).await
    }
}

/// `replSetInitiate` with these members, sent to the first.
pub async fn initiate(name: &str, members: &[Process]) {
    let listed: Vec<Document> = (0_i32..)
        .zip(members)
        .map(|(id, member)| doc! { "_id": id, "host": member.host() })
        .collect();
    let admin = members[0].direct().await.database("admin");
    let configuration = doc! { "_id": name, "members": listed };
    let initiated = admin
        .run_command(doc! { "replSetInitiate": configuration })
        .await;
    initiated.expect("the set can be initiated");
}

/// The `state` of each member in a `replSetGetStatus` answer.
pub fn states(status: &Document) -> Vec<i32> {
    let members = status.get_array("members").cloned().unwrap_or_default();
    let state = |member: &bson::Bson| member.as_document()?.get_i32("state").ok();
    members.iter().filter_map(state).collect()
}
