//! The set under test: members behind proxies, each with a clock and a disk that can fail.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use banyan_tests::{Launch, Process, connect, within};
use bson::{Document, doc};
use mongodb::Client;
use nix::sys::signal::{Signal, kill};
use rand::rngs::StdRng;

use crate::control::Control;
use crate::net::Net;
use crate::power;

const NAME: &str = "faults";
const START_TIMEOUT: Duration = Duration::from_secs(60);
const COMMAND_TIMEOUT: Duration = Duration::from_secs(20);

/// What the nemesis has done to a member's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    Runs,
    Stopped,
    Killed,
}

impl Life {
    pub fn is_alive(self) -> bool {
        self != Life::Killed
    }
}

pub struct Member {
    process: Process,
    pub control: Control,
    pub life: Life,
    /// It may end by itself: its disk is full.
    pub may_end: bool,
    folder: tempfile::TempDir,
}

impl Member {
    pub fn log(&self) -> String {
        self.process.log()
    }

    pub fn disk(&self) -> PathBuf {
        self.folder.path().join("disk")
    }
}

pub struct Set {
    pub members: Vec<Member>,
    pub net: Arc<Net>,
}

impl Set {
    /// `program`: the data node; without one, the one that was built beside this program.
    /// `flags`: more of its flags.
    pub async fn start(count: usize, program: Option<&Path>, flags: &[String]) -> Result<Self> {
        let launch = match program {
            Some(program) => Launch::other(program.to_owned()),
            None => Launch::mongod(),
        };
        let launch = launch.with(["--replSet", NAME]);
        let launch = flags
            .iter()
            .fold(launch, |launch, flag| launch.with([&**flag]));
        let mut members = Vec::new();
        for _ in 0..count {
            let folder = tempfile::Builder::new()
                .prefix("banyan-faults-")
                .tempdir()?;
            let disk = folder.path().join("disk");
            fs::create_dir(&disk)?;
            let control = Control::new(folder.path())?;
            let process = control.over(launch.clone(), &disk).prepare_on(disk);
            members.push(Member {
                process,
                control,
                life: Life::Killed,
                may_end: false,
                folder,
            });
        }
        let ports: Vec<u16> = members.iter().map(|member| member.process.port).collect();
        let net = Net::new(&ports).await?;
        let mut set = Self { members, net };
        for member in 0..count {
            set.start_member(member);
        }
        for member in &mut set.members {
            member.process.ready().await;
        }
        set.initiate().await?;
        Ok(set)
    }

    fn listed(&self, without: Option<usize>) -> Vec<Document> {
        (0..self.len())
            .filter(|&member| Some(member) != without)
            .map(|member| doc! { "_id": member as i32, "host": self.host(member) })
            .collect()
    }

    /// Has this member, which should lead, make it a set of all, or of all but one.
    pub async fn reconfigure(&self, leader: usize, without: Option<usize>) -> Result<()> {
        let admin = self.direct(leader).await.database("admin");
        let change = async {
            let current = admin.run_command(doc! { "replSetGetConfig": 1 }).await?;
            let mut configuration = current.get_document("config")?.clone();
            let listed = self.listed(without);
            if configuration.get_array("members")?.len() == listed.len() {
                return Ok(());
            }
            let version = configuration.get_i32("version")? + 1;
            configuration.insert("version", version);
            configuration.insert("members", listed);
            admin
                .run_command(doc! { "replSetReconfig": configuration })
                .await?;
            anyhow::Ok(())
        };
        tokio::time::timeout(COMMAND_TIMEOUT, change).await?
    }

    /// Until the set has all its members.
    pub async fn complete(&self) -> Result<()> {
        let started = Instant::now();
        loop {
            let mut last = anyhow!("nobody leads");
            for member in 0..self.len() {
                let admin = self.direct(member).await.database("admin");
                let hello = admin.run_command(doc! { "hello": 1 }).await;
                if hello.is_ok_and(|hello| hello.get_bool("isWritablePrimary").unwrap_or(false)) {
                    match self.reconfigure(member, None).await {
                        Ok(()) => return Ok(()),
                        Err(error) => last = error,
                    }
                }
            }
            if started.elapsed() > START_TIMEOUT {
                return Err(last.context("all members are in the set again"));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn initiate(&self) -> Result<()> {
        let listed = self.listed(None);
        let admin = self.direct(0).await.database("admin");
        let configuration = doc! { "_id": NAME, "members": listed };
        admin
            .run_command(doc! { "replSetInitiate": configuration })
            .await
            .context("the set is initiated")?;
        self.settled().await;
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.members.len()
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The most members that can be missing while the set goes on.
    pub fn minority(&self) -> usize {
        (self.len() - 1) / 2
    }

    pub fn host(&self, member: usize) -> String {
        self.net.addresses[member].to_string()
    }

    pub fn uri(&self) -> String {
        let hosts: Vec<String> = (0..self.len()).map(|member| self.host(member)).collect();
        format!("mongodb://{}/?replicaSet={NAME}", hosts.join(","))
    }

    pub fn direct_uri(&self, member: usize) -> String {
        format!("mongodb://{}/?directConnection=true", self.host(member))
    }

    /// A client of one member, through its proxy.
    pub async fn direct(&self, member: usize) -> Client {
        connect(&self.direct_uri(member)).await
    }

    /// Waits until one leads and the others follow.
    pub async fn settled(&self) {
        within(START_TIMEOUT * 2, "the set settles", || async {
            let admin = self.direct(0).await.database("admin");
            let status = admin.run_command(doc! { "replSetGetStatus": 1 }).await?;
            let states = banyan_tests::states(&status);
            let leads = states.iter().filter(|&&state| state == 1).count() == 1;
            if leads && states.iter().all(|state| matches!(state, 1 | 2)) {
                return Ok(());
            }
            bail!("states {states:?}")
        })
        .await;
    }

    /// Starts a member that doesn't run, without waiting for it.
    pub fn start_member(&mut self, member: usize) {
        let one = &mut self.members[member];
        one.process.spawn();
        one.life = Life::Runs;
        self.net.runs_as(member, Some(one.process.pid().as_raw()));
    }

    pub fn kill(&mut self, member: usize) {
        let one = &mut self.members[member];
        one.process.kill();
        one.life = Life::Killed;
        self.net.runs_as(member, None);
    }

    /// Kills it, and forgets what it had not synced. Tells in how many files something was lost.
    pub fn lose_power(&mut self, member: usize, rng: &mut StdRng) -> Result<usize> {
        self.kill(member);
        let one = &self.members[member];
        power::lose_unsynced(&one.disk(), one.control.undo(), rng)
    }

    pub fn stop(&mut self, member: usize) -> Result<()> {
        let one = &mut self.members[member];
        if one.life == Life::Runs && one.process.is_running().is_ok() {
            kill(one.process.pid(), Signal::SIGSTOP)?;
            one.life = Life::Stopped;
        }
        Ok(())
    }

    pub fn resume(&mut self, member: usize) -> Result<()> {
        let one = &mut self.members[member];
        if one.life == Life::Stopped {
            one.life = Life::Runs;
            kill(one.process.pid(), Signal::SIGCONT)?;
        }
        Ok(())
    }

    /// Members that ended although nobody killed them, and how. They count as killed from now on.
    pub fn ended(&mut self) -> Vec<(usize, String, bool)> {
        let mut ended = Vec::new();
        for (index, member) in self.members.iter_mut().enumerate() {
            if member.life != Life::Runs {
                continue;
            }
            if let Err(status) = member.process.is_running() {
                let how = status.map_or("gone".to_owned(), |status| status.to_string());
                ended.push((index, how, member.may_end));
                member.life = Life::Killed;
                self.net.runs_as(index, None);
            }
        }
        ended
    }

    /// Waits until every member answers.
    pub async fn all_answer(&mut self, patience: Duration) -> Result<()> {
        let started = Instant::now();
        for member in 0..self.len() {
            loop {
                let admin = self.direct(member).await.database("admin");
                let ping = admin.run_command(doc! { "ping": 1 }).into_future();
                let answer = tokio::time::timeout(Duration::from_secs(2), ping).await;
                if matches!(answer, Ok(Ok(_))) {
                    break;
                }
                let (index, how) = match self.ended().pop() {
                    Some((index, how, _)) => (index, how),
                    None if started.elapsed() < patience => continue,
                    None => bail!("member {member} does not answer within {patience:?}"),
                };
                bail!("member {index} ended: {how}")
            }
        }
        Ok(())
    }
}
