//! What a round has shown, on the screen, and on disk if it has failed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::round::{Outcome, Plan};
use crate::set::Set;

const PROBLEMS_SHOWN: usize = 8;
const PROBLEM_CHARS_MAX: usize = 600;

/// A table of the round.
pub fn table(members: usize, plan: &Plan, outcome: &Outcome) -> String {
    let mut text = format!(
        "round {} · {members} members · seed {}\n",
        plan.number, plan.seed
    );
    text += &story(&outcome.done);
    text += &format!(
        "  {:<12}{:>8}{:>8}{:>9}\n",
        "workload", "ok", "failed", "unknown"
    );
    for (name, counts) in &outcome.counts {
        let (ok, failed, unknown) = (counts.ok, counts.failed, counts.unknown);
        text += &format!("  {name:<12}{ok:>8}{failed:>8}{unknown:>9}\n");
    }
    text += &format!(
        "  elections seen: {}; longest time without a write: {:.2} s\n",
        outcome.elections,
        outcome.longest_without_write.as_secs_f64()
    );
    for undecided in &outcome.undecided {
        text += &format!("  too long to judge: {undecided}\n");
    }
    for problem in outcome.problems.iter().take(PROBLEMS_SHOWN) {
        let short: String = problem.chars().take(PROBLEM_CHARS_MAX).collect();
        text += &format!("  PROBLEM: {short}\n");
    }
    let verdict = match outcome.problems.len() {
        0 => "holds".to_owned(),
        count => format!("{count} problems"),
    };
    text + &format!("  verdict: {verdict}\n")
}

/// What was done, when.
pub fn story(done: &[(Duration, String)]) -> String {
    let line = |(at, what): &(Duration, String)| format!("  {:>6.1} s  {what}\n", at.as_secs_f64());
    done.iter().map(line).collect()
}

/// Keeps what explains a failure: the histories and the members' logs.
pub fn keep(
    folder: &Path,
    set: &Set,
    plan: &Plan,
    outcome: Result<&Outcome, &str>,
) -> Result<PathBuf> {
    let folder = folder.join(format!("round-{}", plan.number));
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    match outcome {
        Ok(outcome) => {
            for (name, lines) in &outcome.histories {
                fs::write(folder.join(format!("{name}.jsonl")), lines)?;
            }
            fs::write(folder.join("problems.txt"), outcome.problems.join("\n"))?;
            fs::write(folder.join("round.txt"), table(set.len(), plan, outcome))?;
        }
        Err(error) => fs::write(folder.join("problems.txt"), error)?,
    }
    for (index, member) in set.members.iter().enumerate() {
        let host = set.host(index);
        let log = format!("member {index} is {host}\n{}", member.log());
        fs::write(folder.join(format!("member-{index}.log")), log)?;
        if !member.life.is_alive() {
            // It may not start again: its files tell why.
            let disk = folder.join(format!("member-{index}"));
            copy(&member.disk(), &disk).with_context(|| disk.display().to_string())?;
        }
    }
    Ok(folder)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
