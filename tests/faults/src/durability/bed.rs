//! The processes that crash.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use banyan_crash::Point;
use banyan_tests::{Launch, Process};
use bson::{Document, doc};
use mongodb::Client;
use mongodb::options::ClientOptions;
use rand::rngs::StdRng;

use crate::control::Control;
use crate::power;

const NAME: &str = "durability";
const TIMEOUT: Duration = Duration::from_secs(60);

pub struct Member {
    pub process: Process,
    control: Control,
    folder: tempfile::TempDir,
    runs: bool,
}

impl Member {
    fn disk(&self) -> PathBuf {
        self.folder.path().join("disk")
    }
}

pub struct Bed {
    pub members: Vec<Member>,
}

/// A client that tells of the first failure.
pub async fn impatient(host: &str) -> Result<Client> {
    let uri = format!("mongodb://{host}/?directConnection=true");
    let mut options = ClientOptions::parse(uri).await?;
    options.retry_writes = Some(false);
    options.retry_reads = Some(false);
    options.server_selection_timeout = Some(Duration::from_secs(2));
    Ok(Client::with_options(options)?)
}

impl Bed {
    /// One member is a single server, several are a set.
    pub async fn start(count: usize, program: Option<&Path>) -> Result<Bed> {
        let launch = match program {
            Some(program) => Launch::other(program.to_owned()),
            None => Launch::mongod(),
        };
        let mut launch = launch.with(["--oplogSize=1"]);
        if count > 1 {
            launch = launch.with(["--replSet", NAME]);
        }
        let mut members = Vec::new();
        for _ in 0..count {
            let folder = tempfile::Builder::new()
                .prefix("banyan-durability-")
                .tempdir()?;
            let disk = folder.path().join("disk");
            fs::create_dir(&disk)?;
            let control = Control::new(folder.path())?;
            let process = control.over(launch.clone(), &disk).prepare_on(disk);
            members.push(Member {
                process,
                control,
                folder,
                runs: false,
            });
        }
        let mut bed = Bed { members };
        for member in 0..count {
            bed.spawn(member, None);
        }
        for member in &mut bed.members {
            member.process.ready().await;
        }
        if count > 1 {
            let listed: Vec<Document> = (0_i32..)
                .zip(&bed.members)
                .map(|(id, member)| doc! { "_id": id, "host": member.process.host() })
                .collect();
            let initiate = doc! { "replSetInitiate": { "_id": NAME, "members": listed } };
            let admin = bed.members[0].process.direct().await.database("admin");
            admin.run_command(initiate).await?;
        }
        bed.settled().await?;
        Ok(bed)
    }

    pub fn is_set(&self) -> bool {
        self.members.len() > 1
    }

    /// Starts a member, which dies at that point when it has passed it so often.
    pub fn spawn(&mut self, member: usize, crash: Option<(Point, u32)>) {
        let one = &mut self.members[member];
        let armed = crash.map(|(point, count)| format!("{}:{count}", point.name()));
        one.process.set_variable("BANYAN_CRASH", armed);
        one.process.spawn();
        one.runs = true;
    }

    pub fn kill(&mut self, member: usize) {
        self.members[member].process.kill();
        self.members[member].runs = false;
    }

    /// Forgets what a killed member had not synced.
    pub fn lose_unsynced(&self, member: usize, rng: &mut StdRng) -> Result<usize> {
        let one = &self.members[member];
        power::lose_unsynced(&one.disk(), one.control.undo(), rng)
    }

    /// Which members have died by themselves; one that was not killed has failed.
    pub fn died(&mut self) -> Result<Vec<usize>> {
        let mut died = Vec::new();
        for (number, member) in self.members.iter_mut().enumerate() {
            if !member.runs {
                continue;
            }
            if let Err(status) = member.process.is_running() {
                member.runs = false;
                let text = status.map_or("gone".to_owned(), |status| status.to_string());
                if !text.contains("signal: 9") {
                    bail!(
                        "member {number} ended with {text}:\n{}",
                        member.process.log()
                    );
                }
                died.push(number);
            }
        }
        Ok(died)
    }

    /// Waits until all answer, and one leads and the others follow it. False if one has died.
    pub async fn settled(&mut self) -> Result<bool> {
        let started = Instant::now();
        let mut last = String::new();
        while started.elapsed() < TIMEOUT {
            if !self.died()?.is_empty() {
                return Ok(false);
            }
            match self.states().await {
                Ok(states) => {
                    let leads = states.iter().filter(|&&state| state == 1).count() == 1;
                    if leads && states.iter().all(|state| matches!(state, 1 | 2)) {
                        return Ok(true);
                    }
                    last = format!("states {states:?}");
                }
                Err(error) => last = error.to_string(),
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        let logs: Vec<String> = (self.members.iter())
            .map(|member| {
                let log = member.process.log();
                let lines: Vec<&str> = log.lines().collect();
                lines[lines.len().saturating_sub(20)..].join("\n")
            })
            .collect();
        bail!(
            "not settled within {TIMEOUT:?}: {last}\n{}",
            logs.join("\n--\n")
        )
    }

    async fn states(&self) -> Result<Vec<i32>> {
        let mut states = Vec::new();
        for member in &self.members {
            let admin = impatient(&member.process.host()).await?.database("admin");
            let hello = admin.run_command(doc! { "hello": 1 }).await?;
            let is = |name| hello.get_bool(name).unwrap_or(false);
            states.push(match (is("isWritablePrimary"), is("secondary")) {
                (true, _) => 1,
                (_, true) => 2,
                _ => 0,
            });
        }
        Ok(states)
    }

    /// The member that leads; `None` if the only one has died.
    pub async fn primary(&mut self) -> Result<Option<usize>> {
        let started = Instant::now();
        while started.elapsed() < TIMEOUT {
            if !self.is_set() && (!self.died()?.is_empty() || !self.members[0].runs) {
                return Ok(None);
            }
            for (number, member) in self.members.iter().enumerate() {
                if !member.runs {
                    continue;
                }
                let admin = impatient(&member.process.host()).await?.database("admin");
                if let Ok(hello) = admin.run_command(doc! { "hello": 1 }).await
                    && hello.get_bool("isWritablePrimary").unwrap_or(false)
                {
                    return Ok(Some(number));
                }
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        Err(anyhow!("nobody leads within {TIMEOUT:?}"))
    }

    pub async fn client(&self, member: usize) -> Result<Client> {
        impatient(&self.members[member].process.host()).await
    }
}
