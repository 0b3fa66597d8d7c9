//! Hunts for differences between Banyan and the reference, and records golden files.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, Result};
use banyan_diff::generate;
use banyan_diff::hunt::{Bench, Hunt, Many, Only};
use banyan_diff::known::Known;
use banyan_diff::record::{self, Golden, Line};
use banyan_diff::servers;
use banyan_diff::side::Side;
use banyan_tests::{Cluster, ClusterShape, Launch, Process};
use clap::{Parser, Subcommand};
use tokio::runtime::Runtime;

/// The same operations to Banyan and to the reference.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Plays generated cases and reports what is answered differently.
    Hunt(HuntArguments),
    /// Writes the replies of the reference into the golden files.
    Record {
        /// The reference: host:port of one that runs, or its program.
        #[arg(long)]
        reference: String,
        /// Only these files; all of the package without.
        files: Vec<PathBuf>,
    },
    /// Writes the cases of some scenes as a golden file without replies.
    Pick {
        #[arg(long, default_value_t = 1)]
        seed: u64,
        #[arg(long, default_value_t = 40)]
        scenes: u64,
    },
}

#[derive(Parser)]
struct HuntArguments {
    #[arg(long, default_value_t = 10_000)]
    operations: usize,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The scene with this number, and no other.
    #[arg(long)]
    case: Option<u64>,
    /// The reference: host:port of one that runs, or its program, which is then started again if
    /// a case ends it. Without it Banyan is compared with itself alone.
    #[arg(long)]
    reference: Option<String>,
    /// Also asks a router over two shards.
    #[arg(long)]
    router: bool,
    /// host:port of a Banyan that runs already; started from the built programs without.
    #[arg(long)]
    banyan: Option<String>,
    /// What the started Banyan is told, name=value: a limit of 1 byte has everything spill.
    #[arg(long = "parameter")]
    parameters: Vec<String>,
    #[arg(long, default_value_t = 4)]
    workers: usize,
    /// Plays these commands only, of all that are generated: find,update
    #[arg(long, value_delimiter = ',')]
    commands: Vec<String>,
    /// Plays stories only, or (false) none.
    #[arg(long)]
    stories: Option<bool>,
    /// Plays scenes of many documents with few values only, where plans differ most.
    #[arg(long)]
    ordered: bool,
    /// Also plays each case with its documents copied until there are as many, from which on several
    /// workers share a scan: 12000.
    #[arg(long)]
    documents: Option<usize>,
    /// Prints the cases as they are found, also those that a proof has taken in.
    #[arg(long)]
    verbose: bool,
}

fn main() -> Result<ExitCode> {
    match Arguments::parse().task {
        Task::Hunt(arguments) => return hunt(&arguments),
        Task::Record { reference, files } => record_files(&reference, files)?,
        Task::Pick { seed, scenes } => print!("{}", pick(seed, scenes)),
    }
    Ok(ExitCode::SUCCESS)
}

/// A server that runs already, or one that is started and kept running.
struct Server {
    address: String,
    process: Option<Mutex<Process>>,
}

impl Server {
    fn start(launch: Launch, runtime: &Runtime) -> Self {
        let process = runtime.block_on(launch.start());
        Self {
            address: process.host(),
            process: Some(Mutex::new(process)),
        }
    }

    fn at(address: &str) -> Self {
        Self {
            address: address.to_owned(),
            process: None,
        }
    }

    fn reference(place: &str, runtime: &Runtime) -> Self {
        if !PathBuf::from(place).is_file() {
            return Self::at(place);
        }
        Self::start(servers::reference(place.into()), runtime)
    }

    /// Starts it again if it has ended.
    fn revive(&self, name: &str, runtime: &Runtime) {
        let Some(process) = &self.process else { return };
        let mut process = process.lock().expect("no worker panics with it");
        if process.is_running().is_err() {
            let log = process.log();
            let cut = log.len().saturating_sub(3000);
            eprintln!("{name} ended:\n{}", log.get(cut..).unwrap_or(&log));
            runtime.block_on(process.start());
        }
    }
}

/// Whether nothing new was found is the exit code.
fn hunt(arguments: &HuntArguments) -> Result<ExitCode> {
    let runtime = Runtime::new()?;
    let known = Known::read(&record::known_file())?;
    let banyan = match &arguments.banyan {
        Some(address) => Server::at(address),
        None => {
            let mut launch = servers::banyan();
            for parameter in &arguments.parameters {
                launch = launch.with(["--setParameter", parameter]);
            }
            Server::start(launch, &runtime)
        }
    };
    let reference = arguments.reference.as_deref();
    let reference = reference.map(|place| Server::reference(place, &runtime));
    let cluster = match arguments.router {
        true => Some(runtime.block_on(Cluster::start(ClusterShape::default()))),
        false => None,
    };
    let router = cluster.as_ref().map(|cluster| cluster.router.host());
    let operations = if arguments.case.is_some() {
        1
    } else {
        arguments.operations
    };
    let first = arguments.case.unwrap_or(0);
    let only = Only {
        commands: arguments.commands.clone(),
        stories: arguments.stories,
        ordered: arguments.ordered,
    };
    let mut hunt = Hunt::new(arguments.seed, first, operations, known, only);
    hunt.is_verbose = arguments.verbose;
    let started = Instant::now();
    let revive = |bench: &mut Bench| -> Result<()> {
        banyan.revive("Banyan", &runtime);
        bench.banyan.prepare()?;
        if let (Some(server), Some(side)) = (&reference, &mut bench.reference) {
            server.revive("the reference", &runtime);
            side.prepare()?;
        }
        if let Some(many) = &mut bench.many {
            many.banyan.prepare()?;
            many.reference.prepare()?;
        }
        Ok(())
    };
    let work = |worker: usize| -> Result<()> {
        let database = format!("diff_{}_{worker}", std::process::id());
        let many = |(reference, documents): (&Server, usize)| {
            let database = format!("{database}_many");
            let side = |address: &str| Side::new(address, &database).with_copies(documents);
            Many {
                banyan: side(&banyan.address),
                reference: side(&reference.address),
            }
        };
        let mut bench = Bench {
            banyan: Side::new(&banyan.address, &database),
            reference: reference
                .as_ref()
                .map(|server| Side::new(&server.address, &database)),
            router: router.as_ref().map(|address| Side::new(address, &database)),
            many: reference.as_ref().zip(arguments.documents).map(many),
        };
        if let Some(many) = &mut bench.many {
            many.banyan.prepare()?;
            many.reference.prepare().context("the reference")?;
        }
        bench.banyan.prepare()?;
        if let Some(reference) = &mut bench.reference {
            reference.prepare().context("the reference")?;
        }
        if let Some(router) = &mut bench.router {
            router
                .prepare_sharded(["shard0", "shard1"], worker % 2 == 1)
                .context("the router")?;
        }
        let result = hunt.work(&mut bench, &revive);
        bench.reference.iter_mut().for_each(Side::drop_database);
        result
    };
    let workers = if arguments.case.is_some() {
        1
    } else {
        arguments.workers
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers)
            .map(|worker| scope.spawn(move || work(worker)))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("no worker panics"))
    })?;
    let (report, clean) = hunt.report(started);
    print!("{report}");
    Ok(if clean {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn record_files(reference: &str, mut files: Vec<PathBuf>) -> Result<()> {
    if files.is_empty() {
        files = record::files()?;
    }
    let database = format!("diff_record_{}", std::process::id());
    let runtime = Runtime::new()?;
    let server = Server::reference(reference, &runtime);
    let mut side = Side::new(&server.address, &database);
    side.prepare()?;
    for file in files {
        let text = fs::read_to_string(&file).with_context(|| format!("{}", file.display()))?;
        let mut lines = record::read(&text).with_context(|| format!("{}", file.display()))?;
        record::record(&mut lines, &mut side);
        fs::write(&file, record::write(&lines))?;
        println!("{}: {} lines", file.display(), lines.len());
    }
    side.drop_database();
    Ok(())
}

fn pick(seed: u64, scenes: u64) -> String {
    let mut lines = vec![Line::Comment(format!(
        "# Generated: seed {seed}, scenes 0 to {scenes}."
    ))];
    for number in 0..scenes {
        let scene = generate::scene(seed, number);
        if scene.is_story {
            continue;
        }
        lines.push(Line::Comment(String::new()));
        lines.push(Line::Documents(scene.documents.clone()));
        for at in 0..scene.commands.len() {
            let case = scene.case(at);
            lines.push(Line::Case(Box::new(Golden {
                line: 0,
                case,
                told: None,
            })));
        }
    }
    record::write(&lines)
}
