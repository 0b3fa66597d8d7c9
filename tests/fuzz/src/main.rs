//! Sends hostile bytes for as long as one likes, and keeps what has made a server fail.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use banyan_fuzz::batch::{self, Counts, Plan};
use banyan_fuzz::directory::{self, Template};
use banyan_fuzz::server::{Server, Shape};
use banyan_fuzz::{Kind, found, host};
use clap::Parser;

#[derive(Parser)]
#[command(name = "fuzz", about, disable_version_flag = true)]
struct Arguments {
    /// Decides what is sent [default: drawn, and printed]
    #[arg(long)]
    seed: Option<u64>,
    /// Goes on for this long [default: 1, if --messages is not given]
    #[arg(long)]
    minutes: Option<u64>,
    /// Goes on until so many have been sent
    #[arg(long)]
    messages: Option<u64>,
    /// Only this kind, several with commas
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Kind>,
    /// Only to this, several with commas
    #[arg(long, value_enum, value_delimiter = ',')]
    to: Vec<Shape>,
    /// How many messages go between two looks at the server
    #[arg(long, default_value_t = 300)]
    batch: usize,
    /// Sends a file of messages again, and nothing else
    #[arg(long)]
    replay: Option<PathBuf>,
    /// Where what failed is kept [default: a folder for temporary files]
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Does not look for the message that did it
    #[arg(long)]
    whole: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("fuzz: {error:#}");
            ExitCode::FAILURE
        }
    }
}

struct Run {
    arguments: Arguments,
    seed: u64,
    keep: PathBuf,
    began: Instant,
    counts: Counts,
    failed: u64,
}

/// How many batches have failed.
async fn run(arguments: Arguments) -> Result<u64> {
    if let Some(path) = &arguments.replay {
        let problems = found::replay(path).await?;
        for problem in &problems {
            println!("PROBLEM: {problem}");
        }
        return Ok(problems.len() as u64);
    }
    let seed = arguments
        .seed
        .unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let keep = arguments.keep.clone().unwrap_or_else(|| {
        std::env::temp_dir().join(format!("banyan-fuzz-kept-{}", std::process::id()))
    });
    println!("seed {seed}");
    let mut run = Run {
        arguments,
        seed,
        keep,
        began: Instant::now(),
        counts: Counts::default(),
        failed: 0,
    };
    let mut jobs = Vec::new();
    for kind in run.kinds() {
        match kind.is_sent() {
            true => jobs.extend(run.shapes().into_iter().map(|shape| (kind, Some(shape)))),
            false => jobs.push((kind, None)),
        }
    }
    // By shape: each server is started once, and all kinds are sent to it in turn.
    let shapes = run.shapes();
    let mut number = 0;
    while run.goes_on() {
        for shape in &shapes {
            let kinds: Vec<Kind> = jobs
                .iter()
                .filter(|job| job.1 == Some(*shape))
                .map(|job| job.0)
                .collect();
            if !kinds.is_empty() && run.goes_on() {
                number = run.on_server(*shape, &kinds, number).await?;
            }
        }
        for (kind, _) in jobs.iter().filter(|job| job.1.is_none()) {
            if run.goes_on() {
                run.started(*kind, number).await?;
                number += 1;
            }
        }
    }
    let Counts {
        sent,
        answered,
        ok,
        closed,
        silent,
        ..
    } = run.counts;
    println!(
        "{sent} messages ({answered} answered, {ok} of them ok, {closed} connections closed, \
         {silent} without an answer), {} failed; seed {seed}",
        run.failed
    );
    Ok(run.failed)
}

impl Run {
    fn kinds(&self) -> Vec<Kind> {
        match &self.arguments.only[..] {
            [] => Kind::ALL.to_vec(),
            only => only.to_vec(),
        }
    }

    fn shapes(&self) -> Vec<Shape> {
        match &self.arguments.to[..] {
            [] => Shape::ALL.to_vec(),
            some => some.to_vec(),
        }
    }

    fn goes_on(&self) -> bool {
        match (self.arguments.minutes, self.arguments.messages) {
            (None, Some(messages)) => self.counts.sent < messages,
            (minutes, messages) => {
                let limit = Duration::from_secs(60 * minutes.unwrap_or(1));
                self.began.elapsed() < limit && messages.is_none_or(|most| self.counts.sent < most)
            }
        }
    }

    /// A dozen batches of each kind for one server; the number of the next batch.
    async fn on_server(&mut self, shape: Shape, kinds: &[Kind], mut number: u64) -> Result<u64> {
        let mut server = Server::start(shape).await;
        for turn in 0..12 {
            for kind in kinds {
                if !self.goes_on() {
                    return Ok(number);
                }
                let plan = Plan {
                    seed: self.seed,
                    number,
                    kind: *kind,
                    messages: self.arguments.batch,
                };
                number += 1;
                if turn % 4 == 3 {
                    server.clear();
                }
                let began = Instant::now();
                let (sent, counts) = batch::send(&server, &plan);
                let problems = server.problems();
                println!(
                    "{:<10} {kind:?} batch {}: {} sent, {} answered, {} ok, {} closed, {} silent, \
                     {:.1} s, {} MB",
                    shape.name(),
                    plan.number,
                    counts.sent,
                    counts.answered,
                    counts.ok,
                    counts.closed,
                    counts.silent,
                    began.elapsed().as_secs_f64(),
                    server.memory_bytes() >> 20,
                );
                self.counts.add(&counts);
                if problems.is_empty() {
                    continue;
                }
                self.failed += 1;
                for problem in &problems {
                    println!("PROBLEM: {problem}");
                }
                std::fs::create_dir_all(&self.keep)?;
                let name = format!("{}-{}-{}", shape.name(), self.seed, plan.number);
                for (at, log) in server.logs().into_iter().enumerate() {
                    std::fs::write(self.keep.join(format!("{name}.{at}.log")), log)?;
                }
                drop(server);
                let mut messages: Vec<_> = sent.into_iter().flatten().collect();
                let path = self.keep.join(&name);
                found::write(&path, &messages)?;
                println!("  kept: {}", path.display());
                if !self.arguments.whole {
                    messages = found::smaller(shape, messages).await;
                    let small = self.keep.join(format!("{name}-small"));
                    found::write(&small, &messages)?;
                    println!("  {} messages do it: {}", messages.len(), small.display());
                }
                server = Server::start(shape).await;
            }
        }
        Ok(number)
    }

    /// A few processes that are started on what is wrong.
    async fn started(&mut self, kind: Kind, number: u64) -> Result<()> {
        let began = Instant::now();
        let mut problems = Vec::new();
        let first = number * 1000;
        if kind == Kind::Frames {
            for at in first..first + 20 {
                problems.extend(host::round(self.seed, at, &mut self.counts)?);
            }
        } else {
            let template = Template::make(number % 2 == 1).await?;
            for at in first..first + 20 {
                let (found, what) = directory::round(&template, self.seed, at).await?;
                println!("  {what}");
                problems.extend(found);
                self.counts.sent += 1;
            }
        }
        println!(
            "{kind:?} batch {number}: {:.1} s",
            began.elapsed().as_secs_f64()
        );
        for problem in &problems {
            println!("PROBLEM: {problem}");
        }
        self.failed += problems.len() as u64;
        Ok(())
    }
}
